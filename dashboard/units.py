"""Times for readers: nanoseconds in a suitable unit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from tracer.text import with_sign

_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))


def duration(ns: float, digits: int = 3) -> str:
    """A time to `digits` significant digits, in ns, µs, ms or s.

    Example:
        >>> duration(150_321), duration(999_999), duration(32), duration(-2_500_000)
        ('150 µs', '1.00 ms', '32 ns', '−2.50 ms')
    """
    sign, size = ("−" if ns < 0 else ""), abs(float(ns))
    for scale, unit in _UNITS:
        if size >= scale * (1 - 0.5 * 10.0**-digits):
            value = size / scale
            whole = len(str(int(value + 0.5 * 10.0 ** -(digits - 1))))
            return f"{sign}{value:,.{max(digits - whole, 0)}f} {unit}"
    return f"{sign}{size:.0f} ns"


def microseconds(us: float | None) -> str:
    """µs to three significant digits, or a dash for none."""
    return "–" if us is None else duration(us * 1e3)


def difference(ns: float, digits: int = 3) -> str:
    """A difference of times with its sign.

    Example:
        >>> difference(-18_000), difference(0.2)
        ('−18.0 µs', '±0 ns')
    """
    return with_sign(ns, duration(abs(ns), digits))


def size(number: int) -> str:
    """A number of bytes in B, KiB, MiB or GiB."""
    value = float(number)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value == int(value) else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def ticks(low: int, high: int, most: int) -> tuple[list[int], list[str]]:
    """Round times in [low, high] for an axis, at most `most` of them, and their labels, all in one unit.

    Example:
        >>> ticks(-200_000, 1_150_000, 5)
        ([0, 500000, 1000000], ['0', '500 µs', '1,000 µs'])
    """
    step = 1
    while (high - low) / step > most:
        step = next(s for s in _steps() if s > step)
    unit, name = next(((int(scale), unit) for scale, unit in _UNITS if step >= scale), (1, "ns"))
    times = list(range(-(-low // step) * step, high + 1, step))
    return times, [f"{t // unit:,} {name}".replace("-", "−") if t else "0" for t in times]


def _steps() -> Iterator[int]:
    return (leading * 10**power for power in count() for leading in (1, 2, 5))
