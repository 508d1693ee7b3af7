"""Names of kernels that communicate, and of kernels that only look like it."""

import json

from tests.tracer.handmade import Script
from tests.tracer.nsys_exports import DATA
from tracer.model.collectives import collectives, computes, is_collective

NAMES = json.loads((DATA / "names.json").read_text(encoding="utf-8"))


def test_what_communicates_and_what_computes() -> None:
    assert [name for name in NAMES["kernels that communicate"] if not is_collective(name)] == []
    assert [name for name in (*NAMES["kernels that compute"], "<" * 100_000, "") if is_collective(name)] == []


def test_a_short_name_that_says_nothing_is_known_by_the_full_one() -> None:
    script = Script()
    script.launch((0, 10), (20, 30))
    script.launch((10, 20), (30, 40))
    trace = script.trace
    names = trace["kernels"]["name"].cat.rename_categories({"k": "void deep_ep::intranode::dispatch<8>(int4*)"})
    trace.tables["kernels"] = trace["kernels"].assign(name=names)
    assert collectives(trace["kernels"]).all()
    assert not computes(trace.activities().frame()).any()
