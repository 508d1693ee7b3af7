"""The longest kernel."""

import click

from tracer.command_options import emit, load, trace_options


@click.command()
@trace_options
def longest(path, within, bounds, as_json):
    from tracer.analysis.longest import longest as found

    recording = load(path, within, bounds)
    emit(as_json, {"kernel_ns": found(recording.trace, recording.steps).kernel_ns}, print, recording.notes)
