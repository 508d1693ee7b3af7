"""Cleans the texts of a recording: removes what looks like a secret or what the recording calls one, and hashes names.

Equal texts stay equal and different texts stay different: the second path is `[path 2]`. The words that identify token
steps (`engines.ours.NAMES`) are kept in a text that had them, so that analyses find the same steps.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Final

from tracer.analysis.call_letters import SUFFIX, letter
from tracer.analysis.causes import names_host_compute
from tracer.engines import engines
from tracer.engines.ours import NAMES, OURS, USUAL, word
from tracer.engines.torch import OPERATOR, TRAINING_TEXT
from tracer.engines.vllm import PARTS
from tracer.scrub.credentials import LABEL, Rule, rules

_EXTENSIONS: Final = (
    "gguf|ggml|safetensors|bin|pth?|ckpt|onnx|engine|np[yz]|py[co]?|so|cuh?|cubin|ptx|c|cc|cpp|hp?|hpp|rs|go|sh|json|ya?ml|"
    "toml|txt|log|csv|parquet|sqlite|nsys-rep|exe|dll|ipynb"
)
_ROOTS: Final = (
    "home|Users|root|usr|tmp|var|opt|mnt|media|data|srv|etc|proc|sys|dev|workspace|scratch|nfs|lustre|"
    "Windows|Program Files"
)
_PATTERNS: Final = tuple(
    (what, re.compile(pattern))
    for what, pattern in (
        ("variable", rf"(?<![A-Za-z0-9_])[A-Z][A-Z0-9_]{{2,}}=(?!\d+(?!\w))(?:{LABEL}|[^\s,;])+"),
        ("address", rf"(?i:(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{{0,30}}://(?:{LABEL}|[^\s\"'<>])+)"),
        ("address", r"(?<![\w.+-])[\w.+-]+@[\w.-]+"),
        ("address", r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?:/\d+|:\d+)?(?![\w.])"),
        ("address", r"(?i:(?<![0-9a-z:])(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}(?![0-9a-z:]))"),
        ("address", r"(?i:(?<![0-9a-z:])(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|fe80::[0-9a-f:]+)(?![0-9a-z:]))"),
        ("id", r"(?i:(?:(?<![0-9a-z])(?:GPU|MIG)-)?[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})"),
        ("id", r"(?i:(?<![0-9a-z])[0-9a-f]{32}(?![0-9a-z]))"),
        ("id", r"(?i:(?<![0-9a-z:])(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?![0-9a-z]))"),
        ("id", r"(?<![0-9A-Za-z])cuda[0-9a-f]{10,12}(?![0-9A-Za-z])"),  # a CUDA thread, by its GPU's bus location
        ("path", r"(?<=['\"])(?:[A-Za-z]:|~\w*|\.{1,2})?[\\/][^'\"\n]+(?=['\"])"),
        ("path", rf"(?:[A-Za-z]:)?[\\/](?:{_ROOTS})[\\/](?:[^\n\"']*[\\/])?[^\s\"'()<>,;{{}}]*"),
        ("path", r"(?<!\w)[A-Za-z]:[\\/](?:[^\n\"']*[\\/])?[^\s\"'()<>,;{}]*"),
        ("path", r"\\\\[^\s\\\"']+\\(?:[^\n\"']*[\\/])?[^\s\"'()<>,;{}]*"),
        ("path", r"(?<![\w)\]>./~])(?:~\w*|\.{1,2})?/[\w.@+~-](?:[^\n\"']*/)?[^\s\"'()<>,;{}]*"),
        ("path", rf"(?<![\w.@+~/\\-])[\w.@+~-]+(?:[\\/][\w.@+~-]+)*[\\/][\w.@+~-]+\.(?i:{_EXTENSIONS})(?!\w)"),
        ("path", r"(?<![\w.@+/\\-])[\w.@+-]+\.(?:gguf|ggml|safetensors|nsys-rep|ipynb)(?!\w)"),
    )
)
"""What is removed from any text, with its label in the report. A path extends to the word after its last separator:
removing too much is safer, because file names may contain spaces."""

_HOST_KEY: Final = re.compile(r"(?i)(host|computer|node|machine)_?name|^host$")
_USER_KEY: Final = re.compile(r"(?i)^(sudo_?)?user$|(user|log|owner)_?name|^owner$")
_SECRET_KEY: Final = re.compile(
    r"(?i)(?<!inter)token|secret|passw|(api|access|private)[_-]?key|credential|uuid|serial|luid|bus_?loc"
)
_ASSIGNED: Final = re.compile(r"(?<![A-Za-z0-9_])([A-Za-z_][\w-]*)=([^\s\"']+)")
_OF_USER: Final = re.compile(r"(?:/home/|/Users/|\\Users\\)([^/\\\s\"':]+)")
_NOBODY: Final = {
    "root", "user", "users", "ubuntu", "admin", "nobody", "host", "localhost", "home", "shared", "docker", "runner",
    "cuda", "nvidia", "gpu", "cpu", "true", "false", "none", *NAMES,
}  # fmt: skip
"""Never treated as names of hosts or users: common ones, and words that analyses need."""
_SHORTEST_NAME, _SHORTEST_SECRET = 3, 6
_LONGEST: Final = 10_000  # characters; some patterns take quadratic time, and no name is this long

_STEP: Final = re.compile("|".join(map(word, NAMES)))
_BATCH: Final = re.compile(r"\b(?:raw_)?bs=\d+")
_NO_STEP: Final = re.compile(f"{OPERATOR}|{PARTS}")
_NUMBER: Final = re.compile(r"(?<![^\W_])\d{1,9}(?![^\W_])")
_LETTER: Final = re.compile(r"[^\W\d_]")
_QUOTED: Final = re.compile(r"'[^'\n]{2,}'|\"[^\"\n]{2,}\"")
_CALL: Final = re.compile(rf"(?:(?:cuda|cu|hip)(?=[A-Z])|(?=[a-z]))[A-Za-z0-9]+{SUFFIX}*|cu(?:da)? call \d+")
_PREFIXED: Final = re.compile(r"(?:cuda|cu|hip)(?=[A-Z])|cu(?:da)? call")
_GPU: Final = re.compile(
    r"(?:(?:NVIDIA|AMD|Intel|GeForce|RTX|GTX|GTS|TITAN|Tesla|Quadro|Radeon|Instinct|Jetson|Grace|Hopper|Ada|Generation|"
    r"Laptop|Mobile|GPU|SUPER|Ti|Max-Q|Pro|PRO|Blackwell|Workstation|Server|Edition|PCI[eE]|SXM\d?|NVL|HBM\w?|MIG|Orin|Thor|"
    r"Xavier|XTX?|\(R\)|cpu|sim|[A-Z]{1,3}\d{1,4}[A-Z]{0,2}|\d{2,5}[A-Z]{0,2}|\d+ ?GB|\dg\.\d+gb|[/-])(?:[ /-]|$))+"
)
_DIRECTORIES: Final = re.compile(r"(?s:.*)[\\/](?=[^\\/]*\(\d+\): )")  # as PyTorch names functions
_MAIN: Final = "MainThread"  # Python's name for it, not a program's


class Texts:
    """Cleans the texts of related recordings.

    Args:
        key: hash names with this key; None keeps names, except parts that look like a secret.
        words: additional words to remove from every text.

    Attributes:
        removed: (what, where) -> count; equal texts count once.
        kept: where -> the names that were kept there, after cleaning.
    """

    def __init__(self, key: bytes | None = None, words: Iterable[str] = ()) -> None:
        self.removed: Counter[tuple[str, str]] = Counter()
        self.kept: defaultdict[str, set[str]] = defaultdict(set)
        self.programs: set[str] = set()
        self._key = key
        self._known: dict[str, set[str]] = {"secret": set(words), "host": set(), "user": set()}
        self._order: list[Rule] | None = None
        self._labels: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._cleaned: dict[tuple[str, str], str] = {}

    def remove(self, what: str, where: str, count: int = 1) -> None:
        """Count a removal for the report."""
        if count:
            self.removed[what, where] += count

    # --- learning from the recording ---

    def learn(self, key: str, value: str) -> None:
        """Remember `value` as a secret or the name of a host or user, if its key says so, to remove it later."""
        self._take(key, value)
        self.learn_from(value)

    def learn_home(self, text: str) -> None:
        """Learn from the home directories in a text."""
        for match in _OF_USER.finditer(text):
            self._know("user", match[1])

    def learn_from(self, text: str) -> None:
        """Learn from the assignments (`USER=ada`) and home directories in a text."""
        self.learn_home(text)
        for match in _ASSIGNED.finditer(text):
            self._take(match[1], match[2])

    def _take(self, key: str, value: str) -> None:
        if _SECRET_KEY.search(key):
            self._know("secret", value, _SHORTEST_SECRET)
        elif _HOST_KEY.search(key):
            self._know("host", value)
            self._know("host", value.partition(".")[0])
        elif _USER_KEY.search(key):
            self._know("user", value)

    def _know(self, what: str, value: str, shortest: int = _SHORTEST_NAME) -> None:
        value = value.strip()
        if len(value) >= shortest and value.casefold() not in _NOBODY and not value.isdecimal():
            self._known[what].add(value)
            self._order = None

    def learn_program(self, name: str) -> None:
        """Remember the name of a process, or of its main thread, as a program's, to remove it from thread names."""
        if name and name != _MAIN and "(" not in name:
            self.programs.add(name)

    # --- cleaning ---

    def plain(self, text: str, where: str) -> str:
        """Remove from a metadata text everything that is known to be a secret or looks like one."""
        return self._once("plain", text, where, self._plain)

    def message(self, text: str, where: str) -> str:
        """Clean a note. Its quotations, which may be anything from a file, are removed."""
        return self._once("message", text, where, self._message)

    def name(self, text: str, where: str) -> str:
        """Clean the name of a kernel, an NVTX range or its domain, or hash it if names are hashed."""
        return self._kept(self._once("name", text, where, self._name), where)

    def thread(self, text: str, where: str) -> str:
        """Clean a thread's name. Linux names threads after the program (15 characters), which is removed."""
        return self._kept(self._once("thread", text, where, self._thread), where)

    def frame(self, text: str, where: str) -> str:
        """Remove the directories from a Python function, `FILE(LINE): FUNCTION`. The rest is not yet cleaned."""
        match = _DIRECTORIES.match(text)
        self.remove("directories of Python files", where, int(match is not None))
        return text[match.end() :] if match else text

    def call(self, text: str, where: str) -> str:
        """Keep the name of an API call; clean any other text as a name."""
        is_call = _CALL.fullmatch(text) and (_PREFIXED.match(text) or letter(text)) and self.plain(text, where) == text
        return text if is_call else self.name(text, where)

    def device(self, text: str, where: str) -> str:
        """Keep the name of a GPU if it consists of vendors' words and model numbers; else clean it as a name."""
        return text if len(text) < 100 and _GPU.fullmatch(text) else self.name(text, where)

    def set_name(self, text: str, cleaned: str) -> None:
        """Set the cleaned form of a name."""
        self._cleaned["name", text] = cleaned

    def _kept(self, name: str, where: str) -> str:
        if self._key is None and name:
            self.kept[where].add(name)
        return name

    def _once(self, kind: str, text: str, where: str, clean: Callable[[str, str], str]) -> str:
        if (kind, text) not in self._cleaned:
            self._cleaned[kind, text] = clean(text, where)
        return self._cleaned[kind, text]

    def _plain(self, text: str, where: str) -> str:
        if len(text) > _LONGEST:
            self.remove("text of more than 10,000 characters", where)
            return self._label("text", text)
        for what, pattern in self._substitutions():
            text = self._replace(what, pattern, text, where)
        return text

    def _message(self, text: str, where: str) -> str:
        return self._plain(self._replace("quotation", _QUOTED, text, where), where)

    def _name(self, text: str, where: str) -> str:
        if self._key is not None:
            return self._hashed(text, where)
        cleaned = self._plain(text, where)
        had, have = _steps(text), _steps(cleaned)
        if set(have) - set(had):
            cleaned, have = self._label("text", text), []
        return " ".join([cleaned, *(word for word in had if word not in have)])

    def _thread(self, text: str, where: str) -> str:
        for program in sorted(self.programs, key=len, reverse=True):
            if text in (program, program[:15]):
                self.remove("program name", where)
                return ""
            if f"({program})" in text:
                self.remove("program name", where)
                text = text.replace(f"({program})", "()")
        return self._name(text, where)

    def _hashed(self, text: str, where: str) -> str:
        """The text's hash. If the text names a token step, its step words and numbers come before the hash. A range in
        which our executor computes on the host is kept."""
        if not text or names_host_compute(text):
            return text
        mark, remainder = _mark(text)
        if mark and not _LETTER.search(remainder):
            return text
        steps, rest = [] if mark or _NO_STEP.search(text) else _steps(text), text
        for _, pattern in self._substitutions():
            rest = pattern.sub(" / ", rest) if len(rest) <= _LONGEST else ""
        numbers = _NUMBER.findall(_STEP.sub(" ", rest)) if steps else []
        if steps and rest == text and not _LETTER.search(_STEP.sub("", text)):
            return text
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=self._key or b"", digest_size=6)
        self.remove("name (hashed)", where)
        return " ".join([*mark, *steps, *numbers, f"name_{digest.hexdigest()}"])

    def _substitutions(self) -> list[Rule]:
        if self._order is None:
            secrets = [
                ("secret", re.compile(re.escape(word), re.IGNORECASE)) for word in _longest(self._known["secret"])
            ]
            people = [
                (what, re.compile(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", re.IGNORECASE))
                for what in ("host", "user")
                for word in _longest(self._known[what])
            ]
            self._order = [*secrets, *rules(), *_PATTERNS, *people]
        return self._order

    def _replace(self, what: str, pattern: re.Pattern[str], text: str, where: str) -> str:
        text, count = pattern.subn(partial(self._replaced, what, "value" if "value" in pattern.groupindex else 0), text)
        self.remove(what, where, count)
        return text

    def _replaced(self, what: str, group: str | int, match: re.Match[str]) -> str:
        start, end = (at - match.start() for at in match.span(group))
        return f"{match[0][:start]}{self._label(what, match[group])}{match[0][end:]}"

    def _label(self, what: str, text: str) -> str:
        labels = self._labels[what]
        return f"[{what} {labels.setdefault(text, len(labels) + 1)}]"


@cache
def _marks() -> tuple[re.Pattern[str], ...]:
    """The texts of marks of engines that name their steps in their own terms."""
    return tuple(mark.text for each in engines() if each not in (*OURS, *USUAL) for mark in each.marks)


def _mark(text: str) -> tuple[list[str], str]:
    """The parts of a text that identify a step as an engine's mark, and the rest of the text."""
    found = next((match for pattern in (*_marks(), TRAINING_TEXT) if (match := pattern.search(text))), None)
    if found is None:
        return [], text
    remainder = text[: found.start()] + " " + text[found.end() :]
    return [found[0], *_BATCH.findall(remainder)], _BATCH.sub(" ", remainder)


def _steps(text: str) -> list[str]:
    """The words in a text that name a token step, each once."""
    return list(dict.fromkeys(match[0].lower() for match in _STEP.finditer(text)))


def _longest(words: Iterable[str]) -> list[str]:
    return sorted((word for word in words if word), key=lambda word: (-len(word), word))
