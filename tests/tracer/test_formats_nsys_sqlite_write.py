"""Our SQLite exports: nsys's own schema, the joins of its reports, atomic, and everything survives."""

import gzip
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.recordings import KINDS
from tests.tracer.nsys_exports import DATA, SCHEMAS, export
from tests.tracer.test_formats_roundtrip import assert_same
from tracer import formats
from tracer.errors import FormatError, TraceError
from tracer.formats import nsys_sqlite
from tracer.model.trace import Trace

SAMPLES = Path(__file__).parents[2] / "sample_traces"
SCHEMA = SCHEMAS["3.20.3"]


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """An export of the real nsys."""
    path = tmp_path / "real.sqlite"
    path.write_bytes(gzip.decompress((DATA / "llama1b-saaas-graph.sqlite.gz").read_bytes()))
    return path


@pytest.fixture
def written(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """The export we write of `RECORDING` from a trace that carries nothing of it."""
    formats.write(formats.read(export(tmp_path / "theirs.sqlite"), whole=False), tmp_path / "ours.sqlite")
    with closing(sqlite3.connect(tmp_path / "ours.sqlite")) as database:
        yield database


def tables_of(database: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Table -> (name, type, NOT NULL, primary key) of its columns."""
    names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns = 'SELECT name, type, "notnull", pk FROM pragma_table_info(?)'
    return {name: database.execute(columns, [name]).fetchall() for name in names}


def declared(table: str) -> list[tuple[Any, ...]]:
    return [(c["name"], c["type"], c["not_null"], c.get("primary_key", False)) for c in SCHEMA["tables"][table]]


@pytest.mark.parametrize("recording", KINDS)
def test_recordings_survive_and_have_nsys_schema(recording: str, tmp_path: Path) -> None:
    trace = formats.read(SAMPLES / recording)
    formats.write(trace, tmp_path / "a.sqlite")
    assert_same(formats.read(tmp_path / "a.sqlite"), trace)
    with closing(sqlite3.connect(tmp_path / "a.sqlite")) as database:
        for name, columns in tables_of(database).items():
            if not name.startswith("ENUM_"):
                assert columns == declared(name)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_real_export_is_declared_as_nsys_declares_it(real: Path, tmp_path: Path) -> None:
    trace = formats.read(real)
    formats.write(trace, tmp_path / "ours.sqlite")
    assert_same(formats.read(tmp_path / "ours.sqlite"), trace)
    with (
        closing(sqlite3.connect(real)) as theirs,
        closing(sqlite3.connect(tmp_path / "ours.sqlite")) as ours,
    ):
        assert tables_of(ours) == tables_of(theirs)


KERNELS_BY_NAME = """
    SELECT short.value, count(*), sum(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL AS k
    JOIN StringIds AS short ON short.id = k.shortName
    JOIN StringIds AS long ON long.id = k.demangledName GROUP BY short.value
"""
KERNEL_LAUNCHES = """
    SELECT call.value, gpu.name, k.start - r.start FROM CUPTI_ACTIVITY_KIND_KERNEL AS k
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r
        ON r.correlationId = k.correlationId AND r.globalTid & ~16777215 = k.globalPid
    JOIN StringIds AS call ON call.id = r.nameId
    JOIN TARGET_INFO_CUDA_DEVICE AS d ON d.cudaId = k.deviceId AND d.pid = (k.globalPid >> 24) & 16777215
    JOIN TARGET_INFO_GPU AS gpu ON gpu.id = d.gpuId
"""
CALLS_BY_LAYER = """
    SELECT class.label, count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME AS r
    JOIN ENUM_NSYS_EVENT_CLASS AS class ON class.id = r.eventClass
    JOIN ThreadNames AS t ON t.globalTid = r.globalTid
    JOIN PROCESSES AS p ON p.globalPid = r.globalTid & ~16777215 GROUP BY class.id
"""
COPIES = """
    SELECT oper.label, source.label, target.label, sum(m.bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY AS m
    JOIN ENUM_CUDA_MEMCPY_OPER AS oper ON oper.id = m.copyKind
    LEFT JOIN ENUM_CUDA_MEM_KIND AS source ON source.id = m.srcKind
    LEFT JOIN ENUM_CUDA_MEM_KIND AS target ON target.id = m.dstKind GROUP BY oper.id ORDER BY oper.id DESC
"""
SYNCS = """
    SELECT type.label, count(*) FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION AS s
    JOIN ENUM_CUPTI_SYNC_TYPE AS type ON type.id = s.syncType GROUP BY type.id
"""
RANGES = """
    SELECT coalesce(domain.text || ':', '') || coalesce(n.text, s.value), kind.name FROM NVTX_EVENTS AS n
    LEFT JOIN StringIds AS s ON s.id = n.textId
    JOIN ENUM_NSYS_EVENT_TYPE AS kind ON kind.id = n.eventType
    LEFT JOIN NVTX_EVENTS AS domain ON domain.eventType = 75 AND domain.domainId = n.domainId
        AND domain.globalTid & ~16777215 = n.globalTid & ~16777215
    WHERE n.eventType IN (34, 59, 60) ORDER BY n.start
"""


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (KERNELS_BY_NAME, [("mul", 2, 200)]),
        (KERNEL_LAUNCHES, [("cudaLaunchKernel_v7000", "H200", 10)]),
        (CALLS_BY_LAYER, [("CUDA driver", 1), ("CUDA runtime", 6)]),
        (COPIES, [("Host-to-Device", "Pinned", "Device", 4096), ("Unknown", "Unknown", "Unknown", 1)]),
        (SYNCS, [("Context sync", 2), ("Event sync", 1), ("Stream sync", 1), ("Stream wait sync", 2), ("Unknown", 1)]),
        (RANGES, [
            ("token 0", "NvtxPushPopRange"), ("NCCL:open", "NvtxPushPopRange"), ("engine:mark", "NvtxMark"),
            ("domain 4:s/e", "NvtxStartEndRange"),
        ]),
        ("SELECT startTime, stopTime, duration FROM ANALYSIS_DETAILS", [(5, 2100, 2095)]),
        ("SELECT DISTINCT globalPid >> 48, globalPid >> 24 & 16777215 FROM CUPTI_ACTIVITY_KIND_KERNEL", [(1, 4242)]),
    ],
)  # fmt: skip
def test_what_reports_ask(written: sqlite3.Connection, query: str, rows: list[tuple[Any, ...]]) -> None:
    assert sorted(written.execute(query).fetchall()) == sorted(rows)


def test_a_graph_that_no_node_tells_takes_the_later_schema_s_column(tmp_path: Path) -> None:
    for node, graph, has_column in ((7 << 32 | 1, 7, False), (7 << 32 | 1, 8, True), (-1, -1, False)):
        columns = {"start": [0], "end": [1], "graph_node": [node], "graph": [graph]}
        trace = Trace.from_columns(kernels=columns)
        formats.write(trace, tmp_path / f"{graph}.db")
        assert_same(formats.read(tmp_path / f"{graph}.db"), trace)
        with closing(sqlite3.connect(tmp_path / f"{graph}.db")) as database:
            names = [name for name, *_ in tables_of(database)["CUPTI_ACTIVITY_KIND_KERNEL"]]
        assert (names[-1] == "graphId") == has_column


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.sqlite"
    trace = formats.read(export(target))
    before = target.read_bytes()
    # A page limit makes SQLite fail half-way, as a full disk does.
    monkeypatch.setattr(nsys_sqlite, "_PRAGMAS", (*nsys_sqlite._PRAGMAS, "max_page_count = 5"))
    with pytest.raises(TraceError, match=r"b\.sqlite: cannot be written: .*full"):
        formats.write(trace, tmp_path / "b.sqlite")
    with pytest.raises(TraceError, match="full"):
        formats.write(trace, target, replace=True)
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_bytes() == before


def test_only_a_recording_is_replaced(tmp_path: Path) -> None:
    trace = formats.read(export(tmp_path / "a.sqlite"))
    formats.write(trace, tmp_path / "run")
    (tmp_path / "run" / "graph.json").write_text("{}")
    (tmp_path / "folder.sqlite").mkdir()
    (tmp_path / "file").write_text("precious")
    for name, reason in (
        ("run", "more than a recording: graph.json"), ("folder.sqlite", "is a directory"), ("file", "is a file"),
    ):  # fmt: skip
        with pytest.raises(FormatError, match=reason):
            formats.write(trace, tmp_path / name, replace=True)
    assert (tmp_path / "file").read_text() == "precious"
