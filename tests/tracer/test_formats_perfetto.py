"""Perfetto traces of others: every row of rocprofv3 and of PyTorch's profiler, and what is damaged."""

import pytest

from tests.tracer import kineto
from tests.tracer.handmade import Script
from tests.tracer.pftraces import BEGIN, END, INSTANT, Library, of_kineto, of_rocprofv3
from tests.tracer.rocm_files import GPU, hip, same_tables
from tracer import analyse, formats
from tracer.errors import FormatError
from tracer.model.schema import MISSING


def test_every_row_of_rocprofv3(tmp_path):
    expected = hip()
    path = of_rocprofv3(expected, tmp_path / "a.pftrace")
    found = formats.read(path)
    sizes = [f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz"]
    same_tables(found, expected, *sizes, "devices")
    assert (found.metadata["source"], found.notes) == ("rocprofv3", [])
    assert set(found["kernels"]["grid_x"]) == {MISSING}  # the file has their product alone
    recording = analyse(path)
    assert (recording.summary.steps, recording.summary.signature) == (6, "a k g a s")


def test_every_row_of_kineto(tmp_path):
    expected = formats.read(kineto.write(tmp_path / "a.json", kineto.GPU))
    found = formats.read(of_kineto(kineto.GPU, tmp_path / "a.pftrace"))
    assert found.metadata == expected.metadata
    same_tables(found, expected, "threads", "processes")


def test_a_program_with_the_library_has_ranges(tmp_path):
    library = Library(unit=1000, begin=5_000_000)
    library.track(1, thread={"pid": 40, "tid": 41, "thread_name": "main"})
    library.track(8, name="queue")
    library.event(BEGIN, 1, 5_001_000, "app", "outer", size=3)
    library.event(BEGIN, 1, 5_002_000, "app", "inner")
    library.event(INSTANT, 8, 4_000_000, "app", "mark")
    library.event(END, 1, 5_003_000)
    library.event(END, 1, 5_004_000)
    library.event(END, 1, 5_004_000)
    library.event(BEGIN, 8, 5_005_000, "other", "open")
    found = formats.read(library.write(tmp_path / "a.perfetto-trace"))
    columns = ["text", "start", "end", "process", "thread", "domain"]
    assert kineto.rows(found, "nvtx", *columns) == [
        ["mark", 4_000_000, 4_000_000, 0, 8, "app"], ["outer", 5_001_000, 5_004_000, 40, 41, "app"],
        ["inner", 5_002_000, 5_003_000, 40, 41, "app"], ["open", 5_005_000, 5_005_000, 0, 8, "other"],
    ]  # fmt: skip
    assert found.notes == ["1 slices were never closed; they end with the recording"]
    assert kineto.rows(found, "threads", "thread", "name") == [[8, "queue"], [41, "main"]]
    assert found.metadata["source"] == "Perfetto"


def test_what_we_write_is_read_again(tmp_path):
    script = Script()
    script.launch((1000, 1005), (1010, 1030), (1020, 1040))
    script.sync(1015, 1045)
    script.record(1050, 1051, 3)
    script.wait(1052, 1053, 3, 8)
    script.graph((1060, 1061), (1062, 1063), stream=8)
    script.range("a", 1000, 1012, domain="app", payload=0.5)
    script.range("b", 1001, 1050)
    for trace in (hip(), script.trace):
        formats.write(trace, path := tmp_path / f"{len(trace)}.pftrace")
        found = formats.read(path)
        same_tables(found, trace, "devices", "streams", "threads", "processes", "kernels.short_name")
        assert kineto.rows(found, "devices", "device", "name") == ([[0, GPU]] if len(trace["devices"]) else [])
    assert analyse(tmp_path / f"{len(hip())}.pftrace").summary.steps == 6


def test_what_is_damaged(tmp_path, monkeypatch):
    path = of_rocprofv3(hip(), tmp_path / "a.pftrace")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    found = formats.read(path)
    assert found.notes[0] == "the file is truncated: only what precedes its end was read"
    assert len(found) > 10
    for damaged, says in (
        (content[:100] + b"\xff" * 20, "damaged: no Perfetto packet at byte"), (b"\n\xff\xff\xff\xff\x7f", "damaged"),
        (b"\n" * 5000, "holds no Perfetto packet that can be decoded"),
    ):  # fmt: skip
        path.write_bytes(damaged)
        with pytest.raises(FormatError, match=f"^{path}: {says}"):
            formats.read(path)
    path.write_bytes(b"\n\x02\xff\xff" * 3 + content)
    assert formats.read(path).notes == ["3 packets are compressed, damaged or too deep; they are left out"]
    (tmp_path / "renamed.bin").write_bytes(content)
    assert len(formats.read(tmp_path / "renamed.bin")) == len(hip())
    (tmp_path / "text").write_text("\n" * 5000)
    assert not formats.is_trace(tmp_path / "text")
    monkeypatch.setattr("tracer.formats.perfetto._protos", lambda: (_ for _ in ()).throw(ImportError()))
    with pytest.raises(FormatError, match=r"reading Perfetto traces needs additional packages: pip install"):
        formats.read(path)
