"""Validates our exports with nsys: its reports and rules run on them and must print the same as for its own exports.

(a) Recordings of nsys, each read and written again as SQLite and through our parquetdir: every CSV must be identical,
byte for byte. (b) Recordings of our own CUPTI recorder and (c) of the CPU backend: every report and rule must run; the
number of rows is listed, or "no data" if nsys finds none. Recipes accept only a report, but read `REPORT_pqtdir`, and
some of them `REPORT.sqlite`, if these are next to it, so they get an empty report.
Usage: python benchmarks/nsys_reports.py --theirs DIR_WITH_SQLITE --cupti RUN ... --cpu RUN ... [--json FILE]
       needs nsys on PATH
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from gpu_machine import commit

from tracer import formats

REPORTS = (
    "cuda_api_sum", "cuda_api_trace", "cuda_gpu_kern_sum", "cuda_gpu_trace", "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum", "cuda_kern_exec_sum", "cuda_kern_exec_trace", "nvtx_sum", "nvtx_pushpop_trace",
    "nvtx_gpu_proj_sum", "nvtx_kern_sum",
)  # fmt: skip
RULES = ("cuda_api_sync", "cuda_memcpy_async", "cuda_memcpy_sync", "gpu_gaps", "gpu_time_util")
RECIPES = (
    "cuda_api_sum", "cuda_api_sync", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum", "cuda_gpu_mem_size_sum",
    "cuda_memcpy_async", "cuda_memcpy_sync", "gpu_gaps", "gpu_time_util", "nvtx_sum", "nvtx_gpu_proj_sum",
    "nvtx_gpu_proj_trace",
)  # fmt: skip

Verdicts = dict[str, str]
"""Maps a report or rule to its result."""


def printed(export: Path, name: str) -> str:
    """Return the CSV that nsys prints for a report or rule, or FAILED and its message."""
    kind, option = ("stats", "--report") if name in REPORTS else ("analyze", "--rule")
    command = ("nsys", kind, "--quiet", option, name, "--format", "csv", "--output", "-", str(export))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode or "ERROR" in said or "Traceback" in said:
        said = f"FAILED (exit code {done.returncode}): {said}"
    return said.replace(str(export), "FILE").replace(export.name, "FILE")


def rows(csv: str) -> str:
    """Describe the number of rows of a CSV; FAILED if nsys could not print it."""
    if csv.startswith("FAILED"):
        return "FAILED"
    lines = [line for line in csv.splitlines() if "," in line and not line.startswith(("Processing", "NOTICE"))]
    return f"{len(lines) - 1} rows" if lines else "no data"


def all_printed(exports: Iterable[Path]) -> dict[Path, dict[str, str]]:
    """Print every report and rule of every export."""
    jobs = [(export, name) for export in exports for name in REPORTS + RULES]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = list(pool.map(lambda job: printed(*job), jobs))
    found: dict[Path, dict[str, str]] = {}
    for (export, name), text in zip(jobs, texts, strict=True):
        found.setdefault(export, {})[name] = text
    return found


def copies(source: Path, directory: Path) -> list[Path]:
    """Export a recording directly and through a parquetdir."""
    direct, native, again = (directory / f"{source.stem}{end}" for end in (".ours.sqlite", "_pqtdir", ".again.sqlite"))
    formats.write(formats.read(source), direct)
    formats.write(formats.read(direct), native)
    formats.write(formats.read(native), again)
    return [direct, again]


def recipes(runs: Iterable[Path], directory: Path) -> dict[str, Verdicts]:
    """Run `nsys recipe` on our exports."""
    reports = {}
    for run in runs:
        reports[run] = directory / f"{stem(run)}.nsys-rep"
        reports[run].touch()
        for suffix in ("_pqtdir", ".sqlite"):  # newer than the report
            formats.write(formats.read(run), directory / f"{stem(run)}{suffix}", replace=True)
    jobs = [(run, name) for run in reports for name in RECIPES]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        said = list(pool.map(lambda job: recipe(reports[job[0]], job[1]), jobs))
    found: dict[str, Verdicts] = {}
    for (run, name), verdict in zip(jobs, said, strict=True):
        found.setdefault(stem(run), {})[name] = verdict
    return found


def recipe(report: Path, name: str) -> str:
    """Run one recipe; return its tables, or FAILED and its message."""
    output = report.with_name(f"{report.stem}-{name}")
    command = ("nsys", "recipe", name, "--input", str(report), "--output", str(output))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "but no data was found" in done.stdout + done.stderr:
        return "no data"
    made = sorted(output.glob("*.parquet")) if output.is_dir() else []
    if done.returncode or not made:
        return f"FAILED ({done.returncode}): {(done.stdout + done.stderr).strip()[-300:]}"
    return ", ".join(f"{file.stem}: {pq.read_metadata(file).num_rows} rows" for file in made)


def stem(run: Path) -> str:
    """Return a unique name for a recording."""
    return run.stem if run.is_file() else "-".join(run.parts[-2:])


def compared(theirs: list[Path], directory: Path) -> dict[str, Verdicts]:
    """(a): compare each of nsys's own exports with ours of it."""
    pairs = {source: copies(source, directory) for source in theirs}
    texts = all_printed([path for source, ours in pairs.items() for path in (source, *ours)])
    verdicts: dict[str, Verdicts] = {}
    for source, ours in pairs.items():
        verdicts[source.stem] = {
            name: f"same, {rows(text)}" if all(texts[copy][name] == text for copy in ours) else "DIFFERENT"
            for name, text in texts[source].items()
        }
    return verdicts


def exported(runs: list[Path], directory: Path) -> dict[str, Verdicts]:
    """(b) and (c): run nsys on our recordings."""
    exports = {}
    for run in runs:
        exports[directory / f"{stem(run)}.sqlite"] = run
    for export, run in exports.items():
        formats.write(formats.read(run), export)
    return {
        path.stem: {name: rows(text) for name, text in found.items()} for path, found in all_printed(exports).items()
    }


def show(title: str, verdicts: dict[str, Verdicts]) -> None:
    print(f"\n{title}")
    for name in REPORTS + RULES:
        print(f"  {name:22}", *(f"{found[name]:>18}" for found in verdicts.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--theirs", type=Path, required=True, help="directory with nsys's own SQLite exports")
    parser.add_argument("--cupti", type=Path, nargs="*", default=[])
    parser.add_argument("--cpu", type=Path, nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    version = subprocess.run(("nsys", "--version"), capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        facts: dict[str, Any] = {
            "benchmark": "nsys_reports",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "commit": commit(),
            "nsys": version,
            "theirs": compared(sorted(args.theirs.glob("*.sqlite")), directory),
            "cupti": exported(args.cupti, directory),
            "cpu": exported(args.cpu, directory),
            "recipes": recipes([*sorted(args.theirs.glob("*.sqlite")), *args.cupti, *args.cpu], directory),
        }
    print(version)
    for title in ("theirs", "cupti", "cpu"):
        show(title, facts[title])
    print("\nrecipes")
    for name, found in facts["recipes"].items():
        print(f"  {name}", *(f"{recipe}: {verdict}" for recipe, verdict in found.items()), sep="\n    ")
    different = [
        f"{stem}: {n}" for stem, found in facts["theirs"].items() for n, v in found.items() if v == "DIFFERENT"
    ]
    print(f"\n{len(different)} different", *different, sep="\n  ")
    if args.json:
        args.json.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
