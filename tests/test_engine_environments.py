"""intertoken goes into the environment of an engine: what that pins or has installed, pip leaves as it is.

`engine_pins/` has the requirements (Requires-Dist, without those of extras) of the engines' wheels, and in `installed/`
environments in which these hold. What intertoken adds is taken from the distributions that these tests run on, with
their metadata: no network, and nothing is installed.
"""

import json
import re
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tracer.files.bounded import tomllib

ROOT = Path(__file__).parents[1]
PINS = sorted((ROOT / "tests" / "engine_pins").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BROUGHT = ("torch", "cupy", "triton")  # which an engine has in a build of its own


HEAD = "Metadata-Version: 2.1\nName: {}\nVersion: {}\n"


def required(lines):
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(r.name): r for r in found if r.marker is None or r.marker.evaluate({"extra": ""})}


OURS = required(PROJECT["dependencies"])
EXTRAS = {name: required(r) for name, r in PROJECT["optional-dependencies"].items()}


def test_neither_the_core_nor_cupti_brings_a_build_that_the_engine_has():
    names = OURS.keys() | EXTRAS["cupti"].keys() | EXTRAS["cupti12"].keys()
    assert not [name for name in names if name.startswith(BROUGHT)]


def test_the_lowest_versions_are_those_that_are_tried():
    tried = dict(re.findall(r"^(\S+?)==(\S+)", (ROOT / "constraints-lowest.txt").read_text("utf-8"), re.M))
    for name, requirement in OURS.items():
        if requirement.marker is None:
            (floor,) = [s.version for s in requirement.specifier if s.operator == ">="]
            assert tried[name].startswith(floor.removesuffix(".0")), name


def requires(lines, extra=""):
    return "".join(f"Requires-Dist: {line}{extra}\n" for line in lines)


def write_wheel(folder, name, version, metadata):
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


def needed(lines):
    """The distributions of these tests that these requirements lead to."""
    found, ahead = {}, [Requirement(line) for line in lines]
    while ahead:
        requirement = ahead.pop()
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        if name in found or not (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # of another platform, or CUPTI
            continue
        for each in map(Requirement, found[name].requires or ()):
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras):
                each.marker = None
                ahead.append(each)
    return found


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """A folder with wheels, which hold nothing but metadata, of all that intertoken needs."""
    folder = tmp_path_factory.mktemp("index")
    extras = PROJECT["optional-dependencies"]
    for name, each in needed([*PROJECT["dependencies"], *extras["perfetto"]]).items():
        write_wheel(folder, name, each.version, each.read_text("METADATA"))
    return folder


def write_metadata(site, versions, engine):
    """As if these distributions were installed: their names and versions, and the requirements of the engine's own."""
    name, _ = engine.stem.rsplit("-", 1)
    own = [line for line in engine.read_text("utf-8").splitlines() if not line.startswith("#")]
    for each, at in versions.items():
        meta = site / f"{each.replace('-', '_')}-{at}.dist-info"
        meta.mkdir()
        (meta / "METADATA").write_text(HEAD.format(each, at) + (requires(own) if each == name else ""), "utf-8")


def environment(folder, engine):
    """An environment in which pip finds an engine; what of each distribution is there, by name."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    lines = (ROOT / "tests/engine_pins/installed" / engine.name).read_text("utf-8").splitlines()
    there = dict(line.split("==") for line in lines if not line.startswith("#"))
    write_metadata(site, there, engine)
    return {canonicalize_name(each): at for each, at in there.items()}, "==".join(engine.stem.rsplit("-", 1))


def install(folder, engine, index, own):
    """What pip would install for intertoken with these requirements."""
    there, pinned = environment(folder / "environment", engine)
    (folder / "own").mkdir()
    extras = "".join(
        f"Provides-Extra: {extra}\n" + requires(PROJECT["optional-dependencies"][extra], f"; extra == '{extra}'")
        for extra in ("cupti", "perfetto")
    )
    write_wheel(folder / "own", "intertoken", "1.0", HEAD.format("intertoken", "1.0") + requires(own) + extras)
    links = ("--no-index", "--find-links", str(index), "--find-links", str(folder / "own"))
    pip = f"-m pip --isolated --disable-pip-version-check --python {folder}/environment install --dry-run"
    command = [sys.executable, *pip.split(), "--report", str(folder / "report.json"), *links, pinned]
    command += ["intertoken[cupti,perfetto]"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return there, done.stderr
    report = json.loads((folder / "report.json").read_text("utf-8"))
    return there, {canonicalize_name(each["metadata"]["name"]) for each in report["install"]}


@pytest.mark.parametrize("engine", PINS, ids=lambda path: path.stem)
def test_pip_changes_nothing_of_an_engine(engine, index, tmp_path):
    there, installed = install(tmp_path, engine, index, PROJECT["dependencies"])
    assert isinstance(installed, set), installed
    assert installed >= {"intertoken", "dash", "plotly", "perfetto"}
    assert installed.isdisjoint(there), sorted(installed & there.keys())


def test_a_requirement_that_would_move_a_pin_is_found(index, tmp_path):
    (engine,) = (path for path in PINS if path.stem.startswith("vllm"))
    _, said = install(tmp_path, engine, index, [*PROJECT["dependencies"], "numba>=0.66"])
    assert isinstance(said, str)
    assert "dependency-conflicts" in said
