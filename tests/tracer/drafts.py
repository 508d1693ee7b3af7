"""Loops in which drafts of tokens are made and verified."""

from tests.tracer.engines import KERNEL_NS, Host, layers

DRAFTS = (3, 2, 4, 3, 1, 3, 2, 4, 3, 3, 2, 3)
"""Drafts of each step."""


def drafts_and_their_target(host: Host) -> None:
    for drafts in DRAFTS:
        for _ in range(drafts):
            host.copy()
            host.kernels(layers(4))
            host.fetch()
        host.copy()
        host.kernels(layers(12))
        host.fetch()


def fetch_results(host: Host, count: int) -> None:
    for _ in range(count):
        host.copy("DtoH")
    host.sync()


def drafts_of_a_graph_and_their_eager_target(host: Host) -> None:
    """A graph for one token, none for several, as in llama.cpp; a result for each draft and one more."""
    for drafts in DRAFTS:
        for _ in range(drafts):
            host.copy()
            host.graph(1)
            host.fetch()
        host.copy()
        host.kernels(layers(12))
        fetch_results(host, drafts + 1)


def eager_drafts_and_the_graph_of_their_target(host: Host) -> None:
    for drafts in DRAFTS:
        for _ in range(drafts):
            host.copy()
            host.kernels(layers(4))
            host.fetch()
        host.copy()
        host.graph(1, 60 * KERNEL_NS)
        fetch_results(host, drafts + 1)


def drafts_chosen_on_the_device(host: Host) -> None:
    """As much is fetched of one token as of several."""
    for drafts in DRAFTS:
        for _ in range(drafts):
            host.copy()
            host.graph(1)
            host.fetch()
        host.copy()
        host.kernels(layers(12))
        host.fetch()


def drafts_looked_up_in_the_text(host: Host) -> None:
    for drafts in DRAFTS:
        host.copy()
        host.kernels([*layers(8), "mul_mat_vec", "mul_mat_vec", "mul_mat_vec"])
        fetch_results(host, drafts + 1)


def a_token_by_a_graph_and_drafts_by_kernels(host: Host) -> None:
    """Drafts that are looked up: not in each step are there any."""
    for drafts in (3, 0, 2, 4, 0, 0, 3, 1, 0, 3, 2, 4, 0, 0, 0, 3):
        host.copy()
        if drafts:
            host.kernels(layers(8))
        else:
            host.graph(1)
        fetch_results(host, drafts + 1)
