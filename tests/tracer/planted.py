"""Recordings with secrets wherever text or bytes can stand, of every format that is read."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.tracer.kineto import GPU, event
from tests.tracer.nsys_exports import EVERYTHING, GLOBAL_TID, RECORDING, export
from tracer import formats
from tracer.model.graph_json import Memory, Node, RunGraph, write_graph

TOKEN, HOST, USER = "SECRET_TOKEN_abc123", "babbage-engine-7", "alovelace"
PATH = f"/home/{USER}/model.gguf"
UUID, BUS = "GPU-1c2d3e4f-0011-2233-4455-66778899aabb", "0000:3b:00.0"
LUID = "luid-44e1-x"  # said to be an id only by its column
UNSAID = "plugh xyzzy"  # nothing says that it is a secret; in no name
SECRETS = (TOKEN, HOST, USER, PATH, UUID, BUS, LUID, UNSAID, "8b1f-pool")
ALL = " ".join(SECRETS)
MIXED = f"({USER}) {TOKEN}, {BUS}; '{PATH}' {UUID} on {HOST.upper()}-8b1f-pool {LUID}"  # not what is learnt as a whole


def planted_sqlite(path: Path) -> Path:
    """An export whose environment names the secrets, which stand in every other text, in blobs and in free pages."""
    strings = [*RECORDING["StringIds"], {"id": 3, "value": f"void mul<float>(int) {MIXED}"}, {"id": 4, "value": MIXED}]
    strings = [row for row in {row["id"]: row for row in strings}.values() if row["id"] not in (20, 30)]
    rows = {
        **EVERYTHING,
        "StringIds": [
            *strings,
            {"id": 20, "value": f"token 0 {MIXED}"},
            {"id": 30, "value": f"worker {MIXED}"},
            {"id": 76, "value": UNSAID},
            {"id": 77, "value": f"HF_TOKEN={TOKEN}\nUSER={USER}\nPATH={PATH}:/bin"},
            {"id": 78, "value": f"llama-bench -m {PATH} --host {HOST}"},
        ],
        "META_DATA_CAPTURE": [
            {"name": "COMMAND", "value": f"./llama-bench -m {PATH}"}, {"name": "HOSTNAME", "value": f"{HOST}.lan"},
            {"name": ALL, "value": ALL},
        ],
        "TARGET_INFO_SYSTEM_ENV": [
            {"globalVid": 1, "devStateName": HOST, "name": name, "value": value}
            for name, value in (
                ("HF_TOKEN", TOKEN), ("USER", USER), ("HOSTNAME", HOST), ("POOL_TOKEN", "8b1f-pool"), ("NOTE", UNSAID),
            )
        ],
        "PROCESSES": [
            {"globalPid": 1, "pid": 4242, "name": f"bench {MIXED}"}, {"globalPid": 2, "pid": 77, "name": ALL},
        ],
        "ProcessStreams": [{"globalPid": 1, "filenameId": 78, "contentId": 77}],
        "ANALYSIS_FILE": [{"id": 1, "filename": PATH, "contentId": 77, "globalPid": 1}],
        "DIAGNOSTIC_EVENT": [{"timestamp": 5, "timestampType": 1, "source": 2, "severity": 3, "text": ALL}],
        "NVTX_EVENTS": [
            *EVERYTHING["NVTX_EVENTS"],
            {"start": 4, "eventType": 75, "text": f"domain {MIXED}", "globalTid": GLOBAL_TID, "domainId": 11},
            {"start": 5, "eventType": 33, "text": f"category {MIXED}", "globalTid": GLOBAL_TID, "domainId": 11},
            {"start": 90, "end": 91, "eventType": 59, "text": MIXED, "globalTid": GLOBAL_TID, "domainId": 11,
             "jsonText": ALL, "jsonTextId": 77, "binaryData": ALL},
        ],
        "TARGET_INFO_GPU": [
            {**row, "name": f"NVIDIA H200 {MIXED}", "uuid": UUID, "busLocation": BUS, "luid": LUID, "chipName": ALL,
             "ctxswDevPath": PATH, "ctrlDevPath": PATH, "pwGpuId": 99}
            for row in RECORDING["TARGET_INFO_GPU"]
        ],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": 1795227667831034602, "utcTime": ALL, "localTime": ALL}],
        "META_DATA_EXPORT": [
            {"name": "EXPORT_PRODUCT_NAME", "value": ALL}, {"name": "EXPORT_PRODUCT_VERSION", "value": TOKEN},
            {"name": "EXPORT_SCHEMA_VERSION", "value": "3.20.3"}, {"name": "EXPORT_PARAM_FILE", "value": PATH},
            {"name": ALL, "value": ALL},
        ],
    }  # fmt: skip
    export(path, rows)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA secure_delete = OFF")
        database.execute(f"CREATE TABLE {TOKEN} (a TEXT, b BLOB, c)")
        blobs = [ALL.encode(), ALL.encode("utf-16-le"), base64.b64encode(ALL.encode())]
        database.executemany(f"INSERT INTO {TOKEN} VALUES (?, ?, ?)", [(ALL, blob, ALL) for blob in blobs])
        database.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN owner TEXT")
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET owner = ?", (ALL,))
        database.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY ADD COLUMN {TOKEN} BLOB")
        database.execute(f"UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET {TOKEN} = ?", (ALL.encode("utf-16-be"),))
        database.execute("UPDATE ENUM_CUDA_MEM_KIND SET label = ? WHERE id = 0", (ALL,))
        database.execute("CREATE TABLE ENUM_SECRET (id INTEGER, name TEXT, label TEXT)")
        database.execute("INSERT INTO ENUM_SECRET VALUES (1, ?, ?)", (ALL, ALL))
        database.execute("CREATE TABLE gone (a)")
        database.executemany("INSERT INTO gone VALUES (?)", [(ALL * 50,)] * 20)
        database.commit()
        database.execute("DELETE FROM gone")
        database.commit()
    return path


def planted_parquetdir(path: Path) -> Path:
    """The same as parquetdir, with secrets in the metadata of a file and in run.json."""
    trace = formats.read(planted_sqlite(path.with_suffix(".sqlite")))
    trace.notes.append(f"could not open {MIXED}")
    formats.write(trace, path)
    for file in (path / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet", path / "NVTX_EVENTS.parquet"):
        table = pq.read_table(file)
        pq.write_table(table.replace_schema_metadata({TOKEN: ALL, "pandas": ALL}), file)
    pq.write_table(pa.table({"text": [ALL], "blob": [ALL.encode("utf-16-le")]}), path / f"{TOKEN}.parquet")
    facts = {
        "schema": "intertoken.run/1", "configuration": {"model": PATH, "batch": 2, "weights": PATH, "owner": USER},
        "machine": {"cpu": f"Xeon of {USER}@{HOST}", "host": HOST, "hostname": HOST, "gpu": f"NVIDIA H200 {UUID}"},
        "environment": {"HF_TOKEN": TOKEN, "PATH": f"{PATH}:/bin", "USER": USER, "X": "8b1f-pool"},
        "command": ["./bench", "-m", PATH], TOKEN: {"deep": [{"x": ALL}]}, "versions": {"numpy": "2.5.2", TOKEN: TOKEN},
        "measured": {"tokens_per_s": {"median": 100.5}}, "ranges": {"token": {"tokens_per_s": 7, "by": USER}},
        "passes": {"node": {"problem": f"cannot read {MIXED}"}},
    }  # fmt: skip
    (path / "run.json").write_text(json.dumps(facts))
    return path


def graph_of(*nodes: tuple[str, str]) -> RunGraph:
    """A graph of (op, name) nodes, each with a kernel."""
    made = tuple(Node(name, op, (1,), "float32", 4, 0) for op, name in nodes)
    memory = (Memory("sequential", 8, 8, 0),)
    return RunGraph(made, (), (), tuple(range(len(made))), (), 1, 0, 0, memory, "sequential")


def planted_run(path: Path) -> Path:
    """A run directory with a traced pass, a graph, and files of nobody's."""
    planted_parquetdir(path)
    planted_parquetdir(path / "node")
    (path / "node.sqlite").unlink(missing_ok=True)
    shutil.copytree(path / "node", path / USER)
    write_graph(graph_of(("mul_mat", f"load {PATH}"), ("add", MIXED)), path / "graph.json")
    (path / f"{HOST}.log").write_text(ALL)
    return path


