"""The state of the what-if page: what all pages share, the changes, and the edits that they stand for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from dashboard.links import Linked, one, part, several
from dashboard.pages import link
from dashboard.pages.timeline import Action
from dashboard.pages.timeline import after as moved
from dashboard.rates import NoRate, rate_of
from dashboard.reading.predictions import inventory_of
from dashboard.reading.run import Run
from dashboard.reading.store import RunStore
from dashboard.text import plain
from dashboard.view import WORD, View, one_of
from tracer.analysis.whatif.changes import Edit
from tracer.analysis.whatif.edits import ScaleKernels, edits_of
from tracer.analysis.whatif.host_edits import LADDER, FollowStrategy
from tracer.errors import UsageError
from tracer.model.schema import COMPUTE_TABLES

ADDRESS: Final = "whatif/"
ALL: Final = "all"
STRATEGIES: Final = LADDER[1:]
GRAPHS: Final = {"plain": "as one CUDA graph", "early": "as one CUDA graph, early starts"}
"""How kernels launched individually could be launched instead -> label."""
NUMBERS: Final = {"times": (0.0, 1e6), "host": (0.0, 1e6), "latency": (-1e6, 1e6)}
"""Field -> its lowest and highest value."""
_MOST_NAMES: Final = 20
_NUMBER: Final = one(float, "{:.12g}".format)
_MOST_LISTED: Final = 300


def _within(field: str) -> Any:
    low, high = NUMBERS[field]
    return Field(ge=low, le=high, allow_inf_nan=False)


@dataclass(frozen=True)
class WhatIfView(Linked):
    """The state of the page.

    Attributes:
        shared: the runs, of which the first is used; their rates; token, alignment and range of its timeline; the
            theme.
        sync: another strategy, "" for the recorded one.
        without: positions of removed syncs, or `ALL` alone for all unneeded ones.
        graph: a key of `GRAPHS`, "" for launches as recorded.
        kernels: names of the kernels that take `times` as long; none for all.
        times, host: factors of the time of these kernels and of host code; None for 1.
        latency: extra time of every sync, µs.
    """

    shared: Annotated[View, part(View)]
    sync: Annotated[str, one_of(("", *STRATEGIES)), WORD] = ""
    without: Annotated[tuple[str, ...], AfterValidator(lambda values: _positions(values)), several()] = ()
    graph: Annotated[str, one_of(("", *GRAPHS)), WORD] = ""
    kernels: Annotated[tuple[str, ...], AfterValidator(lambda names: names[:_MOST_NAMES]), several()] = ()
    times: Annotated[Annotated[float, _within("times")] | None, _NUMBER] = None
    host: Annotated[Annotated[float, _within("host")] | None, _NUMBER] = None
    latency: Annotated[Annotated[float, _within("latency")] | None, _NUMBER] = None

    @property
    def asked(self) -> tuple[Any, ...]:
        """The changes as one value, to compare them with others."""
        return tuple(getattr(self, field) for field in FIELDS)

    @property
    def is_different(self) -> bool:
        """Whether there are any changes."""
        return self.asked != WhatIfView(self.shared).asked


FIELDS: Final = tuple(field.name for field in fields(WhatIfView) if field.name != "shared")
"""The changes in the order of the page; also the components and the fields of a link."""


def what_if_of(run: Run, theme: str, here: str, **changes: Any) -> str:
    """The address of the page for a run with changes, relative to the page `here`."""
    return link(ADDRESS, here) + WhatIfView(View(runs=(run.key,), theme=theme, rates=run.rates), **changes).query()


def _of_run(view: WhatIfView, key: str) -> WhatIfView:
    """The view for another run, without what only the old one has: positions of syncs, names of kernels."""
    kept = () if view.without != (ALL,) else view.without
    return replace(view, shared=replace(view.shared.led_by(key), token=None), without=kept, kernels=())


def rated(view: WhatIfView, given: Any) -> tuple[WhatIfView, str]:
    """The view with the entered rate of its run; or the old view and why the rate is invalid."""
    lead = next(iter(view.shared.runs or ()), None)
    try:
        return (view, "") if lead is None else (replace(view, shared=view.shared.rated(lead, rate_of(given))), "")
    except NoRate as problem:
        return view, str(problem)


def value_of(value: Any, field: str) -> Any:
    """The value of a field's component."""
    if isinstance(value, tuple):
        return list(value)
    if field in NUMBERS:
        return "" if value is None else f"{value:.12g}"
    return value or None


