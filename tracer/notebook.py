"""What recordings and comparisons show of themselves in a notebook: the page's figures, as HTML without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from tracer.analysis.compare import Comparison
from tracer.analysis.summary import summarise
from tracer.compare_matrix import Cell, matrix
from tracer.compare_words import sentence
from tracer.errors import UsageError
from tracer.headline import headline
from tracer.headline import sentence as sentence_of_one
from tracer.text import plain

if TYPE_CHECKING:
    from tracer.trace import Trace

VIEWS: Final = "intertoken.views"
"""The group of entry points of what draws a trace; `dashboard` is one."""
_LONGEST: Final = 60


def trace_html(trace: Trace) -> str:
    """A recording: what it holds in a sentence, its class, idle time, gap and rate, and what a reader must know."""
    of = summarise(trace, plain(str(trace.metadata.get("source") or "recording"), _LONGEST))
    lines = [[escape(label), escape(text)] for label, text in headline(of).items()]
    known = [text for text in (of.warning, of.problem, *trace.notes) if text]
    return "".join([_paragraph(sentence_of_one(of, of.name)), _table([], lines), *map(_caution, known)])


def comparison_html(found: Sequence[Comparison]) -> str:
    """Runs against their base: what to know before, a sentence for each, and the matrix of their figures."""
    cautions = dict.fromkeys(text for one in found for text in one.cautions)
    head = ["per token", found[0].base.name, *(one.other.name for one in found)] if found else []
    lines = [[escape(line.label), escape(line.base), *(_cell(cell) for cell in line.cells)] for line in matrix(found)]
    said = [_paragraph(sentence(one)) for one in found]
    return "".join([*map(_caution, cautions), *said, _table([escape(plain(name, _LONGEST)) for name in head], lines)])


def timeline(trace: Trace, **options: Any) -> Any:
    """The timeline of a recording, drawn by the installed package that registers `timeline` as one of `VIEWS`.

    Raises:
        UsageError: there is none.
    """
    for entry in entry_points(group=VIEWS, name="timeline"):
        return entry.load()(trace, **options)
    raise UsageError("no installed package draws timelines: install intertoken whole (pip install intertoken)")


def _cell(cell: Cell) -> str:
    change = f" <small>{escape(cell.change)}</small>" if cell.change else ""
    text = f"{escape(cell.text)}{change}"
    return f"<b>{text}</b>" if cell.is_largest else text


def _paragraph(text: str) -> str:
    return f"<p>{escape(plain(text, 2_000))}.</p>"


def _caution(text: str) -> str:
    return f"<p>▲ {escape(plain(text, 1_000))}.</p>"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML."""
    heads = "".join(f'<th scope="col">{text}</th>' for text in head)
    rows = [f'<th scope="row">{first}</th>{"".join(f"<td>{text}</td>" for text in rest)}' for first, *rest in lines]
    above = f"<thead><tr>{heads}</tr></thead>" if head else ""
    return f"<table>{above}<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table>"
