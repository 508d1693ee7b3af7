"""The scene: selected runs and a view, turned into the drawings of a timeline; what a view chooses in it, and what is
fetched around it.

Chosen is an event: its position, the matching events of other runs, its arrows, and the next match of a search.

Around a view its rows are fetched, coarser with distance, for the browser to draw while the reader pans or zooms.
There are rings of decreasing detail, each a few times as wide as the previous one; the outermost is as wide as the
recording. The marks of a ring begin where the previous ring ends; those of the first one are everywhere. Times are
16-bit fractions of their ring, below a pixel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any, Final

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from dashboard.figures import Plot
from dashboard.figures import timeline as figures
from dashboard.headline import tracing
from dashboard.palette import COLOURS, KINDS, THEMES
from dashboard.reading.run import Run
from dashboard.text import duration
from dashboard.timeline import align, marks
from dashboard.timeline.flows import counterpart, flows_of
from dashboard.timeline.layout import Panel, Placed, arranged, panels, places_of
from dashboard.timeline.pyramid import Detail, Pyramid
from dashboard.timeline.rows import Row
from dashboard.view import Spot, View, span
from tracer.analysis.causes import CAUSES
from tracer.model.intervals import Ints
from tracer.model.schema import MOST_NS

_ROOM: Final = 0.8  # largest share of the range that a focused event takes
_SEEN: Final = 0.02  # smallest share
_CLOSEST: Final = 500  # ns on both sides of an event without duration
_TOUCH: Final = 12  # px around an edge that count as the edge

RINGS: Final = ((3, 600), (16, 400), (128, 400))  # width of a ring relative to the view, and its maximum number of bins
_WHOLE: Final = 512  # bins of a recording that is wider than the widest ring
_FINEST: Final = (1 << 16) - 1
_GAP: Final = KINDS.index("gap")
_SHADES: Final = 4  # of a bin, by how busy it is
Marks = NDArray[np.uint16]  # A mark per row: from and to in units of its ring, and its lane
Bundles = dict[tuple[int, int, int], list[Marks]]  # by ring, kind and shade

_HEAVIEST = 2400  # marks in one figure, see `_weight`: what a browser redraws without a stutter, and under 300 KB
_FEWEST_BINS = 16
_MOST_GAPS = 600  # that are shaded one by one: of more, most are narrower than two pixels
_APART = 44  # px from one token's number to the next, at least
_BESIDE = 0.01  # of the whole, on either side


def limits_of(runs: Sequence[Run], view: View) -> tuple[int, int]:
    """The range of the time axis, ns from time 0."""
    return view.range or align.default_range(_tokens(runs), token_of(runs, view), view.align)


def token_of(runs: Sequence[Run], view: View) -> int:
    """The token at which the runs are aligned."""
    tokens = _tokens(runs)
    most = max((len(t) for t in tokens), default=1) - 1
    return align.typical_token(tokens) if view.token is None else min(view.token, most)


def _tokens(runs: Sequence[Run]) -> list[align.Tokens]:
    return [run.tokens for run in runs if run.tokens is not None]


def timeline(runs: Sequence[Run], view: View, theme: str, width: int) -> tuple[go.Figure, int]:
    """The timeline figure of these runs in this view, `width` px wide with its margins, and its height, px."""
    plot, height = timeline_of(runs, view, theme, width, brief=False)
    return figures.timeline_figure(plot), height


def timeline_of(runs: Sequence[Run], view: View, theme: str, width: int, brief: bool = True) -> tuple[Plot, int]:
    """The timeline figure without Plotly's validation, which takes longer than everything else.

    `brief`: whether its hovers have only names and durations, as on a page that shows the rest when the pointer rests.
    """
    within = min(max(width - figures.left_of(width) - figures.MARGIN["r"], 300), 4000)
    drawings = draw(runs, view, within, brief)
    origin = f"{view.align} of token {token_of(runs, view)}’s compute"
    limits = limits_of(runs, view)
    plot = figures.timeline_plot(drawings, limits, origin, theme, within, bool(view.find), view.ruler)
    look = THEMES[theme]
    plot["layout"]["shapes"] += figures.summed_area(*_area_of(runs, view), look)
    # the browser's range for a view without one
    usual = align.default_range(_tokens(runs), token_of(runs, view), view.align)
    plot["layout"]["meta"] = {"usual": [time / 1e9 for time in usual], "part": part_of(runs, view, theme)}
    plot = figures.with_differences(plot, _differences(runs, view, drawings), limits, within, look)
    return plot, figures.height_of(drawings)


def around_of(runs: Sequence[Run], view: View, theme: str) -> dict[str, Any]:
    """The surroundings of the view from `around`, and `for`, the range (s) and part of the view that they belong
    to."""
    limits = limits_of(runs, view)
    shown = [(run.holes, panel, anchor) for run, panel, anchor in _placed(runs, view)]
    surroundings = around(shown, limits, whole_of(runs, view), theme)
    return surroundings | {"for": [time / 1e9 for time in limits], "part": part_of(runs, view, theme)}


def whole_of(runs: Sequence[Run], view: View) -> tuple[int, int]:
    """The range of the recordings, ns from time 0."""
    token = token_of(runs, view)
    shown = [(run.whole, anchor_of(run, view, token)) for run in runs if run.tokens is not None]
    lows, highs = ([whole[side] - anchor for whole, anchor in shown] for side in (0, 1))
    return min(lows, default=0), max(highs, default=1_000_000)


def part_of(runs: Sequence[Run], view: View, theme: str) -> str:
    """Identifies the layout: two drawings have different keys if their rows or their time 0 are at different
    positions."""
    placed = [(run.key, run.rate) for run in runs], token_of(runs, view), view.align, view.rows, theme
    return hashlib.sha256(repr(placed).encode("utf-8", "replace")).hexdigest()[:16]


def _area_of(runs: Sequence[Run], view: View) -> tuple[tuple[int, int] | None, list[tuple[int, int]]]:
    """The area's range in time, and of its rows in px."""
    if view.area is None:
        return None, []
    places = [
        (placed.top, placed.bottom)
        for run, panel in zip(runs, panels_of(runs, view), strict=True)
        for placed, (_, unit, _) in ((p, places_of(run.rows)[p.line.index]) for p in panel.rows)
        if not view.area.rows or unit in view.area.rows
    ]
    return view.area.ends, places


