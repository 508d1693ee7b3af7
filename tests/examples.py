"""How many examples Hypothesis draws."""

import os
from typing import Final

ALL: Final = os.environ.get("INTERTOKEN_EXAMPLES") == "all"
_SHARE: Final = 3  # each run draws others


def examples(most: int) -> int:
    """So many with INTERTOKEN_EXAMPLES=all (`make test-all`), else a third."""
    return most if ALL else max(most // _SHARE, 4)
