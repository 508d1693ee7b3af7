"""The what-if page: choose what would be different, see the predicted figures, and both timelines."""

from dashboard.frame import Page
from dashboard.pages.whatif.callbacks import register
from dashboard.pages.whatif.layout import sections
from dashboard.pages.whatif.view import ADDRESS, WhatIfView

_MOTTO = "what a run would be, had something been different"
PAGE = Page(ADDRESS, "What if", _MOTTO, sections, register, WhatIfView.from_data)
