"""Install a wheel of intertoken into many environments, and run its commands there: what pip changed, and what ran.

Environments: each Python with the lowest versions that pyproject.toml allows (and that have wheels for it) and with the
newest ones; and each Python with what `tests/engine_pins/installed` lists for vLLM and SGLang. Of an engine only the
distributions that intertoken needs, and theirs, are installed; the others, such as torch, are there by name and version
alone, with the engine's own requirements.

Needs `uv` on PATH and the network. Build the wheel first: python -m build --wheel. Rows that FILE already has are kept,
so that an interrupted run can be continued.
Usage: python benchmarks/install_matrix.py dist/*.whl [--json FILE] PYTHON ...
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from read_nsys_sqlite import machine

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.test_engine_environments import PINS, PROJECT, needed, write_metadata  # noqa: E402

SHOWN = ("intertoken", "numpy", "pandas", "pyarrow", "click", "rich", "scipy", "numba", "plotly", "dash", "protobuf")
"""The distributions whose versions are in the table."""
COMPILED = ("llvmlite", "msgspec", "numba", "numpy", "pandas", "pyarrow", "pydantic-core", "scipy")
COMMANDS = (
    "--version",
    *(f"{name} base --json" for name in ("info", "tokens", "syncs", "gaps", "streams", "path", "advise")),
    "whatif base --without-syncs --json",
    "compare base other --json",
    "check base --write-budget budget.toml",
    "check base --budget budget.toml",
    "convert base base.sqlite",
    "gaps base.sqlite --json",
    "scrub base.sqlite scrubbed.json.gz",
    "syncs scrubbed.json.gz --json",
    "report base other -o report.html",
    "run --backend cpu --model tiny --sync sccc,ggg --tokens 4 --repeats 1 -o runs",
    "gaps runs/tiny-sccc-sequential --json",
)
WITH_EXTRAS = ("convert base base.pftrace",)


class Environment:
    """A virtual environment in a directory."""

    def __init__(self, directory: Path, python: str) -> None:
        self.bin = directory / "bin"
        done("uv", "venv", "--quiet", "--python", python, str(directory))
        (self.site,) = directory.glob("lib/python3*/site-packages")

    def install(self, *arguments: str) -> None:
        """Install with uv; what is compiled comes as a wheel."""
        wheels = (part for name in COMPILED for part in ("--only-binary", name))
        done("uv", "pip", "install", "--quiet", "--python", str(self.bin / "python"), *wheels, *arguments)

    def pip(self, *arguments: str) -> str:
        """The output of pip in this environment."""
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self.bin / "python"))
        return done(*pip, *arguments)

    def versions(self) -> dict[str, str]:
        """Distribution -> version."""
        installed = json.loads(self.pip("list", "--format", "json"))
        return {canonicalize_name(each["name"]): each["version"] for each in installed}

    def failures(self, commands: tuple[str, ...]) -> list[str]:
        """The commands that do not end with exit code 0, each with the last line that it printed."""
        found = []
        with tempfile.TemporaryDirectory() as folder:
            for name, sample in (("base", "llama1b-sccc-graph"), ("other", "llama1b-saaas-graph")):
                shutil.copytree(ROOT / "sample_traces" / sample, Path(folder, name))
            environment = {**os.environ, "INTERTOKEN_CACHE": "off"}
            environment.pop("PYTHONPATH", None)
            for command in commands:
                program = [str(self.bin / "intertoken"), *command.split()]
                ended = subprocess.run(
                    program, cwd=folder, env=environment, capture_output=True, text=True, check=False
                )
                if ended.returncode:
                    found.append(f"{command}: {(ended.stderr or ended.stdout).strip().splitlines()[-1]}")
        return found


def done(*program: str) -> str:
    """The output of a program that must succeed."""
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(program)}\n{ended.stderr}")
    return ended.stdout


def alone(directory: Path, python: str, wheel: Path, resolution: str) -> dict[str, Any]:
    """An environment with nothing but intertoken."""
    environment = Environment(directory, python)
    # named here, so that "lowest-direct" means these too
    environment.install("--resolution", resolution, str(wheel), *PROJECT["dependencies"])
    failed = environment.failures(COMMANDS)
    return {"versions": environment.versions(), "changed": [], "commands": len(COMMANDS), "failed": failed}


def beside(directory: Path, python: str, wheel: Path, engine: Path) -> dict[str, Any]:
    """An environment of an engine."""
    environment = Environment(directory, python)
    lines = (ROOT / "tests/engine_pins/installed" / engine.name).read_text("utf-8").splitlines()
    there = dict(line.split("==") for line in lines if not line.startswith("#"))
    ours = needed([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["perfetto"]])
    real = [f"{name}=={at}" for name, at in there.items() if canonicalize_name(name) in ours]
    pins = directory / "pins.txt"
    pins.write_text("\n".join(lines) + "\n", "utf-8")
    environment.install("--constraint", str(pins), *real)
    installed = environment.versions()
    others = {name: at for name, at in there.items() if canonicalize_name(name) not in installed}
    write_metadata(environment.site, others, engine)
    before = environment.versions()
    environment.pip("install", "--quiet", f"{wheel}[cupti,perfetto]")
    after = environment.versions()
    changed = [f"{name} {at} → {after.get(name, 'gone')}" for name, at in before.items() if after.get(name) != at]
    failed = environment.failures(COMMANDS + WITH_EXTRAS)
    facts = {"there": len(before), "real": len(installed), "added": len(after) - len(before), "changed": changed}
    return {"versions": after, "commands": len(COMMANDS + WITH_EXTRAS), "failed": failed, **facts}


def rows(wheel: Path, pythons: list[str], known: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row per environment that has none in `known`; each is deleted after it was tried."""
    tried = {(row["python"], row["environment"]) for row in known}
    for python in pythons:
        version = done(python, "-c", "import platform; print(platform.python_version())").strip()
        ways: dict[str, Any] = {"lowest": "lowest-direct", "newest": "highest"}
        if version.split(".")[:2] >= ["3", "11"]:  # what the engines pin has no wheels for 3.10
            ways |= {engine.stem: engine for engine in PINS}
        for name, way in ways.items():
            if (version, name) in tried:
                continue
            with tempfile.TemporaryDirectory() as folder:
                install = alone if isinstance(way, str) else beside
                found = install(Path(folder, "environment"), python, wheel, way)
            found["versions"] = {each: found["versions"][each] for each in SHOWN if each in found["versions"]}
            yield {"python": version, "environment": name, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("pythons", nargs="+")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = json.loads(options.json.read_text("utf-8"))["rows"] if options.json and options.json.exists() else []
    for row in rows(options.wheel.absolute(), options.pythons, found):
        ran = f"{row['commands'] - len(row['failed'])} of {row['commands']} commands"
        print(f"{row['python']:8}{row['environment']:16}{ran:20}pip changed: {', '.join(row['changed']) or 'nothing'}")
        print(*(f"    {line}" for line in row["failed"]), sep="\n", end="\n" if row["failed"] else "", flush=True)
        found.append(row)
        if options.json:
            facts = {"machine": machine(), "date": datetime.date.today().isoformat(), "rows": found}
            options.json.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
