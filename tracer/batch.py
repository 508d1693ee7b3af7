"""Many reports in one table: the reports below a directory, one row per report and device, and their summary; analysed
in parallel on Dask: one task per report, on local processes or the workers of a cluster.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from tracer import formats
from tracer.analysis.bounds import ALL_STEPS, Bounds
from tracer.analysis.causes import CAUSES
from tracer.errors import IntertokenError, UsageError, printable
from tracer.model import run_json
from tracer.model.columns import grouped, median, numbers

if TYPE_CHECKING:
    from distributed import Client

    from tracer.analysis.recorded import Measured
    from tracer.model.trace import Trace

COLUMNS: Final[dict[str, str]] = {
    "report": "str", "run": "str", "rank": "Int64", "device": "Int64", "gpu": "str", "model": "str", "batch": "str",
    "source": "str", "graph_trace": "str", "steps": "Int64", "token_source": "str", "class": "str",
    "configuration": "str",
    "signature": "str", "syncs_per_token": "float64", "copies_per_token": "float64", "launches_per_token": "float64",
    "tokens_per_s": "float64", "recorded_tokens_per_s": "float64", "recorded_steps_per_s": "float64",
    "distortion": "float64", "gap_p50_us": "float64", "gap_p90_us": "float64", "gap_mean_us": "float64",
    **{f"{cause}_us": "float64" for cause in CAUSES},
    "busy_us": "float64", "compute_us": "float64", "step_communication_us": "float64", "step_idle_us": "float64",
    "waiting_us": "float64", "caused_share": "float64", "gap_corrected": "boolean", "notes": "str", "problem": "str",
}  # fmt: skip
"""Columns of the table and their dtypes.

Times are per token, in µs, over the steps of the device. The causes are means that add up to gap_mean_us; busy_us and
compute_us are means too. step_communication_us is the time of a step during which the device communicates and computes
nothing, step_idle_us the time during which it does neither. waiting_us is the mean time that a rank waits in a
collective for other ranks of its run, caused_share the share of all such waiting that is for this rank
(`analysis.ranks`; from durations alone, because clocks of different recordings cannot be compared). tokens_per_s is
without a profiler, if known; the recorded rates follow from the median period, that of tokens only if the number of
tokens per step is known. configuration is that of run.json, as JSON.

