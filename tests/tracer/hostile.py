"""SQLite exports that somebody has tampered with, made by SQL on a good one."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.tracer.nsys_exports import RECORDING, Rows, export
from tracer.model.schema import TABLES

KERNELS = TABLES["kernels"].nsys
ENDLESS = (
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS start, x AS end, x AS name FROM c"
)

Statement = str | tuple[str, Iterable[tuple[Any, ...]]]


def tampered(path: Path, *statements: Statement, rows: Rows = RECORDING) -> Path:
    """A good export after the statements; a pair is one for executemany."""
    export(path, rows)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN")
        for statement in statements:
            if isinstance(statement, str):
                database.execute(statement)
            else:
                database.executemany(*statement)
        database.execute("COMMIT")
    return path


def _schema(name: str, sql: str, root: int | None = None) -> tuple[str, ...]:
    """Statements that change what the schema says of a table without changing the table."""
    root_page = "" if root is None else f", rootpage = {root}"
    return (
        "PRAGMA writable_schema = ON",
        f"""UPDATE sqlite_master SET sql = '{sql.replace("'", "''")}'{root_page} WHERE name = '{name}'""",
    )


HARMLESS: dict[str, tuple[Statement, ...]] = {
    "an endless view of a table's name": (f"DROP TABLE {KERNELS}", f"CREATE VIEW {KERNELS} AS {ENDLESS}"),
    "endless views of the names of pragmas": tuple(
        f"CREATE VIEW pragma_{pragma} AS {ENDLESS}" for pragma in ("table_list", "table_info", "table_xinfo")
    ),
    "a virtual table of a table's name": (
        f"DROP TABLE {KERNELS}",
        f"CREATE VIRTUAL TABLE {KERNELS} USING fts5(start, end)",
    ),
    "a virtual table that says it has pages": (
        "CREATE TABLE t(x)",
        f"DROP TABLE {KERNELS}",
        f"CREATE VIRTUAL TABLE {KERNELS} USING fts5(start, end)",
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 't') "
        f"WHERE name = '{KERNELS}'",
        "DELETE FROM sqlite_master WHERE name = 't'",
    ),
    "triggers": (
        f"CREATE TRIGGER t AFTER INSERT ON {KERNELS} BEGIN DELETE FROM StringIds; END",
        f"CREATE TRIGGER u AFTER UPDATE ON {KERNELS} BEGIN SELECT load_extension('evil'); END",
    ),
    "indexes on expressions": (
        f"CREATE INDEX i ON {KERNELS} (start + end, abs(start))",
        f"CREATE INDEX j ON {KERNELS} (start, end) WHERE start > 5",
    ),
    "generated columns": (
        "CREATE TABLE t (a, b AS (zeroblob(1000000000)), c AS (a + 1) STORED)",
        "INSERT INTO t (a) VALUES (1)",
        f"ALTER TABLE {KERNELS} ADD COLUMN g AS (hex(zeroblob(100000000)))",
    ),
    "columns that are called as row ids": (
        "CREATE TABLE t (rowid, x)",
        ("INSERT INTO t VALUES (?, ?)", [(None, 2)] * 70_000),
        "CREATE TABLE u (rowid, _rowid_, oid)",
        ("INSERT INTO u VALUES (?, ?, ?)", [(None, 2, 3)] * 70_000),
    ),
    "many rows without row ids": (
        "CREATE TABLE t (a PRIMARY KEY, b) WITHOUT ROWID",
        ("INSERT INTO t VALUES (?, ?)", [(i, 2) for i in range(70_000)]),
    ),
    "a column that turns from numbers to text": (
        "CREATE TABLE t (x)",
        ("INSERT INTO t VALUES (?)", [(i if i < 70_000 else "text",) for i in range(140_000)]),
    ),
    "names that differ in case": (
        "CREATE TABLE processes (pid, name)",
        "INSERT INTO processes VALUES (1, 'x')",
        'CREATE TABLE PROFILER_OVERHEAD ("START", "End")',
        "INSERT INTO PROFILER_OVERHEAD VALUES (1, 2)",
    ),
    "names that lead elsewhere": (
        'CREATE TABLE "../../evil" (x)',
        """INSERT INTO "../../evil" VALUES ('y')""",
        'CREATE TABLE "/tmp/evil" ("..")',
        """INSERT INTO "/tmp/evil" VALUES ('y')""",
        'CREATE TABLE "a\nb" ("c\nd")',
        """INSERT INTO "a\nb" VALUES (x'00ff')""",
    ),
    "statistics": ("ANALYZE",),
}
"""What a reader must neither run nor stumble over."""

REFUSED: dict[str, tuple[tuple[Statement, ...], str]] = {
    "a table of another name": (_schema(KERNELS, "CREATE TABLE other (start, end)"), "malformed database schema"),
    "many tables on the same pages": (
        (
            "PRAGMA writable_schema = ON",
            (
                "INSERT INTO sqlite_master SELECT 'table', ?, ?, rootpage, 'CREATE TABLE '||?||'(a, b)' "
                "FROM sqlite_master WHERE name = 'StringIds'",
                [(f"t{i}",) * 3 for i in range(100)],
            ),
        ),
        "used more than once",
    ),
    "thousands of tables": (tuple(f"CREATE TABLE t{i} (x)" for i in range(2500)), "tables; exports have about a hundr"),
    "a default that fills the memory": (
        (
            "CREATE TABLE t (x)",
            ("INSERT INTO t VALUES (?)", [(1,)] * 1000),
            f"ALTER TABLE t ADD COLUMN y DEFAULT '{'y' * 10**6}'",
        ),
        "table t, column y has a default of 1000002 characters",
    ),
    "columns that no row stores": (
        (
            "CREATE TABLE t (x)",
            ("INSERT INTO t VALUES (?)", [(1,)] * 5000),
            *(f"ALTER TABLE t ADD COLUMN y{i}" for i in range(300)),
        ),
        "table t claims 5000 rows, more than fit into the file",
    ),
    "a table called dbstat": (("CREATE TABLE dbstat (x)",), "SQLite cannot read it"),
}
"""What a reader refuses, and what its message says."""
