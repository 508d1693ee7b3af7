"""The advice page: changes to a run by predicted gain, and where the host spends its time."""

from dashboard.pages.advice.callbacks import register
from dashboard.pages.advice.layout import sections
from dashboard.pages.advice.tables import ADDRESS
from dashboard.pages.frame import Page

PAGE = Page(ADDRESS, "Advice", "changes by predicted gain, with their call sites", sections, register)
