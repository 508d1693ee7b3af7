"""The report: runs -> one HTML document with everything in it.

It has the figures of each run, and their differences from those of the first run, the base.

Differences are those of the figures shown; `reading.answers` decides whether they are significant.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from dashboard.figures import CAUSE_COLOURS, causes_figure, causes_height, causes_of
from dashboard.palette import COLOURS, HOLE_SWATCHES, NAMES, THEMES
from dashboard.reading.answers import Against, against_base, cautions_of, methods_of
from dashboard.reading.run import LONGEST_NAME, Run, same_work
from dashboard.scene import range_of, timeline, token_of
from dashboard.text import difference, microseconds, plain
from dashboard.view import View
from tracer.analysis.idle import PLACES
from tracer.analysis.interval import Interval
from tracer.analysis.path.paths import Causality
from tracer.errors import TraceError
from tracer.model.trace import LIGHT
from tracer.notes import brief, by_weight
from tracer.reporting.advice import cells, details, eager_cells, facts_of, rest, unused_of
from tracer.reporting.compare_words import sentence
from tracer.text import percent, with_sign
from tracer.whatif.advice import advise
from tracer.whatif.base import TRACED, Base
from tracer.whatif.prediction import WITHOUT_RATE

_NONE: Final = "–"
Change = Callable[[float, float], str]  # formats the difference between a figure and that of the base
Value = str | Callable[[Run], float | None]
"""A field of a run's summary, with ".KEY" one of its values; or a function of the run."""

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

    `token` is the one at which their timelines are aligned; None for the most typical one.
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
        advice=[advice for run in runs if (advice := advice_for(run)) is not None],
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
    if against.comparison is None:
        return f"{plain(against.other.name, LONGEST_NAME)}: {plain(against.problem)}."
    return f"{plain(sentence(against.comparison), 1000)}."


def _rates(runs: Sequence[Run]) -> list[str]:
    """The given rates, which are not in the recordings."""
    return [f"{plain(run.name, LONGEST_NAME)}: {run.rate_note}." for run in runs if run.rate_note]


def _of_one(run: Run) -> list[str]:
    """Notes on a run without a comparison."""
    notes = [brief(note) for note in by_weight(run.trace.notes)] if run.trace is not None else []
    texts = [run.summary.warning, run.summary.left_out, run.summary.problem, brief(run.node_kernels_note), *notes]
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
    changes = [[*cells(one).values(), plain("; ".join(one["sites"]), 400) or "–"] for one in facts["advice"]]
    eager = [
        [plain(row["kernel"], 120), plain(row["operator"], 120), row["where"], row["hole"], row["gain"]]
        for row in map(eager_cells, facts["eager_launches"])
    ]
    return RunAdvice(plain(run.name, 90), changes, eager, [plain(note, 600) for note in notes])


@dataclass(frozen=True)
class Cell:
    """A figure of one run, and its difference from the base, if any."""

    text: str
    change: str = ""


@dataclass(frozen=True)
class Fact:
    """One line of the table: its label, an explanation, and a cell per run."""

    label: str
    meaning: str
    cells: list[Cell]
    is_code: bool = False


@dataclass(frozen=True)
class Card:
    """A run at a glance: its rate and its gap in a form that can be quoted, each with its caveat."""

    name: str
    strategy: str
    rate: Cell
    rate_note: str
    gap: Cell
    gap_note: str
    calls: str


def cards(runs: Sequence[Run]) -> list[Card]:
    """The runs at a glance, the base first."""
    return [_card(run, runs[0]) for run in runs]


