"""intertoken goes into the environment of an engine: what that pins, pip leaves as it is.

`engine_pins/` has the requirements (Requires-Dist, without those of extras) of the engines' wheels.
"""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tracer.files.bounded import tomllib

ROOT = Path(__file__).parents[1]
PINS = sorted((ROOT / "tests" / "engine_pins").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NEWEST = Version("9999")
BROUGHT = ("torch", "cupy", "triton")  # which an engine has in a build of its own


def required(lines):
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(r.name): r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})}


OURS = required(PROJECT["dependencies"])
EXTRAS = {name: required(r) for name, r in PROJECT["optional-dependencies"].items()}


def refused(ours, theirs):
    """What an engine asks for that ours does not go with, by name."""
    found = []
    for name in sorted(ours.keys() & theirs.keys()):
        bounds = {Version(s.version.removesuffix(".*")) for r in (ours[name], theirs[name]) for s in r.specifier}
        bounds.add(NEWEST)
        pinned = {Version(s.version) for s in theirs[name].specifier if s.operator == "=="}
        if not any(v in ours[name].specifier and v in theirs[name].specifier for v in pinned or bounds):
            found.append(f"{ours[name]} / {theirs[name]}")
    return found


@pytest.mark.parametrize("path", PINS, ids=lambda path: path.stem)
def test_nothing_that_an_engine_pins_would_change(path):
    theirs = required(path.read_text(encoding="utf-8").splitlines())
    assert len(theirs) > 50
    assert len(OURS.keys() & theirs.keys()) >= 4
    for ours in (OURS, EXTRAS["cupti"], EXTRAS["perfetto"]):
        assert refused(ours, theirs) == []


def test_requirements_that_would_move_a_pin_are_found():
    theirs = required(["numba==0.65.0", "pandas<3", "rich>=13"])
    assert refused(required(["numba>=0.66", "pandas>=3.0", "rich>=14"]), theirs) == [
        "numba>=0.66 / numba==0.65.0", "pandas>=3.0 / pandas<3",
    ]  # fmt: skip


def test_neither_the_core_nor_cupti_brings_a_build_that_the_engine_has():
    names = OURS.keys() | EXTRAS["cupti"].keys() | EXTRAS["cupti12"].keys()
    assert not [name for name in names if name.startswith(BROUGHT)]


def test_the_lowest_versions_are_those_that_are_tried():
    tried = dict(re.findall(r"^(\S+?)==(\S+)", (ROOT / "constraints-lowest.txt").read_text("utf-8"), re.M))
    for name, requirement in OURS.items():
        if requirement.marker is None:
            (floor,) = [s.version for s in requirement.specifier if s.operator == ">="]
            assert tried[name].startswith(floor.removesuffix(".0")), name
