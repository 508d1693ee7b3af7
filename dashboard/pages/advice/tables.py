"""The rows of the advice page's tables."""

from __future__ import annotations

from typing import Any, Final

import pandas as pd

from dashboard.frame import link
from dashboard.pages.whatif.edits import concurrent
from dashboard.pages.whatif.view import ADDRESS as WHAT_IF
from dashboard.pages.whatif.view import ALL
from dashboard.predictions import Candidate
from dashboard.run import Run
from dashboard.store import RunStore
from dashboard.text import plain
from dashboard.view import View, with_fields
from tracer.advice_words import cells
from tracer.analysis.advice import INDEPENDENT, Advice
from tracer.analysis.whatif.edits import Edit, OneGraph, Strategy, WithoutSyncs

ADDRESS: Final = "advice/"
_STREAMS: Final = 4
_MOST_ROWS: Final = 200


def more_edits(store: RunStore, run: Run) -> list[Candidate]:
    """Edits that need more than the recording: kernels on several streams, for runs with a graph."""
    if run.graph_file is None:
        return []
    return [(concurrent(store, run, _STREAMS), "--concurrent", INDEPENDENT)]


def advice_rows(run: Run, kept: tuple[Advice, ...], facts: dict[str, Any], theme: str) -> list[dict[str, str]]:
    """One row per edit: a link to its what-if, gain, margin, steps/s, conditions and the engine's settings."""
    query = View(runs=(run.key,), theme=theme, rates=run.rates).query()
    rows = []
    for advice, one in zip(kept, facts["advice"], strict=True):
        fields: dict[str, Any] = {}
        for edit in advice.edits:
            fields |= fields_of(edit)
        address = link(WHAT_IF, ADDRESS) + with_fields(query, fields)
        rows.append(
            cells(one)
            | {
                "edit": f"[{plain(one['edit'], 60)}]({address})",
                "conditions": "; and ".join(one["conditions"]),
                "settings": "; ".join(f"{s['name']} ({s['seen']})".replace("`", "") for s in one["settings"]),
            }
        )
    return rows


def fields_of(edit: Edit) -> dict[str, Any]:
    """The fields of the what-if page that make an edit."""
    match edit:
        case Strategy(name):
            return {"sync": name}
        case WithoutSyncs(None):
            return {"without": ALL}
        case WithoutSyncs((position,)):
            return {"without": position}
        case OneGraph(early):
            return {"graph": "early" if early else "plain"}
    return {"streams": _STREAMS}


def site_rows(sites: pd.DataFrame | None) -> list[dict[str, Any]]:
    """The rows of a table of call sites, the first of them, as plain text."""
    if sites is None:
        return []
    texts = [name for name in ("site", "through", "name", "what") if name in sites]
    shown = sites.head(_MOST_ROWS)
    return shown.assign(**{name: [plain(str(text), 200) or "–" for text in shown[name]] for name in texts}).to_dict(
        "records"
    )  # type: ignore[return-value]
