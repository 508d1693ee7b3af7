"""Requests to callbacks as no page sends them, and such as pages do, with values that are to be survived."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from dashboard.pages.graph import GraphView
from dashboard.pages.whatif import GRAPHS, STRATEGIES
from dashboard.view import ALIGNMENTS, THEME_NAMES, Arrangement, Spot, View


def asked(callback: dict[str, Any], values: dict[str, Any], changed: list[str] | None = None) -> dict[str, Any]:
    """A request as a browser sends it, with these values by "id.property"."""

    def entries(kind: str) -> list[Any]:
        return [_entries(one, values.get(f"{one['id']}.{one['property']}")) for one in callback[kind]]

    several = callback["output"].startswith("..")
    names = callback["output"][2:-2].split("...") if several else [callback["output"]]
    outputs = [dict(zip(("id", "property"), name.rsplit(".", 1), strict=True)) for name in names]
    first = callback["inputs"][0]
    return {
        "output": callback["output"],
        "outputs": outputs if several else outputs[0],
        "inputs": entries("inputs"),
        "state": entries("state"),
        "changedPropIds": [f"{first['id']}.{first['property']}"] if changed is None else changed,
    }


def _entries(one: dict[str, str], value: Any) -> Any:
    """An input with its value; one that stands for several components gets one of them for each of a list."""
    if not one["id"].startswith("{"):
        return {"id": one["id"], "property": one["property"], "value": value}
    pattern = json.loads(one["id"])
    several = value if isinstance(value, list) else []
    return [{"id": _named(pattern, number), "property": one["property"], "value": each}
            for number, each in enumerate(several)]  # fmt: skip


def _named(pattern: dict[str, Any], number: int) -> dict[str, Any]:
    return {part: number if wanted == ["ALL"] else wanted for part, wanted in pattern.items()}


NUMBERS = st.sampled_from(
    [0, 1, -1, 0.5, -0.5, 2, 7, 100, 30_000_000, 10**9, 2**31, 2**53, -(2**53), 2**63, -(2**63), 10**18, 10**400, 1e15,
     1e16, 1e308, -1e308, 5e-324, float("nan"), float("inf"), -float("inf")]
) | st.integers() | st.floats()  # fmt: skip
TEXTS = st.text(max_size=20) | st.sampled_from(
    ["", "all", "..", "a..b", "(a+)+$" * 9, "%", "\x00", "\ud800", "<img src=x>", "{{7*7}}", "../../etc/passwd",
     "x" * 9_999, "x" * 200_000, "{}", "[]", "__class__", "\u202e", "😀" * 99, "-9", "1e999", "NaN", "9" * 5_000]
)  # fmt: skip
PLAIN = st.none() | st.booleans() | NUMBERS | TEXTS
ANY = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4))
LARGE = st.sampled_from([[0] * 100_000, ["x"] * 19_999, [[0] * 300] * 300, json.loads("[" * 60 + "]" * 60),
                         {str(number): number for number in range(30_000)}])  # fmt: skip
HOSTILE = ANY | LARGE
RARELY = st.integers(0, 39).map(lambda number: number == 23)  # Hypothesis is fond of the first and the last
# What gets through to the callbacks, and is to be survived there.
WHOLE = st.integers(0, 40) | st.sampled_from([999, 10**6, 2**31, 10**12, 10**15])
SMALL = WHOLE | st.sampled_from([-1, 0.5, -0.5, 1e-300, -(2**31), 1e15, -1e15, 2**53, -(2**53)])
COUNTS = st.none() | st.sampled_from([0, 1, 2, 3, 30, 1_000, 30_000_000, 10**9])
FACTORS = st.none() | st.sampled_from([0.0, 1e-9, 0.5, 2, 1e3, 1e6])
TIMES = st.integers(-(10**7), 10**7) | st.sampled_from([0, 10**12, 10**15, -(10**15)])
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["all", "a..b", "(a+)+$" * 9, "%", "\x00", "<img src=x>", "../../etc/passwd", "x" * 200, "{}", "-9", "1e999", "NaN",
     "\u202e", "😀" * 40, "=1+1", "&run=a", "1", "2", "32"]
)  # fmt: skip


WISHES = {
    "click": "x y event measure", "token": "x y", "next": "find", "spot": "spot", "go": "text step", "fold": "name",
    "hide": "name", "show": "name", "move": "name by", "as recorded": "from", "all rows": "from", "forget": "from",
    "measure": "from",
}  # fmt: skip
"""What the timeline may be asked for, and its fields."""


class Requests:
    """Strategies for requests.

    Args:
        callbacks: page and callback.
        runs: keys of the runs that there are.
        nodes: names of nodes of a graph.
    """

    def __init__(self, callbacks: list[tuple[str, dict[str, Any]]], runs: list[str], nodes: list[str]) -> None:
        self.callbacks = callbacks
        run = st.sampled_from([*runs, "nobody"])
        names = st.lists(st.sampled_from(["Host", "GPU 0", *runs]) | WORDS, max_size=4).map(tuple)
        spots = st.builds(Spot, run, WHOLE, WHOLE)
        rows = st.builds(Arrangement, WORDS, names, names, names)
        pair = st.tuples(TIMES, TIMES)
        shared = st.builds(
            View, st.none() | st.lists(run, max_size=6).map(tuple), st.none() | WHOLE, st.sampled_from([*ALIGNMENTS]),
            st.none() | pair, st.sampled_from(THEME_NAMES), WORDS, st.none() | spots, st.none() | pair,
            st.just(Arrangement()) | rows,
        ).map(View.data)  # fmt: skip
        own = st.fixed_dictionaries(
            {"scale": st.sampled_from(["typical", "all"]), "sync": st.sampled_from(["", *STRATEGIES]),
             "without": st.lists(st.sampled_from(["all", "1", "2", "999999"]) | WORDS, max_size=4),
             "graph": st.sampled_from(["", *GRAPHS]), "kernels": st.lists(WORDS, max_size=4),
             "times": FACTORS, "host": FACTORS, "latency": FACTORS}
        )  # fmt: skip
        graph = st.builds(GraphView, st.none() | run, st.none() | st.sampled_from(nodes) | WORDS, st.none() | WHOLE,
                          st.none() | WHOLE, st.sampled_from(THEME_NAMES)).map(GraphView.data)  # fmt: skip
        views = st.tuples(shared, own).map(lambda both: both[0] | both[1])
        self.views = st.none() | views.flatmap(_changed)
        self.graphs = st.none() | graph.flatmap(_changed)
        fields = {
            "x": SMALL, "y": SMALL, "event": SMALL, "by": SMALL, "measure": st.booleans(), "find": WORDS,
            "spot": st.tuples(run, SMALL, SMALL).map(list), "name": WORDS | st.just("GPU 0"),
            "text": WORDS | SMALL.map("> {} us".format) | SMALL.map(str), "step": st.sampled_from([1, -1, 0]),
            "from": st.sampled_from(["start", "end"]),
        }  # fmt: skip
        wishes = st.one_of(st.fixed_dictionaries({"what": st.just(what)} | {name: fields[name] for name in of.split()})
                           for what, of in WISHES.items())  # fmt: skip
        points = st.lists(st.fixed_dictionaries({"customdata": run | st.lists(SMALL, max_size=3)}), max_size=2)
        ends = {f"xaxis.range[{number}]": SMALL for number in (0, 1)}
        query = st.lists(st.tuples(st.sampled_from(
            ["run", "token", "align", "range", "find", "event", "ruler", "rows", "hide", "fold", "order", "show",
             "theme", "scale", "sync", "without", "kernels", "times", "host", "latency", "node", "part"]
        ), run | WORDS | SMALL.map(str) | pair.map("{0[0]}..{0[1]}".format)), max_size=6)  # fmt: skip
        screen = {"scheme": st.sampled_from(["light", "dark"]), "width": SMALL}
        self.values = {
            "asked.data": st.none() | st.tuples(wishes, SMALL, st.lists(wishes, max_size=2)).map(
                lambda all: all[0] | {"at": all[1], "earlier": [each | {"at": all[1]} for each in all[2]]}),
            "screen.data": st.fixed_dictionaries(screen),
            "steady.data": st.fixed_dictionaries(screen | {"part": st.dictionaries(WORDS, SMALL, max_size=3)}),
            "pressed.data": st.none() | st.dictionaries(st.sampled_from(["theme", "zoom-in", "token-on", "find-on",
                                                                         "part-on", "asked"]), SMALL),
            "listed.data": st.just([1, 0]),
            "revision.data": st.none() | st.integers(0, 9),
            "rated.data": st.none() | st.lists(WORDS | run.map(lambda key: f"700:{key}"), max_size=4),
            "runs.cellValueChanged": st.none()
            | st.lists(st.fixed_dictionaries({"rowId": run, "value": st.none() | SMALL | WORDS}), max_size=3),
            "runs.eventData": st.none() | st.lists(run, max_size=9).map(lambda keys: {"data": keys}),
            "runs.selectedRows": st.none() | st.lists(run, max_size=9).map(lambda keys: {"ids": keys})
            | st.lists(run, max_size=9).map(lambda keys: [{"key": key} for key in keys]),
            "n_clicks": COUNTS, "n_intervals": COUNTS, "n_submit": COUNTS,
            "clickData": st.none() | st.fixed_dictionaries({"points": points}),
            "relayoutData": st.none() | st.fixed_dictionaries(ends) | st.just({"xaxis.autorange": True}),
            "tapNodeData": st.none() | st.fixed_dictionaries({"name": st.sampled_from(nodes) | WORDS}),
            "search": st.none() | WORDS | query.map(lambda pairs: "?" + "&".join(f"{k}={v}" for k, v in pairs)),
            "pathname": st.just("/"),
            "value": st.none() | run | WORDS | SMALL | st.lists(run | WORDS, max_size=8),
            "data": st.none() | ANY,
        }  # fmt: skip

    def value(self, page: str, one: dict[str, str]) -> st.SearchStrategy[Any]:
        """What an input or a state may hold; now and then anything."""
        name = f"{one['id']}.{one['property']}"
        if name == "view.data":
            sensible = self.graphs if page == "graph/" else self.views
        else:
            sensible = self.values[name if name in self.values else one["property"]]
        if one["id"].startswith("{"):
            sensible = st.lists(sensible, max_size=6)
        return RARELY.flatmap(lambda is_hostile: HOSTILE if is_hostile else sensible)

    @st.composite
    @staticmethod
    def drawn(draw: Any, requests: Requests) -> tuple[str, Any]:
        """A page, and the body of a request to it; now and then malformed."""
        page, callback = draw(st.sampled_from(requests.callbacks))
        parts = [*callback["inputs"], *callback["state"]]
        values = {f"{one['id']}.{one['property']}": draw(requests.value(page, one)) for one in parts}
        names = [f"{one['id']}.{one['property']}" for one in callback["inputs"] if not one["id"].startswith("{")]
        patterns = [json.dumps(_named(json.loads(one["id"]), draw(st.integers(-1, 3)))) + "." + one["property"]
                    for one in callback["inputs"] if one["id"].startswith("{")]  # fmt: skip
        changed = draw(st.lists(st.sampled_from([*names, *patterns]), max_size=3, unique=True))
        body = asked(callback, values, changed)
        if not draw(RARELY):
            return page, body
        less = {name: part for name, part in body.items() if draw(st.booleans())}
        more = body | {draw(st.sampled_from(sorted(body))): draw(HOSTILE)}
        return page, draw(ANY | st.binary(max_size=50) | st.just(less) | st.just(more))


def _changed(data: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The same, now and then with anything in a field."""
    other = st.tuples(st.sampled_from(sorted(data)), ANY).map(lambda pair: data | {pair[0]: pair[1]})
    return RARELY.flatmap(lambda is_hostile: other if is_hostile else st.just(data))
