"""The record page: start runs of the executor, and watch them and other recordings in progress."""

from functools import partial

from dashboard.pages.frame import Page
from dashboard.pages.record.callbacks import register
from dashboard.pages.record.layout import sections
from dashboard.pages.record.view import ADDRESS, RecordView
from dashboard.recording.recorder import Recorder
from dashboard.recording.running import Running


def page(recorder: Recorder | None) -> Page:
    """The page, which explains why it cannot record if there is no recorder."""
    running = None if recorder is None else Running(recorder.files.output, recorder.shown)
    made, attach = partial(sections, recorder, running), partial(register, recorder=recorder, running=running)
    return Page(ADDRESS, "Record", "start runs, and watch running processes", made, attach, RecordView.from_data)
