"""What happened: the trace model, recorders, formats and analyses."""

from tracer.formats import read, write
from tracer.recorders import annotate, record
from tracer.trace import Trace

__all__ = ["Trace", "annotate", "read", "record", "write"]
