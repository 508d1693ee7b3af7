"""Names from recordings, made safe to show.

Plotly reads a subset of HTML in labels and hovers, so a kernel called `void k<float>(T*)` would lose its
arguments and `<a href=...>` would become a link. Every name from a recording passes through here first.
"""

from __future__ import annotations

import unicodedata

LONGEST = 400
_HIDDEN = {
    "Cc",
    "Cf",
    "Cs",
    "Co",
    "Zl",
    "Zp",
}  # controls, bidirectional overrides, lone surrogates, line separators


def plain(name: str, limit: int = LONGEST) -> str:
    r"""A name with invisible characters spelled out and its middle cut if longer than `limit`.

    Example:
        >>> plain("a\x00b")
        'a\\x00b'
    """
    if len(name) > limit:
        head = (limit - 1) * 2 // 3
        name = f"{name[:head]}…{name[len(name) - (limit - 1 - head) :]}"
    if name.isascii() and name.isprintable():
        return name
    return "".join(_spelled(c) for c in name)


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


def _spelled(character: str) -> str:
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
