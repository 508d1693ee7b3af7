"""Idle time of a step to the nanosecond: its places, what it is not, and what an untraced rate leaves of it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recordings import SAMPLES
from tests.tracer.handmade import PROCESS, THREAD, Script
from tests.tracer.test_causes import disorder
from tracer import Trace, formats
from tracer.analysis.gaps import GapReport, gap_report
from tracer.analysis.idle import PLACES, Holes, IdleReport, holes_of
from tracer.analysis.step_work import all_compute
from tracer.analysis.tokens import ALL_STEPS, Steps, choose_steps, find_steps
from tracer.cli import main
from tracer.errors import EmptyTraceError
from tracer.model.fits import fits_of
from tracer.model.intervals import covered

OTHER_PROCESS, OTHER = 999, THREAD + 1


def report(script: Script, rate: float | None = None) -> GapReport:
    return gap_report(script.trace, find_steps(script.trace), rate)


def found_holes(trace: Trace, steps: Steps, report: GapReport) -> Holes:
    return holes_of(trace, steps, report.table, all_compute(trace, steps))


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
    assert table[["cause", "part", "part_us"]].to_numpy().tolist() == [
        ["host", "host_code", 0.291], ["launch", "launch_queued", 0.2], ["launch", "launch_queued", 0.05],
    ]  # fmt: skip


def seen_parts(idle: IdleReport) -> dict[str, dict[str, int]]:
    """Place -> part -> ns, without those that are 0."""
    return {place: {p: ns for p, ns in parts.items() if ns} for place, parts in idle.parts.to_dict("index").items()}


def test_the_causes_of_each_part_of_the_idle_time() -> None:
    idle = report(engine(level="node")).idle
    assert seen_parts(idle) == {
        "between_steps": {"host_code": 2 * 291, "launch_call": 2 * 4, "launch_latency": 2 * 5},
        "before_graph": {"launch_queued": 2 * 200},
        "between_kernels": {"launch_queued": 2 * 50},
        "after_graph": {"launch_queued": 2 * 50},
    }
    assert idle.causes_us["between_steps"] == {
        "communication": 0, "sync": 0, "copy": 0, "launch": pytest.approx(0.009), "host": pytest.approx(0.291),
        "other process/thread": 0,
    }  # fmt: skip
    assert idle.table.iloc[0].tolist() == [0, 0, 110, 310, "before_graph", "k", "launch_queued"]


def test_a_hole_before_the_graph_waits_for_what_the_host_does_until_it_launches_it() -> None:
    script = Script()
    for begin in (0, 1000, 2000):
        script.range("token", begin, begin + 990)
        script.launch((begin + 1, begin + 5), (begin + 10, begin + 100))
        script.copy((begin + 110, begin + 120), (begin + 130, begin + 140))  # input on its way to the device
        script.sync(begin + 150, begin + 170)  # for nothing more
        script.call("cudaMalloc_v3020", begin + 200, begin + 230)
        script.graph((begin + 300, begin + 340), (begin + 350, begin + 600))
        script.call("cudaMalloc_v3020", begin + 620, begin + 680, thread=OTHER)
    idle = report(script).idle
    assert seen_parts(idle)["before_graph"] == {
        "copy_call": 2 * 10, "copy_device": 2 * 10, "sync_idle": 2 * 20, "host_allocation": 2 * 30,
        "launch_call": 2 * 40, "launch_latency": 2 * 10, "host_code": 2 * 130,
    }  # fmt: skip
    assert seen_parts(idle)["between_steps"]["other_thread"] == 2 * 60
    assert seen_parts(idle)["between_kernels"] == seen_parts(idle)["after_graph"] == {}


def test_what_others_compute_cuts_a_hole_and_each_piece_has_its_causes() -> None:
    script = Script()
    for begin in (0, 1000, 2000):
        script.range("token", begin, begin + 990)
        script.launch((begin + 1, begin + 5), (begin + 10, begin + 100))
        script.launch((begin + 300, begin + 310), (begin + 700, begin + 800))
        script.kernel(begin + 400, begin + 600, process=OTHER_PROCESS)
    idle = report(script).idle
    assert seen_parts(idle)["between_kernels"] == {
        "host_code": 2 * 200, "launch_call": 2 * 10, "launch_latency": 2 * 90, "launch_queued": 2 * 100
    }  # fmt: skip  # the last of them behind the other's compute
    inside = idle.table[idle.table["place"] == "between_kernels"]
    assert inside[["start", "end", "part"]].to_numpy().tolist()[:2] == [
        [100, 400, "host_code"], [600, 700, "launch_queued"]
    ]  # fmt: skip


SPAN = st.tuples(st.integers(100, 3900), st.integers(1, 300)).map(lambda s: (s[0], s[0] + s[1]))


@settings(max_examples=8)
@given(st.lists(SPAN, max_size=6), st.lists(SPAN, max_size=6), st.lists(SPAN, max_size=6), st.lists(SPAN, max_size=3))
def test_causes_nanosecond_by_nanosecond(
    copies: list[tuple[int, int]], frees: list[tuple[int, int]], launches: list[tuple[int, int]],
    strangers: list[tuple[int, int]],
) -> None:  # fmt: skip
    script = Script()
    for begin in (0, 2000, 4000):
        script.range("token", begin, begin + 1990)
        script.launch((begin + 1, begin + 5), (begin + 10, begin + 100))
    launched = {4: (1, 5), 2010: (2001, 2005), 4010: (4001, 4005)}
    for call in launches:
        kernel = (call[1] + 7, call[1] + 40)
        launched.setdefault(kernel[0], call)  # of several that begin at once the first
        script.launch(call, kernel)
    for copy in copies:
        script.copy((copy[0] - 9, copy[0] + 9), copy)
    for free in frees:
        script.call("cudaFree_v3020", *free)
    for stranger in strangers:
        script.kernel(*stranger, process=OTHER_PROCESS)
    trace = script.trace
    steps = find_steps(trace, pattern="token")
    idle = gap_report(trace, steps).idle
    ours = [(a, b) for a, b in trace["kernels"].query(f"process == {PROCESS}")[["start", "end"]].to_numpy()]
    api = [tuple(row) for row in trace["api"][["name", "start", "end"]].to_numpy()]

    def inside(spans: list[tuple[int, int]], at: int) -> bool:
        return any(a <= at < b for a, b in spans)

    def called(word: str) -> list[tuple[int, int]]:
        return [(a, b) for name, a, b in api if word in name]

    def part(at: int, begin: int, behind: int, call: tuple[int, int]) -> str:
        """`begin` of the idle piece, and the start and the launch of the compute behind its hole."""
        if inside([copy for copy in copies if copy[1] <= behind], at):
            return "copy_device"
        if inside(called("Launch"), at):
            return "launch_call"
        if call[1] <= begin:
            return "launch_queued"
        if at >= call[0]:
            return "launch_latency"
        if inside(called("Memcpy"), at):
            return "copy_call"
        return "host_allocation" if inside(called("Free"), at) else "host_code"

    first, last = 10, 4010
    free = [not inside(ours, at) and not inside(strangers, at) for at in range(first, last)]
    expected: dict[str, int] = {}
    begin = first
    for at in range(first, last):
        if free[at - first]:
            if not free[at - 1 - first]:
                begin = at
            behind = min(start for start, _ in ours if start > at)
            name = part(at, begin, behind, launched[behind])
            expected[name] = expected.get(name, 0) + 1
    found = idle.parts.sum()
    assert {name: ns for name, ns in found.items() if ns} == expected


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


def test_a_rate_does_not_tell_how_much_of_the_idle_time_is_the_gap() -> None:
    path = str(SAMPLES / "vllm-b1-graph")
    facts = json.loads(CliRunner().invoke(main, ["gaps", path, "--json", "--untraced-tokens-per-s", "614.55"]).stdout)
    assert facts["untraced_gap_us"] is None
    assert facts["gap_us"] == facts["traced_gap_us"]
    assert facts["untraced_idle_us"]["p50"] == pytest.approx(1e6 / 614.55 - facts["busy_us"], rel=0.02)
    assert "of which 0.0 to 4.0 µs are the gap; the rate does not determine how much" in facts["warning"]


def test_a_gap_at_a_rate_lies_between_what_is_left_of_it_and_all_of_it() -> None:
    found = report(engine(), rate=1e9 / 700)  # 250 of 550 are left; of these 300 were the gap
    least, most = (ns.tolist() for ns in found.idle.bounds_of_gaps(found.table, 1e9 / 700))
    assert (least, most) == ([0, 0], [250, 250])
    least, most = (ns.tolist() for ns in found.idle.bounds_of_gaps(found.table, 1e9 / 900))
    assert (least, most) == ([200, 200], [300, 300])
    least, most = (ns.tolist() for ns in found.idle.bounds_of_gaps(found.table, 1e9 / 1100))  # slower than recorded
    assert (least, most) == ([300, 300], [400, 400])


def test_what_node_level_tracing_adds_to_graphs_is_no_work() -> None:
    idle = report(engine(level="node"), rate=1e9 / 700).idle
    for sign in (-1, 0, 1):
        for row, left in zip(idle.steps.itertuples(), idle.untraced_ns(1e9 / 700, sign), strict=True):
            stretch = fits_of("").stretch
            per_kernel = stretch.per_kernel + sign * stretch.error
            added = round(row.graph_kernels * per_kernel + row.graph_busy * stretch.share)
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


@settings(max_examples=8)
@given(disorder())
def test_periods_are_busy_communication_others_and_idle_and_this_is_its_places(trace: Trace) -> None:
    steps = find_steps(trace, pattern="token")
    try:
        found = gap_report(trace, steps)
    except EmptyTraceError:
        return
    table, holes = found.idle.steps, found_holes(trace, steps, found).table
    assert (table[["busy", "communication", "others", "idle", *PLACES]] >= 0).to_numpy().all()
    assert (table[["busy", "communication", "others", "idle"]].sum(axis=1) == table["period"]).all()
    assert (table[list(PLACES)].sum(axis=1) == table["idle"]).all()
    assert holes["idle"].sum() == table["idle"].sum()
    assert (found.idle.parts.sum(axis=1) == table[list(PLACES)].sum()).all()
    assert (found.idle.parts >= 0).to_numpy().all()
    for place, causes in found.idle.causes_us.items():
        assert sum(causes.values()) == pytest.approx(found.idle.idle_us[place])
    assert (found.idle.table["end"] - found.idle.table["start"]).sum() == table["idle"].sum()
    assert found.idle.holes["idle_us"].sum() * len(table) * 1e3 == pytest.approx(table["idle"].sum())
    assert (found.idle.holes["part_us"] <= found.idle.holes["idle_us"]).all()
    everything = trace.activities().frame()
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
    compute = trace.compute().frame()
    periods = found_holes(trace, steps, found).periods
    begin, until = (periods[name].to_numpy() for name in ("begin", "until"))
    busy = covered(compute["start"], compute["end"], begin, until)
    assert np.array_equal(until - begin - busy, found.idle.steps["idle"].to_numpy())


def test_an_engine_s_rate_corrects_steps_that_span_longer_than_it_leaves_them() -> None:
    path = str(SAMPLES / "vllm-b8-node")
    facts = json.loads(CliRunner().invoke(main, ["gaps", path, "--json"]).stdout)
    graph = json.loads(CliRunner().invoke(main, ["gaps", str(SAMPLES / "vllm-b8-graph"), "--json"]).stdout)
    rate = json.loads((SAMPLES / "vllm-b8-graph" / "run.json").read_text())["measured"]["steps_per_s"]["median"]
    for each in (facts, graph):
        assert each["untraced_idle_us"]["mean"] == pytest.approx(1e6 / rate - each["busy_us"], rel=0.05)
