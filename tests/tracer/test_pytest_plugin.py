"""The pytest plugin on itself: tests that pass, tests that fail, and what they print; on the host and on a GPU."""

import subprocess
import sys

import pytest

from tracer.errors import RecordError
from tracer.recorders import cupti

PLUGIN = ("-p", "tracer.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:dash", "--strict-markers", "-W", "error")
HEAD = '''
import numpy as np
import pytest
from executor.backends.cpu.backend import CpuBackend
from tracer import annotate, record
from tracer.recorders.host import HostRecorder


class Engine:
    """A device that copies in, waits and copies back."""

    def __init__(self):
        self.backend, self.recorder = CpuBackend(), HostRecorder()
        self.values, self.buffer = np.zeros(64, np.uint8), self.backend.alloc(64)
        self.backend.report_to(self.recorder)

    def __enter__(self):
        self.recorder.start()
        return self

    def __exit__(self, *failure):
        self.recorder.stop()
        self.backend.close()

    def step(self, copies=1, syncs=1):
        for _ in range(copies):
            self.backend.copy_to_device(self.buffer, self.values, 0)
        for _ in range(syncs):
            self.backend.synchronize(0)  # waits
'''


def line_of(source, comment):
    """The number of the line that ends with a comment, in a file as pytester writes it."""
    return next(i for i, line in enumerate(source.strip().splitlines(), start=1) if line.endswith(comment))


def ran(pytester, body, **outcomes):
    pytester.makepyfile(test_inner=HEAD + body)
    result = pytester.runpytest(*PLUGIN)
    result.assert_outcomes(**outcomes)
    return result


def said(result):
    return "\n".join(result.outlines)


KEPT = """
@pytest.mark.sync_budget(syncs=1, copies=2, launches=0, signature="a×2 s", class_=("none", "aaag"))
def test_marked_steps(recording):
    with Engine() as engine:
        engine.step(9, 9)  # warm-up
        for index in range(4):
            with recording.token(index):
                engine.step(2, 1)
    assert recording.report.syncs_per_token == 1
    assert len(recording.trace["nvtx"]) == 4

@pytest.mark.sync_budget(syncs=3, copies=3)
def test_the_whole_body_is_one_step():
    with Engine() as engine:
        for _ in range(3):
            engine.step()

from executor.run.configuration import Configuration
from executor.run import execute

class Unmarked(HostRecorder):
    def push_range(self, text, *rest): ...
    def pop_range(self): ...

@pytest.mark.sync_budget(syncs=3, copies=7, launches=1, class_="saaas", steps="found")
def test_steps_may_be_found():
    execute([Configuration("cpu", strategy="saaas", tokens=6, repeats=1, warmup=1)], make_recorder=Unmarked)

@pytest.mark.sync_budget(syncs=1, copies=1)
class TestMarksOfClassAndFunctionAddUp:
    def test_both(self):
        with Engine() as engine:
            engine.step(1, 1)

    @pytest.mark.sync_budget(syncs=2)
    def test_closest(self):
        with Engine() as engine:
            engine.step(1, 2)
"""


def test_kept_budgets_pass(pytester):
    ran(pytester, KEPT, passed=5)


def test_a_broken_one_prints_the_signatures_and_the_line_of_the_surplus_call(pytester):
    body = """
def decode(engine):
    engine.step(2, 1)
    engine.step(0, 1)  # one sync too many

@pytest.mark.sync_budget(syncs=1, copies=2, signature="a×2 s")
def test_it(recording):
    with Engine() as engine:
        for index in range(4):
            with recording.token(index), annotate("layer"):
                decode(engine)  # a step
"""
    result = ran(pytester, body, failed=1)
    result.stdout.fnmatch_lines(
        [
            "the sync budget is broken; counts are medians of 3 token steps (NVTX ranges token; the first is excluded)",
            "  ✗ syncs      found 2      allowed 1      1 too many",
            "  ✓ copies     found 2      allowed 2",
            "signature found:    a×2 s×2  (100% of the steps)",
            "signature expected: a×2 s",
            "first surplus call: streamSynchronize on thread * µs into step 1, in token / layer",
            f"  test_inner.py:{line_of(HEAD, '# waits')} in step",
            "      self.backend.synchronize(0)  # waits",
            "    *backend.py:* in synchronize*",
            f"    test_inner.py:{line_of(HEAD + body, '# one sync too many')} in decode",
            f"    test_inner.py:{line_of(HEAD + body, '# a step')} in test_it",
        ],
        consecutive=True,
    )
    assert "Traceback" not in said(result)
    assert "_pytest" not in said(result)


