"""Every figure of a recording, from all that say it: the commands in words and as JSON, the page, the report, the CSV.

A recording is read and analysed once. What the commands then read and analyse is this, for which they must ask with the
same steps and the same rate.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dashboard.app import create_app
from dashboard.downloads import TABLES, csv_of
from dashboard.figures import causes_of
from dashboard.pages.gap import figures_of, made_of
from dashboard.pages.overview.table import row
from dashboard.reading.run import LazyTrace, Run, run_of
from dashboard.report import cards, groups_of_facts, report_page
from dashboard.view import View
from tests.fuzz.callbacks import callbacks_of, post
from tests.fuzz.hostile import asked
from tests.recordings import KINDS, SAMPLES
from tracer import formats
from tracer.analysis.idle import PLACES
from tracer.analysis.recording import Recording
from tracer.cli import main

NAMES = [*KINDS, "transformers-eager"]
BUNDLED = [SAMPLES / name for name in NAMES]
PASSES = [SAMPLES / "llama-1.1b-sccc-branches-cuda" / "node", SAMPLES / "llama-1.1b-ggg-sequential-cuda" / "node"]
_UNITS = {"ns": 1e-3, "µs": 1.0, "ms": 1e3, "s": 1e6, None: 1.0}
_COUNTS = ("syncs", "copies", "launches")


@dataclass
class Told:
    """What each says: JSON and words (in one line) of the commands, and the run as page, report and exports have it."""

    run: Run
    json: dict[str, dict[str, Any]]
    words: dict[str, str]

    @property
    def info(self) -> dict[str, Any]:
        return self.json["info"]

    def found(self, command: str, pattern: str) -> str:
        """What stands in a command's words at the group of a pattern."""
        match = re.search(pattern, self.words[command])
        assert match, (pattern, self.words[command])
        return match[1]


@pytest.fixture(
    scope="module",
    params=[*BUNDLED, *PASSES],
    ids=lambda path: "/".join(path.relative_to(SAMPLES).parts),
)
def told(request: pytest.FixtureRequest) -> Told:
    path: Path = request.param
    trace = formats.read(path, whole=False)
    found = Recording(trace, path.name, place=str(path))
    run = run_of(found, LazyTrace(path, trace), key=path.name)

    def recorded(*_: Any, **options: Any) -> Recording:
        found.__dict__.pop("notes", None)  # to which a command adds
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracer.commands.info.recorded", recorded)  # first: the import of the module takes the other
        patch.setattr("tracer.command_options.recorded", recorded)
        said, words = {}, {}
        for command in ("info", "tokens", "syncs", "gaps"):
            answers = [CliRunner().invoke(main, [command, str(path), *more]) for more in (["--json"], [])]
            assert [answer.exit_code for answer in answers] == [0, 0], answers
            said[command], words[command] = json.loads(answers[0].stdout), " ".join(answers[1].stdout.split())
    return Told(run, said, words)


def says(text: str, value: float | None) -> bool:
    """Whether a text begins with that figure, as exactly as it has digits; a time, with its unit, in µs."""
    if value is None:
        return text.startswith("–")
    match = re.match(r"([\d,]+)(?:\.(\d+))?(?: (ns|µs|ms|s)\b|(%))?", text)
    if match is None:
        return False
    number = float(f"{match[1].replace(',', '')}.{match[2] or 0}")
    scale = 0.01 if match[4] else _UNITS[match[3]]
    return abs(number * scale - value) <= 0.5001 * 10.0 ** -len(match[2] or "") * scale


def test_a_figure_is_told_from_others() -> None:
    assert says("1,234.5 µs", 1234.54)
    assert not says("1,234.5 µs", 1234.56)
    assert says("1.23 ms a step", 1234.5)
    assert not says("1.24 ms", 1234.5)
    assert says("23%", 0.2312)
    assert not says("–", 0.0)
    assert says("–", None)


