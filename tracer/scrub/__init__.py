"""Scrubs recordings so that they can be shared without identifying a machine, its users or their other programs.

Times, sizes, ids and all other numbers of known tables and columns stay, and texts of known words (`scrub.texts`):
names of calls, kernels and operators, marks of engines, models of GPUs, versions. Every other text becomes a hash, so
that analyses give the same figures; unknown tables, columns and entries are removed.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from tracer.model.schema import DEVICE_DOMAINS, HOST_COMPUTE, MISSING, PROFILER_DOMAINS, TABLES
from tracer.model.trace import Trace, categorical
from tracer.scrub import exports, facts
from tracer.scrub.texts import Texts

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
    """Return a copy of a recording in which only what the module's docstring lists can be read.

    Args:
        trace: the recording, not modified.
        texts: cleans the texts. It must have learned from all related recordings. The default learns from this one.

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
    active = ~scrubbed["processes"]["process"].isin(_with_events(trace))
    texts.remove("processes without events", int(active.sum()))
    scrubbed.tables["processes"] = scrubbed["processes"][~active].reset_index(drop=True)
    exports.columns(scrubbed, texts)
    exports.tables(scrubbed, texts)
    scrubbed.metadata = facts.metadata(trace.metadata, texts)
    scrubbed.notes = [texts.name(note, "notes") for note in trace.notes]
    return scrubbed


def _with_events(trace: Trace) -> set[int]:
    found = [frame["process"].unique() for frame in trace.tables.values() if "process" in frame and "start" in frame]
    return set(np.concatenate(found).tolist()) - {MISSING}


def _named(table: str, frame: pd.DataFrame, texts: Texts) -> pd.DataFrame:
    """The table with its texts cleaned."""
    clean = {"nvtx": texts.range, "devices": texts.device}.get(table, texts.name)
    cleaned = {}
    for column in (column.name for column in TABLES[table].columns if column.is_name):
        names = frame[column].cat.remove_unused_categories().cat
        new = [clean(str(text), f"{table}: {column}") for text in names.categories]
        cleaned[column] = categorical(names.codes.to_numpy(), new)
    return frame.assign(**cleaned) if len(frame) else frame
