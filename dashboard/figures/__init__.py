"""Figures: pure functions from tables to Plotly figures; and a figure as a page receives it.

Its numbers are packed, and what the marks of a trace have in common is sent once, because most of a timeline's payload
would be repetition.
"""

from __future__ import annotations

import base64
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

Plot = dict[str, Any]
"""A figure in Plotly's own form: `data` and `layout`, with NumPy arrays."""


def packed(value: Any) -> Any:
    """A plot, or a part of one, as JSON: floats and small numbers in base64, which plotly.js has supported since
    2.35."""
    match value:
        case np.ndarray() if value.dtype.kind == "f" or value.dtype == np.uint16:
            little = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
            return {"dtype": little.dtype.str[1:], "bdata": base64.b64encode(little.tobytes()).decode()}
        case np.ndarray():
            return value.tolist()
        case dict():
            return {key: packed(inner) for key, inner in value.items()}
        case [dict(), *_]:
            return [packed(inner) for inner in value]
    return value


def hover(texts: list[str], template: str) -> dict[str, Any]:
    """`hovertext` and `hovertemplate` of a trace: the common beginning and end of all texts are in the template.

    Texts that are all equal are in the template alone: plotly.js fills in only what is a list.

    Args:
        texts: one for each mark.
        template: where `%{hovertext}` stands for the text.

    Example:
        >>> hover(["idle 2 µs", "idle 3 µs"], "%{hovertext}<extra></extra>")
        {'hovertext': ['2', '3'], 'hovertemplate': 'idle %{hovertext} µs<extra></extra>'}
    """
    before = _common(texts)
    after = _common([text[len(before) :][::-1] for text in texts])[::-1]
    if "%{" in before or "%{" in after:  # which a template would fill in
        return {"hovertext": texts, "hovertemplate": template}
    if len(set(texts)) == 1:
        return {"hovertemplate": template.replace("%{hovertext}", before)}
    rest = [text[len(before) : len(text) - len(after)] for text in texts]
    return {"hovertext": rest, "hovertemplate": template.replace("%{hovertext}", f"{before}%{{hovertext}}{after}")}


def width_of_bars(values: NDArray[Any]) -> Any:
    """The width of a trace's bars, px: one number if all are equal."""
    return float(values[0]) if len(values) and (values == values[0]).all() else np.asarray(values, "float32")


def _common(texts: list[str]) -> str:
    """What all texts begin with: no more than the first and the last of them in order, and no less."""
    first, last = min(texts, default=""), max(texts, default="")
    return "".join(one for one, _ in takewhile(lambda both: both[0] == both[1], zip(first, last, strict=False)))