def _differences(runs: Sequence[Run], view: View, drawings: Sequence[figures.Drawing]) -> list[pd.DataFrame]:
    """The differences between each other run and the first one."""
    placed = _placed(runs, view)
    return [
        _difference(placed[0][0], run, drawing, anchor)
        for (run, _, anchor), drawing in zip(placed[1:], drawings[1:], strict=True)
    ]


def _difference(base: Run, other: Run, drawing: figures.Drawing, anchor: int) -> pd.DataFrame:
    """The visible gaps of `other` with the base's gaps after the same tokens, with `DIFFERENCES`.

    Empty if a profiler inflates one of them, because their difference would include its overhead. `anchor` is `other`'s
    time 0, ns on its clock.
    """
    if base.tokens is None or other.tokens is None or base.inflated or other.inflated:
        return pd.DataFrame(columns=figures.DIFFERENCES)
    gaps, mine, theirs = drawing.gaps, other.tokens, base.tokens
    starts = np.rint(gaps["x"].to_numpy() * 1e9).astype(np.int64) + anchor
    token = np.minimum(np.searchsorted(mine.end, starts), len(mine) - 1)
    known = (mine.end[token] == starts) & (mine.gap[token] == gaps["gap"]) & (token < len(theirs))
    gap = theirs.gap[np.minimum(token, len(theirs) - 1)]
    differ = np.asarray(known & (gap >= 0) & (gap != gaps["gap"]), dtype=bool)
    return gaps.assign(own=gaps["gap"], base=gap).loc[differ, figures.DIFFERENCES]


def range_of(runs: Sequence[Run], view: View, what: str) -> tuple[int, int] | None:
    """The range that shows "gap" (the gaps after the view's token), "all", or "token" (None: one token and its gap)."""
    if what == "all":
        low, high = whole_of(runs, view)
        return span(low - _BESIDE * (high - low), high + _BESIDE * (high - low))
    return align.gap_range(_tokens(runs), token_of(runs, view), view.align) if what == "gap" else None


