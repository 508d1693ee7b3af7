"""The texts that may be shared: those of known words. Every other text becomes a hash.

A text is a sequence of words: names (`at::native::reduce_kernel<512, 1>`) are split at punctuation, at capitals and
where digits begin. What stays are the words of `words.txt` (CUDA, HIP and NCCL calls, libraries and their kernels,
operators, engines, our own notes), those in the engines' patterns, and short numbers. Any other word becomes `x` and
ten letters, and a range that is no mark of an engine becomes `text-` and ten letters.

The letters are a keyed hash. They are consonants, so that they form no word for which analyses search.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib.resources import files
from typing import Final

from tracer.analysis.causes import names_host_compute
from tracer.engines import engines
from tracer.engines.ours import NAMES, OURS, USUAL
from tracer.engines.torch import OPERATOR, TRAINING_TEXT
from tracer.engines.vllm import PARTS
from tracer.formats.nsys_python import DOMAIN as SAMPLED
from tracer.model.calls import LETTERS
from tracer.model.schema import HOST_COMPUTE, PROFILER_DOMAINS

_SALT_BYTES: Final = 16
_CONSONANTS: Final = str.maketrans("0123456789abcdef", "bcdfghjklmnpqrst")
_DIGITS, _LONG_DIGITS = 3, 9
"""Digits of a number that stays: in any text, and in an engine's mark, where it may count tokens."""

_PIECE: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:\d{1,3}\.\d[BMK](?![A-Za-z0-9])"  # 1.1B parameters
    r"|\d+(?:[.: -]\d+)+(?![A-Za-z0-9])|(?=[a-fA-F]*\d)[0-9a-fA-F]+(?:[.:-][0-9a-fA-F]+){2,}(?![A-Za-z0-9]))"
    r"|[A-Za-z0-9]+|[^\x20-\x7eµ²×]+",
    re.ASCII,
)
"""A number with a point, several numbers in a row (an address, a date, an id), or a run of letters and digits."""
_SIZE: Final = re.compile(r"\d{1,3}\.\d{1,3}|\d{1,3}\.\d[BMK]|(?:\d{1,4}x)+\d{1,4}|(?:\d{1,2}d[ce]?)+|v\d{3,5}|[A-Z]")
_LIBRARY_VERSION: Final = re.compile(r"\.so\.$")
_VERSION: Final = re.compile(
    r"(?:\d{4}(?:\.\d{1,9}){3}|\d{1,4}(?:\.\d{1,9}){1,2}|\d{1,3})(?:\.?(?:dev|post|rc|a|b)\d{1,5})?(?:\+(?:cu|rocm)[\d.]+)?"
    r"|\d{4}-\d\d-\d\d(?:T[\d:]+(?:\.\d+)?(?:Z|\+00:00)?)?"
)
_PART: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LETTERS: Final = re.compile(r"[A-Za-z]{2,}")
_COUNTED: Final = re.compile(rf"(?i)(?:{'|'.join(NAMES)}|process|thread)[ _:#=]*$")
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]+")
_COUNTER: Final = re.compile(rf"(?s)(.*?)((?<!\d)\d{{1,{_DIGITS}}})?")
_GPU: Final = re.compile(r"[A-Z]{1,3}\d{1,4}[A-Z]{0,2}|\d{2,5}[A-Z]{0,2}|\dg")

DOMAINS: Final = PROFILER_DOMAINS | {
    HOST_COMPUTE, SAMPLED, "NCCL", "CCCL", "cuBLAS", "cuDNN", "PyTorch", "vLLM", "TensorRT",
}  # fmt: skip
"""Known domains of ranges."""
_EXECUTOR: Final = re.compile(
    r"split \d{1,9}: (?:host|cuda|cpu|sim)(?::\d{1,2})?|n_kv \d{1,9}|repeat|warmup|inputs|graph_launch|logits"
)
"""The ranges of our executor that are no marks."""


@cache
def vocabulary() -> frozenset[str]:
    """The words that stay, in lower case: those of words.txt, of calls, and of the engines' patterns."""
    known = files("tracer.scrub").joinpath("words.txt").read_text("ascii").split()
    patterns = (mark.text.pattern for engine in engines() for mark in engine.marks)
    calls = (name.lower() for name in LETTERS)
    return frozenset([*known, *calls, *(word.lower() for text in patterns for word in _LETTERS.findall(text))])


