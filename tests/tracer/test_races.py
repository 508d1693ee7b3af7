"""`intertoken races`: the verdict of each seeded program, and the report."""

import json
import re
import stat
from collections import Counter

import pytest
from click.testing import CliRunner

from tests.tracer.fake_driver import unless_sanitized
from tracer.cli import main
from tracer.errors import FormatError
from tracer.races import passes
from tracer.races.logs import Site, read_log
from tracer.races.passes import Pass, Plan, Ran, Runs
from tracer.races.verdicts import judge
from tracer.recorders.native import RACES

RACING = [
    "overwritten_at_once", "overwritten_late", "wrong_event", "early_event", "single_buffer_event_of_two", "any_way",
    "batch", "rows_2d", "planes_3d", "planes_apart",
    "registered", "own_stream_of_the_thread", "large", "forks_late", "killed", "fails_late", "steps",
]  # fmt: skip
LATE = ["overwritten_late", "fails_late", "steps"]  # unless the machine is late by itself
ORDERED = ["kernel_fills_source", "other_stream_fills_source", "host_function_fills_source", "result_is_sent", "gated"]
CLEAN = [
    "synced", "polled", "double_buffer_event", "same_bytes", "rows_2d_synced", "two_threads", "freed_after",
    "freed_in_flight", "capture_beside", "large_between_samples",
]  # fmt: skip
UNSEEN = ["pageable", "managed", "batch_during_call", "graph_copies"]

pytestmark = unless_sanitized("the library is not preloaded before a sanitizer's runtime")


