"""Scrubs recordings so that they can be shared without identifying a machine, its users or their other programs.

An allow-list decides what is kept. Everything else is removed, and the report lists what was removed. The following is
kept:

- times, sizes, ids (of processes, threads, streams, ...) and all other numbers in known tables and columns;
- names of kernels, NVTX ranges and domains, threads and API calls, except parts that look like a path, an address, an
  id or a credential, or that the recording itself calls a host, a user or a secret; names can be hashed, too;
- on request, Python functions, the call chains of CUDA calls and samples, without the directories of their files;
- models and sizes of GPUs; versions; the start of the recording in UTC; the known keys of metadata and run.json.

Analyses give the same figures with and without hashing.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracer.model.schema import MISSING, PROFILER_DOMAINS, PYTHON_FUNCTION, TABLES
from tracer.model.trace import Trace, categorical
from tracer.scrub import exports, facts
from tracer.scrub.texts import Texts

__all__ = ["Texts", "learn", "scrub"]


def learn(trace: Trace, texts: Texts) -> None:
    """Learn from a recording the names of hosts and users and the secrets to remove from it and its related files."""
    names = _names(trace)
    exports.learn(trace, texts, names)
    facts.learn(trace.metadata, texts)
    for text in names:
        texts.learn_home(text)
    threads = trace["threads"]
    for programs in (trace["processes"]["name"], threads.loc[threads["process"] == threads["thread"], "name"]):
        for name in programs:
            texts.learn_program(str(name))


def scrub(trace: Trace, texts: Texts | None = None, *, python_functions: bool = False) -> Trace:
    """Return a copy of a recording with only what the module's docstring lists.

    Args:
        trace: the recording, not modified. It must have been read `whole`, so that secrets can be learned from the
            rest of the file.
        texts: cleans the texts and counts what was removed. It must have learned from all related recordings. The
            default learns from this recording and does not hash names.
        python_functions: keep PyTorch's ranges of Python functions, call chains and samples: file, line and function,
            without directories.

    Example:
        >>> trace = Trace.from_columns(nvtx={"start": [0], "end": [1], "text": ["load /home/ada/a.gguf"]})
        >>> scrub(trace)["nvtx"]["text"].tolist()
        ['load [path 1]']
    """
    if texts is None:
        texts = Texts()
        learn(trace, texts)
    scrubbed = Trace(dict(trace.tables), {}, [], dict(trace.carried))
    processes = _with_events(trace)
    scrubbed.tables["nvtx"] = _python(scrubbed["nvtx"], texts, python_functions)
    _chains(scrubbed, texts, python_functions)
    for name in TABLES:
        scrubbed.tables[name] = _named(name, scrubbed[name], texts)
    alone = ~scrubbed["processes"]["process"].isin(processes)
    texts.remove("processes without events", "PROCESSES", int(alone.sum()))
    scrubbed.tables["processes"] = scrubbed["processes"][~alone].reset_index(drop=True)
    exports.columns(scrubbed, texts)
    exports.tables(scrubbed, texts, _names(trace))
    scrubbed.metadata = facts.metadata(trace.metadata, texts)
    scrubbed.notes = [texts.message(note, "notes") for note in trace.notes]
    return scrubbed


def _names(trace: Trace) -> set[str]:
    """All texts in columns of names."""
    columns = ((table.name, column.name) for table in TABLES.values() for column in table.columns if column.is_name)
    return {str(text) for table, column in columns for text in trace[table][column].cat.categories}


def _with_events(trace: Trace) -> set[int]:
    found = [frame["process"].unique() for frame in trace.tables.values() if "process" in frame and "start" in frame]
    return set(np.concatenate(found).tolist()) - {MISSING}


def _python(nvtx: pd.DataFrame, texts: Texts, keep: bool) -> pd.DataFrame:
    """The ranges, with Python functions removed or, if kept, without the directories of their files."""
    found = (nvtx["domain"] == PYTHON_FUNCTION).to_numpy()
    if not keep:
        texts.remove("Python functions", "nvtx: text", int(found.sum()))
        return nvtx[~found].reset_index(drop=True)
    names = nvtx["text"].cat
    codes, words = names.codes.to_numpy(np.int64, copy=True), list(names.categories)
    of_python = np.unique(codes[found])
    new = {old: len(words) + i for i, old in enumerate(of_python)}
    codes[found] = [new[code] for code in codes[found]]
    words += [texts.frame(str(words[old]), "nvtx: text") for old in of_python]
    return nvtx.assign(text=categorical(codes, words)) if len(new) else nvtx


def _chains(trace: Trace, texts: Texts, keep: bool) -> None:
    """Remove call chains and samples or, if kept, the directories of their files, in place."""
    for table in ("callchains", "sample_chains"):
        chains = trace[table]
        if not keep:
            texts.remove("functions of call chains", f"{table}: symbol", len(chains))
            trace.tables[table] = chains.iloc[:0]
            continue
        for column, clean in (("symbol", texts.frame), ("module", lambda text, _: text.rpartition("/")[2])):
            names = chains[column].cat
            words = [clean(str(text), f"{table}: {column}") for text in names.categories]
            chains = chains.assign(**{column: categorical(names.codes.to_numpy(), words)})
        trace.tables[table] = chains
    if not keep:
        trace.tables["api"] = trace["api"].assign(callchain=MISSING)
        trace.tables["samples"] = trace["samples"].iloc[:0]


def _named(table: str, frame: pd.DataFrame, texts: Texts) -> pd.DataFrame:
    """The table with its names cleaned; names of processes are removed."""
    cleaned = {}
    for column in (column.name for column in TABLES[table].columns if column.is_name):
        names, where = frame[column].cat, f"{table}: {column}"
        used = np.unique(names.codes)
        words = [str(text) for text in names.categories]
        if table == "processes":
            texts.remove("process names", where, int((frame[column] != "").sum()))
            new = [""] * len(words)
        else:
            new = [_cleaned(table, text, where, texts) if i in used else "" for i, text in enumerate(words)]
        if column == "domain":  # analyses use these to tell the profiler's own ranges from the program's
            new = [text if text in PROFILER_DOMAINS else clean for text, clean in zip(words, new, strict=True)]
        cleaned[column] = categorical(names.codes.to_numpy(), new)
    return frame.assign(**cleaned) if len(frame) else frame


def _cleaned(table: str, text: str, where: str, texts: Texts) -> str:
    clean = {"api": texts.call, "devices": texts.device, "threads": texts.thread}.get(table, texts.name)
    return clean(text, where)
