"""Texts with secrets of every form, and recordings that hold them in every field of names.

The tokens are made of their makers' prefixes and our own letters when the tests run: no file holds one.
"""

from __future__ import annotations

from pathlib import Path

from tests.tracer.nsys_exports import GLOBAL_PID, GLOBAL_TID, RECORDING, export
from tests.tracer.test_formats_carry import EVERYTHING


def _letters(number: int, length: int) -> str:
    """As random as a token, the same each time."""
    letters = "qZ3xW8vK5jR2mT7pL9nB4cH6dS1fGy0aEuXo"
    return "".join(letters[(7 * number + i * (i + number + 3)) % len(letters)] for i in range(length))


def _hex(number: int, length: int) -> str:
    return "".join("0123456789abcdef"[(5 * number + i * (i + 3) + 1) % 16] for i in range(length))


_TOKENS = [
    (prefix, length)
    for prefix, length in (
        ("AKIA", 16), ("ghp_", 36), ("github_pat_", 82), ("glpat-", 20), ("xoxb-123456789012-", 24), ("sk_live_", 24),
        ("hf_", 34), ("sk-ant-api03-", 95), ("nvapi-", 64), ("AIza", 35), ("ya29.", 80), ("npm_", 36), ("hvs.", 90),
        ("wandb_v1_", 77), ("pypi-AgEIcHlwaS5vcmc", 80),
    )
]  # fmt: skip
_WORDS = [
    ("login password={} now", "hunter2go"), ("password: {}", "correct-horse"), ("pwd={}", "p/w,d;2"),
    ('{{"password": "{}", "user": 5}}', "open sesame"), ("connect(secret='{}')", "s3cr3t value"),
    ("--api-key={}", "0123abcd"), ("-token {}", "opensesame"), ("accountkey={}", "abc+/def=="),
    ("auth_token: {}", "9876598765"), ("private_key={}", "MIIabc"), ("Authorization: Bearer {}", "abc.def-ghi"),
    ("Cookie: {}", "session=fedcba98"), ("curl -u {} x", "ada:p4ss"), ("get https://{}@example.org/x", "ada:pw4me"),
    ("postgres://{}@db/x", "bob:pw4bob"), ("load /home/{}/model.gguf", "lovelace"), ("~/{}/y", "thesis plan"),
    (r"C:\Users\{}\x.bin", "Ada L"), ("rank 0 at {}:29500", "10.0.0.7"), ("host {}", "babbage.example.org"),
    ("at {}", "02:42:ac:11:00:02"), ("on {}", "GPU-1c2d3e4f-0011-2233-4455-66778899aabb"), ("bus {}", "0000:3b:00.0"),
    ("fe80::{}", "1ff:fe23:4567:890a"), ("call {}", "555 1234"), ("card {}", "4111 1111 1111 1111"),
    ("born {}", "1815-12-10"), ("decode step 3 of {}", "charles"), ("step[DECODE bs=32 {}]", "xyzzyq"),
    ("execute_context_1(16{})_generation_0(0)", "zyxwvu"), ("aten::{}, op_id = 5", "mysteryop"), ("токен {}", "секрет"),
]  # fmt: skip


def _made() -> list[tuple[str, str]]:
    made = [(text.format(secret), secret) for text, secret in _WORDS]
    for number, (prefix, length) in enumerate(_TOKENS):
        token = prefix + _letters(number, length)
        made.append((f"with {token} done", token))
    made += [(token, token) for token in (_hex(1, 40), _hex(2, 32), f"dapi{_hex(3, 32)}")]
    key = "\n".join(_letters(ord("R"), 64)[i:] for i in range(2))
    made.append((f"key -----BEGIN RSA PRIVATE KEY-----\n{key}\n-----END RSA PRIVATE KEY----- read", key))
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


PLANTED = {"names.sqlite": planted_names}
