"""The report: runs -> one HTML document with everything in it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from dashboard.figures.causes import CAUSE_COLOURS, causes_figure, causes_height, causes_of
from dashboard.palette import COLOURS, HOLE_SWATCHES, NAMES, THEMES
from dashboard.reading.comparisons import Against, against_base, cautions_of, methods_of
from dashboard.reading.run import LONGEST_NAME, Run
from dashboard.report.facts import cards, groups_of_facts
from dashboard.scene import range_of, timeline, token_of
from dashboard.text import plain
from dashboard.view import View
from tracer.analysis.advice import advise
from tracer.analysis.causality.paths import Causality
from tracer.analysis.holes import PLACES
from tracer.analysis.whatif.base import TRACED, Base
from tracer.analysis.whatif.prediction import WITHOUT_RATE
from tracer.errors import TraceError
from tracer.reporting.advice import cells, details, eager_cells, facts_of, rest, unused_of
from tracer.reporting.compare_words import sentence

_HERE: Final = Path(__file__).parent
_STYLES: Final = (*(_HERE.parent / "assets" / name for name in ("page.css", "print.css")), _HERE / "report.css")
_WIDE: Final = 1140  # px: what a timeline needs to be read; narrower screens move it sideways
_NARROW: Final = 560


@dataclass(frozen=True)
class ThemedFigure:
    """A figure in every theme, and its size in px: a height, and the minimum width to which it shrinks with the
    page.
    """

    figures: dict[str, go.Figure]
    height: int
    narrowest: int = _WIDE

    def data(self) -> dict[str, Any]:
        """The input of report.js."""
        return {
            "themes": {theme: json.loads(str(figure.to_json())) for theme, figure in self.figures.items()},
            "height": self.height, "narrowest": self.narrowest, "widest": _WIDE,
        }  # fmt: skip


def report_page(runs: Sequence[Run], token: int | None = None) -> str:
    """The comparison of runs that have token steps, the first being the base.

    Args:
        runs: one to `view.MOST_RUNS` of them.
        token: the token at which their timelines are aligned; None for the most typical one.
    """
    view = View(tuple(run.key for run in runs), token)
    gap, one_token, causes = _timeline(runs, view, "gap"), _timeline(runs, view, "token"), _causes(runs)
    plots = {"gap": gap, "token": one_token} | ({"causes": causes} if causes else {})
    drawn = {trace["name"] for plot in (gap, one_token) for trace in plot.figures["light"].data}
    compared = against_base(runs)
    data = json.dumps({name: plot.data() for name, plot in plots.items()}).replace("<", r"\u003c")
    library, script = get_plotlyjs(), (_HERE / "report.js").read_text(encoding="utf-8")
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    return environment.get_template("page.html").render(
        names=[plain(run.name, 90) for run in runs],
        cards=cards(runs),
        answers=[_answer(one) for one in compared],
        methods=methods_of(compared),
        groups=groups_of_facts(runs),
        cautions=[
            plain(text, 1000) for text in (*_rates(runs), *(cautions_of(compared) if compared else _of_one(runs[0])))
        ],
        advice=[found for run in runs if (found := advice_for(run)) is not None],
        token=token_of(runs, view),
        plots=plots,
        kinds={NAMES[kind]: colour for kind, colour in COLOURS.items() if kind in drawn}
        | {f"idle {PLACES[place]}": swatch for place, swatch in HOLE_SWATCHES.items() if f"idle {place}" in drawn},
        causes=CAUSE_COLOURS,
        policy=_policy(library, script),
        style=Markup("\n".join(path.read_text(encoding="utf-8") for path in _STYLES)),  # ours, like the scripts
        library=Markup(library),
        script=Markup(script),
        data=Markup(data),
        version=version("intertoken"),
    )


def _answer(against: Against) -> str:
    """A run compared with the base in a sentence, or why it cannot be."""
    if against.found is None:
        return f"{plain(against.other.name, LONGEST_NAME)}: {plain(against.problem)}."
    return f"{plain(sentence(against.found), 1000)}."


def _rates(runs: Sequence[Run]) -> list[str]:
    """The given rates, which are not in the recordings."""
    return [f"{plain(run.name, LONGEST_NAME)}: {run.rate_note}." for run in runs if run.rate_note]


def _of_one(run: Run) -> list[str]:
    """Notes on a run without a comparison."""
    notes = run.trace.notes if run.trace is not None else []
    texts = [run.summary.warning, run.summary.left_out, run.summary.problem, run.node_kernels_note, *notes]
    return [f"{plain(run.name, LONGEST_NAME)}: {text}." for text in texts if text]


def _policy(*scripts: str) -> Markup:
    """A content security policy: exactly these scripts may run, and nothing may be fetched.

    Styles are not restricted, because Plotly sets them; fonts, images and requests are.
    """
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    own = f"script-src {allowed}; style-src 'unsafe-inline'"
    return Markup(f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'")


def _timeline(runs: Sequence[Run], view: View, what: str) -> ThemedFigure:
    seen = replace(view, range=range_of(runs, view, what))
    drawn = {theme: timeline(runs, seen, theme, _WIDE) for theme in THEMES}
    for figure, _ in drawn.values():
        low, high = figure.layout.xaxis.range  # only this was drawn
        figure.update_xaxes(minallowed=low, maxallowed=high)
    return ThemedFigure({theme: figure for theme, (figure, _) in drawn.items()}, drawn["light"][1])


def _causes(runs: Sequence[Run]) -> ThemedFigure | None:
    causes = causes_of(runs)
    if not causes:
        return None
    return ThemedFigure({theme: causes_figure(causes, theme) for theme in THEMES}, causes_height(causes), _NARROW)


@dataclass(frozen=True)
class RunAdvice:
    """The advice for a run.

    Attributes:
        name: of the run.
        changes: edit, gain, margin, steps/s and call sites of each edit that is listed.
        eager: kernel, operator, idle time before it (µs a step) and predicted gain of launches outside the graph.
        notes: what must be true for the changes, what shows no gain, and the bound.
    """

    name: str
    changes: list[list[str]]
    eager: list[list[str]]
    notes: list[str]


def advice_for(run: Run) -> RunAdvice | None:
    """Return the results of `intertoken advise` for a run; None if nothing can be predicted for it."""
    if run.trace is None or run.steps is None:
        return None
    try:
        recording = run.analysed()
        base = Base.of(Causality.of(recording.trace), recording)
        facts = facts_of(advise(recording, base), plain(run.name, 90), [])
    except TraceError:
        return None
    notes = [WITHOUT_RATE, *unused_of(facts)] if facts["base"] == TRACED else [*details(facts), *rest(facts)]
    return RunAdvice(plain(run.name, 90), [_change(one) for one in facts["advice"]],
                  [_eager(one) for one in facts["eager_launches"]], [plain(note, 600) for note in notes])  # fmt: skip


def _change(one: dict[str, Any]) -> list[str]:
    return [*cells(one).values(), plain("; ".join(one["sites"]), 400) or "–"]


def _eager(one: dict[str, Any]) -> list[str]:
    row = eager_cells(one)
    return [plain(row["kernel"], 120), plain(row["operator"], 120), row["where"], row["hole"], row["gain"]]
