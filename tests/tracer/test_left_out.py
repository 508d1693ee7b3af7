"""Light recordings of which some steps have an unknown end: figures are of the others, and all outputs say so."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import tracer
from tests.tracer.light_engine import AFTER_GRAPH, BEFORE_GRAPH, GRAPH_NS, HOST_NS, Engine
from tracer.analysis.gaps import gap_report
from tracer.analysis.tokens import find_steps
from tracer.cli import main
from tracer.errors import EmptyTraceError
from tracer.model.trace import Trace
from tracer.recorders.light import light_trace

STEPS = 120
LATE_NS = 2_000_000
NEVER_TIMED = [(21, 40_000, 0), (22, 2_000, 9_000)]


def decoding(one_of: int, late_ns: int = LATE_NS, behind: str = "wait", ends: str = "") -> Trace:
    """As vLLM decodes; at the end of one step of some, kernels whose duration no stamp tells, and a host that comes
    back when they have long ended; with these stamps at their ends; these calls of `Engine` end each step."""
    made = Engine()
    for step in range(STEPS):
        made.now += HOST_NS
        timed = {0} if step % 4 == 0 else set()
        unknown = step % one_of == one_of - 1
        made.run(2 * step + 1, BEFORE_GRAPH, timed, ends="ht" if timed else "")
        made.graph(step, GRAPH_NS)
        pause = late_ns if unknown else 0
        if unknown:
            made.run(2 * step + 2, NEVER_TIMED, set(), pause, ends)
        else:
            made.run(2 * step + 2, AFTER_GRAPH, timed, ends="")
        for call in behind.split():
            getattr(made, call)()
    return light_trace([made.ring()])


def test_the_gaps_that_are_known_are_the_same_and_the_others_are_counted() -> None:
    whole, part = (gap_report(trace, find_steps(trace)) for trace in (decoding(10_000), decoding(5)))
    assert (whole.unknown, len(whole.table)) == (0, STEPS - 1)
    assert "gaps" not in (whole.left_out or "")
    known = len(part.table)
    assert part.unknown == STEPS // 5 - 1  # the last step has none
    assert known + part.unknown == len(whole.table)
    assert part.gap_us["p50"] == pytest.approx(whole.gap_us["p50"], rel=0.01)
    assert part.left_out is not None
    without_idle = part.unknown + part.idle.left_out
    assert part.left_out.startswith(
        f"without {part.unknown} of {len(whole.table)} gaps and {without_idle} of {len(whole.table)} idle times: "
    )


@pytest.mark.parametrize("behind", ["wait", "fetch wait"])
def test_a_host_that_waits_tells_the_end(behind: str) -> None:
    """The wait returns right after the kernels, whatever their durations: all gaps are known."""
    report = gap_report(*(lambda trace: (trace, find_steps(trace)))(decoding(5, 0, behind)))
    assert report.unknown == 0
    assert len(report.table) == STEPS - 1


@pytest.mark.parametrize("behind", ["fetch wait", "fetch query"])
def test_a_wait_for_a_late_copy_or_a_query_tells_no_end(behind: str) -> None:
    """The kernels ended 2 ms before the host copied their result, and waited for that copy alone."""
    trace = decoding(5, behind=behind)
    report = gap_report(trace, find_steps(trace))
    assert report.unknown == STEPS // 5 - 1
    assert report.gap_us["mean"] == pytest.approx(HOST_NS / 1e3, abs=30)


@pytest.mark.parametrize("ends", ["t", "ht"])
def test_a_stamp_that_a_late_host_puts_behind_a_run_tells_no_end(ends: str) -> None:
    """It is launched right before the wait, 2 ms after the kernels ended; without a pause it tells when they ended."""
    late, in_time = (
        gap_report(trace, find_steps(trace)) for trace in (decoding(5, ns, ends=ends) for ns in (LATE_NS, 0))
    )
    assert (late.unknown, in_time.unknown) == (STEPS // 5 - 1, 0)
    assert late.gap_us["mean"] == pytest.approx(in_time.gap_us["mean"], rel=0.02)


def test_without_most_of_them_there_is_no_gap() -> None:
    trace = decoding(1)
    with pytest.raises(EmptyTraceError, match=r"no gap: in 119 of 119 steps it is unknown"):
        gap_report(trace, find_steps(trace))


@pytest.mark.parametrize("command", ["gaps", "info"])
def test_the_commands_say_it(tmp_path: Path, command: str) -> None:
    tracer.write(decoding(5), tmp_path / "light")
    shown = CliRunner().invoke(main, [command, str(tmp_path / "light")])
    assert shown.exit_code == 0, shown.output
    words = " ".join(shown.output.split())
    assert "warning: without 23 of 119 gaps" in words
    told = json.loads(CliRunner().invoke(main, [command, str(tmp_path / "light"), "--json"]).stdout)
    assert told["left_out"].startswith("without 23 of 119 gaps")
