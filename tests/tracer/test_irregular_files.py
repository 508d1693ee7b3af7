"""What not a regular file (a FIFO, a socket, a device, a link to one) is named, and never waited for."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner

from dashboard.reading.store import RunStore
from tests.covering import each_value
from tests.tracer.nsys_exports import export
from tracer import formats
from tracer.cli import main
from tracer.commands.check import read_budget
from tracer.errors import FormatError, UsageError
from tracer.model.graph_json import read_graph
from tracer.model.schema import TABLES

KERNELS = TABLES["kernels"].nsys


def fifo(path: Path) -> None:
    os.mkfifo(path)


def linked_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def unix_socket(path: Path) -> None:
    short = Path(f"/tmp/intertoken-{os.getpid()}.sock")  # a socket's path holds about 100 bytes
    with closing(socket.socket(socket.AF_UNIX)) as bound:
        bound.bind(str(short))
    shutil.move(short, path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS = (fifo, linked_fifo, unix_socket, device)


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """Whoever waits for a writer is ended."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("a reader waits"))
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    formats.write(formats.read(export(folder / "trace.sqlite")), folder / "run")
    return folder / "run"


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "run"))


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("name", ["a.sqlite", "a.json", "a.json.gz", "a.nsys-rep", "a.pftrace", "a"])
def test_a_recording_that_is_no_file(tmp_path: Path, make: Callable[[Path], None], name: str) -> None:
    make(tmp_path / name)
    assert not formats.is_trace(tmp_path / name)
    with pytest.raises(FormatError, match=f"{name}: neither a regular file nor a directory"):
        formats.read(tmp_path / name)


@pytest.mark.parametrize(
    ("make", "name"),
    each_value(product(KINDS, [f"{KERNELS}.parquet", "NVTX_EVENTS.parquet", "run.json", "other.parquet"])),
)
def test_a_part_of_a_run_directory(run: Path, make: Callable[[Path], None], name: str) -> None:
    (run / name).unlink(missing_ok=True)
    make(run / name)
    with pytest.raises(FormatError, match=f"{name}: not a regular file"):
        formats.read(run)
    result = CliRunner().invoke(main, ["info", str(run)])
    if name == "other.parquet":  # info reads no more than it needs
        assert result.exit_code == 0
    else:
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize("make", KINDS)
def test_a_part_of_an_arrowdir(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / f"{KERNELS}.arrow")
    assert not formats.is_trace(tmp_path)
    (tmp_path / "StringIds.arrow").touch()
    assert formats.is_trace(tmp_path)
    with pytest.raises(FormatError, match=f"{KERNELS}.arrow: not a regular file"):
        formats.read(tmp_path)


@pytest.mark.parametrize("make", KINDS)
def test_a_graph(run: Path, make: Callable[[Path], None]) -> None:
    make(run / "graph.json")
    with pytest.raises(FormatError, match=r"graph\.json: not a regular file"):
        read_graph(run / "graph.json")
    assert [found.graph_file for found in RunStore([run]).runs()] == [None]


@pytest.mark.parametrize("make", KINDS)
def test_a_budget(run: Path, make: Callable[[Path], None]) -> None:
    budget = run.parent / "budget.toml"
    make(budget)
    with pytest.raises(UsageError, match=r"budget\.toml: not a regular file"):
        read_budget(budget)
    result = CliRunner().invoke(main, ["check", str(run), "--budget", str(budget)])
    assert (result.exit_code, result.stderr) == (2, f"intertoken: {budget}: not a regular file\n")
