"""The gap page: causes token by token, distribution, longest gaps, and the figures of their causes."""

from dashboard.pages.frame import Page
from dashboard.pages.gap.callbacks import register
from dashboard.pages.gap.layout import sections
from dashboard.pages.gap.view import ADDRESS, GapView

PAGE = Page(ADDRESS, "Gap", "why the device waits between tokens", sections, register, GapView.from_data)
