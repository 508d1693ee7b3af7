"""Host time per call of the light recorder's library, measured with a driver that does almost nothing.

The same program makes the calls with and without the library, in turn; the minimum over the rounds counts. The ring
is in memory and the share of samples is the default, as in a recording. Stamps are kernel launches. With a real driver
they cost as much as a launch, which these figures do not include.

Usage: python benchmarks/light_calls.py [-o FILE] [--rounds N]
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

from tests.tracer.fake_driver import Build
from tracer.recorders import light_folder


def measured(built: Build, rings: Path, *, recorded: bool) -> dict[str, float]:
    """Return ns per call of each kind."""
    environment = built.environment(FAKE_IDLE="1", INTERTOKEN_LIGHT=str(rings))
    del environment["INTERTOKEN_LIGHT_RECORDS"], environment["INTERTOKEN_LIGHT_BUDGET"]
    if not recorded:
        del environment["LD_PRELOAD"]
    done = subprocess.run([built.folder / "costs"], env=environment, capture_output=True, text=True, check=True)
    for ring in rings.glob("*.ring"):
        ring.unlink()
    return {kind: float(ns) for kind, ns in (line.split() for line in done.stdout.splitlines())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, light_folder.folder() as rings:
        built = Build.into(Path(folder))
        rounds = [[measured(built, rings, recorded=which) for which in (False, True)] for _ in range(options.rounds)]
    least = [{kind: min(each[which][kind] for each in rounds) for kind in rounds[0][0]} for which in (0, 1)]
    costs = {kind: round(least[1][kind] - least[0][kind], 1) for kind in least[0]}
    for kind, ns in costs.items():
        print(f"{kind}: {ns} ns more than {least[0][kind]} ns")
    if options.output:
        facts = {"date": datetime.date.today().isoformat(), **machine(), "ns_per_call": costs}
        options.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
