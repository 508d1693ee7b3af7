"""Where the preloaded library comes from: a wheel, the user's cache, or a compiler."""

import os
import platform
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.tracer.fake_driver import Build, compiler_or_skip, unless_sanitized
from tracer.cli import main
from tracer.errors import RecordError
from tracer.recorders import light

loads_it = unless_sanitized("loads the library into this process, which has no runtime of a sanitizer")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(light, "SHIPPED", tmp_path / "shipped.so")
    return tmp_path


@loads_it
def test_it_is_compiled_once(cache: Path, built: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a compiler that has done so before, as it takes its time."""
    compiler = cache / "cc"
    compiler.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp {built.folder}/light.so "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    made = light.library()
    assert made.is_relative_to(cache)
    assert made.read_bytes() == (built.folder / "light.so").read_bytes()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert light.library() == made
    assert [path.name for path in made.parent.iterdir()] == [made.name]


@loads_it
def test_that_of_a_wheel_comes_first(cache: Path, built: Build) -> None:
    shipped = shutil.copy(built.folder / "light.so", cache / "shipped.so")
    assert light.library() == shipped
    assert not light.cached().exists()


def test_one_that_does_not_load_is_said(cache: Path) -> None:
    """As where it needs a newer C library: the linker would tell each program so, and nothing be recorded."""
    (cache / "shipped.so").write_bytes(b"from elsewhere")
    with pytest.raises(RecordError, match=r"does not load on this machine: .*shipped\.so"):
        light.library()


def test_another_c_library_gets_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    here = light.cached()
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.17"))
    assert light.cached() != here


def test_without_a_compiler_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    result = CliRunner().invoke(main, ["record", "-o", str(tmp_path / "out"), "--", "/bin/true"])
    assert result.exit_code == 2
    assert "there is no C compiler (cc, gcc or clang on PATH, or CC)" in result.stderr


def test_what_the_compiler_says_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'ring.c: in function' >&2; echo 'ring.c:1: error: no such thing' >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(RecordError, match=r"cannot be compiled: ring\.c:1: error: no such thing"):
        light.library()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_is_said(cache: Path) -> None:
    compiler_or_skip()
    cache.chmod(0o500)
    with pytest.raises(RecordError, match="cannot be written"):
        light.library()
