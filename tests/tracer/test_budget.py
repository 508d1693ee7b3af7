"""Budgets: exact findings on hand-made traces, what a file may say, a base, and `intertoken check`."""

import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recordings import LLAMA, SAMPLES, SIX, untold
from tests.tracer.handmade import decode_loop
from tests.tracer.truths import DATA, rows, run, scene
from tracer import analyse, read, write
from tracer.analysis.budget import BaseLimits, Limit, Line, Scope, parse
from tracer.analysis.budget_check import Finding, check_base, check_lines, fulfilled_budget, measure
from tracer.analysis.interval import Interval
from tracer.analysis.surplus import surplus_position
from tracer.errors import EmptyTraceError, UsageError
from tracer.files.bounded import tomllib
from tracer.reporting import verdicts

TOKENS = 6
TABLES = tomllib.loads((DATA.parent / "budgets.toml").read_text(encoding="utf-8"))


def loop(letters, tokens=TOKENS, **options):
    """Marked steps of 1 µs for `decode_loop`."""
    script = decode_loop(letters, tokens, **options)
    for token in range(tokens):
        script.range("token", token * 1000, token * 1000 + 900)
    return script


def budget(text):
    return parse(tomllib.loads(text), "b.toml")


def findings(trace, text, **options):
    found = check_lines(trace, budget(text), **options)
    return {": ".join(filter(None, (str(f.line.scope), f.line.name))): f for f in found}


def test_what_is_found_and_what_is_not_known():
    """`saasgAs` is per step: sync, two copies, sync, launch, copy back, sync; 300 ns of compute, 1 µs apart."""
    for told in TABLES["found"]:
        trace = scene(told) if "each" in told else loop(told["letters"], **told.get("options", {})).trace
        limits = told["budget"]
        trace.metadata["run"] = told.get("run", {})
        rate = {"untraced_steps_per_s": told["rate"]} if "rate" in told else {}
        if "fails" in told:
            with pytest.raises(EmptyTraceError, match=told["fails"]):
                check_lines(trace, budget(limits), **rate)
            continue
        found = {name: [f.verdict, f.found, f.excess] for name, f in findings(trace, limits, **rate).items()}
        expected = {name: [pytest.approx(each) if isinstance(each, float) else each for each in (*facts, None)[:3]]
                    for name, facts in told["is"].items()}  # fmt: skip
        assert found == expected, limits
    found = findings(loop("saasgAs").trace, TABLES["found"][0]["budget"].partition("gap_us")[0])
    surplus = found["syncs"].surplus
    told = (surplus.name, surplus.thread, surplus.step, surplus.time_in_step_us, surplus.nvtx)
    assert told == ("cudaStreamSynchronize_v3020", 101, 0, 0.12, ("token",))
    assert found["signature"].surplus == surplus
    assert [Limit(2, 2).excess(1.5), Limit(most=7).excess(0), Limit(least=7).excess(5)] == [-0.5, 0, -2]


def test_at_node_level_a_gap_is_judged_by_its_interval():
    trace = read(LLAMA["sccc", "node"])
    bounds = analyse(trace).gaps.estimated
    text = "gap_us.untraced.p50.max = {}"
    for most, verdict in ((bounds.low - 1, "broken"), (bounds.estimate, "not shown"), (bounds.high, "kept")):
        (found,) = findings(trace, text.format(most)).values()
        assert (found.verdict, found.interval) == (verdict, (bounds.low, bounds.high))
        assert (found.found, found.excess) == ("42.6 to 109.1 µs, 95 % interval", None)
    assert "gap_us.untraced" not in fulfilled_budget(measure(trace, Scope()))


@settings(max_examples=5)
@given(st.text(alphabet="sacew", max_size=8).map(lambda text: f"s{text}g"), st.integers(2, 5))
def test_a_written_budget_is_kept_and_one_sync_more_breaks_the_lines_of_syncs_alone(calls, tokens):
    """Behind the launch, where it changes neither class nor gap. Calls begin with a sync, or a copy might block or not
    by how the step before ends."""
    script = loop(calls, tokens)
    text = fulfilled_budget(measure(script.trace, Scope()))
    assert {finding.verdict for finding in check_lines(script.trace, budget(text))} == {"kept"}
    for token in range(tokens):
        script.sync(token * 1000 + 700, token * 1000 + 710)
    found = findings(script.trace, text)
    assert {name for name, f in found.items() if f.verdict == "broken"} == {"syncs", "signature"}
    assert found["syncs"].excess == 1
    for finding in (found["syncs"], found["signature"]):
        assert (finding.surplus.step, finding.surplus.time_in_step_us) == (0, 0.7)


