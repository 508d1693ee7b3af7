"""Records a command at one or several levels of detail, each in a separate run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from tracer import formats, record_pass
from tracer.errors import UsageError
from tracer.formats import nsys_parquet, writer_of
from tracer.recorders.cut import first_steps
from tracer.recorders.light_window import Window
from tracer.run_parts import is_part_of_run
from tracer.run_passes import hand_on, run_of
from tracer.trace import Trace


@dataclass(frozen=True)
class Passes:
    """A command and how to record it.

    Attributes:
        command: program and arguments.
        target: of the recording, or of the run directory for several.
        window: the part of the run to record.
        steps: how many steps to keep; None for all.
        call_sites: whether to keep the stack of each call.
        force: whether to replace the target.
    """

    command: Sequence[str]
    target: Path
    window: Window
    steps: int | None
    call_sites: bool
    force: bool

    def record(self, level: str, target: Path, *, is_first_of_several: bool = False) -> int:
        """Record one pass; the first of several has its rate in run.json, to correct the others.

        Returns:
            the exit code, as returned by `foreground.run`.

        Raises:
            TraceError: the pass could not be recorded.
        """
        force = self.force and target == self.target
        if self.call_sites and level != "light":
            return record_pass.record_with_stacks(self.command, level, target, force)

        def save(trace: Trace) -> None:
            trace = trace if self.steps is None else first_steps(trace, self.steps)
            if is_first_of_several:
                trace.metadata["run"] = run_of(trace)
            is_part = is_part_of_run if is_first_of_several else nsys_parquet.is_part
            formats.write(trace, target, replace=force, is_part=is_part)

        return record_pass.record(self.command, level, target, self.window, save, call_sites=self.call_sites)

    def record_all(self, levels: Sequence[str]) -> int:
        """Record the command once per level into a run directory, the light pass first.

        Returns:
            the exit code of the last run of the command, as returned by `foreground.run`.

        Raises:
            UsageError: there is no light pass, or the target is a file.
            TraceError: a pass could not be recorded; earlier passes are kept.
        """
        if levels[0] != "light":
            chosen = ",".join(levels)
            raise UsageError(f"--passes {chosen}: several passes must include light, which corrects the others")
        if writer_of(self.target) is not nsys_parquet.write:
            raise UsageError(f"{self.target}: several passes need a directory, not a {self.target.suffix} file")
        code = self.record("light", self.target, is_first_of_several=True)
        for level in levels[1:]:
            if code or not self.target.exists():
                click.echo(f"intertoken: skipped the {level} pass because the previous run failed", err=True)
                break
            code = self.record(level, self.target / level)
            if (self.target / level).exists():
                hand_on(self.target, level)
        return code
