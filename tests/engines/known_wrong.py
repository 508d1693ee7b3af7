"""Kinds of which some answers are wrong without a doubt, each with a draw that shows it, and why."""

from __future__ import annotations

KNOWN_WRONG: dict[str, tuple[int, str]] = {
    "device_clock_jumps": (2, "a device clock that jumps forward adds idle time to one step, without a word"),
    "dropped_records": (5, "a token whose launch was not recorded is left out without a word"),
    "ktransformers_graphs": (0, "each layer ends with a copy that the host computes on: taken for an iteration"),
    "llama_graph_per_split": (331, "a short prompt and the token behind it are taken for one step"),
    "llama_two_graphs_in_turn": (9, "splits by two graphs in turn: pairs of splits are taken for steps"),
    "server_recaptures": (0, "steps that capture their graph again are left out without a word"),
    "sglang_eagle_two_results": (102, "each of two results of a step is taken for an iteration"),
    "speech_by_unknown_graphs": (0, "graphs that cannot be told apart, of which each is taken for a token"),
    "training_without_a_loss_each": (2, "iterations between two fetches of the loss are taken for one"),
}
"""Kind -> a seed whose draw is wrong, and the reason. A kind leaves the table when that draw is no longer wrong."""
