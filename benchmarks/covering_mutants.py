"""Whether the rows of `make test` find what those of `make test-all` find: faults put into a package one by one.

Each fault changes one line: in the executor of a strategy, a plan, an allocator, a launcher, the scheduler or the KV
cache, in the tracer of a format, the clocks, a gap or a comparison, for the suite `files` of what is read, scrubbed and
written, in the dashboard of what is said of an event. It is made in a copy of the repository. There the tests run of
which `make test` takes some rows only (covering pairs, or a recording of every kind): first these rows, and where they
pass, all. The former are among the latter, which find what they find.

A test run that takes longer than --timeout, or one of all rows than ten times that, hangs because of the fault, and has
found it: give it several times what the tests need here, as a busy machine takes longer. The file of results is written
after each fault. A later run keeps the rows of faults that are unchanged, and tries the others.

    python benchmarks/covering_mutants.py [executor|tracer|files|dashboard] [-o FILE] [--only NUMBER ...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
OF_EXECUTOR: Final = (
    "tests/executor/test_hazards.py::test_safe_allocators_have_none_on_the_models",
    "tests/executor/test_run_hazards.py::test_what_the_guarantees_allow_has_no_hazard",
    "tests/executor/test_growing.py::test_logits_are_the_references_however_the_graphs_change",
    "tests/executor/test_offload.py::test_logits_are_those_of_one_device_and_the_references",
    "tests/executor/test_models_kv.py::test_logits_are_the_references_under_every_strategy",
    "tests/executor/test_logits.py::test_logits_are_the_float64_references",
    "tests/executor/test_logits.py::test_all_combinations_agree_bitwise",
    "tests/executor/test_halves.py::test_halves_compute_what_the_whole_computes",
    "tests/sync_counts/test_cpu.py",
    "tests/sync_counts/test_splits.py",
)
OF_TRACER: Final = (
    "tests/tracer/test_formats_nsys.py::test_any_optional_column_may_be_missing",
    "tests/tracer/test_formats_carry.py::test_what_was_changed_is_written_as_it_is_now",
    "tests/tracer/test_clocks.py::test_sound_recordings_lose_no_step",
    "tests/tracer/test_distortion.py::test_at_node_level_the_gap_of_our_own_loop_is_right_or_withheld",
    "tests/tracer/test_compare_truths.py::test_our_ladder",
    "tests/tracer/test_formats_perfetto.py::test_every_event_of_a_recording_is_inside",
)
OF_FILES: Final = (
    "tests/tracer/test_irregular_files.py::test_a_part_of_a_run_directory",
    "tests/tracer/test_marks_bad_input.py::test_marks_with_hostile_text",
    "tests/tracer/test_sqlite_pages.py::test_flipped_bits",
    "tests/tracer/test_kept.py::test_a_broken_cache_is_read_again_without_a_word",
    "tests/tracer/test_formats_carry.py::test_odd_values_survive_whatever_nsys_declares",
    "tests/tracer/test_formats_carry.py::test_every_table_and_column_survives",
    "tests/tracer/test_formats_nsys_sqlite_write.py::test_convert_replaces_only_when_told",
    "tests/tracer/test_formats_nsys_sqlite_write.py::test_recordings_survive_and_have_nsys_schema",
    "tests/tracer/test_scrub.py::test_no_secret_survives",
    "tests/tracer/test_scrub.py::test_analyses_give_the_same_figures",
    "tests/tracer/test_scrub.py::test_ranges_keep_their_facts",
    "tests/tracer/test_scrub.py::test_planted_recordings_give_the_same_figures",
    "tests/tracer/test_round_trips.py::test_every_kind_of_recording_in_every_format",
    "tests/tracer/test_round_trips.py::test_recordings_that_lie_beside",
    "tests/tracer/test_round_trips.py::test_through_all_formats_one_behind_the_other",
    "tests/tracer/test_truths.py::test_recordings_of_others_are_right_or_doubted",
)
OF_DASHBOARD: Final = (
    "tests/dashboard/test_card_browser.py",
    "tests/dashboard/test_first_screen_browser.py::test_a_link_to_what_is_not_there_says_which",
)


class Mutant(NamedTuple):
    """A fault: in this module of the package, or file with another suffix, the first text becomes the second."""

    module: str
    before: str
    after: str

    def path(self, package: Path) -> Path:
        """The file of the module."""
        (path,) = package.rglob(self.module if Path(self.module).suffix else f"{self.module}.py")
        return path


IN_EXECUTOR: Final = (
    Mutant("strategies", "copy.issue()\n            copy.backend", "copy.backend"),
    Mutant("strategies", '"""`s a*n s`."""\n        backend.synchronize(MAIN_STREAM)\n', '"""`s a*n s`."""\n'),
    Mutant("strategies", "copies):\n        backend.sync", "copies[:1]):\n        backend.sync"),
    Mutant("strategies", "if key[0] == number]", "if key[0] != number]"),
    Mutant("strategies", "            self._open.add(key)\n", ""),
    Mutant("allocator", "last > region.fork", "last > region.join"),
    Mutant("allocator", "last = max(last, region.join)", "last = max(last, region.fork)"),
    Mutant("allocator", "tuple(max(visible[node]", "tuple(min(visible[node]"),
    Mutant("allocator", "kept = set(split.inputs)", "kept = set()"),
    Mutant("allocator", "(stop + 1,)", "(stop,)"),
    Mutant("allocator", "{node.root, *(source.root for source in node.src)}", "{node.root}"),
    Mutant("plans", "known[stream] |= seen[latest]", "known[stream] |= (1 << (latest + 2)) - 1"),
    Mutant("plans", "instructions += [Wait(MAIN_STREAM, events[awaited]) for awaited in waits[len(nodes)]]", "pass"),
    Mutant("launchers", "call = backend.event_record if", "call = backend.event_wait if"),
    Mutant("launchers", "            self._key = key\n", ""),
    Mutant("scheduler", "self._kept[number][name][...] = values", "self._kept[0][name][...] = values"),
    Mutant("scheduler", "            self._strategy.reclaim(number)", "            pass"),
    Mutant("scheduler", "and not self._staged and not piece.sources", "and self._staged and not piece.sources"),
    Mutant("scheduler", "self.position + self._prepared.step.prompt", "self.position + 1"),
    Mutant("scheduler", "if name not in late]", "if name in late]"),
    Mutant("kv_cache", 'return self.sequences if self.kind == "unified" else 1', "return 1"),
    Mutant("kv_cache", 'return 0 if self.kind == "unified" else sequence', "return sequence % self.streams % 2"),
    Mutant("several", "            self.now.finish()\n", ""),
    Mutant("several", "            other.take_over()\n", ""),
    Mutant("several", "if next(stages, \"done\") != \"done\"]", "if next(stages, \"done\") == \"done\"]"),
    Mutant("several", "        for scheduler in self._schedulers:\n            scheduler.grow()\n", ""),
)  # fmt: skip
IN_TRACER: Final = (
    Mutant("formats/nsys", "given.get(nsys.GLOBAL_TID, given.get(nsys.GLOBAL_PID))", "given.get(nsys.GLOBAL_TID)"),
    Mutant("formats/nsys", 'if table.name == "kernels" and "graph" not in columns', 'if "graph" in columns'),
    Mutant("formats/nsys", "else ints(values, column.missing)", "else ints(values, 0)"),
    Mutant("formats/nsys", ' if "syncType" in given else old', ""),
    Mutant("formats/nsys", ' if "domainId" in have else zeros', ""),
    Mutant("formats/nsys", ' if "textId" in have else inline(nothing)', ""),
    Mutant("formats/nsys", ' if "text" in have else nothing', ""),
    Mutant("formats/nsys_changed", "(ours, theirs, equal_nan=ours.dtype.kind == \"f\")", "(ours[:1], theirs[:1])"),
    Mutant("formats/nsys_changed", '"textId": ["text"]', '"textId": []'),
    Mutant("formats/nsys_changed", "len(theirs):\n        return True", "len(theirs):\n        return False"),
    Mutant("formats/nsys_changed", "frame.drop(columns=changed)", "frame"),
    Mutant("formats/tracks", "offset = sum(map(len, tracks))", "offset = 0"),
    Mutant("formats/tracks", 'starts = np.append(trace["api"]["start"]', 'starts = np.append(trace["api"]["end"]'),
    Mutant("analysis/clock_offsets", "high[call < 0] = NO_BOUND", "high[call < 0] = 0"),
    Mutant("analysis/clock_offsets", "np.full(len(activities), -NO_BOUND)", "np.full(len(activities), 9_000)"),
    Mutant("analysis/clock_offsets", 'wanted["until"], works', 'wanted["until"] * 2, works'),
    Mutant("analysis/gaps", "min(least, low), max(most, high)", "max(least, low), min(most, high)"),
    Mutant("analysis/gaps", "if most - least > max(", "if most - least > 5 * max("),
    Mutant("analysis/gaps", 'if level != "node":', 'if level == "node":'),
    Mutant("analysis/compare", "speedup.ratio if stated else None", "speedup.ratio"),
    Mutant("analysis/compare", 'if basis == "traced" else None', 'if basis == "light" else None'),
    Mutant("analysis/compare", '("faster", "slower"):\n        return found', '("faster",):\n        return found'),
    Mutant("analysis/compare", "_paired(base, other)\n    speedup", "False\n    speedup"),
)  # fmt: skip
IN_FILES: Final = (
    Mutant("formats/nsys_parquet", "        check_regular(file)\n", ""),
    Mutant("text", "text if text.isascii() and text.isprintable() else", "text if text.isascii() else"),
    Mutant("formats/sqlite_pages", " or (np.diff(level.first) < 1).any()", ""),
    Mutant("formats/sqlite_cells", "rowid != first[page] + cell or payload < 1", "payload < 1"),
    Mutant("stored/cache", "(OSError, ValueError, KeyError", "(OSError, KeyError"),
    Mutant("formats/nsys_sqlite_write", "column.not_null and not values.null_count,", "column.not_null,"),
    Mutant("formats/nsys_sqlite_write", "else \"TEXT\"\n\n\ndef _constant", "else \"REAL\"\n\n\ndef _constant"),
    Mutant("formats/nsys_sqlite_write", "quote(os.fspath(path.absolute()))", "os.fspath(path.absolute())"),
    Mutant("formats/nsys_carry", "and not _same(name, table, again):", "and again is None:"),
    Mutant("scrub/__init__", "    exports.tables(scrubbed, texts)\n", ""),
    Mutant("scrub/texts", "text in DOMAINS or ", ""),
    Mutant("formats/chrome_write", " | own_members(known)", ""),
    Mutant("formats/chrome_write", "domains_are_categories=from_chrome", "domains_are_categories=True"),
    Mutant("engines/sglang", "^step\\[(?P<mode>", "^step(?P<mode>"),
    Mutant("engines/vllm", "^execute_(?:", "^executed_(?:"),
)  # fmt: skip
IN_DASHBOARD: Final = (
    Mutant("timeline/rows", "if correlation != MISSING", "if correlation == MISSING"),
    Mutant("timeline/rows", "if known and min(shared) >= 0", "if min(shared) < 0"),
    Mutant("timeline/rows", 'f"waited for {plain(activity, 60)}, which', 'f"{plain(activity, 60)}, which'),
    Mutant("timeline/rows", "{len(merged):,} events in", "{len(merged):,} in"),
    Mutant("timeline/rows", "to_numpy()[index] == _SYNC", "to_numpy()[index] != _SYNC"),
    Mutant("overview/event", '"launches", (LAUNCH, False): "launched by"',
           '"launched by", (LAUNCH, False): "launches"'),
    Mutant("overview/event", 'int(call["thread"]), int(call["start"])', 'int(call["thread"]) + 1, int(call["start"])'),
    Mutant("overview/event", '(same["start"] <= place["start"])', '(same["start"] < place["start"])'),
    Mutant("overview/event", 'number = int(row.events["correlation"].iloc[event])', "number = 0"),
    Mutant("overview/event", 'if place["letter"] == SYNC:', 'if place["letter"] != SYNC:'),
    Mutant("overview/event", "[*found.facts, *found.costs], **of", "[*found.facts], **of"),
    Mutant("overview/actions", "token_of(runs, view), y, event, (low, high))", "token_of(runs, view), y, event)"),
    Mutant("assets/card.js", "if (pending) resting =", "if (!pending) resting ="),
    Mutant("pages/__init__", 'getattr(view, "shared", view)\n        return [html.P(', "view\n        return [html.P("),
)  # fmt: skip


class Suite(NamedTuple):
    """Tests of a package of which `make test` takes some rows, and faults in it."""

    package: str
    tests: tuple[str, ...]
    mutants: tuple[Mutant, ...]


SUITES: Final = {
    "executor": Suite("executor", OF_EXECUTOR, IN_EXECUTOR),
    "tracer": Suite("tracer", OF_TRACER, IN_TRACER),
    "files": Suite("tracer", OF_FILES, IN_FILES),
    "dashboard": Suite("dashboard", OF_DASHBOARD, IN_DASHBOARD),
}


def output_of(command: list[str], folder: Path, environment: dict[str, str], seconds: float) -> str | None:
    """What a command prints; None if it takes longer. All of its processes are then killed."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None


