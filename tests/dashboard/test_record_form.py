"""The form that plans a recording: its options, its arguments and who may see it."""

from contextlib import contextmanager

import pytest
from click.testing import CliRunner

import dashboard.cli
from dashboard.app import create_app
from dashboard.pages.record.form import RecordView, form, text_of
from dashboard.recording.options import arguments_of, different, options_of
from dashboard.serving import Serving
from dashboard.view import View
from tests.dashboard.test_record import runner
from tracer.errors import UsageError

__all__ = ["runner"]


def entry(name, kind, **fields):
    base = {"flag": f"--{name}", "off": None, "help": "", "default": None, "least": None, "choices": []}
    return base | {"name": name, "kind": kind} | fields


def choice(name, lacks=None):
    return {"name": name, "about": "", "lacks": lacks}


OPTIONS = options_of(
    {
        "options": [
            entry("backend", "name", default="cpu", choices=[choice("cpu"), choice("cuda", "needs CuPy")]),
            entry("sync", "names", choices=[choice("sccc"), choice("aaag"), choice("ggg")]),
            entry("tokens", "number", default=32, least=1),
            entry("prompt", "numbers", default="0", least=0),
            entry("staging", "flag", default=True, off="--no-staging"),
            entry("hazards", "flag"),
        ]
    }
)


@pytest.mark.parametrize(
    ("values", "arguments"),
    [
        ({}, []),
        ({"backend": "cpu", "tokens": "32", "prompt": "0", "staging": "on"}, []),
        ({"sync": "ggg,sccc"}, ["--sync", "sccc,ggg"]),
        ({"tokens": "007"}, ["--tokens", "7"]),
        ({"prompt": "0, 64"}, ["--prompt", "0,64"]),
        ({"staging": "off", "hazards": "on"}, ["--no-staging", "--hazards"]),
        ({"hazards": "off"}, []),
        ({"output": "/etc", "run": "a"}, []),
    ],
)
def test_values_become_arguments(values, arguments):
    assert arguments_of(OPTIONS, values) == arguments


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"backend": "cuda"}, "cuda is not on this machine: needs CuPy"),
        ({"backend": "--help"}, "has no '--help'; choose from cpu, cuda"),
        ({"sync": "sccc,aaaag"}, "has no 'aaaag'"),
        ({"tokens": "0"}, "from 1 to 100,000, not '0'"),
        ({"tokens": "100001"}, "not '100001'"),
        ({"tokens": "-1"}, "whole number"),
        ({"tokens": "٣"}, "whole number"),
        ({"tokens": "4 -o /etc"}, "whole number"),
        ({"prompt": "1,,2"}, "whole number"),
        ({"prompt": ",".join("1" * 65)}, "at most 64 numbers"),
        ({"staging": "maybe"}, "on or off"),
    ],
)
def test_values_that_an_option_cannot_have_are_refused(values, message):
    with pytest.raises(UsageError, match=message):
        arguments_of(OPTIONS, values)


def test_a_link_holds_what_is_different_and_bears_nonsense():
    view = RecordView(View(theme="dark"), different(OPTIONS, {"sync": "ggg", "tokens": "32", "prompt": ""}))
    assert view.query() == "?theme=dark&sync=ggg"
    assert RecordView.parse(view.query()) == view
    assert RecordView.from_data(view.data()) == view
    hostile = RecordView.parse("?<img>=1&sync=" + "x" * 999 + "&sync=" + "y" * 999)
    assert set(hostile.values) == {"sync"}
    assert len(hostile.values["sync"]) == 400
    assert [text_of(v) for v in (["a", 1, "b"], 3, None, {"a": 1})] == ["a,b", "3", "", ""]


def test_the_form_shows_what_the_machine_lacks_and_takes_no_senseless_value():
    fields = {c.id["option"]: c for part in form(OPTIONS, {"backend": "cuda", "sync": "nope", "tokens": "5"})
              for c in part._traverse() if isinstance(getattr(c, "id", None), dict)}  # fmt: skip
    assert set(fields) == {option.name for option in OPTIONS}
    assert fields["backend"].value == "cpu"
    assert [option["disabled"] for option in fields["backend"].options] == [False, True]
    assert "not on this machine: needs CuPy" in str(fields["backend"].options[1]["label"])
    assert fields["sync"].value is None
    assert fields["tokens"].value == "5"


ACT = {
    "output": "..refused.children...acted.data..",
    "outputs": [{"id": "refused", "property": "children"}, {"id": "acted", "property": "data"}],
    "inputs": [{"id": "start", "property": "n_clicks", "value": 1}, {"id": "cancel", "property": "n_clicks"}],
    "changedPropIds": ["start.n_clicks"],
    "state": [{"id": "view", "property": "data", "value": RecordView(View()).data()}],
}


@contextmanager
def serving(runner):
    yield create_app([runner.files.output.parent], Serving(runner=runner)).server.test_client()


def test_only_the_page_itself_may_start_a_recording(runner, monkeypatch):
    monkeypatch.setattr(runner, "options", lambda: OPTIONS)
    monkeypatch.setattr(runner, "plan", lambda arguments: None)
    started = []
    monkeypatch.setattr(runner, "start", started.append)
    with serving(runner) as client:
        for header in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
            assert client.post("/record/_dash-update-component", json=ACT, headers=header).status_code == 403
        assert client.get("/record/_dash-update-component").status_code == 404
        assert not started
        answer = client.post("/record/_dash-update-component", json=ACT)
        assert answer.get_json()["response"]["refused"]["children"] == ""
    assert started == [[]]


def test_without_leave_the_page_teaches_and_has_nothing_to_start(tmp_path):
    client = create_app([tmp_path]).server.test_client()
    assert "intertoken run --sync" in client.get("/record/_dash-layout").text
    assert client.post("/record/_dash-update-component", json=ACT).status_code == 400


@pytest.mark.parametrize(
    ("options", "records"),
    [([], True), (["--token", "x", "--host", "0.0.0.0"], True), (["--allow-host", "proxy.example"], True),
     (["--no-record"], False), (["--no-token"], False), (["--no-token", "--record"], False),
     (["--no-token", "--host", "0.0.0.0"], False), (["--no-token", "--record-to", "."], False)],
)  # fmt: skip
def test_who_may_record(tmp_path, monkeypatch, options, records):
    served = []
    monkeypatch.setattr(dashboard.cli, "serve", lambda app, host, port, serving, private: served.append(serving))
    result = CliRunner().invoke(dashboard.cli.dashboard, [str(tmp_path), *options])
    assert result.exit_code == 0, result.output
    runner = served[0].runner
    assert (runner is not None) == records
    assert not records or runner.shown == tmp_path
