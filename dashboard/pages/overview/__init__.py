"""The overview: a table of runs, the timelines of the chosen ones, and what their gaps are made of."""

from dashboard.frame import Page
from dashboard.pages.overview.callbacks import register
from dashboard.pages.overview.layout import sections

PAGE = Page("", "Runs", "what happens between two tokens", sections, register)