class Texts:
    """Cleans the texts of related recordings: equal texts stay equal, and different texts stay different.

    Args:
        key: of the hashes; the default is random, so that nobody can look up a hash by guessing its text.
        keep: patterns of whole texts that stay in any case.

    Attributes:
        removed: where -> how many entries were removed without a trace.
        structured: texts that are names even where they are found among ranges (`learn`).
    """

    def __init__(self, key: bytes | None = None, keep: Iterable[str] = ()) -> None:
        self.removed: Counter[str] = Counter()
        self.structured: set[str] = set()
        self._key = key or secrets.token_bytes(_SALT_BYTES)
        self._keep = [re.compile(pattern) for pattern in keep]
        self._found: defaultdict[str, dict[str, str]] = defaultdict(dict)

    def counts(self) -> list[dict[str, str | int]]:
        """How many different texts were kept, and how many hashed in whole or part, by where they stand."""
        return [
            {"where": where, "kept": (kept := sum(old == new for old, new in of.items())), "hashed": len(of) - kept}
            for where, of in sorted(self._found.items())
            if of
        ]

    def remove(self, where: str, count: int = 1) -> None:
        """Count what was removed."""
        if count:
            self.removed[where] += count

    def is_known(self, text: str) -> bool:
        """Whether a text consists of known words."""
        return self._is_asked_for(text) or self._words(text) == text

    def name(self, text: str, where: str) -> str:
        """Clean a name or a sentence word by word."""
        return self._once(text, where, self._words)

    def range(self, text: str, where: str) -> str:
        """Clean a range or its domain: word by word if it is known or an engine's mark, else as a whole."""
        return self._once(text, where, self._range)

    def device(self, text: str, where: str) -> str:
        """Clean the name of a GPU, whose words may be model numbers."""
        return self._once(text, where, partial(re.sub, r"[^\s/-]+", partial(self._unless, _GPU)))

    def version(self, text: str, where: str) -> str:
        """Clean a text with versions or a date."""
        return self._once(text, where, partial(re.sub, r"[^\s,]+", partial(self._unless, _VERSION)))

    def _unless(self, pattern: re.Pattern[str], word: re.Match[str]) -> str:
        return word[0] if pattern.fullmatch(word[0]) else self._words(word[0])

    def _once(self, text: str, where: str, clean: Callable[[str], str]) -> str:
        found = self._found[where]
        if text and text not in found:
            found[text] = text if self._is_asked_for(text) else clean(text)
        return found[text] if text else ""

    def _is_asked_for(self, text: str) -> bool:
        return any(pattern.fullmatch(text) for pattern in self._keep)

    def _range(self, text: str) -> str:
        if text in DOMAINS or _EXECUTOR.fullmatch(text):
            return text
        if text in self.structured or re.search(f"{OPERATOR}|{PARTS}", text):
            return self._words(text)
        if (digits := _of_mark(text)) is not None:
            return self._words(text, digits)
        stem, counter = _COUNTER.fullmatch(text).groups()  # type: ignore[union-attr]  # it matches every text
        return f"text-{self._hash(stem)}{f' {counter}' if counter else ''}"

    def _words(self, text: str, digits: int = _DIGITS) -> str:
        return _PIECE.sub(partial(self._piece, digits), text)

    def _piece(self, digits: int, match: re.Match[str]) -> str:
        run, before = match[0], match.string[max(0, match.start() - 20) : match.start()]
        if run.isdecimal() and _COUNTED.search(before):
            digits = _LONG_DIGITS
        if _SIZE.fullmatch(run) or run.lower() in vocabulary():
            return run
        if _LIBRARY_VERSION.search(before) and _VERSION.fullmatch(run):
            return run
        if _ADDRESS.fullmatch(run):
            return f"0x{self._digest(run)}"
        parts = _PART.findall(run) if run.isalnum() and run.isascii() else []
        telling = [len(part) > 3 and part.lower() in vocabulary() for part in parts]
        letters = sum(len(part) == 1 and part.isalpha() for part in parts)
        numbered = len(parts) == 2 and any(map(str.isdecimal, parts))  # H200, 2u
        letter = letters == 1 and (any(telling) or numbered)  # Memcpy2DAsync
        if parts and all(_is_known(part, digits, letter=letter) for part in parts):
            return run
        if not any(telling):
            return self._word(run)
        return "".join(part if stays else self._word(part) for part, stays in zip(parts, telling, strict=True))

    def _word(self, text: str) -> str:
        """A hash in place of a word; its letters are capitals where the word's are.

        In place of digits or signs it has a digit or a hyphen at its ends, so that what is beside it begins and ends as
        many words as before.
        """
        word = f"x{self._hash(text)}"
        if not re.match("[A-Za-z]", text):
            before, behind = ("1" if re.match(r"\w", end) else "-" for end in (text[0], text[-1]))
            return f"{before}{word}{behind}"
        return word.upper() if text.isupper() else word.capitalize() if text[0].isupper() else word

    def _hash(self, text: str) -> str:
        return self._digest(text).translate(_CONSONANTS)

    def _digest(self, text: str) -> str:
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=self._key, digest_size=5).hexdigest()


def _is_known(part: str, digits: int, *, letter: bool) -> bool:
    """Whether a part of a run of letters and digits is a known word or a short number; or, if so told, a letter."""
    if part.isdecimal():
        return len(part) <= digits or (len(part) <= 5 and int(part).bit_count() == 1)
    return part.lower() in vocabulary() if len(part) > 1 else letter


@cache
def _of_mark(text: str) -> int | None:
    """If a text is an engine's mark, the number of digits of its numbers that stay."""
    if names_host_compute(text) or TRAINING_TEXT.search(text):
        return _LONG_DIGITS
    found = [each in (*OURS, *USUAL) for each in engines() for mark in each.marks if mark.text.search(text)]
    return (_DIGITS if all(found) else _LONG_DIGITS) if found else None
