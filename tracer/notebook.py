"""Display of recordings and comparisons in notebooks: the dashboard's figures, as HTML without scripts.

`Trace` and `Comparison` find these functions as views (`tracer.extensions.view`).
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from tracer.analysis.compare import Comparison
from tracer.analysis.recording import Recording
from tracer.notes import brief, by_weight
from tracer.reporting.compare import Cell, matrix
from tracer.reporting.compare_words import sentence
from tracer.reporting.headline import headline
from tracer.reporting.headline import sentence as sentence_of_one
from tracer.text import plain

if TYPE_CHECKING:
    from tracer.model.trace import Trace

_LONGEST: Final = 60


def trace_html(trace: Trace) -> str:
    """A recording as HTML: a sentence about its content, its class, idle time, gap and rate, and the notes."""
    of = Recording(trace, plain(trace.name or str(trace.metadata.get("source") or "recording"), _LONGEST)).summary
    lines = [[escape(label), escape(text)] for label, text in headline(of).items()]
    known = [text for text in (of.warning, of.left_out, of.problem, *map(brief, by_weight(trace.notes))) if text]
    return "".join([_paragraph(sentence_of_one(of, of.name)), _table([], lines), *map(_caution, known)])


def comparison_html(comparisons: Sequence[Comparison]) -> str:
    """Comparisons with a base as HTML: the cautions, a sentence for each run, and the matrix of the figures."""
    cautions = dict.fromkeys(text for one in comparisons for text in one.cautions)
    head = ["per token", comparisons[0].base.name, *(one.other.name for one in comparisons)] if comparisons else []
    lines = [
        [escape(line.label), escape(line.base), *(_cell(cell) for cell in line.cells)] for line in matrix(comparisons)
    ]
    paragraphs = [_paragraph(sentence(one)) for one in comparisons]
    return "".join(
        [*map(_caution, cautions), *paragraphs, _table([escape(plain(name, _LONGEST)) for name in head], lines)]
    )


def _cell(cell: Cell) -> str:
    change = f" <small>{escape(cell.change)}</small>" if cell.change else ""
    text = f"{escape(cell.text)}{change}"
    return f"<b>{text}</b>" if cell.is_largest else text


def _paragraph(text: str) -> str:
    return f"<p>{escape(plain(text, 2_000))}.</p>"


def _caution(text: str) -> str:
    return f"<p>▲ {escape(plain(text, 1_000))}.</p>"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table; the cells are HTML."""
    heads = "".join(f'<th scope="col">{text}</th>' for text in head)
    rows = [f'<th scope="row">{first}</th>{"".join(f"<td>{text}</td>" for text in rest)}' for first, *rest in lines]
    above = f"<thead><tr>{heads}</tr></thead>" if head else ""
    return f"<table>{above}<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"
