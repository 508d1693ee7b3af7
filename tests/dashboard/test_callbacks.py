"""What a browser may send to a callback: the pages' own requests, and nothing that is malformed or too large."""

import json
import logging
import time

import pytest

from dashboard import pages
from dashboard.app import create_app
from dashboard.pages.parts import MOST_PRESSES, done
from dashboard.serving import Serving, callbacks
from dashboard.view import View
from tests.dashboard.traces import decode
from tests.fuzz.callbacks import callbacks_of, post
from tests.fuzz.hostile import asked
from tracer import formats

RENDER = "..syncs.columnDefs...syncs.rowData"
REDUCE = "..view.data...url.search"
SCREEN = {"scheme": "light", "width": 900}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    formats.write(decode(), runs / "a")
    client = create_app([runs]).server.test_client()
    ask = asked(_callback(client, "", "..listed.data"), {})
    assert post(client, "", ask).status_code == 200
    return client


def _callback(client, page, output):
    return next(one for one in callbacks_of(client, page) if one["output"].startswith(output))


def _pressed(client, **times):
    values = {"listed.data": [1, 0], "view.data": View(runs=("a",), token=1).data(), "screen.data": SCREEN}
    values |= {"pressed.data": {}} | {f"{button.replace('_', '-')}.n_clicks": n for button, n in times.items()}
    return asked(_callback(client, "", REDUCE), values, [f"{button.replace('_', '-')}.n_clicks" for button in times])


@pytest.mark.parametrize("times", [30_000_000, 10**9])
def test_a_counter_costs_no_more_than_a_key_held_down(client, times):
    start = time.perf_counter()
    answer = post(client, "", _pressed(client, zoom_out=times))
    assert time.perf_counter() - start < 2
    assert answer.status_code == 200
    assert answer.get_json()["response"]["pressed"]["data"]["zoom-out"] == times, "the next press is the next"


def test_presses_are_bounded_together_and_come_in_order():
    assert done(["run.value"], {"a": 3, "b": 10**9}, None) == ["run", *"aaa", *"b" * (MOST_PRESSES - 3)]
    assert done([], {"a": 2}, {"a": 5}) == []


@pytest.mark.parametrize("number", [1e308, -1, 10**10, 0.5, True, "3", [3], 2**53 + 1])
def test_a_counter_is_a_small_whole_number(client, caplog, number):
    _refused(client, caplog, _pressed(client, theme=number), "n_clicks has an invalid value|a number is too large")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400])
def test_numbers_are_finite_wherever_they_stand(client, caplog, text):
    body = json.dumps(_pressed(client, theme=1)).replace('"token": 1', f'"token": {text}')
    _refused(client, caplog, body, "a number is too large")


def _nested(depth):
    return json.loads("[" * depth + "]" * depth)


def _without(body, key):
    return {name: value for name, value in body.items() if name != key}


MALFORMED = {
    "no callback": lambda body: body | {"output": "x.y"},
    "no name": lambda body: body | {"output": ["x"]},
    "no output": lambda body: _without(body, "output"),
    "no outputs": lambda body: _without(body, "outputs"),
    "other outputs": lambda body: body | {"outputs": body["outputs"][:-1]},
    "no inputs": lambda body: _without(body, "inputs"),
    "inputs that are none": lambda body: body | {"inputs": 5},
    "fewer inputs": lambda body: body | {"inputs": body["inputs"][1:]},
    "another id": lambda body: body | {"inputs": [{**body["inputs"][0], "id": "x"}, *body["inputs"][1:]]},
    "an id that is none": lambda body: body | {"inputs": [{**body["inputs"][0], "id": {"x": 1}}, *body["inputs"][1:]]},
    "several for one": lambda body: body | {"inputs": [[body["inputs"][0]], *body["inputs"][1:]]},
    "no states": lambda body: _without(body, "state"),
    "no changes": lambda body: _without(body, "changedPropIds"),
    "changes that are none": lambda body: body | {"changedPropIds": ["x.y"]},
    "changes without a name": lambda body: body | {"changedPropIds": ['{"a":', 5, ".", "x"]},
    "100,000 changes": lambda body: body | {"changedPropIds": ["theme.n_clicks"] * 100_000},
    "nested": lambda body: body | {"more": _nested(100)},
    "nested deeply": lambda body: json.dumps(body)[:-1] + ', "more": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "a list": lambda body: [body],
    "null": lambda body: None,
    "nothing": lambda body: "",
    "no JSON": lambda body: "{",
    "no text": lambda body: b"\xff\xfe\x00",
    "half of a pair": lambda body: json.dumps(body | {"more": "\ud800"}),
    "a long text": lambda body: body | {"more": "x" * 200_000},
    "many values": lambda body: body | {"more": [[0] * 1_000] * 1_000},
    "4,301 digits": lambda body: json.dumps(body)[:-1] + ', "more": ' + "1" * 4_301 + "}",
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_what_is_malformed_ends_with_one_line(client, caplog, fault):
    _refused(client, caplog, MALFORMED[fault](_pressed(client, theme=1)), "")


def test_what_is_too_large_is_not_read(client, caplog):
    assert len(_refused(client, caplog, "[" + " " * callbacks.MOST_BYTES + "]", "Too Large", status=413)) < 200


def test_what_is_not_said_to_be_json_is_refused(client, caplog):
    with caplog.at_level(logging.INFO):
        assert client.post("/_dash-update-component", data="x=1").status_code == 415
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("view.data", 5), ("view.data", View().data() | {"runs": "a"}), ("view.data", View().data() | {"runs": ["a"] * 7}),
     ("view.data", View().data() | {"event": ["a", -1, 0]}), ("view.data", View().data() | {"theme": "pink"}),
     ("view.data", View().data() | {"rows": 1}), ("view.data", View().data() | {"range": [0]}),
     ("screen.data", {"scheme": "pink", "width": 9}), ("screen.data", {"scheme": "light", "width": "9"}),
     ("screen.data", {}), ("pressed.data", {"theme": "x"}), ("pressed.data", []), ("asked.data", [1]),
     ("asked.data", {"at": {}}), ("followed.data", 5), ("url.search", 5), ("find.value", {"a": 1}), ("find.value", [1]),
     ("timeline.relayoutData", "x"), ("runs.eventData", {}), ("runs.selectedRows", [{}]), ("listed.data", "x")],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused(client, caplog, name, value):
    body = _pressed(client, theme=1)
    entry = next(one for one in (*body["inputs"], *body["state"]) if f"{one['id']}.{one['property']}" == name)
    entry["value"] = value
    _refused(client, caplog, body, f"{name} has an invalid value")


