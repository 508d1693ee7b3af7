"""The effect of each event on the view: a pure function from the old view to the new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dashboard.pages import timeline
from dashboard.pages.overview import acts
from dashboard.pages.presses import Clicks, done
from dashboard.pages.timeline import Event
from dashboard.reading.run import Run
from dashboard.view import ALIGNMENTS, FURTHEST, MOST_RUNS, View, words_of

_STAMPED = {"asked": "asked.data", "timeline": "timeline.relayoutData"}  # time-stamped by the browser
_MOST = 50  # requests handled by one call


def events_of(
    triggered: Sequence[str], values: Mapping[str, Any], clicks: Clicks, before: Clicks | None
) -> list[Event]:
    """The actions of the reader since the last call.

    Args:
        triggered: properties that have changed, as "component.property".
        values: current values of fields and the table, by component.
        clicks: how often each button was pressed, and when the last request was made or the timeline moved.
        before: the same when it was last handled.
    """
    buttons = {name: times for name, times in clicks.items() if name not in _STAMPED}
    sources = done([prop for prop in triggered if prop not in _STAMPED.values()], buttons, before)

    def is_new(name: str) -> bool:
        at = clicks.get(name)
        return _STAMPED[name] in triggered if at is None else at != (before or {}).get(name)

    sources = [*filter(is_new, ["timeline"]), *sources]  # the move came before the press
    events = [Event(source, values.get(source)) for source in sources if source in buttons or source in values]
    if "asked" not in values or not is_new("asked"):
        return events
    return [*events, *(Event("asked", wish) for wish in wishes(values["asked"], (before or {}).get("asked")))]


def wishes(asked: dict[str, Any] | None, heeded: float | None) -> list[dict[str, Any] | None]:
    """The requests since the last one handled, the newest last."""
    earlier = (asked or {}).get("earlier", [])[-_MOST:]
    times = [(wish.get("at"), wish) for wish in earlier]
    return [*(wish for at, wish in times if isinstance(at, int | float) and at > (heeded or 0)), asked]


def after(view: View, event: Event, runs: Sequence[Run], scheme: str = "light") -> View:
    """The view after an event.

    Args:
        view: the view before.
        event: what happened.
        runs: the runs of `view`.
        scheme: "light" or "dark", the page's current theme.
    """
    match event:
        case Event("runs", keys):
            return replace(view, runs=_ordered(view.runs or (), keys))
        case Event("token", int(number)):
            return replace(view, token=min(max(number, 0), FURTHEST))
        case Event("align", str(how)) if how in ALIGNMENTS:
            return replace(view, align=how)
        case Event("find", text) if text is None or isinstance(text, str):
            return replace(view, find=words_of(text))
        case Event("only", text) if text is None or isinstance(text, str):
            return replace(view, rows=replace(view.rows, only=words_of(text)))
        case Event("find-on" | "find-back" as which):
            return acts.next_found(view, runs, 1 if which == "find-on" else -1)
        case Event("sum"):
            return acts.summed(view, runs)
        case Event("measure"):
            return acts.measured(view, runs)
        case Event("asked", dict(wish)):
            return acts.after_request(view, wish, runs)
    return timeline.after(view, event, runs, scheme)


def _ordered(before: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
    """The keys now selected, those shown before first and in their old order, so that nothing moves."""
    kept = [key for key in before if key in keys]
    return tuple(kept + [key for key in keys if key not in kept])[:MOST_RUNS]
