"""Steps that verify drafts, and those that only look like it (`test_one_pass.py` counts the steps of both)."""

from collections.abc import Callable

import pytest

from tests.tracer.drafts import drafts_chosen_on_the_device, drafts_looked_up_in_the_text, fetch_results
from tests.tracer.engines import PROMPT_KERNEL_NS, Host, layers
from tests.tracer.handmade import Script
from tracer.analysis.steps import UNSURE
from tracer.analysis.tokens import find_steps


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (drafts_chosen_on_the_device, "a pass without a graph behind every few graphs"),
        (drafts_looked_up_in_the_text, "whose results vary in size from step to step, as if drafts were verified"),
    ],
)
def test_what_may_verify_drafts_is_doubted(shape: Callable[[Host], None], why: str) -> None:
    host = Host(Script())
    shape(host)
    steps = find_steps(host.script.trace)
    assert steps.confidence < UNSURE
    assert why in steps.notes[0]


def test_sequences_that_join_and_end_at_each_step_are_no_drafts() -> None:
    host = Host(Script())
    for step in range(40):
        host.copy()
        host.kernels([*layers(8), "mul_mat_vec", "mul_mat_vec", "mul_mat_vec"])
        fetch_results(host, 20 + step % 3)
    steps = find_steps(host.script.trace)
    assert (steps.what, steps.confidence) == ("40 decode steps", 1.0)


def test_blocks_of_a_cache_that_are_fetched_now_and_then_are_no_drafts() -> None:
    """Of prompts and of tokens."""
    host = Host(Script())
    for step in range(40):
        host.copy()
        host.kernels([*layers(8), "mul_mat_vec", "mul_mat_vec", "mul_mat_vec"])
        host.copy("DtoH")
        if step % 3 == 0:
            offload(host)
        host.sync()
    steps = find_steps(host.script.trace)
    assert (steps.what, steps.confidence) == ("40 decode steps", 1.0)
    host = Host(Script())
    for _ in range(12):
        host.copy()
        host.kernels(layers(12), PROMPT_KERNEL_NS)
        offload(host)
        host.fetch()
        for _ in range(10):
            host.copy()
            host.graph(1)
            host.fetch()
    assert find_steps(host.script.trace, phase="all").phases["decode"] == 120


def offload(host: Host) -> None:
    host.copy("DtoH")
    host.script.rows["memcpys"][-1]["bytes"] = 1 << 20


def test_steps_that_verify_drafts_say_so_by_their_kernels() -> None:
    host = Host(Script())
    for _ in range(10):
        host.copy()
        host.kernels([*layers(3), "paged_attention_v1", "paged_attention_v1", "paged_attention_v1"])
        host.kernels(["rejection_greedy_sample_kernel"])
        host.fetch()
    steps = find_steps(host.script.trace)
    assert (steps.what, steps.tokens_per_step) == ("10 speculative steps", None)