def test_calls_of_a_call_site_are_held_to_the_most_of_any_step():
    """Three steps `sgs`; the first sync of each is made in `flush`, the last one of the second step in `fetch`."""
    script = loop("sgs", 3)
    syncs = [row for row in rows(script.trace["api"], "name", "start", "end") if "Synchronize" in row[0]]
    for _, start, end in syncs[::2]:
        script.function("engine.py(9): flush", start - 1, end + 1)
    script.function("engine.py(20): fetch", syncs[3][1] - 1, syncs[3][2] + 1)
    text = '[site.flush]\nsyncs = 1\nlaunches = 0\n[site."engine.py fetch"]\nsyncs = 0\n[site.other]\nsyncs = 0'
    found = findings(trace := script.trace, text)
    assert {name: (f.verdict, f.found) for name, f in found.items()} == {
        "site flush: syncs": ("kept", 1.0), "site flush: launches": ("kept", 0.0), "site other: syncs": ("kept", 0.0),
        "site engine.py fetch: syncs": ("broken", 1.0),  # in one step of three, of which the median would be 0
    }  # fmt: skip
    surplus = found["site engine.py fetch: syncs"].surplus
    assert (surplus.step, surplus.nvtx[-1]) == (1, "engine.py(20): fetch")
    assert "site other: the steps make no call there" in trace.notes
    with pytest.raises(EmptyTraceError, match=r"^site fetch: 100% have no call site; .*with_stack=True"):
        check_lines(decode_loop("sg", TOKENS).trace, budget("[site.fetch]\nsyncs = 0"))


def test_a_surplus_call_is_in_the_first_step_that_has_one_and_has_a_path_of_ranges():
    script = loop("sg")
    script.range("repeat", 0, TOKENS * 1000)
    script.range("inputs", 2000, 2005)
    script.range("elsewhere", 0, TOKENS * 1000, thread=7)
    for token in (2, 3, 4, 5):
        script.sync(token * 1000 + 600, token * 1000 + 610)
    surplus = findings(script.trace, "syncs = 1")["syncs"].surplus
    assert (surplus.step, surplus.time_in_step_us, surplus.nvtx) == (2, 0.6, ("repeat", "token"))


def test_where_the_surplus_call_is():
    for found, expected, kinds, position in TABLES["surplus"]:
        assert surplus_position(list(found), list(found), kinds, 3, expected or None) == position, found
    assert surplus_position(["s", "c", "", "g"], list("sasg"), "s", 1, "sag") == 2  # behind a copy that blocks


@given(st.text(alphabet="sag", max_size=30), st.integers(0, 30))
def test_an_inserted_call_is_found(word, at):
    """Or one of its equals in the same run, which reads the same."""
    at = min(at, len(word))
    found = word[:at] + "s" + word[at:]
    position = surplus_position(list(found), list(found), "s", math.inf, word)
    assert found[:position] + found[position + 1 :] == word


def test_what_makes_no_sense_is_named_with_the_file():
    for text, message in TABLES["refused"].items():
        with pytest.raises(UsageError) as raised:
            budget(text)
        assert str(raised.value).startswith(f"b.toml: {message}"), text
    with pytest.raises(UsageError, match=r"^b.toml: unknown cause causes_us.traced.coffee; it may be communication, s"):
        check_lines(loop("sg").trace, budget("causes_us.traced.coffee.max = 1"))


KEYS = [
    "syncs", "class", "gap_us", "traced", "p50", "max", "min", "range", "device", "0", "base", "recording", "a\nb",
]  # fmt: skip
leaves = st.one_of(st.integers(), st.floats(), st.booleans(), st.text(), st.dates(), st.lists(st.text(), max_size=2))
tables = st.recursive(leaves, lambda inner: st.dictionaries(st.sampled_from(KEYS), inner), max_leaves=12)


@given(st.dictionaries(st.sampled_from(KEYS), tables))
def test_any_table_is_a_budget_or_one_line(table):
    said = "b.toml: "
    try:
        found = parse(table, "b.toml")
    except UsageError as problem:
        said = str(problem)
    else:
        assert found.lines or found.base
    assert (said[:8], len(said.splitlines())) == ("b.toml: ", 1)


def test_a_base_is_judged_by_the_interval():
    for limit, most, told, verdict in TABLES["base"]:
        interval = Interval(*told)
        compared = SimpleNamespace(speedup=interval, gap=interval)
        (finding,) = check_base(BaseLimits("main", **{limit: most}), compared)
        assert (finding.line.name, finding.verdict) == (f"base.{limit}", verdict), told
        expected = [1 - each for each in (told[0], *told[:0:-1])] if limit == "max_slowdown" else told
        assert [finding.found, *(finding.interval or ())] == pytest.approx(expected)


SCCC, SAAAS = LLAMA["sccc", "graph"], LLAMA["saaas", "graph"]
BUDGET = SAMPLES / "llama1b-saaas.toml"


def check(*arguments):
    return run("check", *arguments)