def test_commands_say_the_same_as_json(told: Told) -> None:
    info, gaps, syncs, tokens = (told.json[name] for name in ("info", "gaps", "syncs", "tokens"))
    for key in ("idle_us", "idle_share", "busy_us", "compute_us", "causes_us", "parts_us", "graph_trace", "distortion",
                "period_us", "estimated_untraced_gap_us", "warning"):  # fmt: skip
        assert gaps[key] == info[key], key
    for key in ("steps", "token_source"):
        assert gaps[key] == syncs[key] == tokens[key] == info[key], key
    assert gaps["gap_us"] == {part: info[f"gap_{part}_us"] for part in ("p50", "p90", "mean")}
    assert gaps["steps_per_s"] == tokens["steps_per_s"] == info["steps_per_s"]
    assert (gaps["untraced_gap_us"] or {"p50": None})["p50"] == info["untraced_gap_us"]
    assert (gaps["untraced_idle_us"] or {"p50": None})["p50"] == info["untraced_idle_us"]
    for key in ("confidence", "prefill_steps", "what"):
        assert tokens[key] == info[key], key
    for key in (*(f"{kind}_per_token" for kind in (*_COUNTS, "blocking_copies", "polls")), "signature", "fetch_lag",
                "signature_share"):  # fmt: skip
        assert syncs[key] == info[key], key
    assert (syncs["class"], syncs["share"]) == (info["strategy"], info["strategy_share"])


def test_words_of_the_commands_are_their_json(told: Told) -> None:
    info = told.info
    idle = info["idle_us"]
    of_info = {
        r"steps/s (\S+) as recorded": info["steps_per_s"],
        r"the median step takes (\S+ µs)": info["period_us"],
        r" idle p50 (\S+ µs) a step": idle["p50"],
        r"a step, (\S+) of the time": info["idle_share"],
        r" gap p50 (\S+ µs)": info["gap_p50_us"],
        r" gap p50 \S+ µs, p90 (\S+ µs)": info["gap_p90_us"],
        r"per step (\S+) syncs": info["syncs_per_token"],
        r"per step .*? syncs, (\S+) copies": info["copies_per_token"],
        r"per step .*? copies, (\S+) launches": info["launches_per_token"],
        r"confidence (\S+)\)": info["confidence"],
    }
    of_info |= {rf"mean µs: .*{re.escape(name)} (\S+?)(?:, |\))": idle[place]
                for place, name in PLACES.items() if idle[place] >= 0.05}  # fmt: skip
    if info["strategy"]:
        of_info |= {r"tokens/s (\S+) untraced": info["tokens_per_s"]}
        of_info |= {r"untraced, (\S+) as recorded": info["traced_tokens_per_s"]}
        assert told.found("info", r" class (\S+) \(") == info["strategy"]
    if info["untraced_idle_us"] is not None:
        of_info[r"of the time; (\S+ µs) untraced"] = info["untraced_idle_us"]
    of_gaps = {
        r"^idle p50 (\S+ µs)": idle["p50"],
        r"^idle .*?p90 (\S+ µs)": idle["p90"],
        r"^idle .*?mean (\S+ µs)": idle["mean"],
        r"\((\S+) of the time; busy": info["idle_share"],
        r"; busy (\S+ µs)": info["busy_us"],
        r" gap p50 (\S+ µs)": info["gap_p50_us"],
        r" gap p50 \S+ µs p90 (\S+ µs)": info["gap_p90_us"],
        r" gap p50 \S+ µs p90 \S+ µs mean (\S+ µs)": info["gap_mean_us"],
        r"gaps between (\d+) steps": info["steps"],
    }
    of_gaps |= {rf"█ {re.escape(cause)} (\S+ µs)": us for cause, us in info["causes_us"].items()}
    of_syncs = {rf"(?<!blocking ){kind} per token (\S+)": info[f"{kind}_per_token"] for kind in _COUNTS}
    for command, figures in (("info", of_info), ("gaps", of_gaps), ("syncs", of_syncs)):
        for pattern, value in figures.items():
            assert says(told.found(command, pattern), value), (command, pattern, value, told.words[command])
    assert f"signature {info['signature']} " in told.words["info"]
    assert f"signature {info['signature']} " in told.words["syncs"]