def _refused(client, caplog, body, why, status=400):
    """The answer to a request that must be refused, with one short line in it and in the log."""
    caplog.clear()
    start = time.perf_counter()
    with caplog.at_level(logging.INFO):
        answer = post(client, "", body)
    assert time.perf_counter() - start < 2
    assert answer.status_code == status, answer.text
    (record,) = caplog.records
    said = record.getMessage()
    assert said.isprintable()
    assert len(said) < 200
    assert record.exc_info is None
    assert any(reason in said for reason in why.split("|"))
    assert answer.text.endswith(f"{said.rpartition(': ')[2]}.\n")
    return answer.text


@pytest.mark.parametrize("keys", ["5", [{"type": "make-base", "run": 1, "x": 2}], [{"type": "y", "run": 1}], [[]]])
def test_of_several_components_each_is_one_that_is_meant(client, keys):
    callback = next(one for one in callbacks_of(client, "") if "make-base" in str(one["inputs"]))
    body = asked(callback, {"view.data": View(runs=("a",)).data()})
    body["inputs"] = [[{"id": key, "property": "n_clicks", "value": 1} for key in keys]]
    assert post(client, "", body).status_code == 400


@pytest.mark.parametrize(
    "address", ["nope/x.js", "dash/nope.js", "dash/deps/../x.js", "os/path.py", "dash/x"]
)  # fmt: skip
def test_an_unknown_component_is_not_found(client, address, caplog):
    with caplog.at_level(logging.INFO):
        answer = client.get(f"/_dash-component-suites/{address}")
    assert answer.status_code == 404
    assert "Traceback" not in answer.text
    assert not caplog.records


def test_an_unknown_page_has_no_callbacks(client):
    assert client.post("/nope/_dash-update-component", json={}).status_code in (404, 405)


@pytest.mark.parametrize("address", ["/download/report.html", "/", "/login", "/graph/"])
def test_a_query_that_is_no_text_is_refused(tmp_path, address, caplog):
    client = create_app([tmp_path], Serving(token="secret")).server.test_client()
    answer = client.get(address, environ_overrides={"QUERY_STRING": "run=a&token=\xff"})
    assert answer.status_code == 400
    assert len(caplog.records) == 1


def test_thousands_of_runs_in_an_address_are_none(client):
    answer = client.get("/download/gaps.csv?" + "&".join(f"run={number}" for number in range(20_000)))
    assert answer.status_code == 404


def test_a_failure_outside_of_callbacks_is_a_number_in_the_body_and_a_bounded_traceback_in_the_log(tmp_path, caplog):
    server = create_app([tmp_path]).server

    @server.get("/fails")
    def fails():
        raise ValueError("secret\x1b[2J" + "x" * 10**6)

    answer = server.test_client().get("/fails")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    (record,) = caplog.records
    assert record.name == pages.__name__
    assert len(record.getMessage()) < 30_000
    assert "\x1b" not in record.getMessage()
    assert "fails" in record.getMessage()
