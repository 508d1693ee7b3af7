"""Texts with credentials of every form, and recordings that hold them in every field of names.

The tokens are made of their makers' prefixes and our own letters when the tests run: no file holds one.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.tracer.nsys_exports import GLOBAL_PID, GLOBAL_TID, RECORDING, export
from tests.tracer.test_formats_carry import EVERYTHING
from tests.tracer.test_formats_chrome import GPU, event
from tracer import formats


def _letters(number: int, length: int) -> str:
    """As random as a token, the same each time."""
    letters = "qZ3xW8vK5jR2mT7pL9nB4cH6dS1fGy0aEuXo"
    return "".join(letters[(7 * number + i * (i + number + 3)) % len(letters)] for i in range(length))


def _hex(number: int, length: int) -> str:
    return "".join("0123456789abcdef"[(5 * number + i * (i + 3) + 1) % 16] for i in range(length))


_TOKENS = [
    ("AKIA", 16, str.upper),
    ("ASIA", 16, str.upper),
    *[
        (prefix, length, str)
        for prefix, length in (
            ("ghp_", 36),
            ("gho_", 36),
            ("ghs_", 40),
            ("github_pat_", 82),
            ("glpat-", 20),
            ("gldt-", 20),
            ("glptt-", 40),
            ("xoxb-123456789012-", 24),
            ("xoxp-1234567890-123456789012-", 32),
            ("xapp-1-A0B1C2D3E4F-", 40),
            ("sk_live_", 24),
            ("rk_live_", 99),
            ("pk_test_", 24),
            ("whsec_", 32),
            ("hf_", 34),
            ("api_org_", 34),
            ("sk-", 48),
            ("sk-proj-", 120),
            ("sk-ant-api03-", 95),
            ("sk-or-v1-", 64),
            ("nvapi-", 64),
            ("AIza", 35),
            ("ya29.", 80),
            ("GOCSPX-", 28),
            ("gsk_", 52),
            ("xai-", 80),
            ("pplx-", 48),
            ("r8_", 37),
            ("npm_", 36),
            ("dckr_pat_", 27),
            ("hvs.", 90),
            ("wandb_v1_", 77),
            ("pypi-AgEIcHlwaS5vcmc", 80),
            ("AKCp", 69),
        )
    ],
]
_WORDS = [
    ("login password={} now", "hunter2go"),
    ("password: {}", "correct-horse"),
    ('{{"password": "{}", "user": 5}}', "open the gate"),
    (r"{{\"password\": \"{}\", \"n\": 5}}", "qwe rty"),
    ("passwd={}", "Tr0ub4dor&3"),
    ("MyPassword := {}", "xyzzy-42"),
    ("db_pass => '{}'", "plugh_2"),
    ("pwd={}", "p/w,d;2"),
    ("connect(secret='{}')", "s3cr3t value"),
    ("client_secret: {}", "Q~8q.zz"),
    ("--password {} -x", "letmein99"),
    ("--api-key={}", "0123abcd"),
    ("-token {}", "opensesame"),
    ("api_key={}", "k1k2k3"),
    ("api key: {}", "k4k5k6"),
    ("X-Api-Key: {}", "k7k8k9"),
    ("accountkey={}", "abc+/def=="),
    ("--token {} step", "abcdeghijf"),
    ("token={}", "zyxwvutsrq"),
    ('"token": "{}"', "to ken"),
    ("auth_token: {}", "9876598765"),
    ("passphrase = {}", "opensesam3"),
    ("private_key={}", "MIIabc"),
    ('set secret("{}")', "in C++"),
    ("Authorization: Bearer {}", "abc.def-ghi"),
    ("Authorization: Basic {}", base64.b64encode(b"ada:pw-of-ada").decode()),
    ("-H 'authorization: {}'", "token qwertyuiop"),
    ("bearer {}", "Zm9vYmFy1234"),
    ("Cookie: {}", "session=fedcba98"),
    ("Proxy-Authorization: Digest {}", 'username="x", response="0a1b2c3d4e"'),
    ("curl -u {} x", "ada:p4ss"),
    ("get https://{}@example.org/x", "ada:pw4me"),
    ("postgres://{}@db/x", "bob:pw4bob"),
    ("{}@db.internal", "carol:p$w4carol"),
    ("fetch https://x.org/?sig={}", "c2lnbmF0dXJl"),
]


def _made() -> list[tuple[str, str]]:
    made = [(text.format(secret), secret) for text, secret in _WORDS]
    for number, (prefix, length, case) in enumerate(_TOKENS):
        token = prefix + case(_letters(number, length))
        made += [(f"with {token} done", token)]
    made += [(token, token) for token in (_hex(1, 40), _hex(2, 32), f"dapi{_hex(3, 32)}", f"dop_v1_{_hex(4, 64)}")]
    parts = [base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (b'{"alg":"HS256"}', b'{"sub":"ada"}')]
    made.append((f"jwt {'.'.join([*parts, _letters(50, 43)])}", _letters(50, 43)))
    for kind in ("RSA ", "EC ", "OPENSSH ", ""):
        key = "\n".join(_letters(ord(kind[0]) if kind else 60, 64)[i:] for i in range(2))
        head, tail = (f"-----{word} {kind}PRIVATE KEY-----" for word in ("BEGIN", "END"))
        made += [(f"key {head}\n{key}\n{tail} read", key)]
    return made


TEXTS = _made()
"""(text, the secret in it); what stands around it stays."""


def planted_names(path: Path) -> Path:
    """An export where nothing but names of every kind holds them: of kernels, ranges, domains, threads and calls."""
    ids = range(1000, 1000 + len(TEXTS))
    kernel, call, thread = (
        RECORDING[table][0] for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "ThreadNames")
    )
    node = EVERYTHING["CUDA_GRAPH_NODE_EVENTS"][0]
    range_ = {"eventType": 59, "globalTid": GLOBAL_TID, "domainId": 0}
    rows = {
        **EVERYTHING,
        "StringIds": [
            *RECORDING["StringIds"],
            *({"id": id, "value": text} for id, (text, _) in zip(ids, TEXTS, strict=True)),
        ],
        "CUPTI_ACTIVITY_KIND_KERNEL": [
            {
                **kernel,
                "start": 10 * id,
                "end": 10 * id + 9,
                **dict.fromkeys(("demangledName", "shortName", "mangledName"), id),
            }
            for id in ids
        ],
        "CUPTI_ACTIVITY_KIND_RUNTIME": [{**call, "start": 10 * id, "end": 10 * id + 9, "nameId": id} for id in ids],
        "CUDA_GRAPH_NODE_EVENTS": [{**node, "start": id, "nameId": id} for id in ids],
        "ThreadNames": [{**thread, "nameId": id, "globalTid": GLOBAL_PID | id} for id in ids],
        "NVTX_EVENTS": [
            row
            for id, (text, _) in zip(ids, TEXTS, strict=True)
            for row in (
                {**range_, "start": id, "end": id + 1, "text": text},
                {**range_, "start": id, "end": id + 1, "textId": id},
                {**range_, "start": id, "end": id + 1, "text": "payload", "jsonText": text, "jsonTextId": id},
                {**range_, "start": 1, "eventType": 75, "text": text, "domainId": id},
                {**range_, "start": 1, "eventType": 33, "text": text, "domainId": id, "category": id},
            )
        ],
        "PROCESSES": [
            {"globalPid": GLOBAL_PID + id, "pid": id, "name": text} for id, (text, _) in zip(ids, TEXTS, strict=True)
        ],
    }
    return export(path, rows)


def planted_sqlite(path: Path) -> Path:
    """The same, and in environment, command lines, messages, blobs, and pages that nothing uses any more."""
    planted_names(path)
    texts = [text for text, _ in TEXTS]
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA secure_delete = OFF")
        database.executemany(
            "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, 1, 'Host', 'NOTE', ?)", [(t,) for t in texts]
        )
        database.executemany("INSERT INTO META_DATA_CAPTURE (name, value) VALUES ('COMMAND', ?)", [(t,) for t in texts])
        database.executemany(
            "INSERT INTO DIAGNOSTIC_EVENT VALUES (5, 1, 2, 3, ?, NULL)",
            [(t,) for t in texts],
        )
        database.executemany("INSERT INTO META_DATA_EXPORT (name, value) VALUES (?, ?)", [(t, t) for t in texts])
        database.execute("CREATE TABLE more (a TEXT, b BLOB)")
        database.executemany("INSERT INTO more VALUES (?, ?)", [(t, t.encode("utf-16-le")) for t in texts])
        database.execute("CREATE TABLE gone (a)")
        database.executemany("INSERT INTO gone VALUES (?)", [(t * 20,) for t in texts])
        database.commit()
        database.execute("DELETE FROM gone")
        database.commit()
    return path


def planted_parquetdir(path: Path) -> Path:
    """A run directory: the names, notes, and what run.json says."""
    trace = formats.read(planted_names(path.with_suffix(".sqlite")))
    formats.write(trace, path)
    texts = [text for text, _ in TEXTS]
    facts = {
        "schema": "intertoken.run/1",
        "configuration": {"model": texts[0], "weights": texts, "strategy": texts, "os": texts},
        "machine": {"cpu": texts, "gpus": texts, "driver": texts},
        "created": texts[1],
        "environment": texts,
        "passes": {"node": {"problem": texts}},
        "ranges": {text: {"tokens": 5} for text in texts},
    }
    (path / "run.json").write_text(json.dumps(facts))
    return path


def planted_chrome(path: Path) -> Path:
    """Kineto's JSON: names of every category, arguments, categories, threads, Python functions."""
    texts = [text for text, _ in TEXTS]
    kinds = ("kernel", "cuda_runtime", "user_annotation", "cpu_op", "gpu_memcpy", "cuda_sync", "python_function")
    content = {
        **GPU,
        **{text: text for text in texts},
        "traceName": texts[0],
        "distributedInfo": {"backend": texts[1]},
        "traceEvents": [
            *GPU["traceEvents"],
            *[
                event(kind, text, 10 * n, 9, device=0, stream=7, Comment=text, stack=[text], **{text: text})
                for n, text in enumerate(texts)
                for kind in kinds
            ],
            *[event(text, "odd", 10 * n, 9) for n, text in enumerate(texts)],
            *[event("python_function", f"/srv/{text}/a.py(5): f", 10 * n, 9) for n, text in enumerate(texts)],
            *[
                {"ph": "M", "name": name, "pid": 100, "tid": n, "args": {"name": text}}
                for n, text in enumerate(texts)
                for name in ("thread_name", "process_name")
            ],
        ],
        "displayTimeUnit": texts[2],
    }
    path.write_text(json.dumps(content))
    return path


PLANTED = {
    "a.sqlite": planted_sqlite,
    "names.sqlite": planted_names,
    "run": planted_parquetdir,
    "a.json": planted_chrome,
}
