"""Options of pandas for processes that are intertoken's own; a program that imports it keeps its options."""

from __future__ import annotations

import pandas as pd


def set_options() -> None:
    """Keep names of columns as Python's strings: pandas 3 makes an Arrow array of them for every selection of columns,
    which costs the analyses a quarter of their time."""
    pd.set_option("mode.string_storage", "python")
