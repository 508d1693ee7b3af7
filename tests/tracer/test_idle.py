"""Idle time of a step to the nanosecond: its places, what it is not, and what an untraced rate leaves of it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings

from tests.recordings import SAMPLES
from tests.tracer.handmade import PROCESS, Script
from tests.tracer.test_causes import disorder
from tracer import Trace, formats
from tracer.analysis.distortion import STRETCH
from tracer.analysis.gaps import GapReport, gap_report
from tracer.analysis.idle import PLACES, holes_of
from tracer.analysis.tokens import ALL_STEPS, choose_steps, find_steps
from tracer.cli import main
from tracer.errors import EmptyTraceError
from tracer.intervals import covered

OTHER_PROCESS = 999


def report(script: Script, rate: float | None = None) -> GapReport:
    return gap_report(script.trace, find_steps(script.trace), rate)


def engine(steps: int = 3, level: str = "graph", collective: bool = False) -> Script:
    """Steps of 1,000 ns: a kernel 0..100, a graph 300..600 (node level: kernels 300..400 and 450..600), one 650..700.

    Idle are 200 before the graph, 50 (node level) inside it, 50 after it, and 300 up to the next step.
    """
    script = Script()
    for begin in range(0, 1000 * steps, 1000):
        script.range("token", begin, begin + 990)
        script.launch((begin + 1, begin + 5), (begin + 10, begin + 110))
        launch = script.call("cudaGraphLaunch_v10000", begin + 20, begin + 30)
        if level == "graph":
            script.rows["graph_launches"].append({
                "start": begin + 310, "end": begin + 610, "device": 0, "context": 1, "stream": 7, "correlation": launch,
                "process": PROCESS, "graph": 1,
            })  # fmt: skip
        else:
            script.kernel(begin + 310, begin + 410, launch)
            script.kernel(begin + 460, begin + 610, launch)
        script.launch((begin + 40, begin + 50), (begin + 660, begin + 710))
        if collective:
            script.launch((begin + 60, begin + 70), (begin + 800, begin + 900), name="ncclDevKernel_AllReduce")
    return script


@pytest.mark.parametrize(("level", "inside"), [("graph", 0), ("node", 50)])
def test_the_places_of_idle_time(level: str, inside: int) -> None:
    idle = report(engine(level=level)).idle
    assert (
        idle.steps[["period", "busy", "idle", *PLACES]].to_numpy().tolist()
        == [[1000, 450 - inside, 550 + inside, 300, 200, inside, 50]] * 2
    )
    figures = idle.idle_us
    assert sum(figures[place] for place in PLACES) == pytest.approx(figures["mean"])
    assert idle.share == pytest.approx((550 + inside) / 1000)


def test_the_holes_by_what_computes_behind_them() -> None:
    table = report(engine()).idle.holes
    assert table[["place", "next", "count", "idle_us"]].to_numpy().tolist() == [
        ["between_steps", "k", 1, 0.3], ["before_graph", "graph 1", 1, 0.2], ["after_graph", "k", 1, 0.05],
    ]  # fmt: skip


def test_collectives_and_what_others_compute_are_not_idle() -> None:
    script = engine(collective=True)
    script.kernel(850, 950, process=OTHER_PROCESS)  # 50 of it behind the collective
    idle = report(script).idle
    assert idle.steps[["communication", "others", "idle", "between_steps"]].to_numpy().tolist() == [
        [100, 50, 400, 150], [100, 0, 450, 200],
    ]  # fmt: skip


def test_two_hosts_on_one_device_do_not_idle_while_the_other_computes() -> None:
    script = Script()
    for number in range(3):
        begin = 1000 * number
        for thread, start in ((101, begin + 10), (202, begin + 400)):
            script.range("token", start - 9, start + 300, thread=thread)
            script.launch((start - 5, start - 1), (start, start + 200), thread=thread)
    idle = report(script).idle
    assert idle.steps["others"].tolist() == [200] * 4
    assert idle.steps["idle"].tolist() == [600] * 4


def test_a_rate_leaves_the_idle_time_that_the_device_is_not_busy() -> None:
    found = report(engine(), rate=1e9 / 700)  # 700 ns a step, 450 of them busy
    assert found.untraced_idle_us == {"p50": 0.25, "mean": 0.25}
    assert found.untraced_gap_us is not None
    assert found.untraced_gap_us["p50"] == pytest.approx(0.25 * 300 / 550, abs=1e-3)  # its recorded share
    assert report(engine(), rate=1e9 / 400).untraced_idle_us is None


def test_what_node_level_tracing_adds_to_graphs_is_no_work() -> None:
    idle = report(engine(level="node"), rate=1e9 / 700).idle
    for sign in (-1, 0, 1):
        for row, left in zip(idle.steps.itertuples(), idle.untraced_ns(1e9 / 700, sign), strict=True):
            per_kernel = STRETCH.per_kernel + sign * STRETCH.error
            added = round(row.graph_kernels * per_kernel + row.graph_busy * STRETCH.share)
            assert left == 700 - row.busy + min(max(added - row.between_kernels, 0), row.busy)


def test_a_rate_shortens_the_idle_part_of_a_gap_and_not_its_communication() -> None:
    found = report(engine(collective=True), rate=1e9 / 775)  # 775 ns a step, 450 busy, 100 in the collective
    assert found.idle.steps["idle"].tolist() == [450, 450]
    assert found.idle.untraced_gaps(found.table, 1e9 / 775).tolist() == [200] * 2  # 100 + 225 * 200 / 450


def test_times_since_1970_keep_every_nanosecond() -> None:
    shift = 1_672_876_799_190_955_001
    trace = engine().trace.map_tables(
        lambda _, frame: (
            frame.assign(start=frame["start"] + shift, end=frame["end"] + shift) if "start" in frame else frame
        )
    )
    assert gap_report(trace, find_steps(trace)).idle.steps["before_graph"].tolist() == [200] * 2


@settings(max_examples=40)
@given(disorder())
def test_periods_are_busy_communication_others_and_idle_and_this_is_its_places(trace: Trace) -> None:
    steps = find_steps(trace, pattern="token")
    try:
        found = gap_report(trace, steps)
    except EmptyTraceError:
        return
    table, (holes, _) = found.idle.steps, holes_of(trace, steps, found.table)
    assert (table[["busy", "communication", "others", "idle", *PLACES]] >= 0).to_numpy().all()
    assert (table[["busy", "communication", "others", "idle"]].sum(axis=1) == table["period"]).all()
    assert (table[list(PLACES)].sum(axis=1) == table["idle"]).all()
    assert holes["idle"].sum() == table["idle"].sum()
    everything = trace.activities()
    for device in table["device"].unique().tolist():
        running = everything[(everything["device"] == device) & everything["table"].isin(["kernels", "graph_launches"])]
        mine = holes[(holes["device"] == device) & (holes["communication"] == 0)]
        free = (mine["end"] - mine["start"]).to_numpy() - covered(
            running["start"], running["end"], mine["start"], mine["end"]
        )
        assert (mine["idle"].to_numpy() == free).all()


@pytest.mark.parametrize(
    "name", ["vllm-b1-graph", "vllm-b8-torch", "vllm-b1-node-nvtx", "six-strategies", "llama1b-sccc-node"]
)
def test_it_is_what_the_raw_tables_say(name: str) -> None:
    trace = formats.read(SAMPLES / name)
    steps = choose_steps(trace, None, ALL_STEPS)
    found = gap_report(trace, steps)
    compute = trace.compute()
    begin, until = (holes_of(trace, steps, found.table)[1][name].to_numpy() for name in ("begin", "until"))
    busy = covered(compute["start"], compute["end"], begin, until)
    assert np.array_equal(until - begin - busy, found.idle.steps["idle"].to_numpy())


def test_the_first_figure_tells_where_a_vllm_step_idles() -> None:
    result = CliRunner().invoke(main, ["gaps", str(SAMPLES / "vllm-b1-graph")])
    lines = result.stdout.splitlines()
    assert lines[0].startswith("idle      p50 505.9 µs")
    assert "1 / rate - busy" in lines[1]
    facts = json.loads(CliRunner().invoke(main, ["gaps", str(SAMPLES / "vllm-b1-graph"), "--json"]).stdout)
    assert facts["idle_us"]["before_graph"] > 0.9 * facts["idle_us"]["mean"]
    assert facts["holes"][0]["place"] == "before_graph"
    assert facts["gap_us"]["p50"] < 10 < facts["idle_us"]["p50"]
    info = CliRunner().invoke(main, ["info", str(SAMPLES / "vllm-b1-graph")]).stdout
    assert info.index("idle ") < info.index("gap ")


def test_an_engine_s_rate_corrects_steps_that_span_longer_than_it_leaves_them() -> None:
    path = str(SAMPLES / "vllm-b8-node")
    facts = json.loads(CliRunner().invoke(main, ["gaps", path, "--json"]).stdout)
    graph = json.loads(CliRunner().invoke(main, ["gaps", str(SAMPLES / "vllm-b8-graph"), "--json"]).stdout)
    rate = json.loads((SAMPLES / "vllm-b8-graph" / "run.json").read_text())["measured"]["steps_per_s"]["median"]
    for each in (facts, graph):
        assert each["untraced_idle_us"]["mean"] == pytest.approx(1e6 / rate - each["busy_us"], rel=0.05)
