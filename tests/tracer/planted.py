"""Recordings with secrets wherever text or bytes can stand, of every format that is read."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

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


def told() -> dict[str, Any]:
    """What data/planted.json says, with the secrets of this module in the place of their names."""
    text = (Path(__file__).parent / "data" / "planted.json").read_text(encoding="utf-8")
    return dict(json.loads(re.sub(r"{([A-Z]+)}", lambda name: json.dumps(globals()[name[1]])[1:-1], text)))


def planted_sqlite(path: Path) -> Path:
    """An export whose environment names the secrets, which stand in every other text, in blobs and in free pages."""
    planted = told()
    strings = {row["id"]: row for row in (*RECORDING["StringIds"], *planted["export"].pop("StringIds"))}
    ranges = [row | {"globalTid": GLOBAL_TID} for row in planted["more ranges"]]
    gpus = [row | planted["gpu"] for row in RECORDING["TARGET_INFO_GPU"]]
    more = {"StringIds": [*strings.values()], "NVTX_EVENTS": [*EVERYTHING["NVTX_EVENTS"], *ranges]}
    export(path, {**EVERYTHING, **planted["export"], **more, "TARGET_INFO_GPU": gpus})
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
    (path / "run.json").write_text(json.dumps(told()["run.json"]))
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
    said, planted = " ".join((PATH, UUID, BUS)), told()
    events = [
        *GPU["traceEvents"], *planted["kineto events"],
        event("user_annotation", f"load {said}", 1, 2), event(f"at {said}", f"{said} read", 3, 4, **{TOKEN: ALL}),
        event("kernel", f"void lambda[{PATH}:12](int)", 5, 6, 0, 7, stream=7, Comment=ALL),
    ]  # fmt: skip
    content = {**GPU, **planted["kineto"], "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


PLANTED: dict[str, Callable[[Path], Path]] = {
    "a.sqlite": planted_sqlite, "parquetdir": planted_parquetdir, "run": planted_run, "a.json.gz": planted_chrome,
}  # fmt: skip