A report that could not be read has one row with its problem. So has a report without consecutive steps, with the number
of its steps. Partial results are stated in notes."""

FAR: Final = 3.5
"""Modified z-score above which a report is an outlier (Iglewicz and Hoaglin, "How to detect and handle outliers",
1993)."""

_APART: Final = (
    "engine", "model", "strategy", "class", "concurrency", "launch", "batch", "prompt", "devices", "gpu_layers",
    "experts", "graph_trace", "recorder",
)  # fmt: skip
"""Facts that a report must share with the reports that it is compared with for outliers."""

_CONNECT_S: Final = 10.0
_ONE_STEP: Final = "one step: no period"
_LONGEST_PATH: Final = 4096
_LEAST_SPREAD: Final = 1e-3  # of log period: runs with little scatter have no outliers within 0.35 %
_LEAST_REPORTS: Final = 5
_RANK: Final = re.compile(r"(?i)(?<![a-z])rank[-_ .=]?(\d{1,6})(?!\d)")


def find_reports(directory: Path) -> list[Path]:
    """The recordings below a directory, sorted by path, including damaged ones with a known suffix or a run.json.
    Recordings inside a recording (the traced passes of a run directory) are part of it, and a .nsys-rep next to its own
    export is the same report. Raises OSError if the directory cannot be listed."""
    return sorted(_below(directory))


def _below(directory: Path) -> Iterator[Path]:
    entries = sorted(entry for entry in directory.iterdir() if not entry.name.startswith("."))
    stems = {entry.with_suffix("") for entry in entries if entry.suffix in (".sqlite", ".db")}
    for entry in entries:
        if entry.suffix == ".nsys-rep" and entry.with_suffix("") in stems:
            continue
        if _is_report(entry):
            yield entry
        elif entry.is_dir() and not entry.is_symlink() and os.access(entry, os.R_OK | os.X_OK):
            yield from _below(entry)


def _is_report(path: Path) -> bool:
    try:
        return formats.is_trace(path) or (path / "run.json").is_file()
    except OSError:  # reading it reports the problem
        return True


def report_rows(path: Path, root: Path, within: str | None = None, bounds: Bounds = ALL_STEPS) -> list[dict[str, Any]]:
    """The rows of a report, one per device, or a single row with the problem; keys are from `COLUMNS`. `report` and
    `run` are relative to the root, the directory that was searched."""
    from tracer.analysis.ranks import rank_report
    from tracer.analysis.recorded import counts_per_token
    from tracer.analysis.recording import Recording

    of_ranks: dict[str, Any] = {}
    steps = None
    try:
        trace = formats.read(path, whole=False)
        of_ranks = _collectives(trace, path.relative_to(root).as_posix())
        recording = Recording(trace, path.name, within=within, bounds=bounds)
        trace, steps = recording.trace, recording.steps
        ranks = rank_report(trace, steps).table.frame().groupby("device")[["communication_us", "idle_us"]].mean()
        of_ranks |= _step_times(ranks, *ranks.index[:1]) if of_ranks else {}
        measured = recording.measured
    except IntertokenError as problem:
        if steps is None:
            return [problem_row(path, root, str(problem)) | of_ranks]
        why = _ONE_STEP if len(steps) == 1 else str(problem)
        return [problem_row(path, root, why) | {"steps": len(steps), "token_source": steps.source} | of_ranks]
    rank = _rank(path.relative_to(root).as_posix(), measured.conditions.get("source", ""))
    names = {
        int(number): str(name) for number, name in zip(*(trace["devices"][c] for c in ("device", "name")), strict=True)
    }
    of_report = {
        **_place(path, root), "rank": rank, "model": measured.conditions.get("model", ""),
        "batch": measured.conditions.get("batch", ""), "source": measured.conditions.get("source", ""),
        "graph_trace": measured.graph_trace, "steps": len(steps), "token_source": steps.source,
        "class": measured.strategy or "", "signature": measured.signature or "",
        "configuration": printable(json.dumps(run_json.configuration(trace, within))),
        **{f"{kind}_per_token": value for kind, value in counts_per_token(measured.steps).items()},
        "tokens_per_s": measured.untraced.median if measured.untraced else None, "distortion": measured.distortion,
        "gap_corrected": measured.corrected, "notes": "; ".join(measured.notes),
    }  # fmt: skip
    rows: list[dict[str, Any]] = [
        of_report | {"device": device, "gpu": names.get(device, measured.conditions.get("gpu", ""))} | figures
        | _step_times(ranks, device)
        for device, figures in _device_figures(measured)
    ]  # fmt: skip
    return [row | (of_ranks if number == 0 else {}) for number, row in enumerate(rows)]


def _step_times(ranks: pd.DataFrame, device: int | None = None) -> dict[str, float]:
    if device not in ranks.index:
        return {}
    return {f"step_{name}": float(value) for name, value in ranks.loc[ranks.index == device].iloc[0].items()}


def _collectives(trace: Trace, path: str) -> dict[str, Any]:
    """The rank of a recording of one rank, and its collectives of all ranks as returned by `ranks.durations_of`; empty
    for any other."""
    from tracer.analysis.ranks import durations_of
    from tracer.model.collectives import is_exchange

    communication = trace.communication()
    rank = _rank(path, str(trace.metadata.get("source", "")))
    if rank is None or numbers(communication.device)[1] != 1:
        return {}
    every = {name: took for name, took in durations_of(communication).items() if not is_exchange(name)}
    return {"rank": rank, "collectives": every}


def problem_row(path: Path, root: Path, problem: str) -> dict[str, Any]:
    """The row of a report without figures."""
    return {**_place(path, root), "rank": _rank(path.relative_to(root).as_posix(), ""), "problem": printable(problem)}


def table_of_reports(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a table with all `COLUMNS`, sorted by report and device."""
    table = pd.DataFrame(_with_waiting(rows), columns=list(COLUMNS))
    texts = [name for name, dtype in COLUMNS.items() if dtype == "str"]
    table = table.astype(dict.fromkeys(texts, "object")).fillna(dict.fromkeys(texts, "")).astype(COLUMNS)
    return table.sort_values(["report", "device"], kind="stable", ignore_index=True)


