"""Scrubs recordings so that they can be shared without identifying a machine, its users or their other programs.

Times, sizes, ids and all other numbers of known tables and columns stay, and texts of known words: names of calls,
kernels and operators, marks of engines, models of GPUs, versions. Every other text becomes a hash, so that analyses
give the same figures; unknown tables, columns and entries are removed.

1. `scrub`: a trace.
2. `Texts`: the texts that may be shared. A text is a sequence of words: names (`at::native::reduce_kernel<512, 1>`) are
   split at punctuation, at capitals and where digits begin. What stays are the words of `words.txt` (CUDA, HIP and NCCL
   calls, libraries and their kernels, operators, engines, our own notes), those in the engines' patterns, and short
   numbers. Any other word becomes `x` and ten letters, and a range that is no mark of an engine becomes `text-` and ten
   letters. The letters are a keyed hash. They are consonants, so that they form no word for which analyses search.
3. `scrub_metadata`, `scrub_graph`: metadata, run.json and graph.json: keys of known words stay, with all their numbers
   and their texts cleaned.
4. What an nsys export carries: known numbers, the texts that kept rows refer to, and the exporter's version are kept.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracer.analysis.causes import names_host_compute
from tracer.engines import engines
from tracer.engines.ours import NAMES, OURS, USUAL
from tracer.engines.torch import OPERATOR, TRAINING_TEXT
from tracer.engines.vllm import PARTS
from tracer.formats import nsys_schema as nsys
from tracer.formats.nsys import DOMAIN as SAMPLED
from tracer.model.calls import LETTERS
from tracer.model.graph_json import RunGraph
from tracer.model.schema import CARRIED, DEVICE_DOMAINS, HOST_COMPUTE, MISSING, PROFILER_DOMAINS, TABLES
from tracer.model.trace import Trace, categorical

__all__ = ["Texts", "learn", "scrub"]

_NAMING: Final = tuple(PROFILER_DOMAINS - DEVICE_DOMAINS | {HOST_COMPUTE})
"""Domains whose ranges are named after operators and functions, not by the program's author."""


def learn(trace: Trace, texts: Texts) -> None:
    """Learn which texts of a recording are names, before it and its related files are scrubbed."""
    for table in TABLES.values():
        for column in (column.name for column in table.columns if column.is_name and table.name != "nvtx"):
            texts.structured |= set(map(str, trace[table.name][column].cat.categories))
    nvtx = trace["nvtx"]
    texts.structured |= set(map(str, nvtx["text"][nvtx["domain"].isin(_NAMING)].unique()))


def scrub(trace: Trace, texts: Texts | None = None) -> Trace:
    """Return a copy of a recording in which only what the module's docstring lists can be read. `texts` must have
    learned from all related recordings; the default learns from this one.

    Example:
        >>> trace = Trace.from_columns(nvtx={"start": [0], "end": [1], "text": ["token 7 of /home/ada/a.gguf"]})
        >>> scrub(trace, Texts(b"key"))["nvtx"]["text"].tolist()
        ['token 7 of /xkrkppjkbhh/xjbrmrlgtnj/a.gguf']
    """
    if texts is None:
        texts = Texts()
        learn(trace, texts)
    scrubbed = Trace(dict(trace.tables), {}, [], dict(trace.carried))
    for name in TABLES:
        scrubbed.tables[name] = _named(name, trace[name], texts)
    processes = [f["process"].unique() for f in trace.tables.values() if "process" in f and "start" in f]
    idle = ~scrubbed["processes"]["process"].isin(set(np.concatenate(processes).tolist()) - {MISSING})
    texts.remove("processes without events", int(idle.sum()))
    scrubbed.tables["processes"] = scrubbed["processes"][~idle].reset_index(drop=True)
    _scrub_columns(scrubbed, texts)
    _scrub_tables(scrubbed, texts)
    scrubbed.metadata = scrub_metadata(trace.metadata, texts)
    scrubbed.notes = ["\n".join(texts.name(line, "notes") for line in note.split("\n")) for note in trace.notes]
    return scrubbed


