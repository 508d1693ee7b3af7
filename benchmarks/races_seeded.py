"""Runs the seeded programs of `races_seeded.cu` under `intertoken races` and counts races found, false and missed.

    nvcc -O2 -std=c++17 -arch=native -o /tmp/races_seeded benchmarks/races_seeded.cu -lcuda
    python benchmarks/races_seeded.py /tmp/races_seeded [--only NAME,...] [--delays 50,200,500] [--jobs 1] [-o FOLDER]

Needs a GPU. Each program runs about eight times; `-o` keeps the facts of each as JSON. The table ends with the counts.
A verdict is right if it is the expected one; a race that only a longer delay would show may be missed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ORDER = ("race", "candidate", "ordered by design", "clean", "not seen")


@dataclass(frozen=True)
class Outcome:
    """What came of one program: the worst verdict of its copies to the device and of its results ("freed" if memory was
    freed in flight and nothing is worse), what the device saw, and how long it took."""

    name: str
    expected: str
    verdict: str
    delay_us: int | None
    wrong: str
    seconds: float
    said: str

    @property
    def mark(self) -> str:
        """right, missed (a race that was not found), false (one that there is not) or other."""
        if self.verdict == self.expected or (self.expected == "missed" and self.verdict == "clean"):
            return "right"
        if self.verdict == "failed":
            return "failed"
        if self.expected in ("race", "missed"):
            return "right" if self.verdict == "race" else "missed"
        return "false" if self.verdict == "race" else "other"


def verdict_of(facts: dict[str, Any]) -> tuple[str, int | None]:
    """The worst verdict, and the delay of a race. Copies to the host count only where they race."""
    sites = [site for site in facts["sites"] if site["verdict"] == "race" or "DtoH" not in site["call"]]
    sites.sort(key=lambda site: _ORDER.index(site["verdict"]))
    if sites and sites[0]["verdict"] == "race":
        return "race", sites[0]["delay_us"]
    if facts["freed"]:
        return "freed", None
    return (sites[0]["verdict"], sites[0]["delay_us"]) if sites else ("not seen", None)


def wrong_of(kept: Path) -> str:
    """What the device saw in the first plain run, the watched one, the last delayed one and the drained one."""
    seen = []
    for purpose in ("plain", "witness", "delay", "drain"):
        outputs = sorted(kept.glob(f"*-{purpose}/output.txt"))
        found = re.findall(r"wrong (\d+) of", outputs[-1].read_text(errors="replace")) if outputs else []
        seen.append("+".join(found) or "–")
    return " ".join(seen)


def judged(program: Path, name: str, expected: str, delays: str, folder: Path | None) -> Outcome:
    """Run one program under `intertoken races`."""
    with tempfile.TemporaryDirectory() as made:
        kept = Path(made) / "kept"
        command = [sys.executable, "-m", "intertoken", "races", "--json", "--delays", delays, "--keep", str(kept), "--"]
        begun = time.monotonic()
        try:
            done = subprocess.run(
                [*command, str(program), name], capture_output=True, text=True, check=False, timeout=300
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Outcome(name, expected, "failed", None, wrong_of(kept), 300, "it did not end")
        seconds = time.monotonic() - begun
        if done.returncode not in (0, 1):
            return Outcome(name, expected, "failed", None, wrong_of(kept), seconds, done.stderr.strip()[-200:])
        if folder is not None:
            (folder / f"{name}.json").write_text(done.stdout)
        verdict, delay = verdict_of(facts := json.loads(done.stdout))
        said = next((site["why"] for site in facts["sites"] if site["verdict"] == verdict), "")
        return Outcome(name, expected, verdict, delay, wrong_of(kept), seconds, said)


def main() -> None:
    """Run the programs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("program", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--delays", default="50,200,500")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", dest="folder", type=Path)
    given = parser.parse_args()
    if given.folder:
        given.folder.mkdir(parents=True, exist_ok=True)
    listed = subprocess.run([given.program, "--list"], capture_output=True, text=True, check=True).stdout.splitlines()
    programs = [(name, expected) for name, _, expected in (line.partition("\t") for line in listed)]
    wanted = set(filter(None, given.only.split(",")))
    programs = [each for each in programs if not wanted or each[0] in wanted]
    with ThreadPoolExecutor(given.jobs) as pool:
        outcomes = pool.map(
            lambda each: judged(given.program.absolute(), each[0], each[1], given.delays, given.folder), programs
        )  # fmt: skip
        print(f"{'program':30} {'expected':18} {'verdict':18} {'µs':>6} {'s':>5}  wrong: plain, witness, delay, drain")
        kept = []
        for each in outcomes:
            kept.append(each)
            delay = "" if each.delay_us is None else str(each.delay_us)
            print(f"{each.name:30} {each.expected:18} {each.verdict:18} {delay:>6} {each.seconds:5.1f}  {each.wrong}")
            if each.mark != "right":
                print(f"    {each.mark}: {each.said}")
            sys.stdout.flush()
    races = [each for each in kept if each.expected in ("race", "missed")]
    print(
        f"found {sum(each.verdict == 'race' for each in races)} of {len(races)} races; "
        f"false {sum(each.mark == 'false' for each in kept)} of {len(kept) - len(races)} others; "
        f"missed {[each.name for each in races if each.verdict != 'race']}; "
        f"other verdict than expected {[each.name for each in kept if each.mark == 'other']}; "
        f"failed {[each.name for each in kept if each.mark == 'failed']}"
    )


if __name__ == "__main__":
    main()