def _with_waiting(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the time that ranks of a run wait for one another; not for runs with two recordings of one rank."""
    from tracer.analysis.ranks import waiting

    with_waits = list(rows)
    runs: dict[str, dict[int, int]] = {}
    doubled = set()
    for at, row in enumerate(rows):
        if "collectives" in row:
            of_run = runs.setdefault(row["run"], {})
            if row["rank"] in of_run:
                doubled.add(row["run"])
            of_run[row["rank"]] = at
    for run, of_run in runs.items():
        if len(of_run) < 2 or run in doubled:
            continue
        result = waiting([rows[at]["collectives"] for at in of_run.values()]).table
        if result.collectives.any():
            shares = (result.caused / max(result.caused.sum(), 1)).tolist()
            each = (result.waiting / result.collectives / 1e3).tolist()
            for at, waits, share in zip(of_run.values(), each, shares, strict=True):
                with_waits[at] = with_waits[at] | {"waiting_us": waits, "caused_share": share}
    return with_waits


def _place(path: Path, root: Path) -> dict[str, str]:
    """Report and run: the path below the root, and its folders (and the file's name if it has a rank) without ranks.

    Example:
        >>> _place(Path("/r/nightly/rank3/a.sqlite"), Path("/r"))["run"]
        'nightly'
    """
    relative = path.relative_to(root)
    name = [relative.name.removesuffix("".join(relative.suffixes))] if _RANK.search(relative.name) else []
    parts = [_RANK.sub("", part).strip("-_. ") for part in (*relative.parent.parts, *name)]
    names = {"report": relative.as_posix(), "run": "/".join(filter(None, parts)) or "."}
    return {key: printable(name, _LONGEST_PATH) for key, name in names.items()}


def _rank(path: str, source: str) -> int | None:
    """The rank that the recording or its path names."""
    match = _RANK.search(source) or next(reversed(list(_RANK.finditer(path))), None)
    return int(match[1]) if match else None


def _device_figures(recording: Measured) -> Iterator[tuple[int, dict[str, float]]]:
    for (device,), rows in sorted(grouped(recording.device_steps.device), key=itemgetter(0)):
        steps = recording.device_steps[rows]
        gaps = steps.gap[~np.isnan(steps.gap)]
        if len(gaps):
            period_us = median(steps.period[~np.isnan(steps.period)])
            of_gaps = {"p50": median(gaps), "p90": np.percentile(gaps, 90), "mean": gaps.mean()}
            yield (
                device,
                {
                    "recorded_tokens_per_s": (recording.tokens_per_step or np.nan) * 1e6 / period_us,
                    "recorded_steps_per_s": 1e6 / period_us,
                    **{f"gap_{name}_us": float(gap) for name, gap in of_gaps.items()},
                    **{f"{column}_us": steps.mean(column) for column in (*CAUSES, "busy", "compute")},
                },
            )


@dataclass(frozen=True, eq=False)
class Overview:
    """Summary of many reports.

    Attributes:
        runs: one row per run: run, reports, unread (number of unread reports), ranks, and the medians over its rows of
            recorded_tokens_per_s, recorded_steps_per_s, gap_p50_us, busy_us, syncs_per_token; slowest_rank (by the
            median period of its rows; missing if ranks are unknown), slowest_ratio (its period over the run's
            median), waited_for_rank (in collectives; missing if no rank stands out) with its share of all waiting
            (waited_for_share), outliers (number).
        ranks: one row per rank that communicates: run, rank, step_idle_us, step_communication_us, waiting_us and
            caused_share, as in `COLUMNS`.
        outliers: one row per report and device whose period is far from that of its run (`FAR`): report, rank, device,
            recorded_tokens_per_s, recorded_steps_per_s, of_run (the run's median steps/s), z.
        problems: one row per report that could not be read, or has steps but no period: report, steps (missing if
            it was not read), problem.
    """

    runs: pd.DataFrame
    ranks: pd.DataFrame
    outliers: pd.DataFrame
    problems: pd.DataFrame


def overview(table: pd.DataFrame) -> Overview:
    """Summarise a table of reports; reports of a run with a different configuration or tracing become a separate
    run."""
    table = table.assign(run=_runs_apart(table))
    read = table[table["device"].notna()].copy()
    read["log_period"] = -np.log(read["recorded_steps_per_s"])
    read["of_run"] = read.groupby("run")["recorded_steps_per_s"].transform("median")
    deviation = read["log_period"] + np.log(read["of_run"])
    spread = 1.4826 * deviation.abs().groupby(read["run"]).transform("median")
    read["z"] = deviation / spread.clip(lower=_LEAST_SPREAD)
    many = read.groupby("run")["z"].transform("size") >= _LEAST_REPORTS
    outliers = read[many & (read["z"].abs() > FAR)].sort_values("z", key=abs, ascending=False)
    runs = [
        {"run": run, **_run_row(rows, read[read["run"] == run]), "outliers": int((outliers["run"] == run).sum())}
        for run, rows in table.groupby("run")
    ]
    shown = ["report", "rank", "device", "recorded_tokens_per_s", "recorded_steps_per_s", "of_run", "z"]
    problems = table.loc[table["device"].isna(), ["report", "steps", "problem"]]
    of_rank = ["run", "rank", "step_idle_us", "step_communication_us", "waiting_us", "caused_share"]
    ranks = table.loc[table["waiting_us"].notna(), of_rank].sort_values(["run", "rank"], ignore_index=True)
    return Overview(pd.DataFrame(runs), ranks, outliers[shown].reset_index(drop=True), problems.reset_index(drop=True))


def _runs_apart(table: pd.DataFrame) -> list[str]:
    """The run of each row, with the facts of configuration, class and tracing that differ within the run."""
    names = table["run"].tolist()
    facts = [
        {"class": kind} | _object(text) | {"graph_trace": level, "recorder": source.partition(" ")[0]}
        for text, kind, level, source in zip(
            *(table[c] for c in ("configuration", "class", "graph_trace", "source")), strict=True
        )
    ]
    read = np.flatnonzero(table["device"].notna())
    for positions in table.iloc[read].groupby("run").indices.values():
        rows = read[positions]
        apart = [key for key in _APART if len({str(facts[i].get(key)) for i in rows}) > 1]
        for i in rows:
            known = {key: facts[i][key] for key in apart if facts[i].get(key) not in (None, "")}
            words = [value if isinstance(value, str) else f"{key} {value}" for key, value in known.items()]
            names[i] = " ".join([names[i], *dict.fromkeys(words)])
    return names


def _object(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text or "{}")
    except ValueError:  # cut short
        fields = {"configuration": text}
    return dict(fields)


def _run_row(rows: pd.DataFrame, read: pd.DataFrame) -> dict[str, Any]:
    """A row of `Overview.runs`, from all rows of a run and those with figures."""
    figures = ["recorded_tokens_per_s", "recorded_steps_per_s", "gap_p50_us", "busy_us", "syncs_per_token"]
    by_rank = read.dropna(subset="rank").groupby("rank")["log_period"].median()
    slowest: dict[str, Any] = {"slowest_rank": None, "slowest_ratio": None}
    if len(by_rank) > 1:
        above = float(by_rank.max() - read["log_period"].median())
        slowest = {"slowest_rank": int(str(by_rank.idxmax())), "slowest_ratio": float(np.exp(above))}
    return {
        "reports": rows["report"].nunique(),
        "unread": int((rows["device"].isna() & rows["steps"].isna()).sum()),
        "ranks": int(rows["rank"].nunique()),
        **_waited_for(rows),
        **{name: float(read[name].median()) if len(read) else None for name in figures},
        **slowest,
    }


def _waited_for(rows: pd.DataFrame) -> dict[str, Any]:
    from tracer.analysis.ranks import in_particular

    known = rows.dropna(subset=["rank", "caused_share"])
    at = in_particular(known["caused_share"].to_numpy(dtype=np.float64))
    if at is None:
        return {"waited_for_rank": None, "waited_for_share": None}
    row = known.iloc[at]
    return {"waited_for_rank": int(row["rank"]), "waited_for_share": float(row["caused_share"])}


@contextmanager
def connected(scheduler: str | None, workers: int | None) -> Iterator[Client]:
    """A client of the scheduler at this address, or of a cluster of local processes.

    Raises:
        UsageError: there is no Dask, or no scheduler answers.
    """
    try:
        from distributed import Client, LocalCluster
    except ImportError as missing:
        raise UsageError("comparing a directory needs Dask: pip install 'intertoken[dask]'") from missing
    if scheduler is None:
        cluster = LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, scheduler_kwargs={"dashboard": False},
            dashboard_address="127.0.0.1:0",  # its default is one port, which two commands at once cannot both have
            silence_logs=logging.CRITICAL,
        )  # fmt: skip
        with cluster, Client(cluster) as client:
            yield client
        return
    try:
        client = Client(scheduler, timeout=_CONNECT_S)
    except (OSError, ValueError) as problem:
        raise UsageError(f"--scheduler {scheduler}: no Dask scheduler answers there: {problem}") from None
    with client:
        yield client


def analyse(
    paths: Sequence[Path], root: Path, client: Client, *, tell: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> pd.DataFrame:  # fmt: skip
    """The table of `COLUMNS` over reports that every worker can read at these paths; their names are relative to the
    root. `tell` is called with the number of finished reports and of all; the options are those of `report_rows`.

    If a worker is lost, another one takes its report. A report that keeps killing workers becomes a row with its
    problem, like any that cannot be read.
    """
    from distributed import KilledWorker, as_completed

    futures = client.map(report_rows, list(paths), root=root, pure=False, **options)
    path_of = {future.key: path for future, path in zip(futures, paths, strict=True)}
    rows: list[dict[str, Any]] = []
    for done, future in enumerate(as_completed(futures), start=1):
        problem = future.exception()
        if problem is None:
            rows += future.result()
        else:
            lost = "every worker that read it was lost; the report may need more memory than the workers have"
            words = lost if isinstance(problem, KilledWorker) else f"{type(problem).__name__}: {problem}"
            rows.append(problem_row(path_of[future.key], root, words))
        tell(done, len(futures))
    return table_of_reports(rows)
