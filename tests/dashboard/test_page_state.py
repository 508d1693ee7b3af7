"""The page's state: links, events, the table and the store."""

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dashboard.app import create_app
from dashboard.cli import dashboard
from dashboard.pages.overview.actions import Action, actions_of, after
from dashboard.pages.overview.table import COLUMNS, row
from dashboard.pages.runs import extremes
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore, find_traces
from dashboard.view import (
    ALIGNMENTS,
    MOST_RATES,
    MOST_RUNS,
    SHORTEST,
    THEME_NAMES,
    Arrangement,
    Rate,
    Spot,
    View,
    words_of,
)
from tests.dashboard.traces import GAP, PERIOD, decode
from tracer import Trace, formats
from tracer.analysis.bounds import RATES
from tracer.analysis.summary import Summary

NAMES = st.lists(st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1), max_size=9, unique=True).map(
    tuple
)
KEYS = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1)  # as names are shown
ENDS = st.tuples(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12))
VIEWS = st.builds(
    View,
    runs=st.none() | st.lists(KEYS, max_size=MOST_RUNS, unique=True).map(tuple),
    token=st.none() | st.integers(0, 10**6),
    align=st.sampled_from(sorted(ALIGNMENTS)),
    range=st.none()
    | st.tuples(st.integers(-(10**12), 10**12), st.integers(SHORTEST, 10**12)).map(lambda r: (r[0], r[0] + r[1])),
    theme=st.sampled_from(THEME_NAMES),
    find=st.text(max_size=30).map(words_of),
    event=st.none() | st.builds(Spot, KEYS, st.integers(0, 99), st.integers(0, 10**9), st.none() | ENDS),
    ruler=st.none() | ENDS,
    rows=st.builds(Arrangement, st.text(max_size=9).map(words_of), *[NAMES] * 3),
    rates=st.dictionaries(KEYS, st.floats(*RATES), max_size=MOST_RATES).map(
        lambda given: tuple(Rate(*pair) for pair in given.items())
    ),
)


@given(VIEWS)
def test_a_link_reproduces_the_view(view):
    assert View.parse(view.query()) == view
    assert View.from_data(view.data()) == view


@pytest.mark.parametrize(
    "search",
    [None, "", "?", "?token=x&align=sideways&range=a..b&theme=pink", "?range=5", "?token=-3", "?range=1e9..2", "?&&&=",
     "?event=1.2&ruler=1.2", "?event=-1.2.a&ruler=1..b", "?event=a.b.c&ruler=..",
     "?" + "a=1&" * 99],
)  # fmt: skip
def test_senseless_links_give_a_sensible_view(search):
    view = View.parse(search)
    assert view.align == "end"
    assert view.theme == "auto"
    assert view.range is view.event is view.ruler is None
    assert view.token in (None, 0)


def test_huge_numbers_in_a_link_stay_within_int64():
    view = View.parse(f"?range={-(10**40)}..{10**40}&token={10**40}")
    assert all(abs(v) < 2**62 for v in (*view.range, view.token))


@pytest.fixture
def store(tmp_path):
    formats.write(decode(), tmp_path / "a")
    formats.write(decode(tokens=4, gap=2 * GAP), tmp_path / "b")
    return RunStore([tmp_path])


@pytest.fixture
def runs(store):
    return store.chosen(["a", "b"])


def test_events_change_the_view(runs):
    view = View(runs=("a", "b"), token=2)
    assert after(view, Action("token", 3), runs).token == 3
    assert after(view, Action("token-on"), runs).token == 3
    assert after(view, Action("token-back"), runs).token == 1
    assert after(View(token=0), Action("token-back"), runs).token == 0
    assert after(view, Action("align", "start"), runs).align == "start"
    assert after(view, Action("align", "sideways"), runs) == view
    dragged = after(view, Action("timeline", {"xaxis.range[0]": 1e-6, "xaxis.range[1]": 3e-6}), runs)
    assert dragged.range == (1_000, 3_000)
    assert after(dragged, Action("timeline", {"xaxis.autorange": True}), runs).range is None
    assert after(view, Action("timeline", {"autosize": True}), runs) == view
    assert after(dragged, Action("zoom-in"), runs).range == (1_500, 2_500)
    assert after(dragged, Action("zoom-out"), runs).range == (0, 4_000)
    low, high = after(view, Action("show-gap"), runs).range
    assert low < 0
    assert 2 * GAP < high < 3 * GAP
    low, high = after(view, Action("show-all"), runs).range
    assert high - low > 5 * PERIOD
    assert after(dragged, Action("show-token"), runs).range is None
    assert after(view, Action("theme"), runs, "light").theme == "dark"
    assert after(view, Action("theme"), runs, "dark").theme == "light"


