"""Every figure of a recording, from all that say it: the commands' JSON, the page, the report, the CSV.

A recording is read and analysed once. What the commands then read and analyse is this, for which they must ask with the
same steps and the same rate.
"""

import csv
import io
import re
from types import SimpleNamespace

import pytest

from dashboard.downloads import TABLES, csv_of
from dashboard.figures import causes_of
from dashboard.pages.gap import figures_of, made_of
from dashboard.pages.overview.table import row
from dashboard.reading.run import LazyTrace, run_of
from dashboard.report import cards, groups_of_facts
from tests.dashboard.conftest import as_json
from tests.recordings import KINDS, SAMPLES
from tracer import formats
from tracer.analysis.idle import PLACES
from tracer.analysis.recording import Recording

NAMES = [*KINDS, "transformers-eager", "llama-1.1b-sccc-branches-cuda/node", "llama-1.1b-ggg-sequential-cuda/node"]
UNITS = {"ns": 1e-3, "µs": 1.0, "ms": 1e3, "s": 1e6, None: 1.0}
COUNTS, SHOWN = ("syncs", "copies", "launches"), ("Host syncs", "Copies", "Launches")
SPEEDS = {"Tokens/s": "tokens_per_s", "Tokens/s as recorded": "traced_tokens_per_s",
          "Steps/s as recorded": "steps_per_s", "Tracing overhead, ×": "distortion"}  # fmt: skip
GAPS = {"p50 as recorded": "gap_p50_us", "p90 as recorded": "gap_p90_us"}


@pytest.fixture(scope="module", params=NAMES)
def told(request):
    """JSON of the command, and the run as page, report and exports have it."""
    path = SAMPLES / request.param
    trace = formats.read(path, whole=False)
    found = Recording(trace, path.name, place=str(path))

    def recorded(*_, **options):
        found.__dict__.pop("notes", None)  # to which a command adds
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracer.commands.info.recorded", recorded)  # first: the import of the module takes the other
        info = as_json("info", path)
    return SimpleNamespace(run=run_of(found, LazyTrace(path, trace), key=path.name), info=info)


def says(text, value):
    """Whether a text begins with that figure, as exactly as it has digits; a time, with its unit, in µs."""
    if value is None:
        return text.startswith("–")
    match = re.match(r"([\d,]+)(?:\.(\d+))?(?: (ns|µs|ms|s)\b|(%))?", text)
    if match is None:
        return False
    number = float(f"{match[1].replace(',', '')}.{match[2] or 0}")
    scale = 0.01 if match[4] else UNITS[match[3]]
    return abs(number * scale - value) <= 0.5001 * 10.0 ** -len(match[2] or "") * scale


def or_low(info, of):
    """The untraced figure, or the lower bound of its interval if that is so wide that there is none."""
    estimate = info.get(f"estimated_untraced_{of}_us")
    return estimate["low"] if info[f"untraced_{of}_us"] is None and estimate else info[f"untraced_{of}_us"]


def test_the_page_says_it(told):
    info, shown = told.info, row(told.run)
    rate = info["tokens_per_s"] if info["tokens_per_s"] is not None else info["traced_tokens_per_s"]
    untraced = info.get("untraced_gap_mean_us")
    factor = info["gap_mean_us"] / untraced if untraced and info["gap_mean_us"] else None
    expected = {
        "strategy": info["strategy"] or "", "tokens_per_s": rate, "idle_p50": info["idle_us"]["p50"],
        "gap_p50": info["gap_p50_us"], "gap_p90": info["gap_p90_us"], "untraced_gap": info["untraced_gap_us"],
        "distortion": factor, "signature": info["signature"], "level": info["graph_trace"],
        "traced": info["traced"], **{kind: info[f"{kind}_per_token"] for kind in COUNTS},
        "steps_per_s": info["steps_per_s"] if rate is None else None,
    }  # fmt: skip
    assert {key: shown[key] for key in expected} == expected
    line = figures_of(told.run)
    for heading, value in GAPS.items():
        assert says(line[heading], info[value]), heading
    assert says(line["Tracing, × on the gap"], factor)
    assert says(line["Mean gap"], untraced if untraced and info["traced"] else info["gap_mean_us"])
    parts = made_of([told.run])[1:]
    (causes,) = causes_of([told.run])
    assert {part["cause"]: part["mean"] for part in parts if not part["part"]} == causes.causes_us == info["causes_us"]
    inner = [(part["cause"], part["mean"]) for part in parts if part["part"]]
    assert inner == [(cause, us) for cause, each in info["parts_us"].items() for us in filter(None, each.values())]


def test_the_report_says_it(told):
    info, groups = told.info, groups_of_facts([told.run]).items()
    said = {(group, fact.label): fact.cells[0].text for group, facts in groups for fact in facts}
    idle, gap, causes = "Idle time of a step", "Inter-token gap", "Causes of the gap (mean, as recorded)"
    expected = {
        **{("Speed", label): info[key] for label, key in SPEEDS.items()},
        (idle, "median"): info["idle_us"]["p50"],
        (idle, "median, untraced"): or_low(info, "idle"),
        **{(idle, f"{name}, mean"): info["idle_us"][place] for place, name in PLACES.items()},
        (idle, "GPU busy"): info["busy_us"],
        **{(gap, part): info[f"gap_{part}_us"] for part in ("p50", "p90", "mean")},
        (gap, "p50, untraced"): or_low(info, "gap"),
        **{(causes, cause): us for cause, us in info["causes_us"].items()},
        **{("Per token", label): info[f"{kind}_per_token"] for label, kind in zip(SHOWN, COUNTS, strict=True)},
        ("Per token", "Compute"): info["compute_us"],
    }
    for place, value in expected.items():
        assert says(said.get(place, "–"), value), (place, said.get(place), value)
    assert said["Per token", "Signature"] == info["signature"]
    assert said.get(("Per token", "Class"), "").split(" ")[0] == (info["strategy"] or "")
    (card,) = cards([told.run])
    assert says(card.rate.text, info["tokens_per_s"] if info["tokens_per_s"] else info["traced_tokens_per_s"])
    known = info["traced"] and or_low(info, "gap") is not None
    assert says(card.gap.text, or_low(info, "gap") if known else info["gap_p50_us"])


def test_the_csv_says_it(told):
    (line,) = csv.DictReader(io.StringIO("".join(csv_of(TABLES["runs"].make([told.run])))))
    info = told.info
    expected = {key: value for key, value in info.items() if isinstance(value, float | int) and key in line}
    assert {"steps_per_s", "busy_us", "compute_us", "gap_mean_us", "steps", "confidence"} <= set(expected)
    expected |= {f"idle_{name}_us": us for name, us in info["idle_us"].items()}
    expected |= {f"cause_{name}_us": us for name, us in info["causes_us"].items()}
    for name, value in expected.items():
        assert (line[name] == "True" if isinstance(value, bool) else float(line[name])) == value, name
    assert (line["strategy"], line["signature"]) == (info["strategy"] or "", info["signature"])
    if info["fetch_lag"]:
        assert float(line["fetch_lag_median"]) == info["fetch_lag"]["median"]
