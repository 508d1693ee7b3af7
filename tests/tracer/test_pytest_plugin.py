"""The pytest plugin on itself: tests that pass, tests that fail, and what they print; on the host and on a GPU."""

import re
import subprocess
import sys

import pytest

from tests.programs import texts
from tracer.errors import RecordError
from tracer.recorders import cupti, cupti_library

PLUGIN = ("-p", "tracer.pytest_plugin", "-p", "no:cacheprovider", "-p", "no:dash", "--strict-markers", "-W", "error")
INNER = texts("inner-tests.txt")
"""Test modules by their names."""


def line_of(source, comment):
    """The number of the line that ends with a comment, in a file as pytester writes it."""
    return next(i for i, line in enumerate(source.strip().splitlines(), start=1) if line.endswith(comment))


def ran(pytester, body, **outcomes):
    pytester.makepyfile(test_inner=f"{INNER['engine']}\n\n{body}")
    result = pytester.runpytest(*PLUGIN)
    result.assert_outcomes(**outcomes)
    return result


def said(result):
    return "\n".join(result.outlines)


def test_kept_budgets_pass(pytester):
    ran(pytester, INNER["kept"], passed=5)


def test_a_broken_one_prints_the_signatures_and_the_line_of_the_surplus_call(pytester):
    whole = f"{INNER['engine']}\n\n{INNER['surplus']}"
    result = ran(pytester, INNER["surplus"], failed=1)
    wanted = re.sub("{(.*)}", lambda comment: str(line_of(whole, comment[1])), INNER["surplus says"]).splitlines()
    result.stdout.fnmatch_lines([line for line in wanted if line], consecutive=True)
    assert "Traceback" not in said(result)
    assert "_pytest" not in said(result)


def test_broken_ones_are_named(pytester):
    result = ran(pytester, INNER["broken"], passed=1, failed=4)
    result.stdout.fnmatch_lines(["*counts are from one step (the whole test body)"])
    for words in (
        "::test_inherited",
        "::test_of_parameters[1]",
        "copies     found 2 ",
        r"NVTX ranges token \x1b[31mred;",
    ):
        assert words in said(result)


def test_what_the_test_itself_raises_comes_first(pytester):
    result = ran(pytester, INNER["first"], failed=2, skipped=1, xfailed=1)
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
    monkeypatch.setattr(cupti_library, "refuse_other_profilers", refuse)
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "")  # so that monkeypatch takes back what the recorder sets
    body = "@pytest.mark.sync_budget(syncs=1)\ndef test_it():\n    with Engine() as engine:\n        engine.step()\n"
    body += "\ndef test_next():\n    assert not HostRecorder()._keeps_stacks"
    result = ran(pytester, body, failed=1, passed=1)
    result.stdout.fnmatch_lines(["sync_budget: another profiler traces CUDA in this process (libTools.so); *"])


def test_marks_that_make_no_sense(pytester):
    marks = [line.rpartition(": ") if line[:1] != ":" else ("", "", line[2:])
             for line in INNER["marks that make no sense"].split("\n") if line]  # fmt: skip
    tests = (f"@pytest.mark.sync_budget({mark})\ndef test_{i}(): pass\n" for i, (mark, *_) in enumerate(marks))
    result = ran(pytester, "\n".join(tests), errors=len(marks))
    result.stdout.fnmatch_lines([f"@pytest.mark.sync_budget: {message}" for *_, message in marks])


def test_sessions_without_it_import_nothing_heavy(tmp_path):
    (tmp_path / "test_plain.py").write_text("def test_it(): pass\n")
    program = (
        f"import sys, pytest; code = pytest.main([{str(tmp_path)!r}, *{PLUGIN!r}]); "
        "print(sorted({'numpy', 'pandas', 'pyarrow', 'nvtx', 'click'} & set(sys.modules))); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["cupy", "torch", "cuda.bindings"])
def test_code_on_a_gpu(pytester, library):
    """In a process of its own: CUPTI's state belongs to the process."""
    pytest.importorskip(library)
    source = f"{INNER[library]}\n{INNER['steps on a gpu']}"
    pytester.makepyfile(test_inner=source)
    result = pytester.runpytest_subprocess(*PLUGIN, "-W", "default")  # of the libraries' own
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["  ✗ syncs      found 2      allowed 1      1 too many", "signature found: *",
         "first surplus call: cu*Synchronize* µs into step 1, in token",
         f"  test_inner.py:{line_of(source, '# waits')} in wait", "      *ynchronize(*  # waits"]
    )  # fmt: skip
