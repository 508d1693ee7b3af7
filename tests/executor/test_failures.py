"""What a device's library raises reaches the user as one line."""

import pytest
from click.testing import CliRunner

from executor.backends import BACKENDS
from executor.backends.cpu.backend import CpuBackend
from executor.run import execute
from executor.run.configuration import Configuration
from tracer.cli import main
from tracer.errors import ExecutionError


class LibraryError(RuntimeError):
    """As CuPy's errors: not in our tree."""


class BadCopies(CpuBackend):
    """Its copies to the device fail."""

    errors = (LibraryError,)

    def _copy_in(self, destination, source, stream, staged):
        raise LibraryError("errorInvalidValue: invalid argument\nand a second line")


class BadPeer(CpuBackend):
    """Device 1 cannot wait for device 0."""

    errors = (LibraryError,)

    def event_wait(self, event, stream):
        if self._device == 1:
            raise LibraryError("errorInvalidResourceHandle")
        super().event_wait(event, stream)


def test_on_the_command_line_it_is_one_line_and_exit_code_2(monkeypatch, tmp_path):
    monkeypatch.setitem(BACKENDS, "cpu", f"{__name__}:BadCopies")
    result = CliRunner().invoke(main, ["run", "--sync", "aaag", "-o", str(tmp_path / "runs")])
    assert result.exit_code == 2
    said = "backend 'cpu', device 0: copy_to_device failed: LibraryError: errorInvalidValue: invalid argument"
    assert result.stderr == f"intertoken: {said}\n"
    assert not (tmp_path / "runs").exists()


def test_the_innermost_of_several_devices_is_named_and_the_cause_kept():
    with pytest.raises(ExecutionError, match=r"^backend 'cpu', device 1: event_wait failed") as raised:
        execute([Configuration(strategy="aaag", devices=2)], open_backend=lambda device: BadPeer(device.index))
    assert isinstance(raised.value.__cause__, LibraryError)


def test_a_device_that_cannot_be_opened_beside_another():
    def opened(device):
        if device.index:
            raise LibraryError("errorNoDevice")
        return BadPeer(device.index)

    with pytest.raises(ExecutionError, match=r"^a device failed: LibraryError: errorNoDevice$"):
        execute([Configuration(strategy="aaag", devices=2)], open_backend=opened)


@pytest.mark.parametrize("failed", [LibraryError("the first"), ExecutionError("the first")])
def test_the_first_failure_is_told_and_not_that_of_closing(failed):
    class Broken(CpuBackend):
        errors = (LibraryError,)

        def launch_graph(self, graph, stream=0):
            if isinstance(failed, LibraryError):
                raise failed
            try:
                raise LibraryError("what it was made of")
            except LibraryError as error:
                raise failed from error

        def close(self):
            super().close()
            try:
                raise LibraryError("sticky")
            except LibraryError as error:
                raise ExecutionError("close failed") from error

    with pytest.raises(ExecutionError, match=r"the first$"):
        execute([Configuration()], open_backend=lambda device: Broken(device.index))


def test_what_a_backend_does_not_declare_passes():
    class Undeclared(BadCopies):
        errors = ()

    with pytest.raises(LibraryError):
        execute([Configuration(strategy="aaag")], open_backend=lambda device: Undeclared(device.index))


def test_too_little_memory_on_the_host(monkeypatch, tmp_path):
    def plan_cache(*_, **__):
        raise MemoryError("Unable to allocate 21.5 GiB")

    monkeypatch.setattr("executor.run.plan_cache", plan_cache)
    result = CliRunner().invoke(main, ["run", "-o", str(tmp_path / "runs")])
    assert result.exit_code == 2
    assert result.stderr == "intertoken: out of memory on the host: Unable to allocate 21.5 GiB\n"
