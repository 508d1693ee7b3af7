"""Host time per call of the light recorder's library, measured with a driver that does almost nothing.

The same program makes the calls with and without the library, in turn; the minimum over the rounds counts. The ring
is in memory and the share of samples is the default, as in a recording. Stamps are kernel launches. With a real driver
they cost as much as a launch, which these figures do not include.

With --against, the library of another version takes part in each round, compiled from its sources (a folder like
`tracer/recorders/native`), and the ratio of the costs is printed.

Usage: python benchmarks/light_calls.py [-o FILE] [--rounds N] [--against SOURCES]
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from read_nsys_sqlite import machine

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.tracer.fake_driver import Build, compiler_or_skip
from tracer.recorders import light_ring
from tracer.recorders.native import FLAGS


def measured(built: Build, rings: Path, library: str) -> dict[str, float]:
    """Return ns per call of each kind, with this library of the build's folder, or none."""
    environment = built.environment(FAKE_IDLE="1", INTERTOKEN_LIGHT=str(rings))
    del environment["INTERTOKEN_LIGHT_RECORDS"], environment["INTERTOKEN_LIGHT_BUDGET"]
    environment["LD_PRELOAD"] = str(built.folder / library) if library else ""
    done = subprocess.run([built.folder / "costs"], env=environment, capture_output=True, text=True, check=True)
    for left in rings.iterdir():
        if ".ring" in left.name:
            left.unlink()
    return {kind: float(ns) for kind, ns in (line.split() for line in done.stdout.splitlines())}


def compiled(sources: Path, target: Path) -> None:
    command = [compiler_or_skip(), *FLAGS, "-o", target, *sorted(sources.glob("*.c")), "-ldl"]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, light_ring.folder() as rings:
        built = Build.into(Path(folder))
        libraries = ["", "light.so"]
        if options.against:
            compiled(options.against, built.folder / "other.so")
            libraries.append("other.so")
        rounds = [[measured(built, rings, each) for each in libraries] for _ in range(options.rounds)]
    least = [
        {kind: min(each[which][kind] for each in rounds) for kind in rounds[0][0]} for which in range(len(libraries))
    ]
    costs, *others = ({kind: round(each[kind] - least[0][kind], 1) for kind in each} for each in least[1:])
    for kind, ns in costs.items():
        more = f", {others[0][kind]} ns with the other version" if others else ""
        print(f"{kind}: {ns} ns more than {least[0][kind]} ns{more}")
    if options.output:
        facts = {"date": datetime.date.today().isoformat(), **machine(), "ns_per_call": costs}
        if others:
            facts["ns_per_call_of_other_version"] = others[0]
        options.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