def after(view: WhatIfView, source: str, value: Any, runs: Sequence[Run], scheme: str) -> WhatIfView:
    """The view after an action of the reader.

    Args:
        view: the view before.
        source: the component.
        value: its new value.
        runs: the runs drawn.
        scheme: "light" or "dark", the page's current theme.
    """
    if source in FIELDS:
        return view.having(source, value)
    if source == "run":
        return _of_run(view, value) if isinstance(value, str) and value else view
    if source == "reset":
        return WhatIfView(view.shared)
    return replace(view, shared=moved(view.shared, Action(source, value), runs, scheme))


def _positions(values: tuple[str, ...]) -> tuple[str, ...]:
    """Positions in order, or `ALL` alone if it was chosen last."""
    found = [value for value in dict.fromkeys(values) if value == ALL or (value.isdecimal() and len(value) <= 6)]
    if found and found[-1] == ALL:
        return (ALL,)
    return tuple(sorted((v for v in found if v != ALL and int(v) > 0), key=int))


@dataclass(frozen=True)
class NamedKernels(ScaleKernels):
    """Kernels with exactly these names. A reader's regular expression could keep the server busy for hours."""

    names: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """A short description."""
        return f"kernels {', '.join(plain(name, 40) for name in self.names)} × {self.factor:g}"

    @classmethod
    def of(cls, names: tuple[str, ...], factor: float) -> NamedKernels:
        """The edit for these names."""
        return cls(rf"\A(?:{'|'.join(map(re.escape, names))})\Z", factor, names)


def edits_for(view: WhatIfView) -> list[Edit]:
    """The edits in the order in which `intertoken whatif` applies them.

    Raises:
        UsageError: kernels are named without a factor.
    """
    if view.kernels and view.times is None:
        raise UsageError("enter the factor for the kernels' time")
    edits: list[Edit] = [FollowStrategy(view.sync)] if view.sync else []
    edits += edits_of(
        without_syncs=view.without == (ALL,),
        positions=[int(position) for position in view.without if position != ALL],
        one_graph=bool(view.graph),
        early_starts=view.graph == "early",
        kernels=[("", view.times)] if view.times is not None and not view.kernels else [],
        scale_host=view.host,
        sync_latency_us=view.latency,
    )
    if view.kernels and view.times is not None:
        edits.append(NamedKernels.of(view.kernels, view.times))
    return edits


def sync_options(store: RunStore, run: Run | None) -> list[dict[str, str]]:
    """What can be chosen of `without`: all unneeded syncs, or a sync by its position."""
    if run is None:
        return []
    every = {"value": ALL, "label": "all syncs that the data flow does not need"}
    rows = [place.row for place in inventory_of(store, run)]
    labels = [
        f"{r['position']}: {r['name']}" + (f", waits for {r['waits_for']}" if r["waits_for"] else "") for r in rows
    ]
    return [every, *({"value": row["key"], "label": text} for row, text in zip(rows, labels, strict=True))]


def kernel_names(store: RunStore, run: Run) -> list[str]:
    """The names of a run's kernels and graphs, largest total time first."""

    def work() -> list[str]:
        if run.trace is None:
            return []
        kernels = run.trace.activities(COMPUTE_TABLES)
        took = (kernels["end"] - kernels["start"]).groupby(kernels["name"], observed=True).sum()
        return [str(name) for name in took.nlargest(_MOST_LISTED).index]

    return store.background.now((run.recorded, "kernels"), work, len)
