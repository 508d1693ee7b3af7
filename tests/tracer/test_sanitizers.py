"""The preloaded library under the compilers' sanitizers, with and without CUPTI, over drivers without a GPU."""

import os
import shutil
import subprocess

import pytest

from tests.tracer.fake_driver import Build, compiler_or_skip
from tracer.recorders import cupti_run, light_ring

PLAYS = ["decode proc", "decode proc child", "decode proc memory", "decode proc threads 2000", "decode proc forks",
         "decode proc reset", "every proc2", "ranges all", "scenes destroyed_elsewhere", "scenes crowd",
         "scenes other_context", "scenes many_contexts", "scenes own_streams",
         "scenes clocked polls 250 forks", "scenes host_functions"]  # fmt: skip


@pytest.mark.parametrize(("sanitizer", "runtime"), [("address,undefined", "libasan.so"), ("thread", "libtsan.so")])
def test_sanitizers_find_nothing(built, cuda, tmp_path, sanitizer, runtime):
    compiler = compiler_or_skip()
    found = subprocess.run([compiler, f"-print-file-name={runtime}"], capture_output=True, text=True, check=True)
    if not os.path.isabs(found.stdout.strip()):
        pytest.skip(f"{compiler} has no {runtime}")
    folder = shutil.copytree(built.folder, tmp_path / "programs", symlinks=True, ignore=shutil.ignore_patterns("rings"))
    light = Build.library(folder, [f"-fsanitize={sanitizer}", "-g", "-O0"])
    under = Build.at(folder, tmp_path / "rings")
    options = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "report_thread_leaks=0:die_after_fork=0"}
    under.extra = {"LD_PRELOAD": found.stdout.strip(), **options}
    for play in PLAYS:
        under.run(*play.split())
    for scene in ("crowd", "parts", "waits_between"):
        under.run("scenes", scene, INTERTOKEN_LIGHT_BUDGET="50")
    for what, code in {"": 0, "threads": 0, "forks": 0, "execs": 0, "left": 3, "profiles": 0, "window": 0}.items():
        with light_ring.folder() as rings:
            (rings / light_ring.SETTINGS).write_text(cupti_run.settings("node", str(cuda / "libcupti.so.13")))
            given = cupti_run.environment(light, rings, {"LD_PRELOAD": under.extra["LD_PRELOAD"]})
            given |= {"LD_LIBRARY_PATH": str(cuda), "ASAN_OPTIONS": under.extra["ASAN_OPTIONS"]}
            program = [cuda / "traced", what, "2000" if what == "threads" else "3"]
            done = subprocess.run(program, env=given, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (code, ""), what
            assert what == "profiles" or cupti_run.read_folder(rings) is not None