def groups_of_facts(runs: Sequence[Run]) -> dict[str, list[Fact]]:
    """Heading -> its facts; facts unknown for every run are left out."""
    words, figures, time = (partial(row, runs) for row in (_words, _figures, _time))
    groups = {
        "What ran": [
            words("Model", "", lambda r: r.summary.model),
            words("Device", "", lambda r: r.summary.gpu or r.summary.backend),
            words("Requested strategy", "from run.json", lambda r: r.summary.configured),
            words("Streams", "one stream, or branches on several", lambda r: r.summary.concurrency),
            words("Token steps", "and how they were found", _steps),
            words("Recording", "", _level),
        ],
        "Speed": [
            figures("Tokens/s", "without a profiler: median of the repeats", "tokens_per_s", _per_second, _percent),
            words("lowest – highest", "of the repeats", _spread),
            figures("Steps/s", "without a profiler, from run.json or the user", "untraced_steps_per_s", _per_second,
                    _percent),
            figures("Tokens/s as recorded", "by wall-clock time", "traced_tokens_per_s", _per_second, _percent, True),
            figures("Steps/s as recorded", "by wall-clock time, including the time between the steps", "steps_per_s",
                    _per_second, _percent, True),
            figures("Tracing overhead, ×", "period of the recording / untraced period", "distortion",
                    lambda value: f"{value:.2f}"),
        ],
        "Idle time of a step": [
            time("median", "when its device computes nothing, as recorded", "idle_us.p50"),
            _or_wide(time("median, untraced", "scaled to the mean that the untraced rate leaves", "untraced_idle_us",
                          False), runs, "idle"),
            time("mean, untraced", "1 / (untraced rate) − busy time of the device", "untraced_idle_mean_us", False),
            *(time(f"{name}, mean", "", f"idle_us.{place}") for place, name in PLACES.items()),
            time("GPU busy", "for the median step", "busy_us"),
        ],
        **{
            f"Idle time {name}, by cause (mean, as recorded)": [
                time(cause, "", partial(_idle_cause, place, cause)) for cause in CAUSE_COLOURS
            ]
            for place, name in PLACES.items()
        },
        "Inter-token gap": [
            time("p50", "median, as recorded", "gap_p50_us"),
            time("p90", "90th percentile, as recorded", "gap_p90_us"),
            time("mean", "as recorded", "gap_mean_us"),
            _or_wide(time("p50, untraced", "its recorded share of the idle time left by the untraced rate",
                          "untraced_gap_us", False), runs, "gap"),
            time("mean, untraced", "the same of the mean", "untraced_gap_mean_us", False),
        ],
        "Run-ahead of the host, when the device starts a step": [
            time("median", "since the step's first launch returned; a few µs: never ahead", partial(_ahead, "p50")),
            time("5th percentile", "", partial(_ahead, "p5")),
        ],
        "Causes of the gap (mean, as recorded)": [time(cause, "", f"causes_us.{cause}") for cause in CAUSE_COLOURS],
        "Causes of the gap (mean, by the untraced rate)": [
            figures(cause, "", f"untraced_causes_us.{cause}", microseconds) for cause in CAUSE_COLOURS
        ],
        "Per token": [
            figures("Host syncs", "", "syncs_per_token", _count, _difference),
            figures("Blocking copies", "that wait without a sync",
                    lambda r: r.summary.blocking_copies_per_token or None, _count, _difference),
            figures("Polling loops", "", lambda r: r.summary.polls_per_token or None, _count, _difference),
            figures("Copies", "", "copies_per_token", _count, _difference),
            figures("Launches", "of kernels or graphs", "launches_per_token", _count, _difference),
            time("Compute", "first start to last end, median", "compute_us"),
            figures("Steps ahead", "launched before the host reads a result",
                    lambda r: r.summary.fetch_lag.median if r.summary.fetch_lag else None, _count, _difference),
            words("Class", "that most input copies follow", _class),
            words("Signature", "the host calls of the most common step, in order",
                  lambda r: r.summary.signature or "", True),
        ],
    }  # fmt: skip
    known = {name: [f for f in facts if any(c.text != _NONE for c in f.cells)] for name, facts in groups.items()}
    return {name: facts for name, facts in known.items() if facts}


def _card(run: Run, base: Run) -> Card:
    summary = run.summary
    (rate, traced), (base_rate, base_traced) = _headline_rate(run), _headline_rate(base)
    (gap, inflated), (base_gap, base_inflated) = _headline_gap(run), _headline_gap(base)
    rates_compare = run is not base and not (traced or base_traced) and same_work(run, base)
    is_known = not (inflated or base_inflated or any(r.summary.estimated_untraced_gap_us for r in (run, base)))
    gaps_compare = run is not base and is_known and same_work(run, base)
    spread = "traced" if traced else _spread(run)
    counts = (
        ("sync", "syncs", summary.syncs_per_token),
        ("copy", "copies", summary.copies_per_token),
        ("launch", "launches", summary.launches_per_token),
    )
    return Card(
        name=plain(run.name, 90),
        strategy=_class(run),
        rate=_cell(rate, base_rate if rates_compare else None, _per_second, _percent),
        rate_note=f"tokens/s ({spread})" if spread else "tokens/s",
        gap=Cell(str(wide))
        if (wide := _wide(run, "gap")) and not inflated
        else _cell(gap, base_gap if gaps_compare else None, microseconds, _time_difference),
        gap_note=f"gap (median{_how_known(run, inflated)})",
        calls=", ".join(f"{_count(n)} {one if n == 1 else many}" for one, many, n in counts if n is not None),
    )


def _headline_rate(run: Run) -> tuple[float | None, bool]:
    """Tokens per second, untraced if known, and whether it is the recording's own."""
    untraced = run.summary.tokens_per_s
    return (run.summary.traced_tokens_per_s, True) if untraced is None else (untraced, False)


def _how_known(run: Run, inflated: bool) -> str:
    if inflated:
        return ", inflated by tracing"
    about = ", about" if run.summary.estimated_untraced_gap_us else ""
    return f", untraced{about}" if run.inflated else ""


