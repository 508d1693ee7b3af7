"""Kinds of which some answers are wrong without a doubt, each with a draw that shows it, and why."""

from __future__ import annotations

KNOWN_WRONG: dict[str, tuple[int, str]] = {
    "ktransformers": (4, "each layer ends with a copy that the host computes on: taken for an iteration"),
    "llama_graph_per_split": (8, "two graphs in turn, a wait behind each: pairs of splits are taken for steps"),
    "server_recaptures": (1, "steps that capture their graph again are left out without a word"),
}
"""Kind -> a seed whose draw is wrong, and the reason. A kind leaves the table when that draw is no longer wrong."""