BROKEN = """
@pytest.mark.sync_budget(syncs=1)
def test_too_many():
    with Engine() as engine:
        engine.step(0, 2)

@pytest.mark.sync_budget(syncs=1, copies=1)
class TestEngine:
    @pytest.mark.sync_budget(syncs=2)
    def test_inherited(self):
        with Engine() as engine:
            engine.step(2, 2)

    @pytest.mark.parametrize("n", [pytest.param(n, marks=pytest.mark.sync_budget(copies={"max": n})) for n in (1, 2)])
    def test_of_parameters(self, n):
        with Engine() as engine:
            engine.step(2, 1)

@pytest.mark.sync_budget(copies=1)
def test_prefills_do_not_count():
    with Engine() as engine:
        for _ in range(3):
            with annotate("prefill"):
                engine.step(9)
            with annotate("token \\x1b[31mred"):
                engine.step(2)
"""


def test_broken_ones_are_named(pytester):
    result = ran(pytester, BROKEN, passed=1, failed=4)
    result.stdout.fnmatch_lines(["*counts are from one step (the whole test body)"])
    for words in ("::test_inherited", "::test_of_parameters[1]", "copies     found 2 ", "NVTX ranges token ?[31mred;"):
        assert words in said(result)


FIRST = """
from tracer.errors import UsageError

@pytest.mark.sync_budget(syncs=9)
@pytest.mark.parametrize("error", [ValueError("of the test"), UsageError("of the code")])
def test_it(error):
    raise error

@pytest.mark.sync_budget(syncs=9)
def test_skipped():
    pytest.skip("no weights")

@pytest.mark.xfail(strict=True)
@pytest.mark.sync_budget(syncs=9)
def test_known():
    with Engine() as engine:
        engine.step()
"""


def test_what_the_test_itself_raises_comes_first(pytester):
    result = ran(pytester, FIRST, failed=2, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["E * ValueError: of the test", "E * tracer.errors.UsageError: of the code"])
    assert "nothing to count" not in said(result)


def test_without_cupti_the_message_says_why(pytester, monkeypatch):
    def missing():
        raise RecordError("there is no NVIDIA driver here")

    monkeypatch.setattr(cupti, "_process", missing)
    body = "@pytest.mark.sync_budget(syncs=0)\ndef test_it(): pass\n"
    body += "@pytest.mark.sync_budget(syncs=0, backend='cupti')\ndef test_cupti(): pass"
    result = ran(pytester, body, failed=2)
    result.stdout.fnmatch_lines(
        ["*nothing to count: *(CUPTI cannot record here: there is no NVIDIA driver here)",
         "sync_budget: there is no NVIDIA driver here"]
    )  # fmt: skip
    assert "During handling" not in said(result)


def test_another_profiler_is_an_error_of_one_line(pytester, monkeypatch):
    def refuse():
        raise RecordError("another profiler traces CUDA in this process (libTools.so); record without it")

    taken = type("Taken", (), {"path": "libcupti.so"})
    monkeypatch.setattr(cupti, "_process", type("Process", (), {"cupti": taken}))
    monkeypatch.setattr(cupti, "refuse_other_profilers", refuse)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "")  # so that monkeypatch takes back what the recorder sets
    body = "@pytest.mark.sync_budget(syncs=1)\ndef test_it():\n    with Engine() as engine:\n        engine.step()\n"
    body += "\ndef test_next():\n    assert not HostRecorder()._keeps_stacks"
    result = ran(pytester, body, failed=1, passed=1)
    result.stdout.fnmatch_lines(["sync_budget: another profiler traces CUDA in this process (libTools.so); *"])


