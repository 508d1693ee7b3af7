"""Numbers with a sign: the format of every difference in the output."""

from __future__ import annotations


def with_sign(value: float, size: str) -> str:
    """Put the sign of a value before its formatted size; ± if the size is rounded to 0, so that no direction is stated.

    Example:
        >>> with_sign(-18_000, "18.0 µs"), with_sign(-1e-9, "0 ns")
        ('−18.0 µs', '±0 ns')
    """
    if "0" in size and not any(digit in size for digit in "123456789"):
        return f"±{size}"
    return f"{'−' if value < 0 else '+'}{size}"


def signed(value: float, digits: int = 1) -> str:
    """Format a number with its sign.

    Example:
        >>> signed(-1234.56), signed(-0.04)
        ('−1,234.6', '±0.0')
    """
    return with_sign(value, f"{abs(value):,.{digits}f}")


def percent(share: float, digits: int = 1) -> str:
    """Format a relative change as a percentage.

    Example:
        >>> percent(0.0153), percent(-0.2, 0), percent(-0.00004, 2)
        ('+1.5 %', '−20 %', '±0.00 %')
    """
    return f"{signed(100 * share, digits)} %"
