"""Recordings of engines without ranges, made by hand, with their true steps."""

from collections.abc import Callable

from tests.tracer.engines import KERNEL_NS, PROMPT_KERNEL_NS, Host, Known, known, layers, warm_up
from tests.tracer.handmade import Script

TOKENS = 12


def one_graph() -> Known:
    host = Host(Script())
    warm_up(host)
    for _ in range(TOKENS):
        host.step()
        host.copy()
        host.copy()
        host.graph(1)
        host.fetch()
    return known(host.script, host)


def three_graphs() -> Known:
    """Splits: the second one takes a result of the host."""
    host = Host(Script())
    warm_up(host)
    for _ in range(TOKENS):
        host.step()
        host.copy()
        host.copy()
        host.graph(1)
        host.sync()
        host.copy()
        host.graph(2)
        host.graph(3)
        host.fetch()
    return known(host.script, host)


def a_graph_per_buffer() -> Known:
    """Pipeline: inputs in four copies, each with a graph of its own."""
    host = Host(Script())
    for token in range(2 * TOKENS):
        host.step()
        host.copy()
        host.graph(10 + token % 4)
        host.fetch()
    return known(host.script, host)


def eager() -> Known:
    """A kernel more from the fifth token on, and now and then one that occurs nowhere else."""
    host = Host(Script())
    warm_up(host)
    for token in range(TOKENS):
        host.step()
        host.copy()
        host.kernels(layers(8)[:-1] + ["combine"] * (token > 4) + ["head"])
        if token in (3, 8):
            host.kernels([f"rare_{token}"])
        host.fetch()
    return known(host.script, host)


def eager_without_waits() -> Known:
    """The host runs ahead and reads late: nothing but kernels; that they are tokens is not told."""
    host = Host(Script())
    for _ in range(TOKENS):
        host.step("iteration")
        host.kernels(layers(30))
    host.fetch()
    return known(host.script, host)


def graphs_without_waits() -> Known:
    """The same with graphs, and a result read every eighth token."""
    host = Host(Script())
    for token in range(2 * TOKENS):
        host.step("iteration")
        host.graph(5)
        if token % 8 == 7:
            host.fetch()
    return known(host.script, host)


def drafts(verified_first: bool = False) -> Known:
    """Graphs of a small model, not fetched, and the graph of a large one that verifies their tokens: one step."""
    host = Host(Script())
    for _ in range(TOKENS):
        host.step("speculative")
        host.copy()
        for large in (verified_first, *[None] * 4, not verified_first):
            if large is None:
                host.graph(5, 2 * KERNEL_NS)
                host.kernels(["argmax"])
            elif large:
                host.graph(1)
                host.kernels(["logits", "rejection_sample"])
        host.fetch()
    return known(host.script, host)


def drafts_behind_what_verifies_the_last_ones() -> Known:
    return drafts(verified_first=True)


def prompt_in_micro_batches() -> Known:
    """Three micro-batches without a wait between, eager and wide, are one prompt; then tokens."""
    host = Host(Script())
    warm_up(host)
    host.step("prefill")
    for _ in range(3):
        host.copy()
        host.copy()
        host.kernels(layers(4), PROMPT_KERNEL_NS, blocks=512)
    host.fetch()
    for _ in range(TOKENS):
        host.step()
        host.copy()
        host.copy()
        host.kernels(layers(4))
        host.fetch()
    return known(host.script, host)


def prompts_between_tokens() -> Known:
    """Prompts by eager kernels, tokens by a graph whose kernels the trace does not show."""
    host = Host(Script())
    for _ in range(3):
        host.step("prefill")
        host.copy()
        host.kernels(layers(4), PROMPT_KERNEL_NS, blocks=512)
        host.fetch()
        for _ in range(TOKENS):
            host.step()
            host.copy()
            host.graph(1)
            host.fetch()
    return known(host.script, host)


def a_thread_per_device() -> Known:
    script = Script()
    hosts = [Host(script, thread=101 + i, device=i, now=3 * i) for i in range(3)]
    for host in hosts:
        warm_up(host)
        for _ in range(TOKENS):
            host.step()
            host.copy()
            host.graph(host.device)
            host.fetch()
    return known(script, *hosts)


def one_launches_and_one_waits() -> Known:
    script = Script()
    launching, waiting = Host(script), Host(script, thread=555, now=7)
    for _ in range(TOKENS):
        launching.step()
        launching.copy()
        launching.graph(1)
        waiting.fetch()
        launching.now = waiting.now = max(launching.now, waiting.now) + 40
    return known(script, launching)


def one_thread_for_two_devices() -> Known:
    host = Host(Script())
    for _ in range(TOKENS):
        host.step()
        for device in (0, 1):
            host.device = device
            host.copy()
            host.graph(9)
        host.fetch()
    return known(host.script, host)


def layers_on_two_devices() -> Known:
    """The first layers on one device, the others on the next, without peer access."""
    host = Host(Script())
    for _ in range(TOKENS):
        host.step()
        host.device = 0
        host.copy()
        host.graph(1)
        host.peer_copy(to=1)
        host.graph(2)
        host.fetch()
    return known(host.script, host)


ENGINES: list[Callable[[], Known]] = [
    one_graph, three_graphs, a_graph_per_buffer, eager, eager_without_waits, graphs_without_waits,
    drafts, drafts_behind_what_verifies_the_last_ones,
    prompt_in_micro_batches, prompts_between_tokens, a_thread_per_device, one_launches_and_one_waits,
    one_thread_for_two_devices, layers_on_two_devices,
]  # fmt: skip
