"""The record page: start runs of the executor, watch them, and find them in the table."""

from functools import partial

from dashboard.frame import Page
from dashboard.pages.record.callbacks import register
from dashboard.pages.record.layout import sections
from dashboard.pages.record.view import ADDRESS, RecordView
from dashboard.recording.recorder import Recorder


def page(recorder: Recorder | None) -> Page:
    """The page, which says why it cannot record where there is no recorder."""
    made, attach = partial(sections, recorder), partial(register, recorder=recorder)
    return Page(ADDRESS, "Record", "start runs on this machine", made, attach, RecordView.from_data)
