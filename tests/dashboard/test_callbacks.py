"""What a browser may send to a callback: the pages' own requests, and nothing that is malformed or too large."""

import json
import logging
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from dashboard.app import create_app
from dashboard.pages import gap
from dashboard.pages.parts import MOST_PRESSES, done
from dashboard.serving import Serving, callbacks
from dashboard.view import View
from tests.dashboard.conftest import client_of
from tests.dashboard.filled import FILLED, write_runs
from tests.dashboard.traces import decode
from tests.fuzz.callbacks import PLACES, Fuzzed, callbacks_of, peak, post
from tests.fuzz.hostile import asked
from tracer import formats
from tracer.errors import FormatError

BAD = json.loads((Path(__file__).parent / "data" / "malformed.json").read_text(encoding="utf-8"))
SCREEN = {"scheme": "light", "width": 900}


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    runs = write_runs(tmp_path_factory.mktemp("runs"))
    formats.write(decode(), runs / "a")
    return Fuzzed(runs)


@pytest.fixture
def client(fuzzed):
    return fuzzed.client


def pressed(client, **times):
    callback = next(one for one in callbacks_of(client, "") if one["output"].startswith("..view.data...url.search"))
    values = {"listed.data": [1, 0], "view.data": View(runs=("a",), token=1).data(), "screen.data": SCREEN}
    values |= {"pressed.data": {}} | {f"{button.replace('_', '-')}.n_clicks": n for button, n in times.items()}
    return asked(callback, values, [f"{button.replace('_', '-')}.n_clicks" for button in times])


def refused(client, caplog, body, why="", status=400):
    """The answer to a request that must be refused, with one short line in it and in the log."""
    caplog.clear()
    start = time.process_time()
    with caplog.at_level(logging.INFO):
        answer = post(client, "", body)
    assert time.process_time() - start < 2
    assert answer.status_code == status, answer.text
    (record,) = caplog.records
    said = record.getMessage()
    assert said.isprintable()
    assert len(said) < 200
    assert record.exc_info is None
    assert any(reason in said for reason in why.split("|"))
    assert answer.text.endswith(f"{said.rpartition(': ')[2]}.\n")


def test_a_counter_costs_no_more_than_a_key_held_down(client):
    for times in (30_000_000, 10**9):
        start = time.process_time()
        answer = post(client, "", pressed(client, zoom_out=times))
        assert time.process_time() - start < 2
        assert answer.status_code == 200
        assert answer.get_json()["response"]["pressed"]["data"]["zoom-out"] == times, "the next press is the next"
    assert done(["run.value"], {"a": 3, "b": 10**9}, None) == ["run", *"aaa", *"b" * (MOST_PRESSES - 3)]
    assert done([], {"a": 2}, {"a": 5}) == []


def test_values_and_numbers_of_another_kind_are_refused(client, caplog):
    for number in BAD["counters"]:
        refused(client, caplog, pressed(client, theme=number), "n_clicks has an invalid value|a number is too large")
    for text in (*BAD["numbers"], "9" * 400):
        body = json.dumps(pressed(client, theme=1)).replace('"token": 1', f'"token": {text}')
        refused(client, caplog, body, "a number is too large")
    for name, value in BAD["values"]:
        body = pressed(client, theme=1)
        entry = next(one for one in (*body["inputs"], *body["state"]) if f"{one['id']}.{one['property']}" == name)
        entry["value"] = View().data() | value if name == "view.data" and isinstance(value, dict) else value
        refused(client, caplog, body, f"{name} has an invalid value")
    callback = next(one for one in callbacks_of(client, "") if "make-base" in str(one["inputs"]))
    for keys in BAD["components"]:
        body = asked(callback, {"view.data": View(runs=("a",)).data()})
        body["inputs"] = [[{"id": key, "property": "n_clicks", "value": 1} for key in keys]]
        assert post(client, "", body).status_code == 400


