"""What a reader did, of all that made Dash call: all of it, for quick presses come together.

Of two calls at once Dash drops what the first one answers. So a page keeps in the store `pressed` how often each of its
buttons had been pressed when that was last heeded, and heeds what was pressed since, whatever made Dash call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Clicks: TypeAlias = Mapping[str, float | None]
"""How often each button has been pressed; None is never."""


def done(triggered: Sequence[str], clicks: Clicks, heeded: Clicks | None) -> list[str]:
    """The components that a reader changed, and each button as often as it was pressed and not heeded.

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
    return [*(name for name in changed if name not in clicks), *(b for b, n in since.items() for _ in range(n))]
