"""What a file of a budget may say, and what becomes of it in TOML."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.test_budget import budget, loop
from tracer.analysis.budget import Limit, Line, Scope, parse
from tracer.analysis.budget_check import check_lines
from tracer.errors import UsageError


def test_every_kind_of_line_is_read() -> None:
    text = """
    syncs = 2
    copies = {min = 1, max = 7}
    class = ["saaas", "aaas"]
    gap_us.untraced.p50.max = 80
    causes_us.traced."other process/thread".max = 5
    [device.1]
    gap_us.traced.p90.max = 600
    [range."run 1"]
    signature = "s g"
    [range."run 1".device.0]
    causes_us.untraced.sync.min = 1
    [base]
    recording = "main"
    max_slowdown = 0.02
    """
    read = budget(text)
    assert read.lines == (
        Line(Scope(), "syncs", Limit(2, 2)),
        Line(Scope(), "copies", Limit(1, 7)),
        Line(Scope(), "class", ("saaas", "aaas")),
        Line(Scope(), "gap_us.untraced.p50", Limit(most=80)),
        Line(Scope(), "causes_us.traced.other process/thread", Limit(most=5)),
        Line(Scope(device=1), "gap_us.traced.p90", Limit(most=600)),
        Line(Scope("run 1"), "signature", ("s g",)),
        Line(Scope("run 1", 0), "causes_us.untraced.sync", Limit(least=1)),
    )
    assert read.base is not None
    assert (read.base.recording, read.base.max_slowdown, read.base.max_extra_gap_us) == ("main", 0.02, None)
    assert read.signature(Scope("run 1")) == "s g"
    assert read.signature(Scope()) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no limits"),
        ("[range.x]", "contains no limits"),
        ("synks = 1", "unknown key synks; valid keys are syncs, copies"),
        ('"a b" = 1', 'unknown key "a b"'),
        ("gap_us.traced.p75.max = 1", "unknown key gap_us.traced.p75; valid keys are p50, p90, mean"),
        ("gap_us.traced.p50.most = 1", "unknown key gap_us.traced.p50.most; valid keys are min, max"),
        ("gap_us.traced.p50 = 1", "gap_us.traced.p50 is 1; bounds are"),
        ("gap_us = 1", "gap_us is 1; it must contain traced, untraced"),
        ("syncs = -1", "syncs is -1; it must be a number from 0 to 1e[+]18"),
        ("syncs = true", "syncs is True"),
        ("syncs.max = nan", "syncs.max is nan"),
        ("syncs.max = inf", "syncs.max is inf"),
        (f"syncs = 1{'0' * 400}", "syncs is 1000"),
        ("syncs = {}", "syncs is {}"),
        ("syncs = {min = 2, max = 1}", "syncs: min 2 is above max 1"),
        ("class = 1", "class is 1; it must be a string"),
        ("signature = []", r"signature is \[\]"),
        ("range = 1", "range must contain tables"),
        ("[range]\nsyncs = 1", "range must contain tables"),
        ("[range.x]\nbase.recording = 'y'", "unknown key range.x.base"),
        ("[device.x]\ngap_us.traced.p50.max = 1", "device.x: a device is a number"),
        ("[device.0]\nsyncs = 1", "unknown key device.0.syncs; valid keys are gap_us, causes_us"),
        ("base = 'x'", "base must be a table"),
        ("[base]\nmax_slowdown = 0.1", "base must be a table"),
        ("[base]\nrecording = 'x'", "base sets neither max_slowdown"),
        ("[base]\nrecording = 'x'\nslowdown = 1", "unknown key base.slowdown"),
    ],
)
def test_what_makes_no_sense_is_named_with_the_file(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^b.toml: {message}"):
        budget(text)


def test_a_cause_that_there_is_not_is_named_with_the_file() -> None:
    with pytest.raises(
        UsageError, match=r"^b.toml: unknown cause causes_us.traced.coffee; it may be communication, sync, "
    ):
        check_lines(loop("sg").trace, budget("causes_us.traced.coffee.max = 1"))


KEYS = [
    "syncs", "class", "gap_us", "traced", "p50", "max", "min", "range", "device", "0", "base", "recording", "a\nb",
]  # fmt: skip
leaves = st.one_of(st.integers(), st.floats(), st.booleans(), st.text(), st.dates(), st.lists(st.text(), max_size=2))
tables = st.recursive(leaves, lambda inner: st.dictionaries(st.sampled_from(KEYS), inner), max_leaves=12)


@given(st.dictionaries(st.sampled_from(KEYS), tables))
def test_any_table_is_a_budget_or_one_line(table: dict[str, Any]) -> None:
    try:
        found = parse(table, "b.toml")
    except UsageError as problem:
        said = str(problem)
    else:
        assert found.lines or found.base
        return
    assert said.startswith("b.toml: ")
    assert len(said.splitlines()) == 1