def test_marks_that_make_no_sense(pytester):
    marks = {
        "sinks=1": "sinks is not an option; options are syncs, copies, launches, class_, signature, backend, steps",
        "2": "positional arguments is not an option; *", "": "contains no limits; *",
        "syncs=-1": "syncs is -1; it must be a number from 0 to 1e+18",
        "syncs={'most': 1}": "unknown key syncs.most; valid keys are min, max",
        "syncs=1, backend='gpu'": "backend is 'gpu'; it must be cupti or host",
    }  # fmt: skip
    tests = (f"@pytest.mark.sync_budget({mark})\ndef test_{i}(): pass\n" for i, mark in enumerate(marks))
    result = ran(pytester, "\n".join(tests), errors=len(marks))
    result.stdout.fnmatch_lines([f"@pytest.mark.sync_budget: {message}" for message in marks.values()])


def test_sessions_without_it_import_nothing_heavy(tmp_path):
    (tmp_path / "test_plain.py").write_text("def test_it(): pass\n")
    program = (
        f"import sys, pytest; code = pytest.main([{str(tmp_path)!r}, *{PLUGIN!r}]); "
        "print(sorted({'numpy', 'pandas', 'pyarrow', 'nvtx', 'click'} & set(sys.modules))); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


ON_A_GPU = {
    "cupy": """
import cupy
stream, x = cupy.cuda.Stream(non_blocking=True), cupy.ones(1024, cupy.float32)
BUDGET = {"syncs": 1, "launches": 1, "copies": 0}

def work():
    with stream:
        cupy.add(x, 1, out=x)

def wait():
    stream.synchronize()  # waits
""",
    "torch": """
import torch
x = torch.ones(1024, device="cuda")
BUDGET = {"syncs": 1, "launches": 1, "copies": 0}

def work():
    x.add_(1)

def wait():
    torch.cuda.synchronize()  # waits
""",
    "cuda.bindings": """
import numpy as np
from cuda.bindings import runtime
_, stream = runtime.cudaStreamCreate()
_, memory = runtime.cudaMalloc(64)
values = np.zeros(64, np.uint8)
BUDGET = {"syncs": 1, "launches": 0, "copies": 1}

def work():
    runtime.cudaMemcpyAsync(memory, values.ctypes.data, 64, runtime.cudaMemcpyKind.cudaMemcpyHostToDevice, stream)

def wait():
    runtime.cudaStreamSynchronize(stream)  # waits
""",
}
STEPS = """
import pytest

@pytest.mark.sync_budget(**BUDGET, backend="cupti")
@pytest.mark.parametrize("waits", [1, 2])
def test_it(recording, waits):
    work()
    wait()
    for index in range(5):
        with recording.token(index):
            work()
            for _ in range(waits):
                wait()
"""


@pytest.mark.gpu
@pytest.mark.parametrize("library", ON_A_GPU)
def test_code_on_a_gpu(pytester, library):
    """In a process of its own: CUPTI's state belongs to the process."""
    pytest.importorskip(library)
    source = ON_A_GPU[library] + STEPS
    pytester.makepyfile(test_inner=source)
    result = pytester.runpytest_subprocess(*PLUGIN, "-W", "default")  # of the libraries' own
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["  ✗ syncs      found 2      allowed 1      1 too many", "signature found: *",
         "first surplus call: cu*Synchronize* µs into step 1, in token",
         f"  test_inner.py:{line_of(source, '# waits')} in wait", "      *ynchronize(*  # waits"]
    )  # fmt: skip
