"""The pytest plugin: the fixture `recording` and the marker `sync_budget`.

    @pytest.mark.sync_budget(syncs=2, copies=6, launches=1)
    def test_decode(recording):
        model = load()
        for index in range(8):
            with recording.token(index):
                model.decode()

This module has only the hooks, which import nothing for tests that use neither; `pytest_recording` does the work.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from tracer.pytest_recording import RecordedTest

MARK: Final = "sync_budget"
_RECORDING: Final = pytest.StashKey["RecordedTest"]()

_MARK_HELP: Final = (
    "sync_budget(syncs=N, copies=N, launches=N, class_=NAME, signature=TEXT, backend='cupti'|'host', steps='found'): "
    "limits what a token step of the test does between host and device; N is exact, or {'max': N, 'min': N}. Counts "
    "are medians over the steps after the first. Steps are marked by `with recording.token():` or NVTX ranges such as "
    "token; steps='found' finds them from repeating calls; otherwise the whole test is one step. Recorded by CUPTI if "
    "it sees CUDA calls, else by the host recorders created in the test; backend allows only one of the two."
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARK_HELP)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Read the test's marker before its fixtures are set up."""
    if item.get_closest_marker(MARK) is not None:
        _recording_of(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Record the test's body, fixtures excluded; check the budget if the body passes."""
    recording = item.stash.get(_RECORDING, None)
    if recording is None:
        return (yield)
    try:
        with _failing():
            recording.start()
        result = yield
    finally:
        with _failing():
            recording.stop()
    with _failing():
        failure = recording.failure()
    if failure is not None:
        pytest.fail(failure, pytrace=False)
    return result


@pytest.fixture
def recording(request: pytest.FixtureRequest) -> RecordedTest:
    """The recording of this test's calls to CUDA or to a reporting backend: `token()`, `trace`, `report`."""
    return _recording_of(request.node)


def _recording_of(item: pytest.Item) -> RecordedTest:
    if _RECORDING not in item.stash:
        from tracer.pytest_recording import recording_for

        marks = [dict(mark.kwargs, **{"positional arguments": mark.args} if mark.args else {})
                 for mark in item.iter_markers(MARK)]  # fmt: skip
        with _failing():
            item.stash[_RECORDING] = recording_for(marks)
    return item.stash[_RECORDING]


@contextmanager
def _failing() -> Iterator[None]:
    """Fail the test with one line on an error that is not a bug of intertoken."""
    from tracer.errors import IntertokenError

    try:
        yield
    except IntertokenError as problem:
        text = str(problem)
        raise pytest.fail.Exception(text if MARK in text else f"{MARK}: {text}", pytrace=False) from None
