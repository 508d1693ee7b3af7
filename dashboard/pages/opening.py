"""Which runs a page opens with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dashboard.run import Run
from dashboard.store import RunStore
from dashboard.view import View

PATIENCE = 2.0
"""Seconds after which a page opens with the recordings that are read by then."""


def opened(view: View, store: RunStore) -> View:
    """A view as a link gives it; without one, two that can be compared: with the longest and the shortest gap.

    They are chosen when all are read, or among those that are after a moment; until then `runs` stays None.
    """
    if view.runs is None:
        chosen = extremes(store.so_far(view.rates)) if store.progress().done or store.waited > PATIENCE else []
        return replace(view, runs=tuple(chosen)) if chosen or store.progress().done else view
    known = {run.key for run in store.ready(view.runs)} | set(store.awaited(view.runs))
    return replace(view, runs=tuple(key for key in view.runs if key in known))


def opened_at_once(view: View, store: RunStore) -> View:
    """The same for a page that cannot be drawn without runs: waits for those of the link, else for the moment."""
    store.read_ahead()
    if not store.chosen(view.runs or ()):
        store.settle(PATIENCE)
    return opened(view, store)


def extremes(runs: Sequence[Run]) -> list[str]:
    """Keys of the run with the longest and the one with the shortest median gap, among those of one kind.

    That is the first run's, or the first of which there are several of known speed, so that there can be a verdict; the
    first run alone where there is none.
    """
    shown = [run for run in runs if run.summary.gap_p50_us is not None]
    fit = [run for run in shown if run.of_known_speed]
    several = (alike for run in fit if len(alike := [other for other in fit if other.kind == run.kind]) > 1)
    alike = sorted(next(several, shown[:1]), key=lambda run: run.summary.gap_p50_us or 0.0, reverse=True)
    return [run.key for run in alike[:1] + alike[1:][-1:]]
