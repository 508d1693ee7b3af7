"""Programs of others do the same with the recorder's library preloaded: exit code, output, files and time.

Each program of `programs/` runs without it, then with it. That it was recorded at all is looked up in its ring.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.tracer import programs
from tests.tracer.fake_driver import RUNTIMES, SANITIZER, reported, sanitized, unless_sanitized
from tests.tracer.programs import HERE, recorded, run

MORE_S = 10.0 if SANITIZER in RUNTIMES else 3.0
"""The recorder may add this much to a program's time, on a busy machine; more where a sanitizer watches it."""

SMALL = {"INTERTOKEN_LIGHT_RECORDS": "4096", "INTERTOKEN_LIGHT_BUDGET": "0"}
TRIES = 20
"""So often is tried what a sanitizer's runtime alone does to a program that is left out: not always the same."""
WRITES = "the sanitizer's runtime writes a file itself"


@dataclass(frozen=True)
class Program:
    """A program, or a variant of one, and how it ends."""

    command: str  # its name and arguments
    status: int = 0  # its exit code, or the negative number of the signal that ends it
    waits: int | None = None  # how often it, with its children, calls cuStreamSynchronize, all recorded; None: not said
    rings: int | None = 1  # how many of its processes have one; None: not said, as of one that lets no file be made
    cupti: bool = True  # whether it is tried with CUPTI, too
    preload: str = ""  # a library of `programs/` that is preloaded before the recorder's, or behind it (" libname.so")
    extra: dict[str, str] = field(default_factory=dict)  # of its environment
    is_root: bool = False  # whether it needs root
    without: dict[str, str] = field(default_factory=dict)  # sanitizers whose runtime alone changes what it does: why

    @property
    def name(self):
        beside = f"{'behind' if self.preload[0] == ' ' else 'before'} {self.preload.strip()}" if self.preload else ""
        return " ".join([self.command, *filter(None, [beside]), *self.extra])


_ROWS = json.loads((HERE.parent / "data" / "foreign_programs.json").read_text(encoding="utf-8"))
PROGRAMS = [Program(**{key: value for key, value in row.items() if key != "why"}) for row in _ROWS]


@dataclass(frozen=True)
class Place:
    """Where programs run, with a driver and the recorder's library."""

    built: Path  # the compiled programs
    drivers: Path  # the folder of libcuda.so.1
    light: Path  # the library
    folder: Path  # of one test
    settings: str = ""  # what the recorder's file `cupti` says; empty: there is none

    @property
    def rings(self):
        return self.folder / "rings"

    @property
    def bare(self):
        """The environment without the recorder."""
        return {"LD_LIBRARY_PATH": f"{self.drivers}:{self.built}", "PATH": os.environ["PATH"], "FAKE_SILENT": "1"}

    @property
    def preloaded(self):
        """The environment with it."""
        injected = {"CUDA_INJECTION64_PATH": str(self.light)} if self.settings else {}
        return {**self.bare, **SMALL, **injected, "LD_PRELOAD": str(self.light), "INTERTOKEN_LIGHT": str(self.rings)}

    def run(self, command, environment, *, is_plain=False):
        """Run a command in a new folder; that of the recorder is empty before. Plain: without a sanitizer's runtime."""
        shutil.rmtree(self.rings, ignore_errors=True)
        self.rings.mkdir(mode=0o700)
        if self.settings:
            (self.rings / "cupti").write_text(self.settings)
        number = len(list(self.folder.glob("run*.report")))
        given = environment if is_plain else sanitized(environment)
        return run(self.built, command, self.folder / f"run{number}", given)

    def same(self, command, extra=None, preload=""):
        """Run a command without and with the recorder, and compare; what both did."""
        more = extra or {}
        ours = f"{preload} {self.light}" if preload[:1] != " " else f"{self.light} {preload}"
        bare = self.run(command, {**self.bare, **more, "LD_PRELOAD": preload.strip()})
        with_it = self.run(command, {**self.preloaded, **more, "LD_PRELOAD": ours.strip()})
        assert bare.status != programs.HUNG, "it does not end by itself"
        assert with_it.seen == bare.seen
        for _ in range(2):  # others use this machine, too
            if with_it.wall_s < bare.wall_s + MORE_S:
                break
            with_it = self.run(command, {**self.preloaded, **more, "LD_PRELOAD": ours.strip()})
        assert with_it.wall_s < bare.wall_s + MORE_S
        return with_it


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    programs.build(folder := tmp_path_factory.mktemp("programs"))
    return folder


