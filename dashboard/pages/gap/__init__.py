"""The gap page: its causes token by token, its distribution, the longest ones, and what it is made of in figures."""

from dashboard.frame import Page
from dashboard.pages.gap.callbacks import register
from dashboard.pages.gap.layout import sections
from dashboard.pages.gap.view import ADDRESS, GapView

PAGE = Page(ADDRESS, "Gap", "what the device waits for between tokens", sections, register, GapView.from_data)