def test_quick_presses_are_all_heeded():
    values, before = {"token": 4, "runs": ["a"]}, {"token-on": 2, "theme": None}
    clicks = {"token-on": 5, "theme": 1}
    presses = [Action("token-on")] * 3 + [Action("theme")]
    assert actions_of(["listed.data", "token-on.n_clicks", "theme.n_clicks"], values, clicks, before) == presses
    assert actions_of(["token.value", "runs.eventData"], values, clicks, before) == [
        Action("token", 4), Action("runs", ["a"]), *presses
    ], "of two calls at once Dash drops the first"  # fmt: skip
    assert actions_of(["token-on.n_clicks"], values, {"token-on": 5}, None) == [Action("token-on")] * 5
    assert actions_of(["listed.data"], values, clicks, clicks) == []


def test_what_is_asked_for_is_heeded_once_whatever_made_dash_call():
    wish = {"what": "next", "find": "a", "at": 7.5}
    values = {"find": "a", "asked": wish}
    find, asked = Action("find", "a"), Action("asked", wish)
    assert actions_of(["find.value"], values, {"asked": 7.5}, {"asked": 3.0}) == [find, asked]
    assert actions_of(["asked.data"], values, {"asked": 7.5}, None) == [asked]
    assert actions_of(["asked.data", "find.value"], values, {"asked": 7.5}, {"asked": 7.5}) == [find]
    assert actions_of(["asked.data"], values, {"asked": None}, {"asked": None}) == [asked]
    done, missed = ({"what": "go", "text": "", "step": 1, "at": at} for at in (3.0, 5.0))
    both = {"asked": wish | {"earlier": [done, missed, {"at": "x"}, {}]}}
    assert actions_of([], both, {"asked": 7.5}, {"asked": 3.0}) == [
        Action("asked", missed),
        Action("asked", both["asked"]),
    ]


def test_a_movement_is_heeded_once_and_before_what_was_pressed_after_it():
    values = {"timeline": {"xaxis.range[0]": 0.0, "xaxis.range[1]": 1.0, "at": 4.0}}
    moved = Action("timeline", values["timeline"])
    clicks = {"show-gap": 1, "timeline": 4.0}
    assert actions_of(["show-gap.n_clicks"], values, clicks, {"timeline": 2.0}) == [moved, Action("show-gap")]
    assert actions_of(["timeline.relayoutData"], values, {"timeline": 4.0}, {"timeline": 4.0}) == []
    assert actions_of(["timeline.relayoutData"], values, {"timeline": None}, {"timeline": 4.0}) == [moved]


def test_long_names_lose_their_middle_and_the_tooltip_has_them_whole(tmp_path):
    name = "llama-1.1b-saaas-sequential-cuda-c4096-p2048-x2"
    formats.write(decode(), tmp_path / name)
    (found,) = [row(run) for run in RunStore([tmp_path]).runs()]
    assert (found["name"], found["short"]) == (name, "llama-1.1b-saaas-seque…96-p2048-x2")
    assert found["about"].startswith(name)
    assert COLUMNS[0]["tooltipField"] == "about"


def test_unreadable_recordings_are_listed_with_their_problem(tmp_path):
    (tmp_path / "broken.sqlite").write_bytes(b"SQLite format 3\x00" + b"junk" * 9)
    (tmp_path / "empty.sqlite").write_bytes(b"")
    formats.write(Trace.from_columns(api={"start": [0], "end": [1], "name": ["cudaFree"]}), tmp_path / "bare")
    formats.write(decode(), tmp_path / "good")
    store = RunStore([tmp_path / n for n in ("broken.sqlite", "empty.sqlite", "bare", "good", "missing")])
    rows = [row(run) for run in store.runs()]
    assert [r["readable"] for r in rows] == [False, False, False, True, False]
    assert all("\n" not in r["about"] and r["about"].startswith(f"{r['name']}: ") for r in rows if not r["readable"])
    assert len(store.chosen([run.key for run in store.runs()])) == 1


