"""What a reader does changes the view, on two runs of known times; and what is said of the event that is chosen."""

import json
import os
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dashboard.figures.timeline import timeline_figure
from dashboard.pages.overview import areas
from dashboard.pages.overview.actions import Action, actions_of, after, after_request, gone
from dashboard.pages.overview.areas import GroupedRow, area_sums, sums, sums_of, text_of
from dashboard.pages.overview.event import details_of, facts_of, made_at
from dashboard.pages.overview.tools import file_of, keep, kept, listed, may_keep, measured, written
from dashboard.palette import KINDS
from dashboard.reading.store import RunStore
from dashboard.scene import panels_of, timeline_of
from dashboard.text import duration
from dashboard.timeline.flows import NO_OPERATOR, operators_of
from dashboard.timeline.rows import rows_of
from dashboard.view import GROUPINGS, MOST_BOOKMARKS, Area, Arrangement, Bookmark, Spot, View
from tests.dashboard.traces import GAP, KERNELS, PERIOD, decode
from tests.tracer import kineto
from tests.tracer.handmade import Script
from tracer import Trace, formats
from tracer.errors import UsageError
from tracer.model import intervals

BOTH = View(runs=("a", "b"), token=2)
SEEN = replace(BOTH, range=(0, PERIOD))


def test_presses_and_choices_change_the_view(pair):
    assert after(BOTH, Action("token", 3), pair).token == after(BOTH, Action("token-on"), pair).token == 3
    assert after(BOTH, Action("token-back"), pair).token == 1
    assert after(View(token=0), Action("token-back"), pair).token == 0
    assert after(BOTH, Action("align", "start"), pair).align == "start"
    assert after(BOTH, Action("align", "sideways"), pair) == BOTH
    dragged = after(BOTH, Action("timeline", {"xaxis.range[0]": 1e-6, "xaxis.range[1]": 3e-6}), pair)
    assert dragged.range == (1_000, 3_000)
    assert after(dragged, Action("timeline", {"xaxis.autorange": True}), pair).range is None
    assert after(BOTH, Action("timeline", {"autosize": True}), pair) == BOTH
    assert after(dragged, Action("zoom-in"), pair).range == (1_500, 2_500)
    assert after(dragged, Action("zoom-out"), pair).range == (0, 4_000)
    low, high = after(BOTH, Action("show-gap"), pair).range
    assert low < 0 < 2 * GAP < high < 3 * GAP
    low, high = after(BOTH, Action("show-all"), pair).range
    assert high - low > 5 * PERIOD
    assert after(dragged, Action("show-token"), pair).range is None
    for shown, other in (("light", "dark"), ("dark", "light")):
        assert after(BOTH, Action("theme"), pair, shown).theme == other


def test_quick_presses_are_all_heeded_and_what_is_asked_for_once():
    values, before = {"token": 4, "runs": ["a"]}, {"token-on": 2, "theme": None}
    clicks = {"token-on": 5, "theme": 1}
    presses = [Action("token-on")] * 3 + [Action("theme")]
    assert actions_of(["listed.data", "token-on.n_clicks", "theme.n_clicks"], values, clicks, before) == presses
    found = actions_of(["token.value", "runs.eventData"], values, clicks, before)
    assert found == [Action("token", 4), Action("runs", ["a"]), *presses], "of two calls at once Dash drops the first"
    assert actions_of(["token-on.n_clicks"], values, {"token-on": 5}, None) == [Action("token-on")] * 5
    assert actions_of(["listed.data"], values, clicks, clicks) == []
    wish = {"what": "next", "find": "a", "at": 7.5}
    values, find, asked = {"find": "a", "asked": wish}, Action("find", "a"), Action("asked", wish)
    for changed, now, earlier, expected in (
        (["find.value"], 7.5, {"asked": 3.0}, [find, asked]), (["asked.data"], 7.5, None, [asked]),
        (["asked.data", "find.value"], 7.5, {"asked": 7.5}, [find]), (["asked.data"], None, {"asked": None}, [asked]),
    ):  # fmt: skip
        assert actions_of(changed, values, {"asked": now}, earlier) == expected
    done, missed = ({"what": "go", "text": "", "step": 1, "at": at} for at in (3.0, 5.0))
    both = wish | {"earlier": [done, missed, {"at": "x"}, {}]}
    expected = [Action("asked", missed), Action("asked", both)]
    assert actions_of([], {"asked": both}, {"asked": 7.5}, {"asked": 3.0}) == expected
    values = {"timeline": {"xaxis.range[0]": 0.0, "xaxis.range[1]": 1.0, "at": 4.0}}
    moved = Action("timeline", values["timeline"])
    before_it = actions_of(["show-gap.n_clicks"], values, {"show-gap": 1, "timeline": 4.0}, {"timeline": 2.0})
    assert before_it == [moved, Action("show-gap")]
    assert actions_of(["timeline.relayoutData"], values, {"timeline": 4.0}, {"timeline": 4.0}) == []
    assert actions_of(["timeline.relayoutData"], values, {"timeline": None}, {"timeline": 4.0}) == [moved]


