"""Run variants of a program in turns until they are told apart."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from tracer.errors import IntertokenError, ProgramError, UsageError

CAMPAIGN = "campaign.json"


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--vary", "assignment", metavar="NAME=A,B,...",
    help="Run COMMAND with each value: in place of {NAME} in COMMAND, or, where that has no {NAME}, as the environment "
    "variable NAME. The first value is the base.",
)  # fmt: skip
@click.option(
    "--until", "percent", type=click.FloatRange(0.01, 50), metavar="PCT",
    help="Stop when each variant is shown to be faster or slower than the base, or within ±PCT % of it.  [default: 1]",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(2, 1000), metavar="N", help="Run exactly N rounds instead.")
@click.option(
    "--most", type=click.IntRange(4, 1000), metavar="N", help="With --until: give up after N rounds.  [default: 30]"
)
@click.option(
    "--rate", "expression", metavar="REGEX",
    help="Read the rate from what the program prints: the last match, number in parentheses, higher is better.  "
    "[default: as llama-bench, llama.cpp, vLLM's and SGLang's benchmarks print it]",
)  # fmt: skip
@click.option("--no-recorder", is_flag=True, help="Run without the light recorder: rates alone.")
@click.option(
    "-o", "--output", "folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path),
    help="Keep what the programs print, their recordings, and campaign.json, written anew after each round.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of Markdown.")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND ... | -- A --- B ...")
def ab(
    assignment: str | None, percent: float | None, rounds: int | None, most: int | None, expression: str | None,
    no_recorder: bool, folder: Path | None, as_json: bool, words: tuple[str, ...],
) -> None:  # fmt: skip
    """Run variants of a program in turns until they are told apart.

    Each variant runs as a whole process, in rounds of changing order, so that drift and slow phases of the host meet
    all alike. A sequential test decides after every second round whether to go on; its intervals hold whenever it
    stops. The result is a Markdown table of rate, gap, idle time, syncs, copies and launches per step, with intervals.

    \b
    The programs run under the light recorder if that records something of them, else without, which is said.
    One plain run of each comes first and tells what recording costs. If a variant fails, this ends with exit
    code 2; what was measured until then is kept in DIR.

    \b
    Examples:
      intertoken ab --vary GGML_CUDA_FORCE_CUBLAS=0,1 -- ./llama-bench -m model.gguf -p 0
      intertoken ab --vary N=4,8,16 --until 0.5 -- ./llama-bench -m model.gguf -t {N}
      intertoken ab -o campaign -- ./old/llama-bench -m model.gguf --- ./new/llama-bench -m model.gguf
      intertoken ab --rate 'speed: ([0-9.]+)' -- ./a.out --- ./b.out
    """
    from tracer.experiments.ab import Campaign
    from tracer.experiments.printed import form_of
    from tracer.experiments.programs import lettered, varied
    from tracer.experiments.turns import MOST, Until, direction, told_within
    from tracer.files.output import empty_folder, signals_unwind, write_output
    from tracer.reporting.ab import campaign_facts, markdown

    if rounds is not None and (percent is not None or most is not None):
        raise UsageError("--rounds cannot be combined with --until or --most")
    variants = lettered(words) if assignment is None else varied(assignment, words)
    within = None if rounds else (percent or 1.0) / 100
    until = Until(told_within(within), most or MOST) if within else Until(direction, rounds or 0, exactly=True)
    with ExitStack() as stack:
        stack.enter_context(signals_unwind())
        place = empty_folder(folder) if folder else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        campaign = Campaign.of(variants, until, place)
        campaign.form = None if expression is None else form_of(expression)
        campaign.keep, campaign.is_recorded = folder is not None, not no_recorder

        def write() -> None:
            if folder is not None:
                text = json.dumps(campaign_facts(campaign, within), indent=1) + "\n"
                write_output(place / CAMPAIGN, lambda new: new.write_text(text, encoding="utf-8"), replace=True)

        def tell(line: str) -> None:
            click.echo(line, err=True)
            if line.startswith("round"):
                write()

        campaign.tell = tell
        try:
            campaign.run()
        except IntertokenError as problem:
            if campaign.rounds and folder is not None:
                write()
                raise ProgramError(f"{problem}; what was measured until then is in {place / CAMPAIGN}") from None
            raise
        write()
        facts = campaign_facts(campaign, within)
    click.echo(json.dumps(facts) if as_json else markdown(facts))
