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
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driver, a CUPTI and a program that uses them, without a GPU."""
    from tests.tracer import fake_cuda

    fake_cuda.build(folder := tmp_path_factory.mktemp("cuda"))
    return folder


def preload_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the sanitizer's runtime to all that this process starts."""
    from tests.tracer.fake_driver import sanitized

    for name, value in sanitized({}).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def cupti(cuda: Path, built: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`intertoken record` over these, with the library as if it came with a wheel, and memory of its own."""
    preload_runtime(monkeypatch)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(cuda))
    monkeypatch.setenv("INTERTOKEN_LIGHT_BUDGET", "0")  # nothing is sampled at random
    monkeypatch.delenv("CUDA_INJECTION64_PATH", raising=False)
    monkeypatch.setattr("tracer.recorders.cupti_run.library", lambda: built.folder / "light.so")
    monkeypatch.setattr("tracer.recorders.light.library", lambda: built.folder / "light.so")
    monkeypatch.setattr("tracer.recorders.cupti_library.find", lambda: str(cuda / "libcupti.so.13"))
    monkeypatch.setattr("tracer.recorders.light_ring._MEMORY", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def recorder(built: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`intertoken record` over the fake driver, with the library as if it came with a wheel, and memory of its own."""
    preload_runtime(monkeypatch)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(built.folder))
    monkeypatch.setenv("INTERTOKEN_LIGHT_BUDGET", "0")  # nothing is sampled at random
    monkeypatch.setattr("tracer.recorders.light.library", lambda: built.folder / "light.so")
    monkeypatch.setattr("tracer.recorders.light_ring._MEMORY", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
