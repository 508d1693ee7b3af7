"""Draw recordings of engines and count what is right: `python -m tests.engines [KIND…] [--draws N] [--seed S]`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable

from tests.engines.judged import RIGHT, VERDICTS, WRONG, Judged, judge
from tests.engines.kinds import KINDS, seeded

DRAWS, UNSURE = "draws", "right but unsure"
COLUMNS = (VERDICTS[0], UNSURE, *VERDICTS[1:])


def judged(kind: str, seed: int) -> tuple[Judged, dict[str, object]]:
    """The verdict on one draw, and its parameters."""
    drawn = seeded(kind, seed)
    return judge(*KINDS[kind](drawn)), drawn.parameters


def main() -> None:
    """Print a table, a row a kind, and the first confident wrong answer of each, or the first of another verdict."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--draws", type=int, default=10, help="of each kind")
    parser.add_argument("--show", choices=VERDICTS, default=WRONG, help="tell the first answer of this verdict")
    parser.add_argument("--seed", type=int, help="only this draw, told in full")
    asked = parser.parse_args()
    if unknown := [name for name in asked.kinds if name not in KINDS]:
        parser.error(f"no kind {unknown[0]}: there are {', '.join(KINDS)}")
    total: Counter[str] = Counter()
    print(_row("kind", "draws", COLUMNS))
    for kind in asked.kinds or KINDS:
        count: Counter[str] = Counter()
        first = ""
        for seed in range(asked.draws) if asked.seed is None else [asked.seed]:
            found, parameters = judged(kind, seed)
            count[found.verdict] += 1
            count[DRAWS] += 1
            count[UNSURE] += found.verdict == RIGHT and any(doubt.startswith("confidence") for doubt in found.doubts)
            if asked.seed is not None or (found.verdict == asked.show and not first):
                doubts = f"\n    doubts: {'; '.join(found.doubts)}" * bool(found.doubts)
                first = f"  seed {seed}: {found.wrong}\n    said: {found.said}{doubts}\n    {parameters}"
        print(_row(kind, count[DRAWS], [count[column] for column in COLUMNS]), flush=True)
        if first:
            print(first)
        total += count
    print(_row("all", total[DRAWS], [total[column] for column in COLUMNS]))


def _row(kind: str, draws: object, cells: Iterable[object]) -> str:
    return f"{kind:32}{draws:>6}" + "".join(f"{cell:>17}" for cell in cells)


if __name__ == "__main__":
    main()
