"""The syncs page: its inventory against the commands, and what is worked out in the background."""

import json
import shutil
import threading
import time
from concurrent.futures import wait

import pytest
from click.testing import CliRunner

from dashboard.pages.syncs import columns_of, dearest, in_words, rows_of, warning_of
from dashboard.reading.answers import gain_without, inventory_of, site_of, slack_of
from dashboard.reading.store import Background, RunStore
from dashboard.view import View
from tests.recordings import LLAMA, SAMPLES
from tracer.analysis.path.paths import BESIDE_SYNC
from tracer.cli import main

TRACED = LLAMA["sccc", "graph"]


def command(*arguments):
    return json.loads(CliRunner().invoke(main, [*map(str, arguments), "--json"]).stdout)


def complete(store, run):
    """The rows once every answer is there."""
    for row in rows_of(store, run, "light"):
        wait([slack_of(store, run), gain_without(store, run, (row["position"],)), gain_without(store, run, None)], 60)
    wait([site_of(store, run, place.call) for place in inventory_of(store, run)], 60)
    return rows_of(store, run, "light")


@pytest.fixture(scope="module")
def store():
    return RunStore([TRACED, SAMPLES / "sync-beside"])


@pytest.fixture(scope="module")
def rows(store):
    return complete(store, store.runs()[0])


def test_the_inventory_is_that_of_the_commands(rows):
    syncs = command("syncs", TRACED)["inventory"]
    assert [row["position"] for row in rows] == [row["position"] for row in syncs]
    for key in ("name", "steps", "waits_for", "stream"):
        assert [row[key] for row in rows] == [row[key] for row in syncs]
    for key in ("median_us", "max_us", "waiting_share"):
        assert [row[key] for row in rows] == pytest.approx([row[key] for row in syncs])
    path = {call["sync"]: call for call in command("path", TRACED)["calls"] if call["sync"] > 0}
    for key in ("on_path_us", "slack_us"):
        assert [row[key] for row in rows] == pytest.approx([path[row["position"]][key] for row in rows])
    assert not any(row["pending"] for row in rows)


@pytest.mark.parametrize("position", [1, 14])
def test_a_predicted_gain_is_that_of_the_command(rows, position):
    facts = command("whatif", TRACED, "--without-sync", position)
    row = rows[position - 1]
    found = {"estimate": row["gain"] + 1, "low": row["low"] + 1, "high": row["high"] + 1}
    assert found == pytest.approx(facts["speedup"])
    assert row["gap_us"] == pytest.approx(facts["gap_us"]["p50"] - facts["corrected"]["gap_us"]["p50"])


def test_a_sync_beside_the_path_costs_nothing(store):
    run = store.runs()[1]
    rows = complete(store, run)
    assert rows[0]["verdict"] == BESIDE_SYNC
    assert rows[0]["slack_us"] > 10
    assert "1 of them cost nothing" in in_words(run, rows, None, "light")[0]


def test_a_row_leads_to_its_sync_in_the_timeline_and_to_its_what_if(store, rows):
    run = store.runs()[0]
    view = View.parse(rows[3]["show"].split("](../")[1].removesuffix(")"))
    low, high = (time + run.tokens.anchor(view.token, "end") for time in view.range)
    calls = run.syncs.calls[run.syncs.calls["letter"] == "s"]
    fourth = calls[(calls.groupby("step").cumcount() == 3) & (calls["step"] == run.tokens.step[view.token])]
    assert low < fourth["start"].item() < fourth["end"].item() < high
    assert rows[3]["try"] == f"[what if](../whatif/?run={run.key}&theme=light&without=4)"


def test_the_dearest_sync_is_named_and_gain_and_interval_stand_side_by_side(store, rows):
    gains = {row["position"]: row["gain"] for row in rows if row["gain"] is not None}
    position = max(gains, key=gains.get)
    row = rows[position - 1]
    assert row["low"] < 0 < row["gain"]
    said = dearest(rows)
    assert said.startswith(f"Most expensive: sync {position}, cudaStreamSynchronize_v3020: {row['gain_text']} tokens/s")
    assert said.endswith(f"{row['margin']}, predicted, and may be none. ")
    assert said in in_words(store.runs()[0], rows, "", "light")[0]
    assert dearest([row | {"low": 0.01}]).endswith("], predicted. ")
    assert dearest([row | {"pending": True}]) == dearest([]) == ""
    fields = [column["field"] for column in columns_of(rows) if not column["hide"]]
    assert fields[:3] == ["position", "gain", "margin"]
    assert [column.get("initialSort") for column in columns_of(rows) if column["field"] == "gain"] == ["desc"]


def test_without_a_rate_no_gain_is_stated(tmp_path):
    """What is needed, and what costs nothing, is said all the same."""
    name = tmp_path / "bare"
    shutil.copytree(TRACED, name)
    told = json.loads((name / "run.json").read_text())
    del told["measured"]
    (name / "run.json").write_text(json.dumps(told))
    store = RunStore([name])
    run = store.runs()[0]
    rows = complete(store, run)
    assert [row["gain"] for row in rows] == [row["gap_us"] for row in rows] == [None] * 14
    assert rows[0]["verdict"] == "not needed; enter the engine's own rate to predict the gain"
    assert rows[12]["verdict"].startswith("sync 13 cannot be removed")
    together = gain_without(store, run, None).result(60)
    assert in_words(run, rows, together, "dark")[-1] == ": the gain is unknown: enter the engine's own rate."
    assert warning_of(run).endswith("Predictions need the engine's own rate.")


def test_a_question_is_answered_once_and_in_the_background():
    background, asked, may = Background(), [], threading.Event()

    def work():
        asked.append(threading.current_thread().name)
        may.wait(20)
        return 42

    answers = {id(background.ask("lane", "question", work)) for _ in range(20)}
    assert len(answers) == 1
    other = background.ask("other lane", "quick", lambda: "done")
    assert other.result(20) == "done"
    may.set()
    assert background.ask("lane", "question", work).result(20) == 42
    assert asked == ["background lane"]
    assert background.ask("lane", "bad", lambda: 1 // 0).exception(20).args


def test_answers_asked_for_longest_ago_are_forgotten():
    background = Background(most=10)
    for number in range(5):
        background.ask("lane", number, lambda number=number: number, lambda _: 4).result(20)
    made = []
    background.ask("lane", 4, lambda: made.append(4)).result(20)
    assert made == []
    background.ask("lane", 0, lambda: made.append(0)).result(20)
    assert made == [0]


def test_what_is_kept_takes_a_sixteenth_of_the_memory(monkeypatch):
    monkeypatch.setattr("dashboard.reading.store.half_of_memory", lambda: 8 * 10**9)
    background = Background()
    for number in range(3):
        background.ask("lane", number, lambda: None, lambda _: 8_000_000).result(20)
    background.ask("lane", 3, lambda: None).result(20)
    assert [number in background._asked for number in range(4)] == [False, False, True, True]


def test_of_a_lane_no_more_are_kept_than_it_says():
    background = Background()
    background.ask("other lane", "other", lambda: None).result(20)
    background.now("base", lambda: None, lambda _: 1)
    for number in range(9):
        background.ask("lane", number, lambda: None, most=3).result(20)
    assert list(background._asked) == ["other", "base", 5, 6, 7, 8]


def test_what_several_answers_need_is_found_once():
    background, made = Background(), []

    def slow():
        time.sleep(0.1)
        made.append(1)
        return "shared"

    answers = [background.ask(str(i), i, lambda: background.now("base", slow, len)) for i in range(4)]
    assert [answer.result(20) for answer in answers] == ["shared"] * 4
    assert made == [1]