def _headline_gap(run: Run) -> tuple[float | None, bool]:
    """The median gap, µs, untraced if known (None if only a wide interval is), and whether tracing inflates it."""
    if run.inflated and (run.summary.untraced_gap_us is not None or _wide(run, "gap")):
        return run.summary.untraced_gap_us, False
    return run.summary.gap_p50_us, run.inflated


def _wide(run: Run, of: str) -> Interval | None:
    """The interval of the untraced "gap" or "idle" time, if it is so wide that there is no figure."""
    estimate: Interval | None = getattr(run.summary, f"estimated_untraced_{of}_us")
    return estimate if estimate is not None and estimate.is_wide else None


def _ahead(quantile: str, run: Run) -> float | None:
    """How far the host is ahead of the device."""
    ahead = run.summary.run_ahead
    return None if ahead is None else ahead["time_us"][quantile]


def _value(run: Run, of: Value) -> float | None:
    """A figure of a run: a field of its summary, or one of the values of such a field."""
    if callable(of):
        return of(run)
    field, _, key = of.partition(".")
    value = getattr(run.summary, field)
    return value.get(key) if key else value


def _figures(
    runs: Sequence[Run], label: str, meaning: str, of: Value, form: Callable[[float], str],
    change: Change | None = None, recorded: bool = False,
) -> Fact:  # fmt: skip
    """A row of numbers, compared with the base's if both runs did the same work; `recorded` ones only if neither is
    affected by a profiler."""
    base = runs[0]
    compare = [
        run is not base and same_work(run, base) and not (recorded and (run.inflated or base.inflated)) for run in runs
    ]
    of_base = [_value(base, of) if comparable else None for comparable in compare]
    cells = [_cell(_value(run, of), its, form, change) for run, its in zip(runs, of_base, strict=True)]
    return Fact(label, meaning, cells)


def _time(runs: Sequence[Run], label: str, meaning: str, of: Value, recorded: bool = True) -> Fact:
    """A row of times in µs."""
    return _figures(runs, label, meaning, of, microseconds, _time_difference, recorded)


def _or_wide(fact: Fact, runs: Sequence[Run], of: str) -> Fact:
    """A row of times, with the interval where that is so wide that there is no figure."""
    wide = [_wide(run, of) for run in runs]
    return replace(fact, cells=[Cell(str(w)) if w else cell for w, cell in zip(wide, fact.cells, strict=True)])


def _words(runs: Sequence[Run], label: str, meaning: str, text: Callable[[Run], str], is_code: bool = False) -> Fact:
    return Fact(label, meaning, [Cell(plain(text(run), 300) or _NONE) for run in runs], is_code)


def _cell(value: float | None, of_base: float | None, form: Callable[[float], str], change: Change | None) -> Cell:
    """A number and its difference from that of the base; None if they are not comparable."""
    if value is None:
        return Cell(_NONE)
    return Cell(form(value), "" if change is None or of_base is None else change(value, of_base))


def _percent(value: float, base: float) -> str:
    return percent(value / base - 1)


def _difference(value: float, base: float) -> str:
    return with_sign(value - base, f"{abs(value - base):g}")


def _time_difference(us: float, base: float) -> str:
    share = us / base - 1 if base > 0 else 0.0
    rounded = f" ({percent(share, 0)})" if abs(share) >= 0.005 else ""
    return f"{difference((us - base) * 1e3)}{rounded}" if us != base else "±0"


def _per_second(value: float) -> str:
    return f"{value:,.1f}"


def _count(value: float) -> str:
    return f"{value:,g}"


def _idle_cause(place: str, cause: str, run: Run) -> float | None:
    """The idle time of a device due to that cause, µs; None if there is none."""
    return None if run.gaps is None else run.gaps.idle.causes_us.get(place, {}).get(cause) or None


def _spread(run: Run) -> str:
    spread = run.summary.tokens_per_s_spread
    return "" if spread is None else " – ".join(map(_per_second, spread))


def _steps(run: Run) -> str:
    sources = {"nvtx": "NVTX ranges", "calls": "repeating calls"}
    of = run.summary
    return "" if of.steps is None or of.token_source is None else f"{of.steps:,}, from {sources[of.token_source]}"


def _level(run: Run) -> str:
    level = {"graph": "CUDA graphs whole", "node": "CUDA graphs node by node", "none": "no CUDA graphs", None: ""}
    source = run.summary.source
    ours = {"host": "our host recorder", LIGHT: "the light recorder"}
    tool = ours.get(source) or plain(source, 60) or "unknown source"
    state = "traced" if run.inflated else "no profiler"
    return ", ".join(part for part in (tool, state, level[run.summary.graph_trace]) if part)


def _class(run: Run) -> str:
    share = run.summary.strategy_share
    return f"{run.summary.strategy or ''}{f' ({share:.0%})' if share is not None else ''}"
