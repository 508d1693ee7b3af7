"""Loops in which drafts of tokens are made and verified."""

from collections.abc import Callable

from tests.tracer.engines import KERNEL_NS, Host, layers

DRAFTS = (3, 2, 4, 3, 1, 3, 2, 4, 3, 3, 2, 3)
"""Drafts of each step."""


def fetch_results(host: Host, count: int) -> None:
    for _ in range(count):
        host.copy("DtoH")
    host.sync()


def speculate(host: Host, draft: Callable[[], None], verify: Callable[[], None], *, fetches_each: bool = True) -> None:
    """Each draft is fetched, then a result for each and one more, or only one of the pass that verifies them."""
    for drafts in DRAFTS:
        for _ in range(drafts):
            host.copy()
            draft()
            host.fetch()
        host.copy()
        verify()
        fetch_results(host, drafts + 1 if fetches_each else 1)


def drafts_and_their_target(host: Host) -> None:
    speculate(host, lambda: host.kernels(layers(4)), lambda: host.kernels(layers(12)), fetches_each=False)


def drafts_of_a_graph_and_their_eager_target(host: Host) -> None:
    """A graph for one token, none for several, as in llama.cpp."""
    speculate(host, lambda: host.graph(1), lambda: host.kernels(layers(12)))


def eager_drafts_and_the_graph_of_their_target(host: Host) -> None:
    speculate(host, lambda: host.kernels(layers(4)), lambda: host.graph(1, 60 * KERNEL_NS))


def drafts_chosen_on_the_device(host: Host) -> None:
    """As much is fetched of one token as of several."""
    speculate(host, lambda: host.graph(1), lambda: host.kernels(layers(12)), fetches_each=False)


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
