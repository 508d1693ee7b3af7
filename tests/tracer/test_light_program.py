"""Where the preloaded library comes from (a wheel, the user's cache or a compiler), and the one for aarch64, which an
emulator runs over a driver without a GPU."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tracer.fake_driver import HERE, compiler_or_skip, run, unless_sanitized
from tracer.errors import RecordError
from tracer.recorders import light
from tracer.recorders.light import light_trace, read_rings
from tracer.recorders.native import compile_library

COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
SYSTEM = Path("/usr/aarch64-linux-gnu")
TOKENS = 40


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(light, "SHIPPED", tmp_path / "shipped.so")
    return tmp_path


def compiler(cache, script):
    (cache / "cc").write_text(f"#!/bin/sh\n{script}\n")
    (cache / "cc").chmod(0o755)
    return str(cache / "cc")


@unless_sanitized("loads the library into this process, which has no runtime of a sanitizer")
def test_it_is_compiled_once_unless_a_wheel_has_it(cache, built, monkeypatch):
    """By a compiler that has done so before, as it takes its time."""
    ready = built.folder / "light.so"
    monkeypatch.setenv("CC", compiler(cache, f'while [ "$1" != -o ]; do shift; done\ncp {ready} "$2"'))
    made = light.library()
    assert made.is_relative_to(cache)
    assert made.read_bytes() == ready.read_bytes()
    assert [path.name for path in made.parent.iterdir()] == [made.name]
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert light.library() == made
    with monkeypatch.context() as patched:
        patched.setattr(platform, "libc_ver", lambda: ("glibc", "2.17"))
        assert light.cached() != made  # another C library gets one of its own
    shipped = shutil.copy(ready, cache / "shipped.so")
    assert light.library() == shipped
    monkeypatch.setattr(light, "SHIPPED", cache / "newer.so")
    (cache / "newer.so").write_bytes(b"of a newer C library")  # the linker would tell each program so
    with pytest.raises(RecordError, match=r"does not load on this machine: .*newer\.so"):
        light.library()


def test_without_one_it_says_what_is_missing(cache, monkeypatch):
    told = "echo 'ring.c: in function' >&2; echo 'ring.c:1: error: no such thing' >&2; exit 1"
    monkeypatch.setenv("CC", compiler(cache, told))
    with pytest.raises(RecordError, match=r"cannot be compiled: ring\.c:1: error: no such thing"):
        light.library()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC")
    result = run("record", "-o", cache / "out", "--", "/bin/true")
    assert result.exit_code == 2
    assert "there is no C compiler (cc, gcc or clang on PATH, or CC)" in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_is_said(cache):
    compiler_or_skip()
    cache.chmod(0o500)
    with pytest.raises(RecordError, match="cannot be written"):
        light.library()


@pytest.mark.skipif(
    not (COMPILER and EMULATOR and SYSTEM.is_dir()), reason="needs gcc for aarch64 and its emulator (qemu-user)"
)
def test_on_aarch64_a_decode_loop_is_recorded_however_it_gets_the_driver(tmp_path):
    compile_library(tmp_path / "light.so", COMPILER, ["-Werror", "-O0"])
    driver, program, linked = (tmp_path / name for name in ("libcuda.so.1", "decode", "decode_linked"))
    for into, *sources in (
        (driver, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", HERE / "driver.c", HERE / "rest.c"),
        (program, HERE / "decode.c", "-ldl"),
        (linked, "-DLINKED", HERE / "decode.c", driver, "-ldl"),
    ):
        subprocess.run([COMPILER, "-std=gnu11", "-w", "-O1", "-pthread", "-o", into, *sources], check=True)
    for way in ("dlsym", "proc", "direct"):
        rings = tmp_path / way
        rings.mkdir(mode=0o700)
        given = {"LD_LIBRARY_PATH": tmp_path, "LD_PRELOAD": tmp_path / "light.so", "INTERTOKEN_LIGHT": rings,
                 "INTERTOKEN_LIGHT_BUDGET": "0"}  # fmt: skip
        environment = [word for name, value in given.items() for word in ("-E", f"{name}={value}")]
        command = [linked if way == "direct" else program, way, "", str(TOKENS)]
        subprocess.run([EMULATOR, "-L", SYSTEM, *environment, *command], check=True, stdout=subprocess.DEVNULL)
        trace = light_trace(read_rings(rings))
        assert trace["graph_launches"]["graph"].value_counts().to_dict() == {1: TOKENS, -1: TOKENS}, way
        assert trace.metadata["clock"]["device_error_ns"] < 1_000_000
