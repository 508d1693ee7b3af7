"""What several tests of the light recorder share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tracer.fake_driver import Build
    from tests.tracer.fake_streams import Streams


@pytest.fixture(autouse=True)
def sanitizer_finds_nothing() -> Iterator[None]:
    """Of the library, in any program that the test starts, however that ends."""
    yield
    if os.environ.get("INTERTOKEN_TEST_SANITIZER"):
        from tests.tracer.fake_driver import reported

        assert not reported()


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The preloaded library, the fake driver and its programs."""
    from tests.tracer.fake_driver import Build

    return Build.into(tmp_path_factory.mktemp("light"))


@pytest.fixture(scope="session")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Streams:
    """The library of `intertoken races`, a driver with asynchronous streams, and its programs."""
    from tests.tracer import fake_streams

    return fake_streams.build(tmp_path_factory.mktemp("streams"))


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver, a CUPTI and a program that uses them, without a GPU."""
    from tests.tracer import fake_cuda

    fake_cuda.build(folder := tmp_path_factory.mktemp("cuda"))
    return folder


def over_stand_ins(patch: pytest.MonkeyPatch, drivers: Path, library: Path, memory: Path) -> None:
    """`intertoken record` over a driver in a folder, a library as if it came with a wheel, and memory of its own."""
    from tests.tracer.fake_driver import sanitized

    given = {"LD_LIBRARY_PATH": str(drivers), "INTERTOKEN_LIGHT_BUDGET": "0"}  # nothing is sampled at random
    for name, value in (sanitized({}) | given).items():
        patch.setenv(name, value)
    patch.setattr("tracer.recorders.light.library", lambda: library)
    patch.setattr("tracer.recorders.light_ring._MEMORY", memory)
    patch.setattr(tempfile, "tempdir", str(memory))


@pytest.fixture
def cupti(cuda: Path, built: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`intertoken record` over these."""
    over_stand_ins(monkeypatch, cuda, built.folder / "light.so", tmp_path)
    monkeypatch.delenv("CUDA_INJECTION64_PATH", raising=False)
    monkeypatch.setattr("tracer.recorders.cupti_run.library", lambda: built.folder / "light.so")
    monkeypatch.setattr("tracer.recorders.cupti_library.find", lambda: str(cuda / "libcupti.so.13"))


@pytest.fixture
def recorder(built: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`intertoken record` over the fake driver."""
    over_stand_ins(monkeypatch, built.folder, built.folder / "light.so", tmp_path)
