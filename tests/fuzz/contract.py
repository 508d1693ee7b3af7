"""What every reader promises for any bytes, checked: one clear error or a trace, and nothing written elsewhere."""

from __future__ import annotations

import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

from tracer import formats
from tracer.analysis.recording import Recording
from tracer.analysis.streams import bubble_report, stream_report
from tracer.errors import FormatError, TraceError
from tracer.model.trace import Trace


def check(path: Path, written: Path, copies: bool = True) -> Trace | None:
    """Read, analyse and write a recording; anything but a result or a clear error is raised.

    Args:
        path: the recording.
        written: an empty directory in which copies are made and removed.
        copies: whether to make them, which takes the longest.

    Returns:
        The whole trace, or None where reading gave one clear error.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bare, whole = (_read(path, carried) for carried in (False, True))
        assert bare is not None or whole is None, "only reading without `whole` fails"
        if bare is not None:
            analyse(bare)
        if whole is not None and bare is not None and not _same(bare, whole):
            analyse(whole)
        if copies and whole is not None:
            write(whole, written)
        if copies and bare is not None and whole is None:
            write(bare, written)
    return whole


def _same(bare: Trace, whole: Trace) -> bool:
    """Whether the tables are the same but for what is only carried along: then analyses of both are, too."""
    return all(
        frame.astype(object).equals(whole[name][list(frame)].astype(object)) for name, frame in bare.tables.items()
    )


def _read(path: Path, whole: bool) -> Trace | None:
    try:
        trace = formats.read(path, whole=whole)
    except FormatError as error:
        assert_clear(str(error), path)
        return None
    assert all(isinstance(note, str) for note in trace.notes), trace.notes
    return trace


def assert_clear(message: str, path: Path) -> None:
    """One printable line that begins with the path."""
    assert message.startswith(str(path)), message
    assert message.isprintable(), message
    assert len(message) < 2000, message


def analyse(trace: Trace) -> None:
    """Every analysis gives a result or a TraceError; a summary always a result."""
    found = Recording(trace, "fuzz")
    steps = None if found.summary.steps is None else found.steps
    if found.summary.signature is not None:
        found.syncs.inventory()
    for analysis in (stream_report,) if steps is None else (stream_report, bubble_report):
        try:
            analysis(trace, steps)
        except TraceError:
            continue


def write(trace: Trace, place: Path) -> None:
    """Each format writes the trace into a directory of the place and nothing beside it, or raises a TraceError."""
    for name in ("copy.sqlite", "copy"):
        with TemporaryDirectory(dir=place) as directory:
            copy = Path(directory) / name
            try:
                formats.write(trace, copy)
            except TraceError as error:
                assert_clear(str(error), copy)
                assert not list(Path(directory).iterdir())
            else:
                again = formats.read(copy)
                assert {n: len(f) for n, f in again.tables.items()} == {n: len(f) for n, f in trace.tables.items()}
                assert [path.name for path in Path(directory).iterdir()] == [name]
        assert not list(place.iterdir())
