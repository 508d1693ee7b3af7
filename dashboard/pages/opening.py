"""Which runs a page opens with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dashboard.run import Run
from dashboard.store import RunStore
from dashboard.text import plain
from dashboard.view import View

_LONGEST = 120
PATIENCE = 2.0
"""Seconds after which a page opens with the recordings that are read by then."""


def opened(view: View, store: RunStore) -> View:
    """A view as a link gives it; without one, two that can be compared: with the longest and the shortest gap.

    They are chosen when all are read, or among those that are after a moment; until then `runs` stays None. A link's
    names become the keys of today; those that show nothing stay in it, behind the others (`missing` says which).
    """
    if view.runs is None:
        chosen = extremes(store.so_far(view.rates)) if store.progress().done or store.waited > PATIENCE else []
        return replace(view, runs=tuple(chosen)) if chosen or store.progress().done else view
    keys = tuple(dict.fromkeys(map(store.key_of, view.runs)))
    event = None if view.event is None else view.event._replace(run=store.key_of(view.event.run))
    rates = tuple(rate._replace(run=store.key_of(rate.run)) for rate in view.rates)
    gone = store.without(keys)
    return replace(view, runs=tuple(sorted(keys, key=gone.__contains__)), event=event, rates=rates)


def shown(view: View, store: RunStore) -> list[str]:
    """The keys of a view without those that show nothing."""
    keys = view.runs or ()
    gone = store.without(keys)
    return [key for key in keys if key not in gone]


def missing(view: View, store: RunStore) -> list[str]:
    """Which runs of a view show nothing, and why, a line for each."""
    there = store.progress().total
    return [
        f"{plain(key, _LONGEST)} is shown nowhere: {plain(why.removeprefix(f'{key}: '), 200)}." if why
        else f"The link asks for {plain(key, _LONGEST)}, which is not here: none of {there} recordings is called so."
        for key, why in store.without(view.runs or ()).items()
    ]  # fmt: skip


def opened_at_once(view: View, store: RunStore) -> View:
    """The same for a page that cannot be drawn without runs: waits for those of the link, else for the moment."""
    keys = [store.key_of(name) for name in view.runs or ()]
    store.read_ahead(keys)
    if not store.chosen(keys):
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
