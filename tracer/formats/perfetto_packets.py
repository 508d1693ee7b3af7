"""Writes Perfetto's packets as one sequence with interned names: each is written once, then referred to by number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, Final

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

_SEQUENCE: Final = 1
_HELD: Final = 1 << 12  # packets buffered before they are written, and names per packet

NAMES, CATEGORIES = "event_names", "event_categories"
ARGUMENTS, VALUES = "debug_annotation_names", "debug_annotation_string_values"
"""The fields of InternedData: names and categories of events, names and texts of their arguments."""


class Packets:
    """The packets of a file that is open for writing; call `flush` after the last one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._trace = protos.Trace()
        self._numbers: dict[str, dict[str, int]] = {field: {} for field in (NAMES, CATEGORIES, ARGUMENTS, VALUES)}
        self.add().sequence_flags = protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED

    def add(self) -> Any:
        """Add a packet; fill it before adding the next one."""
        if len(self._trace.packet) == _HELD:
            self.flush()
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = protos.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        return packet

    def event(self, type: int, track: int, timestamp: int) -> Any:
        """Add a packet and return its TrackEvent."""
        packet = self.add()
        packet.timestamp = timestamp
        event = packet.track_event
        event.type = type
        event.track_uuid = track
        return event

    def numbers(self, field: str, texts: Sequence[str]) -> list[int]:
        """The numbers (1, 2, ...) of texts in a field of InternedData; new texts are written."""
        known = self._numbers[field]
        new = [text for text in dict.fromkeys(texts) if text not in known]
        for start in range(0, len(new), _HELD):
            entries = getattr(self.add().interned_data, field)
            for text in new[start : start + _HELD]:
                known[text] = len(known) + 1
                entry = entries.add(iid=known[text])
                if field == VALUES:
                    entry.str = text.encode()
                else:
                    entry.name = text
        return [known[text] for text in texts]

    def flush(self) -> None:
        """Write the buffered packets."""
        self._file.write(self._trace.SerializeToString())
        self._trace = protos.Trace()
