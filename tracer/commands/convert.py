"""Write a recording in another format."""

from __future__ import annotations

from pathlib import Path

import click

from tracer.command_options import emit, verbose_option
from tracer.files.output import OR_FORCE
from tracer.reporting import console as report


class _NamingTheFormats(click.Command):
    """A command whose help ends with a list of the writable formats."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from tracer.formats import registered

        with formatter.section("Formats"):
            formatter.write_dl(
                [(", ".join(filter(None, f.suffixes)) or "none", f.name) for f in registered() if f.write is not None]
            )


@click.command(cls=_NamingTheFormats)
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@verbose_option
@click.option("--force", is_flag=True, help="Replace OUT once the new recording is complete.")
@click.option(
    "--python-functions", is_flag=True, help="Keep the Python functions of a PyTorch trace (with_stack=True)."
)
def convert(source: Path, target: Path, force: bool, python_functions: bool) -> None:
    """Write a recording in another format.

    OUT's suffix selects the format; IN may have any format, which is detected from its content.

    \b
    Examples:
      intertoken convert rep.nsys-rep rep.sqlite       for nsys stats, nsys analyze and our commands
      intertoken convert rep.sqlite rep.json.gz        for chrome://tracing, Perfetto, HolisticTraceAnalysis
      intertoken convert trace.json.gz trace           a parquetdir, the native format
      touch x.nsys-rep && intertoken convert runs/tiny-aaag-sequential x_pqtdir
                                                       for nsys recipe NAME --input x.nsys-rep

    Nothing is overwritten without --force, and OUT appears complete or not at all. Data that the format
    cannot hold is listed.
    """
    from tracer.formats import check_writable, other_entries, read
    from tracer.reporting.exports import write

    check_writable(target, replace=force, advice=OR_FORCE)
    with report.reading(source):
        trace = read(source, python_functions=python_functions)
    others = ", ".join(path.name for path in other_entries(source))
    with report.working(f"writing {target}"):
        notes = write(trace, target, replace=force)
    notes += [f"not converted: {others} (next to the recording)"] if others else []
    facts = {"events": len(trace), "target": str(target)}
    emit(False, facts, lambda _: report.show(report.styled(f"{target}: {len(trace):,} events")), trace.notes + notes)
