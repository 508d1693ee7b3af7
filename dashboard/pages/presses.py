"""What a reader did, of all that made Dash call: all of it, for quick presses come together.

Of two calls at once Dash drops what the first one answers. So a page keeps in the store `pressed` how often each of its
buttons had been pressed when that was last heeded, and heeds what was pressed since, whatever made Dash call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, islice, repeat
from typing import Final, TypeAlias

MOST: Final = 200
"""Presses that one call heeds, of all buttons together: a key held down for seven seconds. Counters come from a browser
and say what they like, and what is pressed more often by then has lost its aim."""
Clicks: TypeAlias = Mapping[str, float | None]
"""How often each button has been pressed; None is never."""


def done(triggered: Sequence[str], clicks: Clicks, heeded: Clicks | None) -> list[str]:
    """The components that a reader changed, and each button as often as it was pressed and not heeded, up to `MOST`.

    Args:
        triggered: properties that have changed, as "component.property".
        clicks: of the buttons now.
        heeded: the same when they were last heeded.

    Example:
        >>> done(["run.value", "theme.n_clicks"], {"theme": 1, "on": 5}, {"theme": None, "on": 3})
        ['run', 'theme', 'on', 'on']
    """
    changed = dict.fromkeys(prop.rsplit(".", 1)[0] for prop in triggered)
    since = {button: int((times or 0) - ((heeded or {}).get(button) or 0)) for button, times in clicks.items()}
    presses = chain.from_iterable(repeat(button, min(times, MOST)) for button, times in since.items())
    return [*(name for name in changed if name not in clicks), *islice(presses, MOST)]