def test_a_text_goes_to_a_time_or_to_the_next_gap_longer_than_so_much_of_all_runs(pair):
    times = {"1.5 ms": 1_500_000, "-300us": -300_000, "−300 µs": -300_000, "0 s": 0, "+250000 ns": 250_000}
    for text, at in times.items():
        assert gone(SEEN, pair, text).view.range == (at - PERIOD // 2, at + PERIOD // 2), text
    first = gone(SEEN, pair, "> 150 us")
    low, high = first.view.range
    assert high - low == PERIOD, "as wide as it was, where the gap fits"
    assert (low + high) / 2 == PERIOD + GAP, "the middle of run b's gap after token 3; that after token 2 is passed"
    assert first.said == "Gap 4 of 5 longer than 150 µs: 200 µs after token 3 of b."
    again = gone(gone(first.view, pair, "gap > 0.15 ms").view, pair, ">150us")
    assert again.said == "Gap 1 of 5 longer than 150 µs: 200 µs after token 0 of b. Continued from the start."
    back = gone(again.view, pair, "> 150 µs", -1)
    assert back.said == "Gap 5 of 5 longer than 150 µs: 200 µs after token 4 of b. Continued from the end."
    assert gone(SEEN, pair, "").said.startswith("Gap 7 of 10: 100 µs after token 3 of a.")
    assert gone(View(runs=("a",), token=2, range=(0, 30)), pair[:1], ">").view.range == (-GAP, 2 * GAP)


def test_clicks_choose_and_measure(pair):
    placed = panels_of(pair, BOTH)[1].row(stream=14)
    click = {"what": "click", "y": placed.middle, "event": 17, "x": 0.0}
    chosen = after_request(BOTH, click, pair)
    assert chosen.event == Spot("b", placed.line.index, 17)
    assert after_request(chosen, click, pair).event is None
    assert after_request(chosen, {"what": "forget"}, pair).event is None
    assert after_request(BOTH, click | {"event": -1}, pair) == after_request(BOTH, click | {"y": 1.25}, pair) == BOTH
    start, end = (int(t[17]) - pair[1].tokens.anchor(2, "end") for t in (placed.row.start, placed.row.end))
    near = after_request(BOTH, click | {"x": (start + 1_000) / 1e9, "measure": True}, pair)
    assert near.ruler == (start, start)
    both = after_request(near, click | {"x": (end - 1_000) / 1e9, "measure": True}, pair)
    assert both.ruler == (start, end)
    assert f"'{end - start} ns'" in str(measured(both))
    notes = timeline_figure(timeline_of(pair, both, "light", 1200)[0]).layout.annotations
    assert f"<b>{end - start:,} ns</b>" in [note.text for note in notes]
    again = after_request(both, click | {"event": -1, "x": (end + 100) / 1e9, "measure": True}, pair)
    assert again.ruler == (end, end)
    assert after_request(both, click | {"y": 1.25, "measure": True}, pair) == both
    for edge, at in (("start", start), ("end", end)):
        begun = after_request(chosen, {"what": "measure", "from": edge}, pair)
        assert begun.ruler == (at, at)
        ended = after_request(begun, click | {"event": -1, "x": (end + 100) / 1e9}, pair)
        assert (ended.ruler, ended.event) == ((at, end), chosen.event)
    assert after_request(BOTH, {"what": "measure", "from": "start"}, pair) == BOTH
    seen = after(replace(BOTH, range=(-5, 995)), Action("measure"), pair)
    assert seen.ruler == (-5, 995)
    assert after(seen, Action("measure"), pair).ruler is None
    said = str(facts_of(BOTH, pair, chosen.event))
    assert f"start {start} ns, end {end} ns after time 0, duration {end - start} ns" in said
    assert f"own clock: {int(placed.row.start[17])} ns" in said
    assert facts_of(View(), pair[:1], chosen.event) == []


def test_a_click_on_a_bin_chooses_the_longest_event_it_stands_for_and_says_of_how_many(pair):
    placed, zero = panels_of(pair, BOTH)[1].row(role="api"), pair[1].tokens.anchor(2, "end")
    row = placed.row
    launches = np.flatnonzero(row.events["full"].astype("str") == "cudaLaunchKernel")[KERNELS : 2 * KERNELS]
    start = int(row.start[launches[0]])
    low, high = start - 100, int(row.end[launches[-1]]) + 100
    mark = {"what": "click", "y": placed.middle, "event": -1, "x": 0.0, "ends": [(t - zero) / 1e9 for t in (low, high)]}
    chosen = after_request(BOTH, mark, pair)
    assert chosen.event == Spot("b", placed.line.index, int(launches[0]), (-100, high - start))
    assert View.parse(chosen.query()).event == View.from_data(chosen.data()).event == chosen.event
    assert after_request(chosen, mark, pair).event is None
    share = round(100 * KERNELS * 900 / (high - low))
    said = f"{KERNELS} events in {duration(high - low)}, busy {share}%; the longest of them:"
    assert said in str(facts_of(BOTH, pair, chosen.event))
    alone = after_request(BOTH, mark | {"ends": [(low - zero) / 1e9, (start + 950 - zero) / 1e9]}, pair)
    assert alone.event == Spot("b", placed.line.index, int(launches[0])), "it stands for no other"
    assert after_request(BOTH, mark | {"ends": [5.0, 6.0]}, pair) == BOTH


def _rows(*streams):
    """A row per stream, of kernels (start, end, name)."""
    found = [(*kernel, stream) for stream, kernels in enumerate(streams) for kernel in kernels]
    start, end, name, stream = (list(each) for each in zip(*found, strict=True))
    return rows_of(Trace.from_columns(kernels={"start": start, "end": end, "name": name, "stream": stream}))


def _by_name(rows, low, high, step=0):
    names = [[str(name) for name in row.events["full"].cat.categories] for row in rows]
    parts = [GroupedRow(row, n, lambda e, row=row: row.codes[1][e]) for row, n in zip(rows, names, strict=True)]
    return sums(parts, low, high, step)


KERNEL = st.tuples(st.integers(0, 60), st.integers(0, 30), st.sampled_from("kmn")).map(
    lambda k: (k[0], k[0] + k[1], k[2])
)
STREAMS = st.lists(st.lists(KERNEL, min_size=1, max_size=25), min_size=1, max_size=3)


@given(STREAMS, st.integers(-5, 90), st.integers(-5, 90), st.integers(1, 4))
@example([[(0, 50, "k"), (1, 2, "k"), (3, 4, "k")]], 0, 60, 1)
def test_sums_are_those_of_a_plain_count_however_many_pieces_there_are(streams, low, high, at_once):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(areas, "_AT_ONCE", at_once)
        found = _by_name(_rows(*streams), low, high)
    inside = [(max(s, low), min(e, high), n) for stream in streams for s, e, n in stream
              if low < high and s < high and (e > low or s >= low)]  # fmt: skip
    assert set(found.index) == {name for _, _, name in inside}
    for name, sum_ in found.to_dict("index").items():
        mine = [(s, e) for s, e, n in inside if n == name]
        total = sum(e - s for s, e in mine)
        union = intervals.total(*zip(*mine, strict=True))
        assert (sum_["count"], sum_["total"], sum_["union"]) == (len(mine), total, union)


def test_an_area_is_at_the_same_place_from_every_runs_token_and_its_kinds_add_up(pair):
    view = replace(BOTH, area=Area((-PERIOD, 0), (), "kernel"))
    found = [sums_of(run, view.area, view.rows, run.tokens.anchor(2, "end")) for run in pair]
    kernels = [table.loc["void k<float>(T*)", ["count", "union", "of_step"]].tolist() for table in found]
    assert kernels == [[KERNELS, PERIOD - GAP, 0.9], [KERNELS, PERIOD - 2 * GAP, 0.8]]
    text = text_of(pair, found).splitlines()
    assert text[0].split("\t") == ["run", "name", "count", "total_ns", "union_ns", "mean_ns", "of_area", "of_step"]
    assert text[1].split("\t") == ["a", "void k<float>(T*)", "8", "900000", "900000", "112500", "0.9", "0.9"]
    assert "b\tmemcpy HtoD\t1\t2000\t2000\t2000\t0.002\t0.002" in text
    assert "Search for void k<float>(T*)" in str(area_sums(view, pair))
    assert area_sums(View(runs=("a",)), pair) == []
    assert "No events of this kind" in str(area_sums(View(area=Area((10**12, 10**13))), pair))
    tables = {by: sums_of(pair[0], Area((123_456, 2_345_678), (), by), Arrangement(), 0) for by in GROUPINGS}
    for of in ("total", "count"):
        whole = {by: int(table[of].sum()) for by, table in tables.items()}
        assert whole["kind"] == whole["stream"] + whole["thread"]
        assert whole["kernel"] == whole["operator"] == whole["stream"]
    formula = pd.DataFrame([[1, 2, 2, 2.0, 0.5, np.nan]], columns=areas.COLUMNS, index=["=cmd()\tx\n"])
    line = text_of(pair[:1], [formula]).splitlines()[1]
    assert line.startswith("a\t'=cmd()")
    assert len(line.split("\t")) == 8


def test_an_operator_is_the_innermost_that_is_open_when_a_kernel_is_launched():
    script = Script()
    for text, start, end in (("aten::linear", 0, 10), ("aten::mm", 2, 8), ("aten::add", 20, 30)):
        script.range(text, start, end, domain="cpu_op")
    script.range("mine", 40, 50)
    for number, at in enumerate((3, 9, 21, 41)):
        script.launch((at, at + 1), (100 + 10 * number, 105 + 10 * number))
    script.kernel(140, 145)
    trace = script.trace
    row = next(row for row in rows_of(trace) if row.role == "stream")
    names = ["aten::mm", "aten::linear", "aten::add", NO_OPERATOR, NO_OPERATOR]
    assert operators_of(trace, row).tolist() == names
    ranges = Trace({**trace.tables, "nvtx": trace["nvtx"].assign(domain=pd.Categorical([""] * 4))})
    assert operators_of(ranges, row).tolist() == [*names[:3], "mine", NO_OPERATOR]


MARK = Bookmark("a", 0, PERIOD, "slow")


@pytest.fixture
def own(tmp_path):
    """A run beside whose recording a test may write."""
    formats.write(decode(), tmp_path / "own" / "a")
    return RunStore([tmp_path / "own"]).runs()[0]


def test_bookmarks_are_kept_beside_the_recording_which_stays_one(own, monkeypatch):
    file, view = file_of(own), View(runs=("a", "b"), bookmarks=(MARK, Bookmark("b", 1, 2, "other")))
    assert "Write them to a.bookmarks.json" in str(listed(view, [own]))
    assert written({"what": "keep bookmarks", "run": "a"}, view, [own])
    assert kept(own) == [MARK]
    held = {"low": 0, "high": PERIOD, "note": "slow", "within": None}
    assert json.loads((file.parent / "a.bookmarks.json").read_text()) == {"bookmarks": [held]}
    assert "Write them to a.bookmarks.json" not in str(listed(view, [own]))
    assert [run.key for run in RunStore([file.parent]).runs()] == ["a"]
    assert not written({"what": "drop bookmark", "of": ["a", 1, 2, "none"]}, view, [own])
    assert written({"what": "drop bookmark", "of": list(MARK)}, view, [own])
    assert kept(own) == []
    assert not written({"what": "keep bookmarks", "run": "../../etc/passwd"}, view, [own])
    with pytest.raises(UsageError, match="at most 100"):
        keep(own, [Bookmark("a", 0, at + 1) for at in range(MOST_BOOKMARKS + 1)])
    assert {path.name for path in file.parent.iterdir()} <= {"a", "a.bookmarks.json"}
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not may_keep(own)
    assert "a.bookmarks.json" not in str(listed(view, [own]))
    with pytest.raises(UsageError, match="are in the link"):
        written({"what": "keep bookmarks", "run": "a"}, view, [own])


def test_a_file_that_is_none_of_ours_or_a_link_counts_for_nothing_and_is_not_written_over(own, tmp_path):
    mark = b'{"low": 0, "high": 1}'
    for content in (
        b"{", b"[]", b'{"bookmarks": 5}', b'{"bookmarks": [{"low": "0", "high": 1}]}', b'{"bookmarks": [{"low": 0}]}',
        b'{"bookmarks": [{"low": 0, "high": 1e99}]}', b'{"bookmarks": [{"low": 0, "high": 1, "more": 1}]}',
        b'{"bookmarks": [' + b",".join([mark] * 201) + b"]}", b" " * 300_000, b"\xff",
    ):  # fmt: skip
        file_of(own).write_bytes(content)
        assert kept(own) == [], content[:40]
        assert not may_keep(own)
        with pytest.raises(UsageError, match="may not write next to the recording"):
            keep(own, [MARK])
        assert file_of(own).read_bytes() == content
    file_of(own).unlink()
    outside = tmp_path / "else.json"
    outside.write_text('{"bookmarks": []}')
    file_of(own).symlink_to(outside)
    assert not may_keep(own)
    with pytest.raises(UsageError):
        keep(own, [MARK])
    assert outside.read_text() == '{"bookmarks": []}'


def test_an_event_was_made_where_its_launch_was_called_and_a_range_inside_of_those_around_it():
    script = Script()
    script.range("step", 0, 50)
    script.function("serve.py(7): loop", 1, 40)
    script.function("torch/nn/linear.py(3): forward", 2, 30)
    script.range("aten::linear", 3, 20, domain="cpu_op")
    for number, at in enumerate((10, 60), 1):
        script.launch((at, at + 2), (100 * number, 100 * number + 10))
    script.kernel(300, 310)
    trace = script.trace
    rows = {row.role: row for row in rows_of(trace)}
    made = ["NVTX: step", "operator: aten::linear"]
    assert made_at(trace, rows["stream"], 0) == made_at(trace, rows["api"], 0) == made
    assert made_at(trace, rows["stream"], 1) == [], "launched outside of all ranges"
    assert made_at(trace, rows["stream"], 2) == [], "nobody recorded its launch"
    step, *_, linear = (row for row in rows_of(trace) if row.role == "nvtx")
    assert (made_at(trace, step, 0), made_at(trace, linear, 0)) == ([], ["NVTX: step"])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The decoding; the same with stacks, as nsys and the light recorder keep them; and one by PyTorch's profiler."""
    directory = tmp_path_factory.mktemp("runs")
    trace = decode()
    formats.write(trace, directory / "a")
    stack = {"chain": [5, 5, 5], "depth": [0, 1, 2], "module": ["/x/libcuda.so.1", "/x/libggml-cuda.so", "/x/engine"],
             "symbol": ["cuStreamSynchronize", "ggml_backend_cuda_synchronize", "main"]}  # fmt: skip
    tables = {**trace.tables, "api": trace["api"].assign(callchain=5), "callchains": stack}
    formats.write(Trace.from_columns(trace.metadata, **tables), directory / "chains")
    names = ((2, "serve.py(7): loop"), (4, "torch/nn/linear.py(3): forward"))
    functions = [kineto.event("python_function", name, 1000 * number + at, 900 - at)
                 for number in range(4) for at, name in names]  # fmt: skip
    profiled = kineto.GPU | {"traceEvents": [*kineto.GPU["traceEvents"], *functions]}
    (directory / "profiled.json").write_text(json.dumps(profiled))
    return RunStore([directory])


def _costs(store, kind, at, role="api", key="a"):
    """What is said of one of the events of a kind once all is known."""
    (run,) = store.chosen([key])
    events = [(index, np.flatnonzero(row.events["what"] == KINDS.index(kind)))
              for index, row in enumerate(run.rows) if row.role == role]  # fmt: skip
    row, number = next((index, found[at]) for index, found in events if len(found))
    until = time.monotonic() + 60
    while (found := details_of(store, View(runs=(key,)), Spot(key, row, int(number)))).pending:
        assert time.monotonic() < until
        time.sleep(0.02)
    return str(found.costs)


def test_a_sync_says_its_row_and_slack_and_a_call_and_what_it_launched_where_it_was_made(store):
    said = _costs(store, "sync", 2)
    for words in ("Row 1 of the syncs", "without=1", "slack", "of the critical path"):
        assert words in said, "the first of the second step"
    assert "Row 2 of the syncs" in _costs(store, "sync", 3)
    for kind, role in (("sync", "api"), ("kernel", "stream")):
        said = _costs(store, kind, 1, role, "chains")
        assert "call site: ggml_backend_cuda_synchronize (libggml-cuda.so)" in said
        said = _costs(store, kind, 1, role, "profiled")
        assert "call site: serve.py(7): loop, through torch/nn/linear.py(3): forward" in said