@pytest.fixture
def light(compiled, built, tmp_path):
    return Place(compiled, built.folder, built.folder / "light.so", tmp_path)


@pytest.fixture
def cupti(compiled, built, cuda, tmp_path):
    settings = f"library {cuda / 'libcupti.so.13'}\nkind 4\nkind 10\nkind 38\n"
    return Place(compiled, cuda, built.folder / "light.so", tmp_path, settings)


@cache
def may(*how):
    """Whether `unshare` makes such namespaces here."""
    program = shutil.which("unshare") or "false"
    return subprocess.run([program, *how, "true"], capture_output=True, check=False).returncode == 0


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def cases(programs):
    return [pytest.param(each, id=each.name, marks=[needs_root] * each.is_root) for each in programs]


def command(place, program):
    name, *arguments = program.command.split()
    return [place.built / name, name, *arguments]


def same(place, program):
    """Run a program without and with the recorder; one that is left out is skipped if it shows that it has to be."""
    if SANITIZER in program.without:
        environment = {**place.bare, **program.extra}
        plain = place.run(command(place, program), environment, is_plain=True)
        if any(place.run(command(place, program), environment).seen != plain.seen for _ in range(TRIES)):
            reported()  # is forgotten
            pytest.skip(program.without[SANITIZER])
    return place.same(command(place, program), program.extra, program.preload)


def check_recorded(found, waits, rings):
    """The programs were announced, and have the rings and the recorded calls that they should have."""
    assert found.announced
    assert found.modes == {0o600}
    if rings is not None:
        assert found.rings == rings
    if waits is not None:
        assert found.waits.total() == waits
    elif rings is not None:
        assert found.waits.total() > 0


@pytest.mark.parametrize("program", cases(PROGRAMS))
def test_a_program_does_the_same(light, program):
    outcome = same(light, program)
    assert outcome.status == program.status
    check_recorded(recorded(light.rings), program.waits, program.rings)


@pytest.mark.parametrize("program", cases(each for each in PROGRAMS if each.cupti))
def test_a_program_does_the_same_under_cupti(cupti, program):
    outcome = same(cupti, program)
    assert outcome.status == program.status
    if program.rings is not None:
        kept = list(cupti.rings.glob("*.cupti"))
        assert kept
        assert all(each.stat().st_size for each in kept)
    assert recorded(cupti.rings).announced


def test_what_is_written_to_files_that_are_closed_goes_nowhere(light):
    """Without the files 1 and 2 a write fails, also at the moment at which the recorder opens a file of its own."""
    command = [light.built / "closed", "closed", "stray"]
    outcome = light.run(command, light.preloaded)
    spoilt = [path.name for path in light.rings.iterdir() if b"stray" in path.read_bytes()]
    assert not spoilt
    assert outcome.status == light.run(command, light.bare).status == 0


@pytest.mark.parametrize("how", ["clone", "Fork"])
def test_a_child_that_no_handler_hears_of_is_not_its_parent(light, how):
    """Its calls are in a ring of its own, or in none."""
    light.run([light.built / "clones", "clones", how], light.preloaded)
    waits = sorted(recorded(light.rings).waits.values())
    assert waits in ([15], [3, 3, 15])


@needs_root
def test_a_setuid_helper(light):
    helper = light.folder / "helper"
    shutil.copy(light.built / "helper", helper)
    if os.statvfs(helper).f_flag & os.ST_NOSUID:
        pytest.skip("this file system has no setuid programs")
    os.chown(helper, 65534, 65534)
    helper.chmod(0o4755)
    outcome = light.same([light.built / "helper", "helper", helper])
    assert (outcome.status, outcome.stdout) == (3, b"secure 1, user 65534\n")
    found = recorded(light.rings)
    check_recorded(found, 4, 1)
    assert len(found.announced) == 1


