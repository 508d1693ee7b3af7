"""A campaign: whole processes of several variants in turns, and what differs between them.

Each variant runs once plainly, which tells what recording costs. Then all run round by round under the light recorder,
if that records anything of them, until the sequential test tells each from the base.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import expm1
from pathlib import Path
from statistics import fmean
from typing import Final

from tracer.analysis.compare import Comparison, compare
from tracer.analysis.interval import Interval
from tracer.analysis.sides import Side
from tracer.errors import ProgramError, RecordError, TraceError, UsageError
from tracer.experiments.printed import Form
from tracer.experiments.programs import RECORDED_STEPS, RECORDED_TOKENS, WHOLE_RUNS, Run, Variant, run
from tracer.experiments.turns import Rate, Turns, Until
from tracer.recorders import light

PLAIN: Final = "plain"
TRIAL: Final = "trial"
"""Names of what runs before the first round."""


@dataclass(eq=False)
class Campaign:
    """The runs of a campaign so far.

    Attributes:
        variants: the first is the base.
        turns: the rates by round, and the verdicts.
        folder: for the outputs of the programs, and with `keep` for their recordings.
        form: of the printed rate; None for those that are known.
        unit: what the rates count; "" until it is known, which needs the runs before the first round.
        plain: variant -> its run without the recorder.
        runs: variant -> its runs, by round.
        is_recorded: whether rounds run under the recorder; `why` not, or why figures are missing.
        tell: called with a line on each round.
    """

    variants: Sequence[Variant]
    turns: Turns
    folder: Path
    form: Form | None = None
    keep: bool = False
    is_recorded: bool = True
    unit: str = ""
    plain: dict[str, Run] = field(default_factory=dict)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    why: str = ""
    tell: Callable[[str], None] = lambda _: None

    @classmethod
    def of(cls, variants: Sequence[Variant], until: Until, folder: Path, *, seed: int = 0) -> Campaign:
        """A campaign that has not begun. Raises UsageError if two variants have the same name."""
        names = [variant.name for variant in variants]
        if len(set(names)) < len(names):
            raise UsageError(f"variants need different names: {', '.join(names)}")
        return cls(variants, Turns(names, until, seed), folder, runs={name: [] for name in names})

    def run(self) -> None:
        """Run all of it.

        Raises:
            ProgramError: a variant fails, or prints no rate where it did before; what ran until then is kept.
            RecordError: a variant cannot be started.
        """
        named = {variant.name: variant for variant in self.variants}
        if not self.unit:
            self._begin()
        self.turns.take(lambda name, number: self._measure(named[name], number), self._end_round)

    def _begin(self) -> None:
        """The plain round, and what the rates count."""
        if self.is_recorded:
            try:
                light.library()
            except RecordError as problem:
                self.is_recorded, self.why = False, str(problem)
        self.tell("a plain run of each")
        for variant in self.variants:
            self.plain[variant.name] = self._once(variant, PLAIN, recorded=False)
        self.unit = self._printed_unit()
        if self.unit:
            return
        if self.form is not None:
            silent = next(name for name, one in self.plain.items() if one.printed is None)
            words = f"{silent}: --rate {self.form.rate.pattern} matches no number in what it printed"
            raise ProgramError(words, silent)
        self.unit = WHOLE_RUNS
        if not self.is_recorded:
            return
        self.tell("no rate is printed: a recorded run of each")
        trials = [self._once(variant, TRIAL, recorded=True) for variant in self.variants]
        for unit in (RECORDED_TOKENS, RECORDED_STEPS):
            if self.unit == WHOLE_RUNS and all(unit in trial.recorded for trial in trials):
                self.unit = unit
        self._look(trials)

    def _printed_unit(self) -> str:
        units = {one.printed.unit if one.printed else "" for one in self.plain.values()}
        return units.pop() if len(units) == 1 else ""

    def _look(self, runs: Sequence[Run]) -> None:
        """Record no further if nothing comes of it."""
        missing = next((one.why for one in runs if one.why), "")
        if self.is_recorded and not any(one.figures for one in runs):
            self.is_recorded = False
        self.why = self.why or missing

    def _measure(self, variant: Variant, number: int) -> Rate:
        one = self._once(variant, f"round {number}", recorded=self.is_recorded)
        rate = one.rate(self.unit)
        if rate is None:
            words = f"{variant.name} has no rate in {self.unit} in round {number}, as it had before"
            raise ProgramError(words, variant.name)
        self.runs[variant.name].append(one)
        return rate

    def _end_round(self, number: int) -> None:
        each = [(name, runs[-1]) for name, runs in self.runs.items() if len(runs) == number]
        if number == 1:
            self._look([one for _, one in each])
        rates = [f"{name} {rate.per_s:,.5g}" for name, one in each if (rate := one.rate(self.unit))]
        self.tell(f"round {number}: {', '.join(rates)} {self.unit}")

    def _once(self, variant: Variant, when: str, *, recorded: bool) -> Run:
        place = self.folder / when.replace(" ", "-") / str(self.turns.names.index(variant.name) + 1)
        try:
            return run(variant, place, recorded=recorded, form=self.form, keep=self.keep)
        except ProgramError as problem:
            raise ProgramError(f"{problem} ({when})", problem.whose, problem.code) from None

    # --- what came of it ---

    @property
    def rounds(self) -> int:
        """The number of complete rounds."""
        open_ = [name for name in self.turns.others if name not in self.turns.verdicts]
        return min(len(self.runs[name]) for name in (self.turns.base, *open_))

    def mean(self, name: str, figure: str) -> float | None:
        """The mean of a figure of `FIGURES` over the rounds; None if a round lacks it."""
        values = [one.figures.get(figure) for one in self.runs[name]]
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None

    def change(self, name: str, figure: str) -> Interval | None:
        """The difference of a figure from the base's, round by round; None if one of them lacks it."""
        if self.mean(name, figure) is None or self.mean(self.turns.base, figure) is None:
            return None
        pairs = zip(self.runs[name], self.runs[self.turns.base], strict=False)
        units = [one.figures[figure] - base.figures[figure] for one, base in pairs]
        return self.turns.of_units(units) if units else None

    @property
    def cost(self) -> float | None:
        """What the recorder adds to the time of a unit of work, by the printed rates: a share, from one plain run of
        each variant; None if nothing was recorded, or no rate is printed."""
        recorded = {name: [one.rate(self.unit) for one in runs] for name, runs in self.runs.items()}
        if not self.is_recorded or self._printed_unit() != self.unit or not all(recorded.values()):
            return None
        plain = fmean(rate.log for one in self.plain.values() if (rate := one.rate(self.unit)))
        return expm1(plain - fmean(fmean(rate.log for rate in rates if rate) for rates in recorded.values()))

    @property
    def built(self) -> str:
        """What the program says of its version; "" if it does not."""
        builds = dict.fromkeys(one.printed.build for one in self.plain.values() if one.printed and one.printed.build)
        return ", ".join(builds)

    def compared(self, name: str) -> Comparison | None:
        """What changed in a step, by the recordings of a variant that is decided; None if they do not tell."""
        return compared(self.runs[self.turns.base], self.runs[name])


def compared(base: Sequence[Run], other: Sequence[Run]) -> Comparison | None:
    """The comparison of the recordings of two variants; None if a run has none, or they are not comparable."""
    sides = [[one.measured for one in runs if one.measured is not None] for runs in (base, other)]
    if not all(sides):
        return None
    try:
        return compare(*(Side.of(*recordings) for recordings in sides))
    except (TraceError, UsageError):
        return None
