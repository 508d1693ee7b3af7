"""The actions of a reader since the last call; presses in quick succession arrive together.

Of two overlapping calls Dash drops the first one's result. So a page keeps in the store `pressed` how often each of its
buttons had been pressed when it was last handled, and handles all presses since, whatever made Dash call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, islice, repeat
from typing import Final, TypeAlias

MOST: Final = 200
"""Maximum number of presses that one call handles: a key held down for seven seconds. Counters come from
the browser and cannot be trusted."""
Clicks: TypeAlias = Mapping[str, float | None]
"""How often each button was pressed; None for never."""


def done(triggered: Sequence[str], clicks: Clicks, heeded: Clicks | None) -> list[str]:
    """The components that a reader changed, and each button once per unhandled press, up to `MOST`.

    Args:
        triggered: properties that have changed, as "component.property".
        clicks: presses of the buttons now.
        heeded: presses when they were last handled.

    Example:
        >>> done(["run.value", "theme.n_clicks"], {"theme": 1, "on": 5}, {"theme": None, "on": 3})
        ['run', 'theme', 'on', 'on']
    """
    changed = dict.fromkeys(prop.rsplit(".", 1)[0] for prop in triggered)
    since = {button: int((times or 0) - ((heeded or {}).get(button) or 0)) for button, times in clicks.items()}
    presses = chain.from_iterable(repeat(button, min(times, MOST)) for button, times in since.items())
    return [*(name for name in changed if name not in clicks), *islice(presses, MOST)]
