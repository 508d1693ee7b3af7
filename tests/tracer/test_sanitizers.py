"""The preloaded library under the compilers' sanitizers, with and without CUPTI, over drivers without a GPU."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.tracer import fake_cuda
from tests.tracer.fake_driver import Build, compiler_or_skip
from tracer.recorders import cupti_run, light_ring


def many(what: str) -> str:
    return "2000" if what == "threads" else "3"


@pytest.mark.parametrize(("sanitizer", "runtime"), [("address,undefined", "libasan.so"), ("thread", "libtsan.so")])
def test_sanitizers_find_nothing(tmp_path: Path, sanitizer: str, runtime: str) -> None:
    compiler = compiler_or_skip()
    found = subprocess.run([compiler, f"-print-file-name={runtime}"], capture_output=True, text=True, check=True)
    if not os.path.isabs(found.stdout.strip()):
        pytest.skip(f"{compiler} has no {runtime}")
    flags = [f"-fsanitize={sanitizer}", "-g", "-O0"]
    extra = {"LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    light, cuda = tmp_path / "light", tmp_path / "cuda"
    light.mkdir()
    built = Build.into(light, flags)
    built.extra = extra
    for what in ("", "child", "memory", "threads", "forks", "reset"):
        built.run("decode", "proc", what, many(what))
    built.run("every", "proc2")
    built.run("ranges", "all")
    for scene in ("destroyed_elsewhere", "crowd", "other_context", "many_contexts", "own_streams"):
        built.run("scenes", scene)
    for scene in ("crowd", "parts", "waits_between"):
        built.run("scenes", scene, INTERTOKEN_LIGHT_BUDGET="50")

    cuda.mkdir()
    fake_cuda.build(cuda, flags)
    for what, code in {"": 0, "threads": 0, "forks": 0, "execs": 0, "left": 3, "profiles": 0, "window": 0}.items():
        with light_ring.folder() as rings:
            (rings / light_ring.SETTINGS).write_text(cupti_run.settings("node", str(cuda / "libcupti.so.13")))
            given = cupti_run.environment(light / "light.so", rings, {"LD_PRELOAD": extra["LD_PRELOAD"]})
            given |= {"LD_LIBRARY_PATH": str(cuda), "ASAN_OPTIONS": extra["ASAN_OPTIONS"]}
            done = subprocess.run([cuda / "traced", what, many(what)], env=given, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (code, ""), what
            assert what == "profiles" or cupti_run.read_folder(rings) is not None
