"""The overview: a table of runs, the timelines of the selected ones, and the causes of their gaps."""

from dashboard.pages.frame import Page
from dashboard.pages.overview.callbacks import register
from dashboard.pages.overview.layout import sections

PAGE = Page("", "Runs", "what happens between two tokens", sections, register)
