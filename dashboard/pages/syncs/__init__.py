"""The syncs page: the host syncs of a token, what each waits for, and the predicted gain without it."""

from dashboard.pages.frame import Page
from dashboard.pages.syncs.callbacks import register
from dashboard.pages.syncs.layout import sections
from dashboard.pages.syncs.table import ADDRESS

PAGE = Page(ADDRESS, "Syncs", "the syncs of a token, and those that can be removed", sections, register)