@pytest.mark.parametrize(
    "most", [pytest.param("0", marks=unless_sanitized(WRITES, "thread")), "1000", "20000"],
)  # fmt: skip
def test_a_limit_of_files_set_before_it_starts(light, most):
    """As by `ulimit -f`, whose blocks are of 512 bytes here; every program of the shell has it."""
    shell = shutil.which("sh") or "sh"
    script = f'ulimit -f {most}; "{light.built}/filesize" keeps; echo "ended with $?"; exit 3'
    outcome = light.same([shell, "sh", "-c", script])
    assert (outcome.status, outcome.stdout) == (3, b"0 signals\nended with 6\n")


def test_a_shell_and_what_it_starts(light):
    shell = shutil.which("sh") or "sh"
    outcome = light.same([shell, "sh", HERE / "jobs.sh", light.built])
    assert outcome.status == 14
    assert (b"\nstatic\n" in outcome.stdout) == (light.built / "static").exists()
    check_recorded(recorded(light.rings), 15, 5)


def test_a_pool_of_python(light):
    outcome = light.same([sys.executable, sys.executable, HERE / "pool.py"])
    assert (outcome.status, outcome.stdout) == (13, b"[0, 0, 0, 0]\n0\n3\n")
    check_recorded(recorded(light.rings), 18, None)


NAMES = {
    "newline": b"a\nb", "forged": b"x\n1 forged", "escape": b"\x1b[31mred\x1b[0m", "tabs": b"a\tb",
    "bytes": b"\xff\xfe", "long": b"n" * 255, "space": b" ", "percent": b"%s%n", "empty": b"",
}  # fmt: skip


@pytest.mark.parametrize("name", [*NAMES, "none"])
@pytest.mark.parametrize("how", ["file", "argv 0", "title", "argv"])
def test_a_name_of_any_content_is_one_line_that_no_terminal_obeys(light, how, name):
    """Of a file, as the first argument, which may lack, or as the title that a program gives itself."""
    file, given = light.built / "names", NAMES.get(name)
    if how == "file" and given:
        file = shutil.copy(file, os.fsencode(light.folder) + b"/" + given)
    words = ["names", how, given or b""] if how in ("title", "argv") else [] if given is None else [given]
    assert light.same([file, *words]).status == 8
    found = recorded(light.rings)
    check_recorded(found, 2, 1)
    (line,) = found.announced
    assert line.partition(b" ")[0].isdigit()
    assert line.decode(errors="replace").isprintable()
    assert found.names[0].isprintable()


def on_tmpfs(light, size, script, extra=None):
    """Run a script whose folder of rings is a file system in memory; what is in it at the end is kept."""
    if not may("-m"):
        pytest.skip("no mount namespace may be made here (unshare -m)")
    kept = light.folder / "kept"
    around = f"""
        mount -t tmpfs -o size={size},mode=0700 none "{light.rings}" || exit 90
        {script}
        code=$?
        rm -rf "{kept}"; cp -r "{light.rings}" "{kept}"
        exit $code"""
    unshare = shutil.which("unshare") or ""
    outcome = light.same([unshare, "unshare", "-m", "sh", "-c", around], extra)
    return outcome, recorded(kept)


def test_a_folder_with_little_space_or_none(light):
    fill = f'head -c 1048576 /dev/zero > "{light.rings}/full" 2>/dev/null;'
    for before, rings in (("", 1), (fill, 0)):
        outcome, found = on_tmpfs(light, "1m", f'{before} "{light.built}/work" 20')
        assert (outcome.status, outcome.stdout) == (0, b"decoded\n")
        assert (found.rings, found.waits.total()) == (rings, 20 * rings)


def test_a_crowd(light):
    """Eight processes at once with 64 MiB for all of them, each process 1 of a container."""
    if not may("-p", "-f"):
        pytest.skip("no PID namespace may be made here (unshare -p)")
    one = f'{{ unshare -p -f "{light.built}/work" 20 2>/dev/null || echo failed; }} &\n'
    outcome, found = on_tmpfs(light, "64m", f"{one * 8} wait", {"INTERTOKEN_LIGHT_RECORDS": "524288"})
    assert (outcome.status, outcome.stdout) == (0, b"decoded\n" * 8)
    assert found.rings == 8
    assert found.waits.total() == 160
