"""The graph page: the model graph that ran, its streams and events, and the memory of each allocator."""

from dashboard.pages.frame import Page
from dashboard.pages.graph.callbacks import register
from dashboard.pages.graph.layout import sections
from dashboard.pages.graph.view import ADDRESS, GraphView

PAGE = Page(ADDRESS, "Graph", "the graph of one token", sections, register, GraphView.from_data)