def test_the_page_says_it(told: Told) -> None:
    info, shown = told.info, row(told.run)
    untraced = info["tokens_per_s"] is not None
    rate = info["tokens_per_s"] if untraced else info["traced_tokens_per_s"]
    expected = {
        "strategy": info["strategy"] or "", "tokens_per_s": rate, "idle_p50": info["idle_us"]["p50"],
        "gap_p50": info["gap_p50_us"], "gap_p90": info["gap_p90_us"], "untraced_gap": info["untraced_gap_us"],
        "distortion": info["distortion"], "signature": info["signature"], "level": info["graph_trace"],
        "traced": info["traced"], **{kind: info[f"{kind}_per_token"] for kind in _COUNTS},
        "steps_per_s": info["steps_per_s"] if rate is None else None,
    }  # fmt: skip
    assert {key: shown[key] for key in expected} == expected
    line = figures_of(told.run)
    for heading, value in {"p50": "gap_p50_us", "p90": "gap_p90_us", "Mean": "gap_mean_us"}.items():
        assert says(line[heading], info[value]), heading
    assert says(line["Tracing overhead, ×"], info["distortion"])
    if info["traced"] and info["untraced_gap_us"] is not None:
        assert says(line["p50 without tracing"].removeprefix("about "), info["untraced_gap_us"])
    parts = made_of([told.run])
    assert {part["cause"]: part["mean"] for part in parts[1:] if not part["part"]} == info["causes_us"]
    (causes,) = causes_of([told.run])
    assert causes.causes_us == info["causes_us"]


def test_the_report_says_it(told: Told) -> None:
    info = told.info
    groups = groups_of_facts([told.run])
    said = {(group, fact.label): fact.cells[0].text for group, facts in groups.items() for fact in facts}
    idle, gap, causes = "Idle time of a step", "Inter-token gap", "Causes of the gap (mean, as recorded)"
    expected = {
        ("Speed", "Tokens/s"): info["tokens_per_s"],
        ("Speed", "Tokens/s as recorded"): info["traced_tokens_per_s"],
        ("Speed", "Steps/s as recorded"): info["steps_per_s"],
        ("Speed", "Tracing overhead, ×"): info["distortion"],
        (idle, "median"): info["idle_us"]["p50"],
        (idle, "median, untraced"): info["untraced_idle_us"],
        **{(idle, f"{name}, mean"): info["idle_us"][place] for place, name in PLACES.items()},
        (idle, "GPU busy"): info["busy_us"],
        **{(gap, part): info[f"gap_{part}_us"] for part in ("p50", "p90", "mean")},
        (gap, "p50, untraced"): info["untraced_gap_us"],
        **{(causes, cause): us for cause, us in info["causes_us"].items()},
        ("Per token", "Host syncs"): info["syncs_per_token"],
        ("Per token", "Copies"): info["copies_per_token"],
        ("Per token", "Launches"): info["launches_per_token"],
        ("Per token", "Compute"): info["compute_us"],
    }
    for place, value in expected.items():
        assert says(said.get(place, "–"), value), (place, said.get(place), value)
    for place, name in PLACES.items():
        group = f"Idle time {name}, by cause (mean, as recorded)"
        there = told.json["gaps"]["idle_causes_us"][place]
        assert {cause for of, cause in said if of == group} == {cause for cause, us in there.items() if us}
        assert all(says(said[group, cause], us) for cause, us in there.items() if us)
    assert said["Per token", "Signature"] == info["signature"]
    assert said.get(("Per token", "Class"), "").split(" ")[0] == (info["strategy"] or "")
    if info["tokens_per_s_spread"]:
        ends = said["Speed", "lowest – highest"].split(" – ")
        assert all(says(text, value) for text, value in zip(ends, info["tokens_per_s_spread"], strict=True))
    (card,) = cards([told.run])
    rate = info["tokens_per_s"] if info["tokens_per_s"] is not None else info["traced_tokens_per_s"]
    known = info["traced"] and info["untraced_gap_us"] is not None
    assert says(card.rate.text, rate)
    assert says(card.gap.text, info["untraced_gap_us"] if known else info["gap_p50_us"])


