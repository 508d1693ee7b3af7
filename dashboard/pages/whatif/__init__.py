"""The what-if page: choose what would be different, see the predicted figures, and both timelines."""

from dashboard.frame import Page
from dashboard.pages.whatif.callbacks import register
from dashboard.pages.whatif.layout import sections
from dashboard.pages.whatif.view import ADDRESS

PAGE = Page(ADDRESS, "What if", "what a run would be, had something been different", sections, register)