def draw(runs: Sequence[Run], view: View, width: int, brief: bool = False) -> list[figures.Drawing]:
    """The drawings of these runs in this view, `width` px wide; `brief` as for `timeline_of`."""
    limits, token = limits_of(runs, view), token_of(runs, view)
    anchors, bins = _placed(runs, view), width
    while True:
        viewports = [marks.Viewport(limits[0] + at, limits[1] + at, at, width, bins) for _, _, at in anchors]
        details = [
            [marks.detail_of(placed.row, viewport) for placed in panel.rows]
            for (_, panel, _), viewport in zip(anchors, viewports, strict=True)
        ]
        shades = [
            [marks.detail_of_holes(row, viewport) for row in run.holes]
            for (run, _, _), viewport in zip(anchors, viewports, strict=True)
        ]
        if bins <= _FEWEST_BINS or sum(map(_weight, chain.from_iterable((*details, *shades)))) <= _HEAVIEST:
            break
        bins = max(bins // 2, _FEWEST_BINS)
    chosen = chosen_in(runs, view, token)
    return [
        replace(
            _drawing(run, panel, viewport, _note(run, token), drawn, view.find, chosen.get(run.key), brief),
            holes=marks.shades_of(run.holes, shaded, panel, viewport),
        )
        for (run, panel, _), viewport, drawn, shaded in zip(anchors, viewports, details, shades, strict=True)
    ]


def _weight(drawn: Detail) -> int:
    """The run's share of a figure's size: an event needs about twice the text of a bin."""
    return 2 * len(drawn.exact) + len(drawn.start)


def _drawing(
    run: Run, panel: Panel, viewport: marks.Viewport, note: str, details: Sequence[Detail], find: str,
    spot: Spot | None, brief: bool,
) -> figures.Drawing:  # fmt: skip
    rows, waits = zip(panel.rows, details, strict=True), run.waits
    drawn = marks.joined([marks.marks_of(placed, of, viewport, waits, find, brief) for placed, of in rows])
    lines, gaps, ruled = marks.connectors(panel, waits, viewport), _gaps(run, panel, viewport), _ruled(run, viewport)
    drawing = figures.Drawing(run.name, note, panel, drawn, lines, gaps, tokens=ruled)
    if spot is None:
        return drawing
    return replace(drawing, chosen=outline(run, spot, panel, viewport), arrows=arrows_of(run, spot, panel, viewport))


def _ruled(run: Run, viewport: marks.Viewport) -> pd.DataFrame:
    """The tokens in view that the ruler numbers, as many as fit: x (s), step."""
    tokens = run.tokens
    assert tokens is not None
    low, high = np.searchsorted(tokens.start, viewport.wider)
    steps = (times * 10**power for power in count() for times in (1, 2, 5))
    every = next(step for step in steps if step * max(tokens.period, 1) >= _APART * viewport.ns_per_pixel)
    at = np.arange(-(-low // every) * every, high, every)
    return pd.DataFrame({"x": viewport.seconds(tokens.start[at]), "step": tokens.step[at]})


def _note(run: Run, token: int) -> str:
    """The note next to a run's name: its class, the idle time of this token's step, and its gap."""
    tokens = run.tokens
    assert tokens is not None
    at = tokens.clamp(token)
    gap = int(tokens.gap[at])
    parts = [run.summary.strategy or "", f"token {tokens.step[at]}"]
    recorded = f"timeline: as recorded, {tracing(run)}" if run.overhead else "as recorded: inflated"
    parts += [recorded] if run.inflated else []
    steps = None if run.gaps is None else run.gaps.idle.steps
    idle = [] if steps is None else steps.loc[steps["step"] == tokens.step[at], "idle"].tolist()
    parts += [f"idle {duration(idle[0])}"] if len(idle) == 1 else []  # on one device
    parts += [f"gap after it {duration(gap)}"] if gap >= 0 else ["no gap after it"]
    parts += ["kernels of the node pass, in proportion"] if run.node_kernels_note else []
    return figures.BETWEEN.join(p for p in parts if p)


def _gaps(run: Run, panel: Panel, viewport: marks.Viewport) -> pd.DataFrame:
    """The gaps in view, each over its device's rows: x dx gap text top bottom.

    text gives the causes of the gap, and is empty if the gap is too narrow for a label.
    """
    bands = {band.device: band for band in panel.bands}
    table = run.gaps.table if run.gaps is not None else pd.DataFrame(columns=["start", "end", "gap", "step", "device"])
    seen = table[
        (table["end"] > viewport.low)
        & (table["start"] < viewport.high)
        & (table["gap"] > 0)
        & table["device"].isin(list(bands))
    ]
    seen = _merged(seen, int(4 * viewport.ns_per_pixel)) if len(seen) > _MOST_GAPS else seen
    start, gap = seen["start"].to_numpy(dtype=np.int64), seen["gap"].to_numpy(dtype=np.int64)
    bears = gap >= figures.LABELLED * viewport.ns_per_pixel
    texts = np.full(len(seen), "", dtype=object)
    texts[bears] = [_made_of(row) for row in seen[bears].to_dict("records")]
    on = [bands[device] for device in seen["device"]]
    return pd.DataFrame(
        {
            "x": viewport.seconds(start),
            "dx": gap / 1e9,
            "gap": gap,
            "text": texts,
            "top": np.array([band.top for band in on], dtype=np.int64),
            "bottom": np.array([band.bottom for band in on], dtype=np.int64),
        }
    )


def _merged(gaps: pd.DataFrame, apart: int) -> pd.DataFrame:
    """The gaps, but one for all shorter ones of a device that begin within so many ns, as long as they are together."""
    short = gaps["gap"] < apart
    together = gaps[short].groupby(["device", gaps["start"] // max(apart, 1)], sort=False)
    joined = together.agg({"start": "first", "end": "last", "gap": "sum", "step": "first"}).reset_index("device")
    return pd.concat([gaps[~short], joined]).sort_values("start", kind="stable", ignore_index=True)


def _made_of(gap: dict[Any, Any]) -> str:
    causes = (f"{name} {duration(gap[column])}" for column, name in CAUSES.items() if gap[column])
    return f"<b>gap after token {gap['step']}: {duration(gap['gap'])}</b><br>" + "<br>".join(causes)


def rings_of(limits: tuple[int, int], whole: tuple[int, int]) -> list[tuple[int, int, int]]:
    """The rings around a range: from, to (ns from time 0), and maximum number of bins.

    No ring extends beyond the recordings, which are `whole`. All times are from time 0.
    """
    middle, width = (limits[0] + limits[1]) // 2, limits[1] - limits[0]
    rings = []
    for times, bins in (*RINGS, (0, _WHOLE)):
        wide = (middle - times * width // 2, middle + times * width // 2) if times else whole
        low, high = max(wide[0], whole[0]), min(wide[1], whole[1])
        if low < high:
            rings.append((low, high, bins))
        if (low, high) == whole:
            break
    return rings


def around(
    runs: Sequence[tuple[Sequence[marks.HoleRow], Panel, int]], limits: tuple[int, int], whole: tuple[int, int],
    theme: str,
) -> dict[str, Any]:  # fmt: skip
    """What the browser draws around a view.

    Args:
        runs: for each run its holes, the positions of its rows, and time 0, ns of its clock.
        limits, whole: as for `rings_of`.

    Returns:
        rings (from and to, s), lanes (top and bottom, px) and bundles (ring, colour, opacity, and base64 of `Marks`).
    """
    rings, darkest, faint = rings_of(limits, whole), _SHADES - 1, THEMES[theme].gap_opacity
    lanes: list[tuple[int, int]] = []
    bundles: Bundles = {}
    for shades, panel, anchor in runs:
        bands = {band.device: (band.top, band.bottom) for band in panel.bands}
        for shade in shades:
            if shade.device in bands:
                lanes.append(bands[shade.device])
                _add_bundles(bundles, shade.pyramid, np.full(len(shade.start), _GAP, np.int8), anchor, rings, lanes)
        for placed in panel.rows:
            lanes.append((placed.top, placed.bottom))
            row = placed.row
            _add_bundles(bundles, row.pyramid, row.events["what"].to_numpy(), anchor, rings, lanes)
    return {
        "rings": [[low / 1e9, high / 1e9] for low, high, _ in rings],
        "lanes": lanes,
        "bundles": [
            {"ring": ring, "colour": COLOURS[KINDS[kind]],
             "opacity": round(faint * (shade / darkest) if kind == _GAP else 0.2 + 0.8 * (shade / darkest), 3),
             "marks": np.concatenate(parts).ravel()}
            for (ring, kind, shade), parts in sorted(bundles.items(), key=lambda each: each[0][1] != _GAP)  # beneath
        ],
    }  # fmt: skip


def _add_bundles(
    bundles: Bundles, pyramid: Pyramid, kinds: NDArray[np.int8], anchor: int, rings: Sequence[tuple[int, int, int]],
    lanes: Sequence[tuple[int, int]],
) -> None:  # fmt: skip
    inner: tuple[int, int] | None = None
    for number, (low, high, bins) in enumerate(rings):
        sides = [(low, high)] if inner is None else [(low, inner[0]), (inner[1], high)]
        for start, end in (side for side in sides if side[0] < side[1]):
            share = max(bins * (end - start) // (high - low), 1)
            detail = pyramid.detail(start + anchor, end + anchor, share)
            clip = (start + anchor, end + anchor)
            for kind, shade, times in _shaded_marks(pyramid, kinds, detail, clip):
                units = np.rint((times - (low + anchor)) * (_FINEST / (high - low)))
                units[:, 1] = np.maximum(units[:, 1], np.minimum(units[:, 0] + 1, _FINEST))
                lane = np.full(len(units), len(lanes) - 1)
                bundles.setdefault((number, kind, shade), []).append(np.column_stack((units, lane)).astype(np.uint16))
        inner = (low, high)


def _shaded_marks(
    pyramid: Pyramid, kinds: NDArray[np.int8], detail: Detail, clip: tuple[int, int]
) -> Iterator[tuple[int, int, Ints]]:
    """Start and end of the marks, ns, by kind and shade."""
    exact = np.column_stack((pyramid.start[detail.exact], pyramid.end[detail.exact]))
    merged = np.column_stack((detail.start, detail.end))
    share = detail.busy / np.maximum(detail.end - detail.start, 1)
    times = np.clip(np.concatenate((exact, merged)), *clip)
    kind = kinds[np.concatenate((detail.exact, detail.longest))]
    shades = np.rint(share * (_SHADES - 1)).astype(np.int64)
    shade = np.concatenate((np.full(len(exact), _SHADES - 1), shades))
    for key in np.unique(kind * _SHADES + shade).tolist():
        yield key // _SHADES, key % _SHADES, times[(kind * _SHADES + shade) == key]


def panels_of(runs: Sequence[Run], view: View) -> list[Panel]:
    """The rows of each run, as arranged by the reader."""
    return panels([arranged(run.rows, view.rows) for run in runs])


def _placed(runs: Sequence[Run], view: View) -> list[tuple[Run, Panel, int]]:
    """The runs with tokens, their rows, and time 0, ns of their clocks."""
    token, places = token_of(runs, view), zip(runs, panels_of(runs, view), strict=True)
    return [(run, panel, anchor_of(run, view, token)) for run, panel in places if run.tokens is not None]


def row_at(runs: Sequence[Run], view: View, y: float) -> tuple[Run, Placed] | None:
    """The run and the row of the marks at this height in the figure."""
    for run, panel in zip(runs, panels_of(runs, view), strict=True):
        for placed in panel.rows:
            if placed.middle == y:
                return run, placed
    return None


def spot_at(
    runs: Sequence[Run], view: View, token: int, y: float, event: int, ends: tuple[int, int] | None = None
) -> Spot | None:
    """The event of a mark, of a bin the longest that it merges; None if there is none.

    Args:
        y, event: the height of the mark in the figure, and the position of its event in its row, -1 for a bin.
        ends: of a bin, ns from time 0.
    """
    if (hit := row_at(runs, view, y)) is None:
        return None
    run, placed = hit
    row, index = placed.row, placed.line.index
    if 0 <= event < len(row.events):
        return Spot(run.key, index, event)
    if ends is None:
        return None
    low, high = (time + anchor_of(run, view, token) for time in ends)
    merged = row.pyramid.merged(low, high)
    if not len(merged):
        return None
    longest = int(merged[np.argmax(row.end[merged] - row.start[merged])])
    start = int(row.start[longest])
    return Spot(run.key, index, longest, (low - start, high - start) if len(merged) > 1 else None)


def found_in(runs: Sequence[Run], spot: Spot | None) -> Run | None:
    """The run of an event, None if there is no such event."""
    run = next((run for run in runs if spot is not None and run.key == spot.run), None)
    if run is None or spot is None or spot.row >= len(run.rows) or spot.event >= len(run.rows[spot.row].events):
        return None
    return run


def chosen_in(runs: Sequence[Run], view: View, token: int) -> dict[str, Spot]:
    """For each run, the chosen event or the matching one: the same occurrence of its name in the same row and token."""
    spot, run = view.event, found_in(runs, view.event)
    if spot is None or run is None or run.tokens is None:
        return {}
    place, row = places_of(run.rows)[spot.row], run.rows[spot.row]
    edges = _token_starts(run, row)
    at = int(np.searchsorted(edges, row.start[spot.event], side="right")) - 1
    chosen = {run.key: spot}
    for other in runs:
        known = {name: index for index, name in enumerate(places_of(other.rows))}
        if other is run or other.tokens is None or place not in known or at < 0:
            continue
        there = other.rows[known[place]]
        starts = _token_starts(other, there)
        same = at + other.tokens.clamp(token) - run.tokens.clamp(token)
        if 0 <= same < len(starts) - 1:
            event = counterpart(row, spot.event, edges[at : at + 2].tolist(), there, starts[same : same + 2].tolist())
            chosen |= {} if event is None else {other.key: Spot(other.key, known[place], event)}
    return chosen


def _token_starts(run: Run, row: Row) -> Ints:
    """Start of each token in a row, ns (compute on a device, step on a host), followed by `MOST_NS`."""
    assert run.tokens is not None
    starts = run.tokens.start
    if row.role != "stream" and run.steps is not None:
        starts = run.steps.table.set_index("step")["start"].reindex(run.tokens.step).to_numpy(dtype=np.int64)
    return np.append(starts, MOST_NS)


def outline(run: Run, spot: Spot, panel: Panel, viewport: marks.Viewport) -> pd.DataFrame:
    """The frame around a chosen event: x0 x1 (s), top bottom (px); none if its row is not shown."""
    row = run.rows[spot.row]
    ends = np.clip([row.start[spot.event], row.end[spot.event]], *viewport.wider)
    x0, x1 = viewport.seconds(ends).tolist()
    is_seen = bool(row.start[spot.event] < viewport.high and row.end[spot.event] >= viewport.low)
    places = [(x0, x1, p.top, p.bottom) for p in panel.rows if p.line.index == spot.row and is_seen]
    return pd.DataFrame(places, columns=["x0", "x1", "top", "bottom"])


def arrows_of(run: Run, spot: Spot, panel: Panel, viewport: marks.Viewport) -> pd.DataFrame:
    """The arrows from and to a chosen event between visible rows: kind, x0 x1 (s), y0 y1 (px).

    An end outside the viewport is drawn at its edge; arrows with both ends beyond the same edge are left out.
    """
    flows, _ = flows_of(run.rows, spot.row, spot.event, run.waits, run.event_pairs)
    at = {placed.line.index: placed for placed in panel.rows}
    flows = flows[flows["row0"].isin(list(at)) & flows["row1"].isin(list(at))]
    first, last = flows[["time0", "time1"]].min(axis=1), flows[["time0", "time1"]].max(axis=1)
    flows = flows[(last > viewport.low) & (first < viewport.high)]
    times = flows[["time0", "time1"]].clip(viewport.low, viewport.high)
    middles = {index: placed.middle for index, placed in at.items()}
    return pd.DataFrame(
        {
            "kind": flows["kind"],
            "x0": viewport.seconds(times["time0"].to_numpy(dtype=np.int64)),
            "x1": viewport.seconds(times["time1"].to_numpy(dtype=np.int64)),
            "y0": flows["row0"].map(middles),
            "y1": flows["row1"].map(middles),
        }
    )


def next_match(runs: Sequence[Run], view: View, token: int, limits: tuple[int, int], step: int) -> Spot | None:
    """The next match of the view's search after the chosen event, or with a `step` of -1 the previous one.

    Without a chosen event it is the next from the start of `limits`, the visible range; the search wraps around.
    Matches are ordered by time, over all runs and visible rows; ties by run, row and event.
    """
    chosen = view.event if found_in(runs, view.event) else None
    order_of = {run.key: order for order, run in enumerate(runs)}
    here, time = (-1, -1), limits[0]
    if chosen is not None:
        here, time = (order_of[chosen.run], chosen.row), _start(runs[order_of[chosen.run]], chosen, view, token)
    matches = []
    for order, run in enumerate(runs):
        for line in arranged(run.rows, view.rows):
            row, place = line.row, (order, line.index)
            if chosen is not None and place == here:
                begin = chosen.event + (step > 0)
            else:
                begin = int(np.searchsorted(row.start, time + anchor_of(run, view, token) + (place < here)))
            around = 0 if step > 0 else len(row.start)
            ahead, first = (row.finder.beside(view.find, at, step) for at in (begin, around))
            if first is not None:
                spot = Spot(run.key, line.index, first if ahead is None else ahead)
                keys = (_start(run, spot, view, token), *place)
                matches.append(((ahead is None, *(step * key for key in keys)), spot))
    return min(matches)[1] if matches else None


def place_of(runs: Sequence[Run], view: View, token: int) -> tuple[int, int]:
    """The number of the chosen match, counted from 1 in the order of `next_match`, and how many matches there are.

    The first is 0 if none of them is chosen.
    """
    finders = [
        (at, line.index, line.row.finder) for at, run in enumerate(runs) for line in arranged(run.rows, view.rows)
    ]
    count = sum(len(finder.positions(view.find)) for _, _, finder in finders)
    run = found_in(runs, view.event)
    if run is None or view.event is None:
        return 0, count
    here, time, before, is_match = (runs.index(run), view.event.row), _start(run, view.event, view, token), 0, False
    for at, index, finder in finders:
        if (at, index) == here:
            before += finder.before(view.find, view.event.event)
            is_match = finder.has(view.find, view.event.event)
        else:
            before += finder.starting_before(view.find, time + anchor_of(runs[at], view, token) + ((at, index) < here))
    return before + 1 if is_match else 0, count


def anchor_of(run: Run, view: View, token: int) -> int:
    """Time 0 of a run that is aligned at a token, ns of its clock."""
    return 0 if run.tokens is None else run.tokens.anchor(token, view.align)


def _start(run: Run, spot: Spot, view: View, token: int) -> int:
    """Start of an event, ns from time 0."""
    return int(run.rows[spot.row].start[spot.event]) - anchor_of(run, view, token)


def looked_at(runs: Sequence[Run], view: View, token: int, limits: tuple[int, int], spot: Spot) -> tuple[int, int]:
    """A range centred on the event, as wide as `limits` if the event is visible at that width, else narrower or wider.

    `limits` itself if the event is visible in it.
    """
    run = found_in(runs, spot)
    if run is None:
        return limits
    low = _start(run, spot, view, token)
    high = low + int(run.rows[spot.row].end[spot.event] - run.rows[spot.row].start[spot.event])
    half, length = (limits[1] - limits[0]) / 2, max(high - low, 1)
    if limits[0] <= low and high <= limits[1] and length >= 2 * half * _SEEN:
        return limits
    half = min(max(half, length / 2 / _ROOM), max(length / 2 / _SEEN, _CLOSEST))
    return span((low + high) / 2 - half, (low + high) / 2 + half)


def snapped(
    runs: Sequence[Run], view: View, token: int, y: float, event: int, time: int, per_pixel: float
) -> int | None:
    """The edge nearest to the pointer, ns from time 0: of the mark's event, or of the nearest event in a bin.

    `y` and `event` are of the mark, see `spot_at`; `time` is the pointer, ns from time 0, and `per_pixel` in ns.
    """
    hit = row_at(runs, view, y)
    if hit is None:
        return None
    row, anchor = hit[1].row, anchor_of(hit[0], view, token)
    touch, at = int(_TOUCH * per_pixel) + 1, time + anchor
    near = np.array([event]) if 0 <= event < len(row.start) else row.pyramid.in_view(at - touch, at + touch)
    edges = np.concatenate((row.start[near], row.end[near])) - anchor
    return int(edges[np.argmin(np.abs(edges - time))]) if len(edges) else time
