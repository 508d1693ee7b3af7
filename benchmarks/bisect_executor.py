"""`intertoken bisect` on our own executor: a history of copies of it, of which one does more in each step.

The copies are commits of a git repository in a temporary folder. All but one change a comment; from that one on, the
scheduler works for some microseconds before it submits a step. The program prints the steps of a second of CPU time, so
that it can be measured on a machine that others use. No GPU is needed.

Usage: python benchmarks/bisect_executor.py [--commits N] [--work US] [-o FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ab_campaigns import kept

ROOT = Path(__file__).parents[1]
PACKAGES = ("executor", "intertoken", "tracer", "dashboard")
CHANGED = Path("executor/scheduling/scheduler.py")
SLOWER = """
_submit = Scheduler.submit


def _work_and_submit(self):
    end = time.perf_counter() + {seconds}
    while time.perf_counter() < end:
        pass
    _submit(self)


Scheduler.submit = _work_and_submit
"""
DECODE = """import time

from executor.run.configuration import Configuration
from executor.run.light_pass import record_light

TOKENS, REPEATS = 100, 4


def decode(tokens):
    begin = time.process_time()
    record_light([Configuration(strategy="aaag", tokens=tokens, repeats=REPEATS, context=1024)])
    return time.process_time() - begin


decode(8)
print("steps per CPU second:", round(TOKENS * REPEATS / decode(TOKENS), 2))
"""
RATE = r"steps per CPU second: ([\d.]+)"


def git(repository: Path, *arguments: str) -> None:
    who = ("-c", "user.name=N", "-c", "user.email=n@example.org")
    subprocess.run(["git", "-C", str(repository), *who, *arguments], check=True)


def plant(repository: Path, commits: int, first: int, work_us: float) -> None:
    """A history of `commits` after its first one; from number `first` on a step does more."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, repository / package, ignore=shutil.ignore_patterns("__pycache__"))
    (repository / ".gitignore").write_text("__pycache__\n", encoding="utf-8")
    (repository / "decode.py").write_text(DECODE, encoding="utf-8")
    text = (repository / CHANGED).read_text(encoding="utf-8").replace("\nimport ", "\nimport time\nimport ", 1)
    git(repository, "init", "--quiet", "--initial-branch=main")
    for number in range(commits + 1):
        more = SLOWER.format(seconds=work_us / 1e6) if number >= first else ""
        (repository / CHANGED).write_text(f"{text}{more}\n# {number}\n", encoding="utf-8")
        git(repository, "add", "--all")
        git(repository, "commit", "--quiet", "-m", f"Change {number}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=64)
    parser.add_argument("--work", type=float, default=150.0, metavar="US", help="that is planted in each step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    first = random.Random(arguments.seed).randint(1, arguments.commits)
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder) / "repository"
        repository.mkdir()
        plant(repository, arguments.commits, first, arguments.work)
        command = [
            "-m",
            "intertoken",
            "bisect",
            "--repository",
            str(repository),
            "--json",
            "--no-recorder",
            "--rate",
            RATE,
        ]
        command += ["--good", f"HEAD~{arguments.commits}", "--", sys.executable, "decode.py"]
        begin = time.perf_counter()
        done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
        seconds = time.perf_counter() - begin
    found = json.loads(done.stdout)
    named = [one["title"] for one in found["candidates"]]
    rate = next(one["rate"] for one in found["tried"] if one["title"] == named[-1])
    told = {
        "commits": arguments.commits, "work_us": arguments.work, "planted": f"Change {first}", "named": named,
        "rate": rate, "builds": found["builds"] - 1, "runs": found["runs"], "seconds": round(seconds),
    }  # fmt: skip
    print(json.dumps(told, indent=1, ensure_ascii=False))
    if arguments.output:
        arguments.output.write_text(json.dumps(kept("bisect_executor", told), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
