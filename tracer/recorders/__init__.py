"""Recorders fill the tables of a trace; `tracer.record` starts one, `tracer.annotate` marks a range in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from tracer.errors import UsageError
from tracer.recorders.host import HostRecorder
from tracer.recorders.ranges import Recorder, annotate

if TYPE_CHECKING:
    from tracer.recorders.cupti import CuptiRecorder


AnyRecorder = TypeVar("AnyRecorder", bound=Recorder)


@overload
def record(source: Literal["host"] = ..., *, stacks: bool = ...) -> AbstractContextManager[HostRecorder]: ...
@overload
def record(
    source: Literal["cupti"], *, graph_trace: Literal["node", "graph"] = ..., kinds: Iterable[str] = ...,
    limit: int = ..., stacks: bool = ...,
) -> AbstractContextManager[CuptiRecorder]: ...  # fmt: skip
def record(source: str = "host", **options: Any) -> AbstractContextManager[Any]:
    """Record the body: `with tracer.record() as recording: ...`, then `recording.trace`.

    The source is "host" (events that our own backends report) or "cupti" (CUDA in this process); for the options see
    `HostRecorder` and `CuptiRecorder`.

    Raises:
        UsageError: unknown recorder.
        RecordError: it cannot record here.
    """
    if source == "host":
        return _recording(HostRecorder(**options))
    if source == "cupti":
        from tracer.recorders.cupti import CuptiRecorder

        return _recording(CuptiRecorder(**options))
    raise UsageError(f"unknown recorder {source!r}; use host or cupti")


@contextmanager
def _recording(recorder: AnyRecorder) -> Iterator[AnyRecorder]:
    recorder.start()
    try:
        yield recorder
    finally:
        recorder.stop()


__all__ = ["Recorder", "annotate", "record"]
