"""Names from recordings, made safe to show.

Plotly reads a subset of HTML in labels and hovers, so a kernel called `void k<float>(T*)` would lose its
arguments and `<a href=...>` would become a link. Every name from a recording passes through here first.
"""

from __future__ import annotations

from tracer.text import LONGEST, plain

__all__ = ["LONGEST", "markup", "plain"]


def markup(name: str, limit: int = LONGEST, width: int | None = None) -> str:
    """A name for Plotly, which shows it literally; broken into lines of `width` characters if given.

    Example:
        >>> markup("void k<float>(T*)")
        'void k&lt;float&gt;(T*)'
    """
    shown = plain(name, limit)
    pieces = [shown] if width is None else [shown[i : i + width] for i in range(0, len(shown), width)] or [""]
    return "<br>".join(_escape(piece) for piece in pieces)


def _escape(piece: str) -> str:
    # Plotly's own list of entities has no &quot;; a $ would start a formula where MathJax is loaded.
    return piece.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("$", "&#36;")
