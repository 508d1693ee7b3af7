"""CUPTI's raw buffers to a trace: where each field lies, what becomes of it, every way in which a buffer can be odd."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.nsys_exports import DATA, columns_of
from tracer.errors import RecordError
from tracer.recorders import cupti_records as activity
from tracer.recorders.cupti_records import CallNames, OwnRanges, Sources, build, device_uuids, parse
from tracer.recorders.symbols import demangled, short_name

HEADER = (DATA / "cupti_activity.txt").read_text().replace("\n  ", " ").splitlines()
SIZES = activity.sizes(130001)
ORIGIN, PROCESS = 1_000_000, 4321
TEXTS = {0: "", 64: "_Z6matvecPfi", 128: "cudaGraph", 192: "token", 256: "domain"}


def record(kind, /, **values):
    """A record of CUDA 13.0 with these fields, zeros elsewhere; times are since `ORIGIN`."""
    raw = bytearray(SIZES[kind])
    struct.pack_into("<I", raw, 0, kind)
    for name, value in values.items():
        offset, form = activity.FIELDS[kind][name]
        since = ORIGIN if name in ("start", "end", "timestamp") and value else 0
        np.ndarray((), np.dtype(form), raw, offset)[...] = since + value
    return bytes(raw)


def trace_of(*buffers, dropped=0, sizes=SIZES):
    sources = Sources(ORIGIN, PROCESS, TEXTS.__getitem__, CallNames(None))
    return build(parse(buffers, sizes), sources, OwnRanges(), ORIGIN + 10_000, dropped)


def test_fields_lie_where_the_header_has_them():
    for line in HEADER:
        if line.startswith("#"):
            continue
        kind, *members = line.split()
        fields, at = {}, 0
        for member in members:
            form, _, name = member.rpartition("*")[2].partition(":")
            if name:
                fields[name] = (at, form)
            at += int(member.rpartition("*")[0] or 1) * np.dtype(form).itemsize
        assert (fields, at) == (activity.FIELDS[getattr(activity, kind)], SIZES[getattr(activity, kind)]), kind


def test_a_newer_version_states_sizes_which_never_shrink():
    newest = activity.sizes(130500)
    assert activity.of_version(130500) == []
    assert activity.sizes(130600, {**newest, activity.KERNEL: 264}.get)[activity.KERNEL] == 264
    assert activity.sizes(130600, {activity.KERNEL: 256}.get) == newest | {activity.KERNEL: 256}
    for version, stated in (
        (130600, {}), (140000, newest), (17, newest), *((130600, {activity.KERNEL: size}) for size in (240, 260, 8192)),
    ):  # fmt: skip
        with pytest.raises(RecordError, match="not supported"):
            activity.sizes(version, stated.get)


def test_sizes_and_names_of_the_versions():
    assert activity.sizes(28)[activity.KERNEL] == 208
    assert activity.sizes(130301)[activity.KERNEL] == 232
    assert activity.sizes(130500) == SIZES | {
        activity.KERNEL: 248, activity.MEMCPY: 112, activity.MEMSET: 104, activity.DEVICE: 192, activity.CONTEXT: 40,
        activity.CUDA_EVENT: 80,
    }  # fmt: skip
    for version in (18, 20, 26, 28, 130000, 130001, 130100, 130400):
        sizes = activity.sizes(version)
        assert set(sizes) == set(activity.FIELDS)
        assert all(size % 4 == 0 for size in sizes.values())
    for version in (17, 140000):
        with pytest.raises(RecordError, match="not supported"):
            activity.sizes(version)
    named = {18: "12.0", 22: "12.4", 28: "12.9", 130001: "13.0.1", 130500: "13.5.0"}
    assert {version: activity.version_name(version) for version in named} == named


def test_what_records_become():
    records = json.loads((DATA / "cupti-records.json").read_text())
    for case in records["cases"].values():
        buffers = [[record(getattr(activity, kind), **fields) for kind, fields in each] for each in case["buffers"]]
        trace = trace_of(*map(b"".join, buffers))
        assert (columns_of(trace, case["tables"]), trace.notes) == (case["tables"], case["notes"])


def test_what_is_lost_is_said():
    kernel = record(activity.KERNEL, start=1, end=2, name=64)
    untimed = record(activity.KERNEL, name=64)
    odd = struct.pack("<I", 250) + bytes(60)
    trace = trace_of(kernel + odd + kernel, kernel + kernel[:100], untimed, b"", dropped=17)
    assert len(trace["kernels"]) == 2
    text = " | ".join(trace.notes)
    for said in ("17 activity records were dropped", "kind 250", "bytes of CUPTI's buffers could not be read",
                 "1 of the kernels have no times"):  # fmt: skip
        assert said in text


@given(st.lists(st.lists(st.sampled_from(sorted(SIZES)), max_size=12), max_size=6), st.binary(max_size=2000))
def test_every_record_is_found_in_any_mix_and_beside_any_bytes(kinds, noise):
    buffers = [b"".join(record(kind) for kind in buffer) for buffer in kinds]
    parsed = parse(buffers, SIZES)
    flat = [kind for buffer in kinds for kind in buffer]
    assert {kind: len(rows) for kind, rows in parsed.records.items()} == {k: flat.count(k) for k in set(flat)}
    assert (parsed.unknown, parsed.unread_bytes) == ({}, 0)
    assert activity.KERNEL in parse([noise, *buffers, record(activity.KERNEL)], SIZES).records


def test_an_old_version_without_a_field_has_it_missing():
    sizes = activity.sizes(18)
    event = bytearray(sizes[activity.CUDA_EVENT])
    struct.pack_into("<IIIII", event, 0, activity.CUDA_EVENT, 8, 1, 7, 4)
    events = trace_of(bytes(event), sizes=sizes)["cuda_events"]
    assert events[["event", "event_sync"]].to_numpy().tolist() == [[4, -1]]


def test_kernel_names():
    for mangled, name, short in (
        ("_Z3addPfi", "add(float*, int)", "add"),
        ("gemv", "gemv", "gemv"),
        ("_ZN2at6native6reduceIfLi4EEEvPT_", "void at::native::reduce<float, 4>(float*)", "reduce"),
    ):
        assert (demangled(mangled), short_name(name)) == (name, short)


def test_devices_that_the_process_cannot_use_have_no_uuid():
    both = [record(activity.DEVICE, device=0, uuid_low=7, name=64, visible=1),
            record(activity.DEVICE, device=1, uuid_low=8, name=64)]  # fmt: skip
    assert device_uuids(parse(both, SIZES).records).to_dict() == {0: 7}