def test_directories_are_searched_two_levels_deep(tmp_path):
    deep = tmp_path / "x" / "y" / "z"
    for place in (tmp_path / "x" / "one", deep / "three"):
        place.parent.mkdir(parents=True, exist_ok=True)
        formats.write(decode(2), place)
    (tmp_path / ".hidden").mkdir()
    assert find_traces([tmp_path]) == [tmp_path / "x" / "one"]
    assert find_traces([tmp_path / "x" / "one"]) == [tmp_path / "x" / "one"]


def test_a_recording_of_several_runs_is_listed_by_its_ranges(tmp_path):
    trace = decode(8)
    nvtx = trace["nvtx"].astype({"text": "str", "domain": "str"})
    outer = nvtx.iloc[[0, 4]].assign(text=["run A", "run B"])
    outer["start"] = [0, 4 * PERIOD]
    outer["end"] = [4 * PERIOD - 500, 8 * PERIOD]
    over_device = outer.assign(domain="gpu_user_annotation", process=-1, thread=-1)  # as PyTorch repeats them
    tables = dict(trace.tables) | {"nvtx": pd.concat([nvtx, outer, over_device])}
    formats.write(Trace(tables, {"source": "host"}), tmp_path / "both")
    found = RunStore([tmp_path / "both"]).runs()
    assert [(run.key, run.name, run.summary.steps) for run in found] == [
        ("both~run A", "both · run A", 4), ("both~run B", "both · run B", 4),
    ]  # fmt: skip


def test_equal_names_get_keys_of_their_own(tmp_path):
    for place in ("x", "y"):
        (tmp_path / place).mkdir()
        formats.write(decode(2), tmp_path / place / "same")
    runs = RunStore([tmp_path]).runs()
    assert [run.key for run in runs] == [run.name for run in runs] == ["x/same", "y/same"]


def test_no_recording_takes_the_page_down(tmp_path):
    trace = decode()
    without_api = {name: frame for name, frame in trace.tables.items() if name != "api"}
    formats.write(Trace(without_api), tmp_path / "no-api")
    formats.write(decode(), tmp_path / "good")
    (tmp_path / "unreadable.sqlite").symlink_to("/proc/self/mem")
    runs = {run.name: run for run in RunStore([tmp_path]).runs()}
    assert runs["good"].summary.problem is None
    assert "API" in runs["no-api"].summary.problem
    assert runs["no-api"].tokens is not None
    assert runs["unreadable"].summary.problem


def test_the_page_opens_on_the_longest_and_the_shortest_gap_of_one_model():
    def run(key, gap, model="m", level="none", source="host", traced=False, rate=None, **conditions):
        facts = {"model": model, "graph_trace": level, "gap_p50_us": gap, "conditions": conditions, "source": source}
        warning = "recorded under a profiler" if traced else None
        return Run(key, key, Summary(key, **facts, tokens_per_s=rate, traced=traced, warning=warning))

    runs = [
        run("b", 20.0),
        run("none", None),
        run("a", 90.0),
        run("c", 5.0),
        run("x", 1.0, "n"),
        run("y", 1.0, "m", "node"),
        run("z", 100.0, gpu_layers="13"),
    ]
    assert extremes(runs) == ["a", "c"]
    assert extremes(runs[:2]) == ["b"]
    assert extremes([]) == []
    assert extremes(runs[4:5] + runs[:4]) == ["a", "c"]  # there is one of the first's kind
    assert extremes(runs[4:6]) == ["x"]
    traced = [run(key, gap, traced=True, source="nsys 2025") for key, gap in (("s", 300.0), ("t", 200.0))]
    assert extremes([*traced, *runs]) == ["a", "c"]  # no verdict is to be had of traced runs without their rates
    assert extremes(traced) == ["s"]
    rated = [run(key, gap, traced=True, source="nsys 2025", rate=9.0) for key, gap in (("u", 300.0), ("v", 200.0))]
    assert extremes([*traced, *rated]) == ["u", "v"]
    assert extremes([rated[0], run("w", 9.0, traced=True, source="PyTorch profiler", rate=9.0)]) == ["u"]


def test_the_app_serves_its_page_and_nothing_from_elsewhere(store, tmp_path):
    client = create_app([tmp_path]).server.test_client()
    page = client.get("/").get_data(as_text=True)
    assert "http://" not in page
    assert "https://" not in page
    with client.get("/assets/page.css") as style:
        assert style.status_code == 200
    assert client.get("/assets/../app.py").status_code in (400, 404)


def test_the_command_refuses_a_path_that_is_not_there():
    result = CliRunner().invoke(dashboard, ["/nowhere/at/all", "--no-open"])
    assert result.exit_code == 2
    assert "no such file" in result.output