def _named(table: str, frame: pd.DataFrame, texts: Texts) -> pd.DataFrame:
    """The table with its texts cleaned."""
    clean = {"nvtx": texts.range, "devices": texts.device}.get(table, texts.name)
    cleaned = {}
    for column in (column.name for column in TABLES[table].columns if column.is_name):
        names = frame[column].cat.remove_unused_categories().cat
        new = [clean(str(text), f"{table}: {column}") for text in names.categories]
        cleaned[column] = categorical(names.codes.to_numpy(), new)
    return frame.assign(**cleaned) if len(frame) else frame


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
_COUNTS: Final = re.compile(r" (?:kernels|runs|NVTX ranges|device stamps|of the graph launches|calls|copies|steps)\b")
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
        self._scrubbed: defaultdict[str, dict[str, str]] = defaultdict(dict)

    def counts(self) -> list[dict[str, str | int]]:
        """How many different texts were kept, and how many hashed in whole or part, by where they stand."""
        return [
            {"where": where, "kept": (kept := sum(old == new for old, new in of.items())), "hashed": len(of) - kept}
            for where, of in sorted(self._scrubbed.items())
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
        scrubbed = self._scrubbed[where]
        if text and text not in scrubbed:
            scrubbed[text] = text if self._is_asked_for(text) else clean(text)
        return scrubbed[text] if text else ""

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
        if run.isdecimal() and (_COUNTED.search(before) or _COUNTS.match(match.string, match.end())):
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
    are_known = [each in (*OURS, *USUAL) for each in engines() for mark in each.marks if mark.text.search(text)]
    return (_DIGITS if all(are_known) else _LONG_DIGITS) if are_known else None


_RANGES: Final = "ranges"
_VERSIONS: Final = {
    "source", "schema_version", "cuda_runtime_version", "cuda_driver_version", "os", "python", "driver", "cuda",
    "intertoken", "numpy", "cupy", "torch", "transformers", "vllm", "sglang", "created",
}  # fmt: skip


def scrub_metadata(given: Mapping[str, Any], texts: Texts, where: str = "metadata") -> dict[str, Any]:
    """Return the metadata of a trace, or an object in it, without entries whose key is unknown."""
    kept: dict[str, Any] = {}
    for key, item in given.items():
        place = "run.json" if (where, key) == ("metadata", "run") else where
        if key == _RANGES and isinstance(item, Mapping):
            kept[key] = {texts.range(text, place): _value(key, facts, texts, place) for text, facts in item.items()}
        elif texts.is_known(key):
            kept[key] = _value(key, item, texts, place)
        else:
            texts.remove(f"{where}: unknown entries")
    return kept


def _value(key: str, item: Any, texts: Texts, where: str) -> Any:
    if isinstance(item, Mapping):
        return scrub_metadata(item, texts, where)
    if isinstance(item, list):
        return [_value(key, part, texts, where) for part in item]
    if not isinstance(item, str):
        return item
    clean = texts.device if key in ("gpu", "gpus") else texts.version if key in _VERSIONS else texts.name
    return clean(item, where)


def scrub_graph(given: RunGraph, texts: Texts) -> RunGraph:
    """Return graph.json with its texts cleaned. The CPU backend's kernels, `op(node)`, still match their nodes."""

    def name(text: str) -> str:
        return texts.name(text, "graph.json")

    return replace(
        given,
        nodes=tuple(replace(n, name=name(n.name), op=name(n.op), dtype=name(n.dtype)) for n in given.nodes),
        leaves=tuple(replace(e, name=name(e.name), kind=name(e.kind), dtype=name(e.dtype)) for e in given.leaves),
        memory=tuple(replace(each, allocator=name(each.allocator)) for each in given.memory),
        allocator=name(given.allocator),
        devices=tuple(map(name, given.devices)),
    )


_NVTX: Final = TABLES["nvtx"].nsys
_LATER: Final = {
    TABLES["kernels"].nsys: (
        "qmdBulkReleaseDone qmdPreexitDone qmdLastCtaDone graphId clusterX clusterY clusterZ clusterSchedulingPolicy "
        "maxPotentialClusterSize maxActiveClusters sharedMemoryRequestedPercentage"
    ),
    TABLES["cuda_events"].nsys: "timestamp",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start end eventClass globalTid correlationId nameId overheadType",
    "PROFILER_OVERHEAD": "overheadType",
    nsys.CUDA_CONTEXTS: "numMultiprocessors",
    nsys.CUDA_DEVICES: "numMultiprocessors",
}
"""Columns of numbers that schema 3.25 adds to 3.20."""
_CHAINS: Final = tuple(TABLES[name].nsys for name in ("callchains", "sample_chains"))
_SECRET_NUMBERS: Final = {(nsys.GPUS, "pwGpuId")} | {(c, ip) for c in _CHAINS for ip in ("originalIP", "unresolvedIP")}
_NUMBERS: Final = {
    (table, column.name) for table, columns in nsys.SQL_COLUMNS.items() for column in columns if column.type != "TEXT"
} - _SECRET_NUMBERS | {(table, column) for table, columns in _LATER.items() for column in columns.split()}

_KEPT: Final = (
    nsys.ANALYSIS, nsys.CUDA_CONTEXTS, nsys.CUDA_DEVICES, nsys.GPUS, _NVTX, TABLES["streams"].nsys,
    "CUDA_GRAPH_EVENTS", "CUDA_GRAPH_NODE_EVENTS", "CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD",
)  # fmt: skip
"""Tables, in addition to those of events, whose known columns are kept."""
_NAMES: Final = ("nameId", "demangledName", "shortName", "mangledName", "textId")
"""Columns whose numbers are ids in StringIds."""

_EXPORT_VALUES: Final = re.compile(r"NVIDIA Nsight Systems|[\d.]+|\d[\d.]* \d+|\d{4}(-\d\d){2}T[\d:.]+Z?")
_EXPORT_ROWS: Final = re.compile(
    rf"{nsys.EXPORT_PRODUCT}|{nsys.EXPORT_VERSION}|EXPORT_PRODUCT_DATE|{nsys.EXPORT_SCHEMA}(_[A-Z]+)?|EXPORT_TIME_UTC"
)


def _scrub_columns(trace: Trace, texts: Texts) -> None:
    """Clean the carried columns of the tables of events, and drop unknown ones, in place."""
    for table in TABLES.values():
        frame = trace[table.name]
        for name in [name for name in map(str, frame.columns) if name.startswith(CARRIED)]:
            kept = _column(table.nsys, name.removeprefix(CARRIED), frame[name].array.__arrow_array__(), texts)
            frame = frame.drop(columns=name)
            if kept is not None:
                frame = frame.assign(**{name: pd.arrays.ArrowExtensionArray(kept)})
        trace.tables[table.name] = frame


def _scrub_tables(trace: Trace, texts: Texts) -> None:
    """Clean the carried tables, and drop unknown ones, in place. Call it after `_scrub_columns`."""
    carried, trace.carried = trace.carried, {}
    for name, table in carried.items():
        if name in _KEPT:
            trace.carried[name] = _table(name, table, texts)
        elif name == nsys.EXPORT:
            trace.carried[name] = _export(table)
        elif name not in (nsys.STRINGS, TABLES["processes"].nsys, *nsys.ENUMS):  # written as we know them
            texts.remove(name, len(table))
    trace.carried = {name: table for name, table in trace.carried.items() if len(table)}
    if nsys.STRINGS in carried:
        trace.carried[nsys.STRINGS] = _strings(carried[nsys.STRINGS], trace, texts)


def _table(name: str, table: pa.Table, texts: Texts) -> pa.Table:
    kept = {column: _column(name, column, table[column], texts) for column in table.column_names}
    declared = {column.name: column for column in nsys.SQL_COLUMNS.get(name, [])}
    for column, values in kept.items():
        if values is None and column in declared:  # nsys's own queries may select it
            nothing = "" if declared[column].type == "TEXT" else 0
            kept[column] = pa.array([nothing] * len(table))
    return pa.table({column: values for column, values in kept.items() if values is not None})


def _column(table: str, column: str, values: Any, texts: Texts) -> Any:
    """The column with its texts cleaned; None if it must be removed."""
    where = f"{table}.{column}"
    if (table, column) in _NUMBERS and (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return values
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        clean = {(_NVTX, "text"): texts.range, (nsys.GPUS, "name"): texts.device}.get((table, column))
        if clean is not None:
            return pa.array([None if t is None else clean(t, where) for t in values.to_pylist()], pa.string())
    texts.remove(where, sum(map(bool, values.to_pylist())))
    return None


def _export(table: pa.Table) -> pa.Table:
    rows = zip(table["name"].to_pylist(), table["value"].to_pylist(), strict=True)
    stays = [bool(_EXPORT_ROWS.fullmatch(name or "") and _EXPORT_VALUES.fullmatch(value or "")) for name, value in rows]
    return table.select(["name", "value"]).filter(pa.array(stays, pa.bool_()))


def _strings(strings: pa.Table, trace: Trace, texts: Texts) -> pa.Table:
    """The StringIds to which carried columns refer, cleaned; writing the trace adds its own names again."""
    used = {id for values in _references(trace) for id in pc.unique(values).to_pylist()} - {None}
    strings = strings.filter(pc.is_in(strings["id"], pa.array(sorted(used), pa.int64())))
    cleaned = [None if text is None else texts.range(text, nsys.STRINGS) for text in strings["value"].to_pylist()]
    return pa.table({"id": strings["id"], "value": pa.array(cleaned, pa.string())})


def _references(trace: Trace) -> Iterator[Any]:
    for column in _NAMES:
        arrays = [f[CARRIED + column].array.__arrow_array__() for f in trace.tables.values() if CARRIED + column in f]
        arrays += [t[column] for name, t in trace.carried.items() if name in _KEPT and column in t.column_names]
        yield from (values for values in arrays if pa.types.is_integer(values.type))
