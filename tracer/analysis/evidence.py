"""Which engine was recorded: what a recording shows that only one engine has.

Evidence are the names of kernels, the names and titles of processes and threads (`sglang::scheduler`), and the files of
the functions on recorded stacks (`libllama.so`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tracer.engines import engines
from tracer.engines.engine import Engine
from tracer.model.columns import Names
from tracer.model.trace import Trace


def engine_of(trace: Trace) -> Engine | None:
    """The engine that was recorded, shown by its marks, too; None if nothing shows it."""
    return next((engine for engine in engines() if is_of(trace, engine) or _is_marked(trace, engine)), None)


def is_of_any(trace: Trace, such: Iterable[Engine]) -> bool:
    """Whether one of these engines was recorded."""
    return any(is_of(trace, engine) for engine in such)


def is_of(trace: Trace, engine: Engine) -> bool:
    """Whether the recording has a kernel, a process, a thread or a library that only this engine has.

    Example: a process named "sglang::schedul (python3)", as Linux cuts `sglang::scheduler`, is of SGLang.
    """
    kernels = engine.kernels is not None and _has(trace.kernels.name, engine.kernels)
    return kernels or any(
        pattern is not None and _has(names, pattern)
        for pattern, of_them in ((engine.processes, _processes), (engine.libraries, _libraries))
        for names in of_them(trace)
    )


def _is_marked(trace: Trace, engine: Engine) -> bool:
    """Whether the recording has marks that only this engine sets; those of usual names are of no engine."""
    texts = trace.nvtx.text
    return engine.kernels is not None and any(
        mark.own and bool(texts.chosen(mark.text.search).any()) for mark in engine.marks
    )


def _has(names: Names, pattern: re.Pattern[str]) -> bool:
    return bool(names.chosen(pattern.search).any())


def _processes(trace: Trace) -> Iterator[Names]:
    yield from (Names.of_series(trace[table]["name"]) for table in ("processes", "threads"))


def _libraries(trace: Trace) -> Iterator[Names]:
    yield from (trace.callchains.module, trace.sample_chains.module)
