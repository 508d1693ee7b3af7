"""Strategies and signatures of call sequences, and hosts that wait without a call; other truths are in data/truths."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.handmade import Script, decode_loop
from tests.tracer.truths import DATA
from tracer import analyse
from tracer.analysis.syncs import compress, expand, strategies_followed
from tracer.files.bounded import tomllib


def test_class_signature_and_counts() -> None:
    told_of = tomllib.loads((DATA.parent / "letters.toml").read_text(encoding="utf-8"))["letters"]
    for letters, expected in told_of.items():
        script = decode_loop(letters, 8)
        for token in range(8):
            script.range("token", token * 1000, token * 1000 + 900)
        found = analyse(script.trace).syncs
        told = [found.strategy, found.signature, found.syncs_per_token, found.copies_per_token]
        assert told == expected, letters
        assert found.signature_share == 1.0


@given(st.text(alphabet="sackgewq", max_size=120))
def test_compressing_loses_nothing(letters: str) -> None:
    assert expand(compress(letters)) == letters


def test_graph_launches_and_runs_of_kernel_launches_are_told_apart() -> None:
    assert compress("gkkkag" + "k" * 19) == "g k×3 a g k×19"
    assert compress("akk" * 3 + "g") == "(a k×2)×3 g"


@given(st.text(alphabet="sacgk", max_size=60))
def test_every_copy_before_a_launch_follows_exactly_one_strategy(letters: str) -> None:
    before = letters[: max(letters.rfind("g"), letters.rfind("k")) + 1]
    assert sum(strategies_followed(letters).values()) == before.count("a") + before.count("c")


def told(order, position, **more):
    return {"what": "sync", "position": position, "order": order, "between": ["a", "b"], "instead": ""} | more


@pytest.mark.parametrize(
    ("waits", "known"),
    [([told("needed", 1), told("redundant", 2, between=[], instead="sync 1")], ["needed", "redundant", ""]),
     ([told("needed", 1)], ["", "", ""]), ([told("needed", 1), told("needed", 2, what="poll")], ["", "", ""]),
     ([told("needed", 1), told("wanted", 2)], ["", "", ""]), ([told("needed", 0), told("needed", 2)], ["", "", ""]),
     ([told("needed", 1, between=["a"] * 3), told("needed", 2)], ["", "", ""]), ("needed", ["", "", ""]),
     (None, ["", "", ""])],
)  # fmt: skip
def test_what_waits_order_is_told_if_it_is_of_these_waits(waits, known):
    """Nothing if steps have other waits than run.json, or if that cannot be read; nothing of a wait of few steps."""
    script = decode_loop("sgs", 8)
    for token in range(8):
        script.range("token", token * 1000, token * 1000 + 900)
    script.sync(7800, 7810)
    trace = script.trace
    trace.metadata["run"] = {"waits": waits}
    inventory = analyse(trace).syncs.inventory()
    assert inventory.steps.tolist() == [8, 8, 1]
    assert inventory.order.tolist() == known
    assert inventory.between.tolist() == ["a and b" if any(known) else "", "", ""]
    assert inventory.instead.tolist() == ["", "sync 1" if any(known) else "", ""]


@pytest.mark.parametrize(("waits", "how"), [(True, "no CUDA call"), (False, None)])
def test_a_host_that_waits_without_a_call_is_later_where_its_device_is(waits, how):
    """Otherwise its own code takes as long however long the device does."""
    script, at, draw = Script(), 0, Random(3)
    for _ in range(40):
        took = 700 + draw.randrange(200)
        script.range("token", at, at + 15)
        script.launch((at, at + 10), (at + 15, at + took))
        at += took + 30 + draw.randrange(5) if waits else 1000 + draw.randrange(40)
    report = analyse(script.trace).syncs
    assert (report.waits_elsewhere and report.waits_elsewhere.how) == how
    assert report.strategy == ("none" if waits else "ggg")
