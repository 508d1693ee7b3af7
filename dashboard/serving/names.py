"""Makes file names from untrusted sources safe to use."""

from __future__ import annotations

import unicodedata
from typing import Final

_PLAIN: Final = frozenset(" .-_+()~")
_LONGEST: Final = 100


def safe_name(name: str) -> str:
    """A file name without path, controls, direction marks or symbols, at most 100 characters with its suffixes kept.

    Example:
        >>> safe_name("../../etc/a b.sqlite"), safe_name("<img>.json"), safe_name("..")
        ('a b.sqlite', '_img_.json', 'recording')
    """
    last = unicodedata.normalize("NFC", name).replace("\\", "/").rpartition("/")[2]
    clean = "".join(c if c.isalnum() or c in _PLAIN else "_" for c in last).strip(" ").lstrip(".")
    if len(clean) > _LONGEST:
        clean = f"{clean[: _LONGEST - 21]}~{clean[-20:]}"
    return clean or "recording"
