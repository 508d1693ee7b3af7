"""The small public face: what it says is what the commands print."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tracer
from tests.recordings import LLAMA, SAMPLES
from tests.tracer.handmade import Script, decode_loop
from tracer.cli import main
from tracer.errors import EmptyTraceError, FormatError, IncomparableError, TraceError, UsageError

BASE, OTHER = LLAMA["sccc", "graph"], LLAMA["saaas", "graph"]
RATE = 748.7
ROOT = Path(__file__).parents[2]


def printed(*arguments: object) -> dict[str, Any]:
    answer = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert answer.exit_code == 0, answer.output
    facts = json.loads(answer.stdout)
    assert isinstance(facts, dict)
    return facts


@pytest.fixture(scope="module")
def found() -> tracer.Recording:
    return tracer.analyse(BASE, untraced_steps_per_s=RATE)


def test_every_part_is_what_its_command_prints(found: tracer.Recording) -> None:
    gaps = printed("gaps", BASE, "--untraced-steps-per-s", RATE)
    assert found.gaps.gap_us == gaps["traced_gap_us"]
    assert found.gaps.untraced_gap_us == gaps["untraced_gap_us"]
    assert found.idle.idle_us == gaps["idle_us"]
    syncs = printed("syncs", BASE)
    assert (found.syncs.strategy, found.syncs.signature) == (syncs["class"], syncs["signature"])
    path = printed("path", BASE)
    assert (found.path.path_us, found.path.steps) == (path["path_us"], path["steps"])
    assert found.path.calls.name.tolist() == [row["name"] for row in path["calls"]]
    assert found.path.warning == path["warning"]
    tokens = printed("tokens", BASE)
    assert (len(found.steps), found.notes) == (tokens["steps"], tokens["notes"])
    assert found.summary.idle_where == printed("info", BASE)["idle_where"]


def test_parts_are_computed_once(found: tracer.Recording) -> None:
    assert found.path is found.path
    assert found.gaps is found.gaps
    assert found.idle is found.gaps.idle


def test_a_trace_that_is_read_already_gives_the_same(found: tracer.Analysis) -> None:
    again = tracer.analyse(tracer.read(BASE), name="mine", untraced_steps_per_s=[RATE, RATE - 1, RATE + 1])
    assert again.gaps.untraced_gap_us == found.gaps.untraced_gap_us
    assert (again.name, again.place, found.name, found.place) == ("mine", "", BASE.name, str(BASE))


def test_what_lacks_raises_and_the_rest_is_there() -> None:
    script = Script()
    script.kernel(0, 100)
    lone = tracer.analyse(script.trace)
    with pytest.raises(EmptyTraceError):
        lone.gaps  # noqa: B018
    assert len(lone.trace["kernels"]) == 1
    with pytest.raises(FormatError, match="no such file"):
        tracer.analyse("nothing.sqlite")


def test_a_rate_that_cannot_be_is_refused() -> None:
    with pytest.raises(TraceError, match=rf"^{BASE.name}: "):
        tracer.analyse(BASE, untraced_steps_per_s=RATE / 3).gaps  # noqa: B018
    for rate in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="a rate must be a positive number"):
            tracer.analyse(BASE, untraced_steps_per_s=rate)
    with pytest.raises(UsageError, match="steps must be consecutive"):
        tracer.analyse(BASE, steps=slice(0, 10, 2))


def test_a_comparison_is_that_of_the_command() -> None:
    (_, other) = printed("compare", BASE, OTHER, "--untraced-steps-per-s", RATE, "--untraced-steps-per-s", 760)["runs"]
    runs = [tracer.analyse(path, untraced_steps_per_s=rate) for path, rate in ((BASE, RATE), (OTHER, 760))]
    compared = tracer.compare(*runs)
    assert compared.verdict == other["verdict"]
    assert compared.speedup is not None
    assert compared.speedup.estimate == other["speedup"]["estimate"]
    assert tracer.compare(str(BASE), [OTHER]).basis == printed("compare", BASE, OTHER)["basis"]


def test_several_recordings_are_one_run() -> None:
    loops = [decode_loop("agAs", 20, period).trace for period in (1000, 1002, 998, 1200, 1202, 1198)]
    compared = tracer.compare(loops[:3], loops[3:], force=True)
    assert (len(compared.base.recordings), compared.unit) == (3, "recordings")
    with pytest.raises(UsageError, match="no recording given"):
        tracer.compare([], loops)
    with pytest.raises(IncomparableError):
        tracer.compare(BASE, SAMPLES / "vllm-b8-graph")


def test_the_package_is_imported_without_what_it_needs() -> None:
    code = "import sys, tracer; assert not {'numpy', 'pandas', 'numba', 'click'} & set(sys.modules); tracer.analyse"
    subprocess.run((sys.executable, "-c", code), check=True, cwd=ROOT)


def test_a_program_that_imports_it_keeps_its_options_of_pandas() -> None:
    """Also the one that the commands, and these tests, change for themselves."""
    code = f"""
import pandas, tracer
pandas.set_option("mode.string_storage", "pyarrow")
found = tracer.analyse({str(BASE)!r}, untraced_steps_per_s={RATE})
assert pandas.get_option("mode.string_storage") == "pyarrow"
print(found.gaps.gap_us["p50"])
"""
    said = subprocess.run((sys.executable, "-c", code), check=True, cwd=ROOT, capture_output=True, text=True).stdout
    assert float(said) == printed("gaps", BASE, "--untraced-steps-per-s", RATE)["traced_gap_us"]["p50"]


def test_runs_that_are_compared_have_their_names() -> None:
    """Of their files, or, for traces that were not read from any, what they are in the comparison."""
    paths = [BASE, OTHER]
    read = [tracer.read(path) for path in paths]
    found = tracer.compare(*read)
    assert [side.name for side in (found.base, found.other)] == [path.name for path in paths]
    assert read[0]._repr_html_().startswith(f"<p>{paths[0].name}: ")
    made = [tracer.Trace(dict(trace.tables), trace.metadata, list(trace.notes)) for trace in read]
    html = tracer.compare(*made)._repr_html_()
    assert "the other is faster than the base" in html