def test_the_csv_says_it(told: Told) -> None:
    (line,) = csv.DictReader(io.StringIO("".join(csv_of(TABLES["runs"].make([told.run])))))
    info = told.info
    expected = {key: value for key, value in info.items() if isinstance(value, float | int) and key in line}
    assert {"steps_per_s", "busy_us", "compute_us", "gap_mean_us", "steps", "confidence"} <= set(expected)
    expected |= {f"idle_{name}_us": us for name, us in info["idle_us"].items()}
    expected |= {f"cause_{name}_us": us for name, us in info["causes_us"].items()}
    for name, value in expected.items():
        found = line[name] == "True" if isinstance(value, bool) else float(line[name])
        assert found == value, name
    assert (line["strategy"], line["signature"]) == (info["strategy"] or "", info["signature"])
    if info["fetch_lag"]:
        assert float(line["fetch_lag_median"]) == info["fetch_lag"]["median"]
    causes = TABLES["causes"].make([told.run]).set_index("cause")["mean_us"].to_dict()
    assert causes == info["causes_us"]


def test_the_file_of_the_report_holds_its_facts() -> None:
    path = SAMPLES / "vllm-b1-graph"
    trace = formats.read(path, whole=False)
    run = run_of(Recording(trace, path.name), LazyTrace(path, trace), key=path.name)
    page = unescape(re.sub(r"<[^>]+>", "\n", report_page([run])))
    for facts in groups_of_facts([run]).values():
        assert all(f"\n{fact.cells[0].text}\n" in page for fact in facts)


@pytest.mark.parametrize("name", ["vllm-b8-graph", "llama1b-sccc-graph"])
def test_the_served_page_says_it(name: str) -> None:
    """As a browser gets it: the table of runs, the gap page and the CSV beside the commands' JSON."""
    path = SAMPLES / name
    info, gaps = (json.loads(CliRunner().invoke(main, [command, str(path), "--json"]).stdout)
                  for command in ("info", "gaps"))  # fmt: skip
    client = create_app([path]).server.test_client()

    def answer(page: str, output: str, values: dict[str, Any]) -> Any:
        callback = next(one for one in callbacks_of(client, page) if output in one["output"])
        return post(client, page, asked(callback, values)).get_json()["response"]

    view = {"view.data": View(runs=(name,)).data(), "screen.data": {"scheme": "light", "width": 1200}}
    gap_page = answer("gap/", "made-of.rowData", view)  # it waits for the run
    (shown,) = answer("", "runs.rowData", {})["runs"]["rowData"]
    expected = {
        "idle_p50": gaps["idle_us"]["p50"], "gap_p50": gaps["traced_gap_us"]["p50"], "distortion": gaps["distortion"],
        "gap_p90": gaps["traced_gap_us"]["p90"], "untraced_idle": info["untraced_idle_us"],
        "untraced_gap": info["untraced_gap_us"], **{kind: info[f"{kind}_per_token"] for kind in _COUNTS},
        "signature": info["signature"], "strategy": info["strategy"], "idle_where": info["idle_where"],
    }  # fmt: skip
    assert {key: shown[key] for key in expected} == expected
    parts = gap_page["made-of"]["rowData"]
    assert {part["cause"]: part["mean"] for part in parts[1:] if not part["part"]} == info["causes_us"]
    (line,) = csv.DictReader(io.StringIO(client.get("/download/runs.csv").text))
    figures = ("period_us", "busy_us", "untraced_idle_us", "distortion", "steps_per_s", "untraced_steps_per_s")
    assert {key: float(line[key]) for key in figures} == {key: info[key] for key in figures}