def planted_chrome(path: Path) -> Path:
    """Kineto's JSON. It says nothing of its environment, so that names hold only what looks like a secret."""
    said = " ".join((PATH, UUID, BUS))
    content = {
        **GPU, "host_name": HOST, "traceName": PATH, TOKEN: ALL, "distributedInfo": {"backend": "nccl", "host": HOST},
        "traceEvents": [
            *GPU["traceEvents"],
            {"ph": "M", "name": "process_name", "pid": 100, "args": {"name": f"bench {ALL}"}},
            {"ph": "M", "name": "thread_name", "pid": 100, "tid": 101, "args": {"name": f"(bench {ALL})"}},
            event("user_annotation", f"load {said}", 1, 2), event(f"at {said}", f"{said} read", 3, 4, **{TOKEN: ALL}),
            event("kernel", f"void lambda[{PATH}:12](int)", 5, 6, 0, 7, stream=7, Comment=ALL),
            {"ph": TOKEN, "ts": 5, "name": ALL},
        ],
        "cuda_driver_version": ALL, "displayTimeUnit": "ms",
    }  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


PLANTED: dict[str, Callable[[Path], Path]] = {
    "a.sqlite": planted_sqlite,
    "parquetdir": planted_parquetdir,
    "run": planted_run,
    "a.json.gz": planted_chrome,
}
