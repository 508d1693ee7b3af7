"""Recordings from public repositories: what our commands say of each, compared with a count of its raw bytes.

The files are not kept here. Given a folder with them, this makes the table again: `info`, `gaps`, `streams` and `syncs`
of each file, the counts and busy times of our reader, and those of public_truth.py, which shares no code with ours.
A file is known by its SHA-256. Where it is from, and how many steps it holds, was found by reading it, and is taken
from the table. Exits with 1 if an answer is wrong at a confidence of 0.9 or more, or a count differs.
Usage: python benchmarks/public_files.py FOLDER [--only TEXT] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

from public_truth import WAIT, truth_of, union

import tracer
from tracer.errors import IntertokenError

TABLE: Final = Path(__file__).with_name("results") / "public_files.json"
COMMANDS: Final = ("info", "gaps", "streams", "syncs")
SURE: Final = 0.9
PLAIN_RANGES: Final = {"torch_npu": "not supported", "rocprof v1 (JSON)": "rocprof (v1)"}
"""Tools whose work is kept as plain ranges, and what the reason given must name."""
READ: Final = ("Nsight Systems", "PyTorch's profiler", "rocprofv3 (rocpd)", "rocprofv3 (CSV)", "rocprofv3 (Perfetto)")
CLOSE: Final = 1e-5  # relative difference of busy times, from µs with decimals
Row = dict[str, Any]


def said_by(path: Path) -> Row:
    """What each command says: its exit code, its seconds, and of `info` the steps or why there are none."""
    row: Row = {"exit": {}, "seconds": {}}
    for command in COMMANDS:
        start = time.perf_counter()
        ran = subprocess.run(
            [sys.executable, "-m", "intertoken", command, "--json", str(path)],
            capture_output=True, text=True, cwd=Path(__file__).parents[1],
        )  # fmt: skip
        row["seconds"][command] = round(time.perf_counter() - start, 2)
        row["exit"][command] = ran.returncode
        if ran.returncode not in (0, 2) or "Traceback" in ran.stderr:
            row["crash"] = ran.stderr[-400:]
        if command == "info":
            row |= _of_info(ran.stdout, ran.stderr, path)
        elif command == "streams" and ran.stdout and "steps" not in row:
            row["busy_us"] = sorted(device["busy_us"] for device in json.loads(ran.stdout)["devices"])
    return row


def _of_info(stdout: str, stderr: str, path: Path) -> Row:
    if not stdout:
        lines = [line for line in stderr.splitlines() if line.startswith("intertoken:")]
        return {"refused": " ".join(lines).replace(f"intertoken: {path}: ", "")}
    told = json.loads(stdout)
    if told["steps"] is None:
        return {"problem": told["problem"]}
    doubts = [note for note in told["notes"] if "uncertain" in note]
    return {"steps": told["steps"], "what": told["what"], "from": told["token_source"],
            "confidence": round(told["confidence"], 3), "doubt": doubts[0] if doubts else ""}  # fmt: skip


def read_by_us(path: Path) -> Row | None:
    """The counts and busy times of our reader in the form of `Truth.as_json`; None if it refuses the file."""
    try:
        trace = tracer.read(path)
    except IntertokenError:
        return None
    names = trace["api"]["name"].astype(str).str.replace(r"_v\d+$", "", regex=True)
    busy: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for table in ("kernels", "memcpys", "memsets"):
        rows = trace[table]
        for device, start, end in zip(rows["device"], rows["start"], rows["end"], strict=True):
            busy[device].append((start, end))
    return {
        "kernels": len(trace["kernels"]), "copies": len(trace["memcpys"]), "fills": len(trace["memsets"]),
        "calls": len(names), "waits": int(names.str.match(WAIT).sum()),
        "busy_us": sorted(union(spans) / 1e3 for spans in busy.values()),
    }  # fmt: skip


def differences(truth: Row, ours: Row | None, said: Row) -> list[str]:
    """What our reader counts otherwise, and the busy times that `streams` prints of a recording without steps."""
    if ours is None or truth["tool"] in PLAIN_RANGES:
        return []
    expected = {name: truth.get(name, 0) for name in ("kernels", "fills", "calls")}
    expected |= {name: sum(truth.get(name, {}).values()) for name in ("copies", "waits")}
    wrong = [f"{name}: {ours[name]} for {true}" for name, true in expected.items() if ours[name] != true]
    counted = sorted(truth.get("busy_us", {}).values())
    for busy in (ours["busy_us"], said.get("busy_us", counted)):
        far = [abs(a - b) > max(0.01, CLOSE * b) for a, b in zip(busy, counted, strict=False)]
        if any(far) or len(busy) != len(counted):
            wrong.append(f"busy_us: {busy} for {counted}")
    return wrong


def verdict(row: Row) -> str:
    """How right the answers are: see the README's and the docs' sentence, which give these counts."""
    said, true, tool = row["ours"], row["steps"], row["truth"]["tool"]
    if "crash" in said:
        return "crash"
    if row["differs"]:
        return "counts wrong"
    if "refused" in said:
        return "refused rightly" if tool not in READ else "refused wrongly"
    if "steps" not in said:
        is_named = "kernels" not in row["truth"] or PLAIN_RANGES.get(tool, "") in said["problem"]
        return "refused rightly" if is_named and not true else "refused wrongly"
    is_right = true is not None and said["steps"] in true
    if said["confidence"] >= SURE:
        return "right" if is_right else "wrong at 0.9 or more"
    return "right, doubted" if is_right else "wrong, doubted"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="only files whose repository and path hold this text")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    known = {row["sha256"]: row for row in json.loads(TABLE.read_text(encoding="utf-8"))["files"]}
    rows = []
    for path in sorted(path for path in options.folder.resolve().rglob("*") if path.is_file()):
        sha = hashlib.sha256(path.read_bytes()).hexdigest()
        row = known.get(sha)
        if row is None:
            print(f"{path}: not of the table", file=sys.stderr)
            continue
        if options.only not in f"{row['repo']}/{row['path']}":
            continue
        truth = truth_of(path).as_json()
        said = said_by(path)
        row |= {"truth": truth, "ours": said, "differs": differences(truth, read_by_us(path), said)}
        row["verdict"] = verdict(row)
        rows.append(row)
        print(f"{row['verdict']:22} {row['repo']}/{row['path']}", flush=True)
    totals = Counter(row["verdict"] for row in rows)
    print(f"{len(rows)} files:", ", ".join(f"{count} {name}" for name, count in totals.most_common()))
    if options.json:
        options.json.write_text(as_text(rows), encoding="utf-8")
    if {"crash", "counts wrong", "wrong at 0.9 or more"} & totals.keys():
        raise SystemExit(1)


def as_text(rows: list[Row]) -> str:
    """The table as JSON, a line for each file."""
    counts = {
        "totals": Counter(row["verdict"] for row in rows),
        "tools": Counter(row["truth"]["tool"] for row in rows),
        "vendors": Counter(row["truth"]["vendor"] for row in rows),
    }
    head = {"benchmark": "public_files", "date": datetime.date.today().isoformat()}
    told = json.dumps(head | {name: dict(count.most_common()) for name, count in counts.items()}, indent=1)
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    return f'{told[:-2]},\n "files": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    main()