def file(folder, text, name="budget.toml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def based(folder, base, slowdown, extra):
    return file(folder, f"[base]\nrecording = '{base}'\nmax_slowdown = {slowdown}\nmax_extra_gap_us = {extra}")


def test_a_base_without_a_verdict_shows_nothing_either_way(tmp_path):
    """As traced, saaas is 3 % faster and its gap 31 µs shorter, of which 1.4 % and 17 µs are true."""
    for strategy in ("sccc", "saaas"):
        untold(LLAMA[strategy, "graph"], tmp_path / strategy)
    for base, current in (("sccc", "saaas"), ("saaas", "sccc")):
        result = check(tmp_path / current, "--budget", based(tmp_path, base, 0.001, 1))
        assert result.exit_code == 0, result.output
        words = " ".join(result.stdout.split())
        assert (words.count("inconclusive"), "✗" in words, "✓" in words) == (2, False, False)


def test_the_path_of_the_base_is_relative_to_the_budget(tmp_path):
    (tmp_path / "main").symlink_to(SAAAS)
    assert check(SAAAS, "--budget", based(tmp_path, "main", 0.01, 10)).exit_code == 0


def test_junit_and_annotations(tmp_path):
    """JSON and text of this check are golden answers."""
    target = file(tmp_path, "is replaced", "check.xml")
    assert check(SCCC, "--budget", BUDGET, "--junit", target).exit_code == 1
    (suite,) = ElementTree.parse(target).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("9", "6")
    failures = {case.get("name"): case.find("failure") for case in suite}
    assert failures["copies"] is None
    assert "found 14, allowed 5, 9 too many; first surplus call: cudaStream" in str(failures["syncs"].get("message"))
    annotations = [line for line in check(SCCC, "--budget", BUDGET, "--github").stdout.splitlines() if line[:2] == "::"]
    assert len(annotations) == 7  # one is inconclusive
    assert annotations[0].startswith(f"::error file={BUDGET},title=token budget%3A syncs::syncs: found 14, allowed 5")


def test_what_is_not_shown_is_a_warning_and_no_failure(tmp_path):
    """At node level tracing stretches the kernels: the untraced gap is at least what is left."""
    given = file(tmp_path, "gap_us.untraced.p50.max = 70")
    result = check(LLAMA["sccc", "node"], "--budget", given, "--junit", tmp_path / "x.xml", "--github")
    assert result.exit_code == 0
    assert f"::warning file={given},title=token budget%3A gap_us.untraced.p50::" in result.stdout
    (suite,) = ElementTree.parse(tmp_path / "x.xml").getroot()
    assert (suite.get("failures"), "inconclusive" in str(suite[0].findtext("system-out"))) == ("0", True)


@given(st.text(), st.text(alphabet="a%:,\r\n:"), st.text())
def test_annotations_and_junit_hold_any_text(within, file_name, found):
    """Nothing in a recording or a path can begin a line, end a property or break the XML."""
    finding = Finding(Line(Scope(within), "signature", ("s g",)), found, "broken")
    annotation = verdicts.github(finding, Path(file_name))
    assert len(annotation.splitlines()) == 1
    properties, _, _ = annotation.removeprefix("::error ").partition("::")
    assert [part.partition("=")[0] for part in properties.split(",")] == ["file", "title"]
    file_property = properties.split(",")[0].removeprefix("file=")
    for escape, letter in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        file_property = file_property.replace(escape, letter)
    assert file_property == str(Path(file_name))
    (suite,) = ElementTree.fromstring(verdicts.junit([finding], Path("r"), Path(file_name)))
    assert len(suite) == 1


def test_write_budget_then_check(tmp_path):
    target = tmp_path / "new.toml"
    assert check(SIX, "--range", "run aaag concurrent", "--write-budget", target).exit_code == 0
    assert '[range."run aaag concurrent"]\nsyncs = 1\n' in target.read_text()
    assert check(SIX, "--budget", target, "--steps", "3:9").exit_code == 0
    again = check(SIX, "--range", "run sccc concurrent", "--write-budget", target)
    assert (again.exit_code, "already exists" in again.stderr) == (2, True)
    assert check(SIX, "--range", "run sccc concurrent", "--write-budget", target, "--force").exit_code == 0


def test_bad_input_is_one_line_and_exit_code_2(tmp_path):
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"class = '\xe9'")
    write(loop("sg", 5).trace, tmp_path / "run")

    long = {"BUDGET": str(BUDGET), "SIX": str(SIX), "NINES": "9" * 5000, "DEEP": "[" * 5000}

    def told(text):
        if text.startswith("text:"):
            return file(tmp_path, told(text.removeprefix("text:")), "b.toml")
        text = re.sub("|".join(long), lambda found: long[found[0]], text)
        return tmp_path / text[1:-1] if text[:1] == "{" else text

    for said, arguments in ((told(row["says"]), map(told, row["given"])) for row in TABLES["bad"]):
        result = check(SAAAS, *arguments)
        assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (2, "", 1), said
        assert said in result.stderr
    unknown = check(tmp_path / "run", "--budget", told("text:gap_us.untraced.p50.max = 1"))
    assert "run: the gap without a profiler is unknown; give --untraced-tokens-per-s" in unknown.stderr