def outcome(copy: Path, tests: Sequence[str], everything: bool, seconds: float) -> dict[str, Any]:
    """What the tests say: the first that fails (None if all pass), how many passed, and the CPU seconds."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "INTERTOKEN_TEST_ALL": str(int(everything))}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = output_of(command, copy, environment, seconds)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = {"cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)}
    if said is None:
        return {"found_by": f"timeout of {seconds:g} s", "passed": 0, **used}
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    passed = re.search(r"(\d+) passed", said)
    if not failed and not passed:
        raise RuntimeError(said)
    return {"found_by": failed and failed[1], "passed": int(passed[1]) if passed else 0, **used}


def tried(mutant: Mutant, tests: Sequence[str], package: Path, seconds: float) -> dict[str, Any]:
    """The fault, and what some rows and, where these pass, all rows say of it."""
    path = mutant.path(package)
    text = path.read_text()
    if text.count(mutant.before) != 1:
        raise ValueError(f"{mutant.module}: {mutant.before!r} is there {text.count(mutant.before)} times")
    line = text[: text.index(mutant.before)].count("\n") + 1
    path.write_text(text.replace(mutant.before, mutant.after))
    try:
        pairs = outcome(package.parent, tests, False, seconds)
        products = None if pairs["found_by"] else outcome(package.parent, tests, True, 10 * seconds)
    finally:
        path.write_text(text)
    return {**mutant._asdict(), "line": line, "pairs": pairs, "products": products}


def copied(folder: Path) -> None:
    """Copy what the tests need; the sample recordings and the benchmarks' results are linked."""
    for part in ("intertoken", "executor", "tracer", "dashboard", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for part in ("sample_traces", "benchmarks"):
        (folder / part).symlink_to(ROOT / part)


def report(unchanged: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The content of the file of results."""
    of_pairs = sum(row["pairs"]["found_by"] is not None for row in rows)
    of_products = of_pairs + sum(bool(row["products"] and row["products"]["found_by"]) for row in rows)
    facts = {"faults": len(rows), "found_by_pairs": of_pairs, "found_by_products": of_products}
    return {**facts, "unchanged": unchanged, "rows": rows}


def main() -> None:
    """Try all faults, print a line for each, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="?", choices=SUITES, default="executor")
    parser.add_argument("-o", type=Path, help="default: benchmarks/results/covering_mutants_SUITE.json")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of faults, from 0")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds of one run of the tests")
    options = parser.parse_args()
    package, tests, mutants = SUITES[options.suite]
    chosen = [mutants[number] for number in options.only] if options.only else mutants
    results = options.o or ROOT / "benchmarks" / "results" / f"covering_mutants_{options.suite}.json"
    before = json.loads(results.read_text()) if results.exists() else {}
    known = {Mutant(*(row[key] for key in Mutant._fields)): row for row in before.get("rows", [])}
    with tempfile.TemporaryDirectory(prefix="intertoken-mutants-") as name:
        folder = Path(name)
        copied(folder)
        unchanged = before.get("unchanged") or outcome(folder, tests, False, options.timeout)
        if unchanged["found_by"]:
            raise SystemExit(f"without a fault: {unchanged['found_by']}")
        for mutant in chosen:
            if mutant not in known:
                known[mutant] = row = tried(mutant, tests, folder / package, options.timeout)
                found = row["pairs"]["found_by"] or (row["products"]["found_by"] and "only by the products")
                print(f"{row['module']}:{row['line']}  {found or 'by neither'}", flush=True)
            facts = report(unchanged, [known[mutant] for mutant in mutants if mutant in known])
            results.write_text(json.dumps(facts, indent=1) + "\n")
    of_pairs, of_products = facts["found_by_pairs"], facts["found_by_products"]
    print(f"{of_pairs} of {facts['faults']} found by pairs, {of_products} by the products")


if __name__ == "__main__":
    main()
