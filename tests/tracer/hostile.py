"""Files that somebody has tampered with: SQL on a good export, and JSON that parsers cannot bear (data/)."""

from __future__ import annotations

import json
import re
from typing import Final

from tests.tracer.kineto import event
from tests.tracer.nsys_exports import DATA
from tracer.model.schema import MOST_NS

ENDLESS: Final = (
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS start, x AS end, x AS name FROM c"
)
EVENT: Final = json.dumps(event("cpu_op", "op", 1, 1))
_LONG: Final = {
    "EVENT": EVENT, "LONG": "1" * 4301, "SEVENS": "7" * 2_000_000, "XS": "x" * 3_000_000, "QUOTES": '\\"' * 1_000_000,
    "DEEP": "[" * 100_000, "MANY": ",".join([EVENT] * 12_000), "HIDDEN": '["]\\"]\\\\",' * 500_000,
}  # fmt: skip
"""What stands for parts of texts. LONG: what CPython makes no number of; HIDDEN: brackets and quotes in strings."""

_TAMPERED: Final = json.loads((DATA / "tampered-exports.json").read_text())
BAD_FILES: Final = json.loads((DATA / "bad-files.json").read_text())


def long(text: str) -> str:
    """A text of the data with its long parts."""
    return re.sub("|".join(_LONG), lambda found: _LONG[found[0]], text)


def count(number: str | int) -> str:
    """A table of the numbers i from 0."""
    return f"(WITH RECURSIVE c(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM c WHERE i + 1 < {number}) SELECT i FROM c)"


def _statements(texts: list[str]) -> list[str]:
    found = []
    for text in texts:
        times, _, repeated = text.partition(" times: ")
        sql = re.sub(r"COUNT\((\d+)\)", lambda match: count(match[1]), repeated or text).replace("ENDLESS", ENDLESS)
        sql = sql.replace("LONG", "y" * 10**6).replace("MOST_NS", str(MOST_NS))
        found += [sql.replace("{i}", str(i)) for i in range(int(times) if repeated else 1)]
    return found


HARMLESS: Final = {case: _statements(texts) for case, texts in _TAMPERED["harmless"].items()}
"""What a reader must neither run nor stumble over."""

REFUSED: Final = {
    case: (_statements(texts), says.removeprefix("says: ")) for case, (*texts, says) in _TAMPERED["refused"].items()
}
"""What a reader refuses, and what its message says."""

REFUSED_JSON: Final = [(long(text), says) for name, text, says in BAD_FILES["files"] if "EVENT" in text]
