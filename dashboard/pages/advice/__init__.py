"""The advice page: what to change in a run, by predicted gain, and where in its program the host is."""

from dashboard.frame import Page
from dashboard.pages.advice.callbacks import register
from dashboard.pages.advice.layout import sections
from dashboard.pages.advice.tables import ADDRESS

PAGE = Page(ADDRESS, "Advice", "what to change, by predicted gain, and where in the program", sections, register)