@pytest.fixture
def races(streams, monkeypatch):
    """Runs `intertoken races` on a seeded program over the fake driver."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(streams.folder))
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr("tracer.recorders.light.library", lambda *, races: streams.folder / RACES)

    def run(kind, *options, delays="20000", code=None):
        program = streams.folder / "seeded"
        done = CliRunner().invoke(main, ["races", "--delays", delays, *map(str, options), "--", str(program), kind])
        assert code is None or done.exit_code == code, done.stderr
        return done

    return run


def verdicts(done):
    """The verdicts of copies to the device, and the facts."""
    facts = json.loads(done.stdout)
    return [site["verdict"] for site in facts["sites"] if "DtoH" not in site["call"]], facts


@pytest.mark.parametrize("kind", RACING)
def test_races_are_proven(races, kind):
    found, facts = verdicts(races(kind, "--json", code=1))
    assert sorted(found, key="race".__ne__) == ["race", *["clean"] * (len(found) - 1)], facts["sites"]
    site = facts["sites"][0]
    assert site["stack"][0]["function"] in (kind, "batches", "rows", "planes", "overwritten_at_once")
    assert site["delay_us"] == 0 or kind in LATE
    assert site["proof"] == ("results" if kind == "fails_late" else "bytes")


@pytest.mark.parametrize("kind", ORDERED)
def test_what_the_stream_orders_is_no_race(races, kind):
    found, facts = verdicts(races(kind, "--json", code=0))
    assert found == ["ordered by design"]
    assert facts["sites"][0]["bad"]


@pytest.mark.parametrize("kind", CLEAN)
def test_clean_programs_are_clean_as_far_as_they_were_tried(races, kind):
    found, facts = verdicts(races(kind, "--json", delays="3000", code=0))
    assert found == ["clean"]
    assert {site["delay_us"] for site in facts["sites"]} == {3000}


@pytest.mark.parametrize("kind", UNSEEN)
def test_what_cannot_be_watched_is_named_and_not_judged(races, kind):
    found, facts = verdicts(races(kind, "--json", delays="1000", code=0))
    assert found == []
    assert facts["not_seen"] or facts["read_within_call"]
    assert (kind == "graph_copies") == ("copies to the device by CUDA graphs" in facts["not_seen"])


def test_a_result_that_is_read_early_is_a_race(races):
    """Only what the program makes of it shows that; the site is the one whose delay alone does."""
    _, facts = verdicts(races("read_early", "--json", code=1))
    racing = [site for site in facts["sites"] if site["verdict"] == "race"]
    assert [(site["call"], site["proof"]) for site in racing] == [("cuMemcpyDtoHAsync_v2", "results")]
    assert racing[0]["stack"][0]["function"] == "read_early"
    assert facts["results"]["verdict"] == "differs under delay"


def test_a_race_in_a_child(races):
    found, facts = verdicts(races("forks", "--json", code=1))
    assert sorted(found) == ["clean", "race"]
    assert [frame["function"] for frame in facts["sites"][0]["stack"][:2]] == ["overwritten_at_once", "forks"]
    assert {each["processes"] for each in facts["passes"]} == {2}


def test_results_that_differ_between_plain_runs_prove_nothing(races):
    done = races("other_results", "--json", code=0)
    _, facts = verdicts(done)
    assert facts["results"]["verdict"] == "differs between plain runs"
    assert "note: outputs differ between plain runs: result 1 of 1 is another" in done.stderr


def test_memory_freed_in_flight_is_told_with_both_stacks(races):
    done = races("freed_in_flight", code=0)
    lines = done.stdout.splitlines()
    at = lines.index("freed in flight: cuMemFreeHost, freed_in_flight ← main (seeded)")
    assert re.fullmatch(
        r"  \d+ times before a copy had arrived: cuMemcpyHtoDAsync_v2, freed_in_flight ← .*", lines[at + 1]
    )


def test_the_report(races, tmp_path):
    markdown, sarif, kept = tmp_path / "races.md", tmp_path / "races.sarif", tmp_path / "kept"
    done = races("overwritten_at_once", "--markdown", markdown, "--sarif", sarif, "--keep", kept, code=1)
    assert done.stdout.splitlines()[-1] == "1 race is proven"
    assert "race (without any delay): cuMemcpyHtoDAsync_v2, overwritten_at_once ← main (seeded)" in done.stdout
    said = r"^  first: copy \d+, after 0 graph launches, byte 0 of 4,096 was 0x\w\w and came as 0x\w\w$"
    assert re.search(said, done.stdout, re.MULTILINE)
    assert "the command runs 6 times or more" in done.stderr
    assert re.search(r"a plain run takes \d+\.\d s, all of them about \d+ s or more", done.stderr)
    table = markdown.read_text().splitlines()
    assert table[2] == "| verdict | call | where | why |"
    assert table[4].startswith("| race (without any delay) | cuMemcpyHtoDAsync\\_v2 | overwritten\\_at\\_once ← main")
    log = json.loads(sarif.read_text())
    (run,) = log["runs"]
    assert log["version"] == "2.1.0"
    assert {result["ruleId"] for result in run["results"]} <= {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    first = run["results"][0]
    assert (first["ruleId"], first["level"], first["kind"]) == ("race", "error", "fail")
    place = first["locations"][0]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "seeded"
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "overwritten_at_once"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700
    assert [path.name for path in sorted(kept.iterdir())][:3] == ["01-plain", "02-plain", "03-witness"]
    assert (kept / "01-plain" / passes.OUTPUT).read_text().startswith("wrong ")
    assert str(tmp_path) not in done.stdout + markdown.read_text() + sarif.read_text()


def test_a_budget_leaves_passes_out_and_says_so(races):
    done = races("overwritten_at_once", "--json", "--seconds", "0.001", code=0)
    _, facts = verdicts(done)
    assert [each["name"] for each in facts["passes"]] == ["plain", "plain"]
    assert "passes left out for the budget: witness, delay" in done.stderr
    assert {site["verdict"] for site in facts["sites"]} == {"not seen"}


@pytest.mark.parametrize(
    ("options", "command", "said"),
    [
        (["--delays", "0"], ["true"], "from 1 to 1000000 µs"),
        (["--delays", "x"], ["true"], "not a list of whole µs"),
        (["--sarif", "races.txt"], ["true"], "must end with .sarif or .json"),
        (["--keep", "."], ["true"], "already exists"),
        ([], ["/missing/program"], "cannot be run"),
        ([], ["true"], "nothing was watched: the program ended with exit code 0"),
        ([], ["sh", "-c", "echo no model; exit 3"], "ended with exit code 3, and printed last: no model"),
        ([], [], "Missing argument"),
    ],
)
def test_bad_input_is_one_line(races, tmp_path, monkeypatch, options, command, said):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["races", *options, "--", *command])
    assert done.exit_code == 2
    assert said in done.stderr.splitlines()[-1]


def test_a_damaged_log_is_refused(tmp_path):
    for content in (b"something", b"ITRACES1" + bytes(100), b"ITRACES1\x01\0\0\0" + bytes(9000)):
        (path := tmp_path / "1-0.ring").write_bytes(content)
        with pytest.raises(FormatError, match=re.escape(str(path))):
            read_log(path)


def test_seeds_and_settings_of_passes():
    made = Plan((50, 200), seeds=2).passes()
    assert [each.purpose for each in made] == ["witness", *["delay"] * 4, "launches", "drain"]
    assert [each.settings.get("per_mille") for each in made[1:5]] == [1000, 300, 1000, 300]
    assert made[2].name == "delay: h2d and d2h 50 µs late, 30 % of them, seed 2"
    assert made[-1].settings == {"witness": 1, "seed": 1, "drain_ms": 200}


def runs_of(*counted):
    """Passes with these counts at one site."""
    runs = Runs((), None, Plan(), print)
    for what, counts in ((Pass("plain"), {}), (Pass("plain"), {}), *counted):
        site = Site(1, "cuMemcpyHtoDAsync_v2", (), 4, 4, Counter(counts), None)
        runs.made.append(Ran(what, 0, 1.0, (log_of(site),)))
    return runs


def log_of(site):
    from tracer.races.logs import Log

    return Log(1, 0, "p", 0, True, 0, (site,), (), 0, (), Counter())


def test_the_smallest_delay_is_looked_for():
    """It lies between the longest that shows nothing and the shortest that does."""
    runs = runs_of((Pass("witness"), {"checked": 9}), (Pass("delay", 60000, passes.COPIES), {"checked": 9, "bad": 9}))
    tried = []
    for what in passes._halve(runs):
        tried.append(what.delay_us)
        runs.made += runs_of((what, {"checked": 9, "bad": 9 * (what.delay_us > 20000)})).made[2:]
    assert tried == [15000, 30000, 21213]
    runs.made += runs_of((Pass("drain"), {"drained": 9})).made[2:]
    assert judge(runs).found[0].delay_us == 21213


BAD = (Pass("delay", 50, passes.COPIES), {"checked": 100, "bad": 90})


@pytest.mark.parametrize(
    ("drained", "verdict", "said"),
    [
        ({"drained": 100}, "race", "90 of 100 copies arrived otherwise than they were at the call; 0 of 100 where"),
        ({"drained": 100, "bad_drained": 80}, "ordered by design", "work before the copy fills its source"),
        ({"drained": 100, "bad_drained": 5}, "candidate", "5 of 100 where the host waited"),
        ({"drained": 90, "given_up": 10, "bad_given_up": 10}, "race", "0 of 90 where the host waited"),
        ({"drained": 10, "gated": 90}, "race", "0 of 10 where the host waited"),
        ({"drained": 10, "given_up": 90, "bad_given_up": 90}, "candidate", "did not become idle"),
        ({"gated": 100, "bad_gated": 90}, "ordered by design", "holds the stream back"),
        ({}, "candidate", "no copy was made drained"),
        (None, "candidate", "for the budget"),
    ],
)
def test_what_draining_says_of_copies_that_arrived_otherwise(drained, verdict, said):
    counted = [BAD] if drained is None else [BAD, (Pass("drain"), drained)]
    (found,) = judge(runs_of(*counted)).found
    assert found.verdict == verdict
    assert said in found.why


def test_a_pass_that_hangs_is_ended(races, monkeypatch):
    """Here only the delayed ones last longer than they may."""
    monkeypatch.setattr(passes, "_LONGEST_S", 0.4)
    monkeypatch.setattr(passes, "_LONGEST_TIMES", 1.0)
    done = races("synced", "--json", delays="1000000", code=0)
    _, facts = verdicts(done)
    ended = {each["name"].partition(":")[0]: each["exit_code"] for each in facts["passes"]}
    assert (ended["plain"], ended["delay"]) == (0, -15)
    assert "as it may hang: the pass delay: h2d and d2h 1000000 µs late" in done.stderr
    assert facts["results"]["verdict"] == "same"
