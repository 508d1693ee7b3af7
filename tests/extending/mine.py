"""A format: directories `*.mine`, as nsys_parquet."""

from typing import Final

from tracer.formats import Format
from tracer.formats.nsys_parquet import read, write


def sniff(path):
    return path.is_dir() and path.suffix == ".mine"


FORMAT: Final = Format("mine", ".mine", sniff, read, write)
