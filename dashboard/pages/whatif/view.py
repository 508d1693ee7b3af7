"""The state of the what-if page: what all pages share, and the changes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from pydantic import AfterValidator, Field, TypeAdapter

from dashboard.view import View, last_of, one_of, query_of, stored
from tracer.analysis.whatif.strategies import LADDER

ADDRESS: Final = "whatif/"
ALL: Final = "all"
STRATEGIES: Final = LADDER[1:]
GRAPHS: Final = {"plain": "as one CUDA graph", "early": "as one CUDA graph, early starts"}
"""How kernels launched individually could be launched instead -> label."""
NUMBERS: Final = {
    "times": (0.0, 1e6), "host": (0.0, 1e6), "latency": (-1e6, 1e6), "streams": (2, 64),
}  # fmt: skip
"""Field -> its lowest and highest value."""
_MOST_NAMES = 20


def _within(field: str) -> Any:
    low, high = NUMBERS[field]
    return Field(ge=low, le=high, allow_inf_nan=False)


@dataclass(frozen=True)
class WhatIfView:
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
        streams: maximum number of streams for independent kernels.
    """

    shared: View
    sync: Annotated[str, one_of(("", *STRATEGIES))] = ""
    without: Annotated[tuple[str, ...], AfterValidator(lambda values: without_of(values))] = ()
    graph: Annotated[str, one_of(("", *GRAPHS))] = ""
    kernels: Annotated[tuple[str, ...], Field(max_length=_MOST_NAMES)] = ()
    times: Annotated[float, _within("times")] | None = None
    host: Annotated[float, _within("host")] | None = None
    latency: Annotated[float, _within("latency")] | None = None
    streams: Annotated[float, _within("streams")] | None = None

    @property
    def asked(self) -> tuple[Any, ...]:
        """The changes as one value, to compare them with others."""
        return tuple(getattr(self, field) for field in FIELDS)

    @property
    def is_different(self) -> bool:
        """Whether there are any changes."""
        return self.asked != WhatIfView(self.shared).asked

    def query(self) -> str:
        """The view as the query of a link; defaults are left out."""
        pairs: list[tuple[str, str]] = []
        for field in FIELDS:
            value = getattr(self, field)
            if isinstance(value, tuple):
                pairs += [(field, each) for each in value]
            elif value not in (None, ""):
                pairs.append((field, value if isinstance(value, str) else f"{value:.12g}"))
        base = self.shared.query().removeprefix("?")
        return "?" + "&".join(filter(None, (base, urlencode(pairs)))) if base or pairs else ""

    @classmethod
    def parse(cls, search: str | None) -> WhatIfView:
        """The view of a link; missing or invalid values take their defaults."""
        query = query_of(search)
        sync, graph = last_of(query, "sync"), last_of(query, "graph")
        return cls(
            shared=View.parse(search),
            sync=sync if sync in STRATEGIES else "",
            without=without_of(query.get("without", [])),
            graph=graph if graph in GRAPHS else "",
            kernels=names_of(query.get("kernels", [])),
            **{field: number_of(field, last_of(query, field)) for field in NUMBERS},
        )

    def data(self) -> dict[str, Any]:
        """The view as JSON, for a dcc.Store."""
        return self.shared.data() | {field: value for field, value in asdict(self).items() if field != "shared"}

    @classmethod
    def from_data(cls, data: dict[str, Any] | None) -> WhatIfView:
        """The view from data that `stored` returned."""
        return stored(_READER, data)


_READER: Final = TypeAdapter(WhatIfView)


FIELDS: Final = tuple(field.name for field in fields(WhatIfView) if field.name != "shared")
"""The changes in the order of the page; also the components and the fields of a link."""


def with_value(view: WhatIfView, field: str, value: Any) -> WhatIfView:
    """The view after the reader set a field of `FIELDS`."""
    if field in NUMBERS:
        value = number_of(field, value)
    elif field == "without":
        value = without_of(_texts(value))
    elif field == "kernels":
        value = names_of(_texts(value))
    elif not isinstance(value, str) or value not in (STRATEGIES if field == "sync" else GRAPHS):
        value = ""
    return replace(view, **{field: value})


def of_run(view: WhatIfView, key: str) -> WhatIfView:
    """The view for another run, without what only the old one has: positions of syncs, names of kernels."""
    kept = () if view.without != (ALL,) else view.without
    return replace(view, shared=replace(view.shared.led_by(key), token=None), without=kept, kernels=())


def number_of(field: str, value: Any) -> float | None:
    """A field's number within its bounds; None if invalid."""
    low, high = NUMBERS[field]
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    if not math.isfinite(number) or not low <= number <= high:
        return None
    return float(int(number)) if field == "streams" else number


def _texts(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def without_of(values: Iterable[str]) -> tuple[str, ...]:
    """Positions in order, or `ALL` alone if it was chosen last."""
    found = [value for value in dict.fromkeys(values) if value == ALL or (value.isdecimal() and len(value) <= 6)]
    if found and found[-1] == ALL:
        return (ALL,)
    return tuple(sorted((v for v in found if v != ALL and int(v) > 0), key=int))


def names_of(values: Iterable[str]) -> tuple[str, ...]:
    """Names of kernels, up to a limit."""
    return tuple(name for name in dict.fromkeys(values) if name)[:_MOST_NAMES]
