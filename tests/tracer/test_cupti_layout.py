"""Offsets of every field, against records packed member by member as cupti_activity.h of CUDA 13.0 declares them."""

import struct

import pytest

from tracer.recorders import cupti_records as activity
from tracer.recorders.cupti_records import parse

SIZES = activity.sizes(130001)
START, END, NAME, NODE = 1_795_233_896_594_515_004, 1_795_233_896_594_516_177, 0x7F00_0000_1000, (7 << 32) + 3

RECORDS = {
    # kind, cacheConfig, sharedMemoryConfig, registers, partitioned caches, start, end, completed, device, context,
    # stream, grid, block, static, dynamic, local ×2, correlation, gridId, name, reserved0, queued, submitted,
    # launchType .. padding, sharedMemoryExecuted, graphNodeId, shmemLimitConfig, graphId, window, channel ×2, cluster
    # ×3, scheduling, localMemoryTotal_v2, cluster limits ×2, isDeviceLaunched
    activity.KERNEL: (
        struct.pack(
            "<IBBHiiQQQIIIiiiiiiiiIIIqQQQQBBBBIQiIQIiIIIIQIIB7x",
            10, 0, 0, 31, 0, 0, START, END, END, 1, 2, 13, 256, 3, 4, 128, 5, 6, 16, 32, 0, 0, 417, -9, NAME, 0, 0, 0,
            0, 0, 0, 0, 99, NODE, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ),
        {"registers": 31, "start": START, "end": END, "device": 1, "context": 2, "stream": 13, "grid_x": 256,
         "grid_y": 3, "grid_z": 4, "block_x": 128, "block_y": 5, "block_z": 6, "static_shared": 16,
         "dynamic_shared": 32, "correlation": 417, "name": NAME, "graph_node": NODE, "graph": 7},
    ),
    activity.MEMCPY: (
        struct.pack(
            "<IBBBBQQQIIIIIIQQIIiB3xQ",
            1, 2, 3, 2, 1, 4096, START, END, 1, 2, 13, 418, 0, 0, 0, NODE, 7, 0, 0, 0, 0,
        ),
        {"kind": 2, "src_kind": 3, "dst_kind": 2, "bytes": 4096, "start": START, "end": END, "device": 1, "context": 2,
         "stream": 13, "correlation": 418, "graph_node": NODE},
    ),
    activity.MEMCPY_PEER: (
        struct.pack(
            "<IBBBBQQQIIIIIIIIQQIIi4x",
            22, 10, 3, 3, 1, 4096, START, END, 1, 2, 13, 4, 5, 6, 7, 419, 0, NODE, 7, 0, 0,
        ),
        {"kind": 10, "src_kind": 3, "dst_kind": 3, "bytes": 4096, "start": START, "end": END, "device": 1,
         "context": 2, "stream": 13, "src_device": 4, "dst_device": 6, "correlation": 419, "graph_node": NODE},
    ),
    activity.MEMSET: (
        struct.pack("<IIQQQIIIIHHIQQIIiB3x", 2, 5, 4096, START, END, 1, 2, 13, 420, 0, 3, 0, 0, NODE, 7, 0, 0, 0),
        {"value": 5, "bytes": 4096, "start": START, "end": END, "device": 1, "context": 2, "stream": 13,
         "correlation": 420, "mem_kind": 3, "graph_node": NODE},
    ),
    activity.RUNTIME: (
        struct.pack("<IIQQIIII", 5, 211, START, END, 4321, 4322, 421, 700),
        {"cbid": 211, "start": START, "end": END, "process": 4321, "thread": 4322, "correlation": 421,
         "return_value": 700},
    ),
    activity.SYNCHRONIZATION: (
        struct.pack("<IIQQIIIIQII", 38, 3, START, END, 422, 2, 13, 0xFFFFFFFF, 0, 0, 0),
        {"type": 3, "start": START, "end": END, "correlation": 422, "context": 2, "stream": 13, "event": 0xFFFFFFFF},
    ),
    activity.CUDA_EVENT: (
        struct.pack("<IIIIIIIIQQQ", 36, 423, 2, 13, 8, 0, 1, 0, 0, 0, 77),
        {"correlation": 423, "context": 2, "stream": 13, "event": 8, "event_sync": 77},
    ),
    activity.GRAPH_TRACE: (
        struct.pack("<IIQQIIIIQII", 51, 424, START, END, 1, 7, 2, 13, 0, 1, 2),
        {"correlation": 424, "start": START, "end": END, "device": 1, "graph": 7, "context": 2, "stream": 13},
    ),
    activity.MARKER: (
        struct.pack("<IIQIIIIIIQQ", 12, 2, START, 9, 2, 4321, 4322, 0, 0, NAME, NAME + 64),
        {"flags": 2, "timestamp": START, "id": 9, "object_kind": 2, "process": 4321, "thread": 4322, "name": NAME,
         "domain": NAME + 64},
    ),
    activity.MARKER_DATA: (
        struct.pack("<IIIIQIIII", 13, 2, 9, 4, 55, 0xFF0000FF, 6, 1, 0),
        {"flags": 2, "id": 9, "payload_kind": 4, "payload": 55, "color": 0xFF0000FF, "category": 6},
    ),
    activity.OVERHEAD: (
        struct.pack("<IIIIIIQQIIQ", 17, 7 << 16, 2, 4321, 4322, 0, START, END, 425, 0, 0),
        {"overhead_kind": 7 << 16, "start": START, "end": END},
    ),
    activity.STREAM: (
        struct.pack("<IIIIII", 37, 2, 13, 5, 2, 426),
        {"context": 2, "stream": 13, "priority": 5, "flag": 2},
    ),
    activity.DEVICE: (
        struct.pack("<IIQQ22III16sQBB6xIIQQII", 8, 0, 4_800_000, 1 << 37, *range(5, 27), 1, 1,
                    (4 << 64 | 3).to_bytes(16, "little"), NAME, 1, 0, 2**32 - 1, 2**32 - 1, 0, 0, 0, 0),
        {"memory_bandwidth": 4_800_000, "total_memory": 1 << 37, "clock_rate": 8, "sm_count": 10, "device": 1,
         "uuid_low": 3, "uuid_high": 4, "name": NAME, "visible": 1},
    ),
    activity.CONTEXT: (
        struct.pack("<IIIHHIBBHII", 9, 2, 1, 1, 7, 0, 0, 0, 132, 0, 0),
        {"context": 2, "device": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", RECORDS)
def test_fields_lie_where_the_header_has_them(kind: int) -> None:
    raw, expected = RECORDS[kind]
    assert len(raw) == SIZES[kind]
    (row,) = parse([raw], SIZES).records[kind]
    assert {name: int(row[name]) for name in row.dtype.names} == expected


def test_sizes_of_the_versions_between_which_they_change() -> None:
    assert activity.sizes(28)[activity.KERNEL] == 208
    assert activity.sizes(130301)[activity.KERNEL] == 232
    assert activity.sizes(130500) == SIZES | {
        activity.KERNEL: 248, activity.MEMCPY: 112, activity.MEMSET: 104, activity.DEVICE: 192, activity.CONTEXT: 40,
        activity.CUDA_EVENT: 80,
    }  # fmt: skip


def test_version_names() -> None:
    assert [activity.version_name(v) for v in (18, 22, 28, 130001, 130500)] == [
        "12.0",
        "12.4",
        "12.9",
        "13.0.1",
        "13.5.0",
    ]
