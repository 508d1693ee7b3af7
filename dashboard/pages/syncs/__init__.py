"""The syncs page: the host syncs of a token, what each waits for, and what it would bring to do without."""

from dashboard.frame import Page
from dashboard.pages.syncs.callbacks import register
from dashboard.pages.syncs.layout import sections
from dashboard.pages.syncs.table import ADDRESS

PAGE = Page(ADDRESS, "Syncs", "which syncs a token makes, and which it could do without", sections, register)
