"""What the dashboard sends: the timeline and what is around it, for the first view of a recording; and the report.

The page is asked over HTTP, as a browser does. Of a figure are kept a digest of each member of its layout, the labels
of its rows, and of each trace the number of marks, where they are, and a digest. Packed numbers are unpacked first.
"""

from __future__ import annotations

import base64
import html
import json
import re
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
from click.testing import CliRunner

from dashboard.app import create_app
from dashboard.view import View
from tests.fuzz.callbacks import callbacks_of, post
from tests.fuzz.hostile import asked
from tests.golden.form import digest
from tests.recordings import KINDS, SAMPLES
from tracer.cli import main

SCREEN: Final = {"scheme": "light", "width": 1440}
_KEY: Final = frozenset({"part", "id"})
"""Members without a meaning to a reader: keys by which the browser tells one drawing from another."""


class Page:
    """The overview of a dashboard of these recordings."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._client = create_app([SAMPLES / name for name in names]).server.test_client()
        self._callbacks = callbacks_of(self._client, "")

    def rows(self) -> list[dict[str, Any]]:
        """The table of runs, once all are read."""
        while True:
            found = self._ask("..listed.data", {"reading.n_intervals": 1})
            if found["reading"]["disabled"]:
                return list(found["runs"]["rowData"])
            time.sleep(0.1)

    def shown(self, keys: list[str]) -> dict[str, Any]:
        """What is sent for the first view of these runs."""
        values = {"listed.data": [1, 0], "url.search": View(runs=tuple(keys)).query(), "screen.data": SCREEN}
        steady = {"steady.data": SCREEN | {"part": {}}}
        state = self._ask("..view.data...url.search", values, ["listed.data"])
        seen = {"view.data": state["view"]["data"], "screen.data": SCREEN, "drawn.data": ["light"]}
        drawn = self._ask("..timeline.figure", seen, ["screen.data"])
        causes = self._ask("..idle.figure", seen)
        around = self._ask("ahead.data", seen | {"wanted.data": 1})["ahead"]["data"]
        return {
            "token": state["token"]["value"], "label": state["token-label"]["children"],
            "style": drawn["timeline"]["style"], "nothing": drawn["nothing"]["children"],
            "timeline": figure(drawn["timeline"]["figure"]),
            **{name: [figure(causes[name]["figure"]), causes[f"{name}-holder"]["aria-label"]]
               for name in ("idle", "causes")},
            "minimap": figure(self._ask("..minimap.figure", seen | steady)["minimap"]["figure"]),
            "around": _around(unpacked(around)),
        }  # fmt: skip

    def _ask(self, output: str, values: dict[str, Any], changed: list[str] | None = None) -> Any:
        """The answer of the callback whose outputs begin so."""
        callback = next(one for one in self._callbacks if one["output"].startswith(output))
        answer = post(self._client, "", asked(callback, values, changed))
        assert answer.status_code == 200, f"{output}: {answer.status_code}"
        return answer.get_json()["response"]


def payloads(names: tuple[str, ...]) -> dict[str, Any]:
    """What the page sends of these recordings: each run alone, or all together if there are several recordings.

    Of a recording of a kind that another shows as well only digests are kept.
    """
    page = Page(names)
    rows = {row["key"]: row for row in page.rows()}
    if len(names) > 1:
        return page.shown(list(names))
    found = {key: {"row": digest(row)} | page.shown([key]) for key, row in rows.items()}
    if names[0] in KINDS:
        return found
    return {key: {part: digest(value) for part, value in parts.items()} for key, parts in found.items()}


def report(names: tuple[str, ...]) -> dict[str, Any]:
    """The HTML report of these recordings: its texts by section, its figures, and a digest of its style and scripts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        said = CliRunner().invoke(main, ["report", *(str(SAMPLES / name) for name in names), "-o", str(path)])
        if said.exit_code:
            return {"exit": said.exit_code, "stderr": said.stderr.replace(f"{SAMPLES.parent}/", "")}
        page = path.read_text(encoding="utf-8").replace(version("intertoken"), "VERSION")
    data = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    return {
        "exit": said.exit_code,
        "texts": _texts(page),
        "figures": {name: {"light": figure(plot["themes"]["light"]), "all": digest(unpacked(plot))}
                    for name, plot in json.loads(data[1]).items()},
    }  # fmt: skip


def _texts(page: str) -> dict[str, str]:
    """What a reader sees, by section: a line for each element that has text."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", page[page.index("<body>") :], flags=re.DOTALL)
    found = {}
    for number, section in enumerate(re.split(r"(?=<section)", body)):
        name = re.match(r'<section aria-label="([^"]*)"', section)
        lines = [" ".join(html.unescape(line).split()) for line in re.sub(r"<[^>]*>", "\n", section).splitlines()]
        found[html.unescape(name[1]) if name else f"section {number}"] = "\n".join(filter(None, lines)) + "\n"
    return found


def figure(drawn: dict[str, Any]) -> dict[str, Any]:
    """A figure of Plotly's: its layout by member, the labels of its rows, and of each trace its marks and where they
    are."""
    drawn = unpacked(drawn)
    layout = dict(drawn.get("layout", {}))
    axes = {axis: layout.pop(axis, {}) for axis in ("xaxis", "yaxis")}
    return {
        "x": axes["xaxis"].get("range"),
        "labels": axes["yaxis"].get("ticktext"),
        "layout": ", ".join(
            f"{key} {digest(value)[:6]}" for key, value in (layout | axes).items() if key != "template"
        ),
        "traces": {f"{number} {one.get('name', '')}": _trace(one) for number, one in enumerate(drawn.get("data", []))},
    }


def _trace(trace: dict[str, Any]) -> str:
    """The number of marks of a trace, the lowest and highest of its numbers by property, and a digest of everything."""
    ends = []
    for key in ("base", "x", "y"):
        numbers = [value for value in _list_of(trace.get(key)) if isinstance(value, int | float)]
        if numbers:
            ends.append(f"{len(numbers)} {key} {min(numbers):.9g}..{max(numbers):.9g}")
    return ", ".join([*ends, digest(trace)])


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _around(found: dict[str, Any]) -> dict[str, Any]:
    """What is around a view: its range and rings, the number of bundles and marks, and a digest."""
    bundles = found.get("bundles", [])
    return {
        "for": found.get("for"), "rings": found.get("rings"), "lanes": len(found.get("lanes", [])),
        "bundles": len(bundles), "marks": sum(len(bundle["marks"]) // 3 for bundle in bundles), "digest": digest(found),
    }  # fmt: skip


def unpacked(value: Any) -> Any:
    """JSON of the page in which packed arrays are lists, without the browser's keys."""
    if isinstance(value, dict):
        if {"dtype", "bdata"} <= value.keys():
            return np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"]).tolist()
        return {key: unpacked(inner) for key, inner in value.items() if key not in _KEY}
    return [unpacked(inner) for inner in value] if isinstance(value, list) else value
