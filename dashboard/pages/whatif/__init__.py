"""The what-if page: choose changes, see the predicted figures, and both timelines."""

from dashboard.pages.frame import Page
from dashboard.pages.whatif.callbacks import register
from dashboard.pages.whatif.layout import sections
from dashboard.pages.whatif.view import ADDRESS, WhatIfView

_MOTTO = "predict the effect of changes to a run"
PAGE = Page(ADDRESS, "What if", _MOTTO, sections, register, WhatIfView.from_data)