def malformed(body):
    """Requests that no page sends."""
    first, *others = body["inputs"]
    for key in ("output", "outputs", "inputs", "state"):
        yield {name: value for name, value in body.items() if name != key}
    for change in (
        {"output": "x.y"}, {"output": ["x"]}, {"outputs": body["outputs"][:-1]}, {"inputs": 5}, {"inputs": others},
        {"inputs": [{**first, "id": "x"}, *others]}, {"inputs": [{**first, "id": {"x": 1}}, *others]},
        {"inputs": [[first], *others]}, {"changedPropIds": ["x.y"]}, {"changedPropIds": ['{"a":', 5, ".", "x"]},
        {"changedPropIds": ["theme.n_clicks"] * 100_000}, {"more": json.loads("[" * 100 + "]" * 100)},
        {"more": "x" * 200_000}, {"more": [[0] * 1_000] * 1_000},
    ):  # fmt: skip
        yield body | change
    for more in ("[" * 100_000 + "]" * 100_000, "1" * 4_301):
        yield json.dumps(body)[:-1] + f', "more": {more}' + "}"
    yield from ([body], None, "", "{", b"\xff\xfe\x00", json.dumps(body | {"more": "\ud800"}))


def test_what_is_malformed_or_too_large_ends_with_one_line(client, caplog):
    for body in malformed(pressed(client, theme=1)):
        refused(client, caplog, body)
    refused(client, caplog, "[" + " " * callbacks.MOST_BYTES + "]", "Too Large", status=413)
    assert client.post("/_dash-update-component", data="x=1").status_code == 415


def test_what_is_not_there_is_not_found(client, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        for address in BAD["addresses"]:
            answer = client.get(f"/_dash-component-suites/{address}")
            assert answer.status_code == 404
            assert "Traceback" not in answer.text
    assert not caplog.records
    assert client.post("/nope/_dash-update-component", json={}).status_code in (404, 405)
    many = "/download/gaps.csv?" + "&".join(f"run={number}" for number in range(20_000))
    assert client.get(many).status_code == 404
    guarded = create_app([tmp_path], Serving(token="secret")).server.test_client()
    for address in ("/download/report.html", "/", "/login", "/graph/"):
        answer = guarded.get(address, environ_overrides={"QUERY_STRING": "run=a&token=\xff"})
        assert answer.status_code == 400, "a query that is no text"


def test_hostile_requests_are_answered_soon_or_refused_in_a_line(fuzzed):
    before = peak()
    counts = {place: len(callbacks_of(fuzzed.client, place)) for place in PLACES}
    assert min(counts.values()) >= 4, "every page has callbacks to be fuzzed"

    @settings(max_examples=10, suppress_health_check=[*HealthCheck])
    @given(fuzzed.bodies)
    def requests(request):
        fuzzed.check(*request)

    requests()
    assert fuzzed.requests[200] > 0
    hostile = 30_000_000, -(2**53), 1e308, float("nan"), "(a+)+$" * 9, [[]] * 10_000
    for number, (page, callback) in enumerate(fuzzed.callbacks):
        for at, one in enumerate((*callback["inputs"], *callback["state"])):
            name, value = f"{one['id']}.{one['property']}", hostile[(number + at) % len(hostile)]
            fuzzed.check(page, asked(callback, {name: [value] if name.startswith("{") else value}))
    assert peak() - before < 300 * 2**20


def answer(client, place, output, **view):
    """What a page's callback for an output answers."""
    callback = next(one for one in callbacks_of(client, place) if output in one["output"])
    return post(client, place, asked(callback, {"view.data": View(**view).data(), "screen.data": SCREEN})).get_json()


def test_what_is_said_of_a_failure_and_without_recordings(runs, tmp_path, monkeypatch):
    client = client_of(runs)
    for problem, words in (
        (ValueError("secret /etc/passwd"), "The server failed to handle this"),
        (FormatError("a.sqlite: no table KERNEL"), "a.sqlite: no table KERNEL ("),
    ):

        def fails(*_, problem=problem):
            raise problem

        with monkeypatch.context() as broken:
            broken.setattr(gap, "panels_of", fails)
            said = answer(client, "gap/", "made-of.rowData", runs=("a",))["sideUpdate"]
        assert said["failure"] == {"hidden": False}
        assert said["failure-said"]["children"].startswith(words)
        assert "secret" not in said["failure-said"]["children"]
    for place in FILLED:
        told = answer(client_of(tmp_path), place, "nothing.children")["response"]
        assert "intertoken run" in str(told["nothing"]["children"])
