"""Loops whose fetches bring something else than the token of one pass: what is said of them is right, or doubted."""

from collections.abc import Callable

import pytest

from tests.tracer.drafts import (
    a_token_by_a_graph_and_drafts_by_kernels,
    drafts_and_their_target,
    drafts_chosen_on_the_device,
    drafts_looked_up_in_the_text,
    drafts_of_a_graph_and_their_eager_target,
    eager_drafts_and_the_graph_of_their_target,
)
from tests.tracer.engines import KERNEL_NS, PROMPT_KERNEL_NS, Host, layers
from tests.tracer.handmade import Script
from tracer.analysis.steps import UNSURE
from tracer.analysis.tokens import find_steps

BACKWARD = ["gemm_backward", "softmax_backward"] * 9


def routed_layers(host: Host) -> None:
    for _ in range(12):  # a token: each layer's experts are chosen on the host
        host.copy()
        for _ in range(8):
            host.kernels(["norm", "attention", "router"])
            host.fetch()
            host.kernels(["expert_up", "expert_down", "add"])


def a_graph_per_split(host: Host) -> None:
    for _ in range(12):
        for split in range(6):
            host.copy()
            host.graph(split)
            host.fetch()


def a_request_fetched_at_its_end(host: Host) -> None:
    for length in (20, 30, 25, 40):
        host.copy()
        host.kernels(layers(8), PROMPT_KERNEL_NS, 640)
        for _ in range(length):
            host.graph(1)
            host.kernels(["append_token"])
        host.fetch()


def a_loss_every_ten_steps(host: Host) -> None:
    for _ in range(6):
        for _ in range(10):
            host.copy()
            host.kernels([*layers(8), *BACKWARD, "multi_tensor_apply_kernel"])
        host.fetch()


def an_image_fetched_at_its_end(host: Host) -> None:
    for _ in range(5):
        host.copy()
        for _ in range(20):
            host.kernels([*layers(8), "scheduler_step"])
        host.kernels(["conv_vae"] * 5)
        host.fetch()


def prompts_alone(host: Host) -> None:
    for _ in range(20):
        host.copy()
        host.copy()
        host.kernels([*layers(8), "argmax"], PROMPT_KERNEL_NS, 640)
        host.fetch()


def prompts_alone_with_a_paged_cache(host: Host) -> None:
    """FlashAttention 2 reads pages with its split kernel only, whatever the number of queries."""
    for _ in range(12):
        host.copy()
        host.kernels(
            ["norm", "gemm_qkv", "flash_fwd_splitkv_kernel", "gemm_up", "gemm_down"] * 8, PROMPT_KERNEL_NS, 512
        )
        host.kernels(["argmax"])
        host.fetch()


def a_classifier(host: Host) -> None:
    for _ in range(20):
        host.copy()
        host.kernels([*["conv", "bn", "relu"] * 16, "gemv_head", "argmax"])
        host.fetch()


def a_solver(host: Host) -> None:
    for _ in range(40):
        host.kernels(["spmv", "dot", "axpy"] * 3)
        host.fetch()


def sampled_sequence_by_sequence(host: Host) -> None:
    for _ in range(12):
        host.copy()
        host.graph(1)
        for _ in range(8):
            host.kernels(["softmax", "sample"], KERNEL_NS // 10)
            host.fetch()


SHAPES: dict[Callable[[Host], None], int] = {
    routed_layers: 12, a_graph_per_split: 12, a_request_fetched_at_its_end: 119, a_loss_every_ten_steps: 60,
    an_image_fetched_at_its_end: 100, prompts_alone: 0, a_classifier: 0, a_solver: 0, drafts_and_their_target: 12,
    sampled_sequence_by_sequence: 12, drafts_of_a_graph_and_their_eager_target: 12,
    eager_drafts_and_the_graph_of_their_target: 12, drafts_chosen_on_the_device: 12, drafts_looked_up_in_the_text: 0,
    a_token_by_a_graph_and_drafts_by_kernels: 7, prompts_alone_with_a_paged_cache: 0,
}  # fmt: skip
"""Shape of a loop -> how many steps of it decode, train or verify."""


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_what_is_said_for_sure_is_right(shape: Callable[[Host], None]) -> None:
    host = Host(Script())
    shape(host)
    steps = find_steps(host.script.trace, phase="all")
    claimed = steps.table["phase"].isin(["decode", "training", "speculative"]).sum()
    assert steps.confidence < UNSURE or claimed == SHAPES[shape]
    if steps.confidence < UNSURE:
        assert steps.notes[0].startswith("the steps are uncertain")


def stop_checks(host: Host) -> None:
    for _ in range(20):  # after each token, is any sequence at its end, and is the request too long?
        host.kernels([*layers(8), "argmax"])
        for _ in range(2):
            host.kernels(["isin", "all"], KERNEL_NS // 10)
            host.fetch()


def a_mask_that_is_read_first(host: Host) -> None:
    for _ in range(20):
        host.copy()
        host.kernels(["embedding", "eq", "all"], KERNEL_NS // 10)
        host.fetch()
        host.kernels(layers(8))
        host.fetch()


def several_steps_a_fetch(host: Host) -> None:
    for _ in range(6):
        host.copy()
        host.copy()
        for _ in range(8):
            host.kernels(["advance"])
            host.graph(1)
            host.kernels(["softmax", "argmax"])
        host.fetch()


def two_graphs_a_step_and_a_check_every_eighth(host: Host) -> None:
    for _ in range(6):
        for _ in range(8):
            host.graph(1)
            host.graph(2)
            host.kernels(["argmax"])
        host.fetch()


def caches_copied_layer_by_layer(host: Host) -> None:
    for _ in range(12):
        host.copy()
        for layer in range(6):
            host.graph(layer)
            host.kernels(["attention"])
            host.copy("DtoH")
        host.kernels(["head", "argmax"])
        host.fetch()


def short_prompts_beside_a_graph(host: Host) -> None:
    for _ in range(5):
        host.copy()
        host.kernels([*layers(4), "argmax"], KERNEL_NS // 4)
        host.fetch()
        for _ in range(20):
            host.copy()
            host.graph(1)
            host.kernels(["argmax"])
            host.fetch()


def two_tokens_a_request(host: Host) -> None:
    for _ in range(20):
        host.copy()
        host.kernels([*layers(8), "argmax"], PROMPT_KERNEL_NS, 640)
        host.fetch()
        host.copy()
        host.graph(1)
        host.kernels(["argmax"])
        host.fetch()


def prompts_in_pieces(host: Host, every: int = 20) -> None:
    """vLLM decodes with one graph; chunks of prompts, among other sequences' tokens, are graphs of the layers."""
    for step in range(80):
        host.copy()
        if step % every == every - 1:
            for layer in range(8):
                host.graph(10 + layer, 3 * KERNEL_NS)
                host.kernels(["kernel_unified_attention_2d"], 2 * KERNEL_NS)
        else:
            host.graph(1, 20 * KERNEL_NS)
        host.kernels(["argmax"])
        host.fetch()


def many_prompts_in_pieces(host: Host) -> None:
    prompts_in_pieces(host, 4)


def batches_of_two_sizes(host: Host) -> None:
    for size, graph in ((8, 1), (1, 2)):
        for _ in range(40):
            host.copy()
            host.graph(graph, 2 * size * KERNEL_NS)
            host.kernels(["argmax"])
            for _ in range(size):
                host.copy("DtoH")
            host.sync()


def experts_one_by_one(host: Host) -> None:
    for _ in range(12):
        host.copy()
        host.kernels(["embedding"])
        for _ in range(8):
            host.kernels(["norm", "attention", "router"])
            for _ in range(2):
                host.fetch()
                host.kernels(["expert_up", "expert_down", "add"])
        host.kernels(["head", "argmax"])
        host.fetch()


COUNTS: dict[Callable[[Host], None], dict[str, int]] = {
    stop_checks: {"decode": 20}, a_mask_that_is_read_first: {"decode": 20}, several_steps_a_fetch: {"decode": 48},
    two_graphs_a_step_and_a_check_every_eighth: {"decode": 48}, caches_copied_layer_by_layer: {"decode": 12},
    short_prompts_beside_a_graph: {"decode": 100, "eager": 5}, two_tokens_a_request: {"decode": 20, "prefill": 20},
    batches_of_two_sizes: {"decode": 80}, experts_one_by_one: {"decode": 12}, routed_layers: {"decode": 12},
    sampled_sequence_by_sequence: {"decode": 12}, a_solver: {"iteration": 40},
    a_loss_every_ten_steps: {"training": 60}, drafts_and_their_target: {"speculative": 12},
    an_image_fetched_at_its_end: {"iteration": 100}, drafts_of_a_graph_and_their_eager_target: {"speculative": 12},
    eager_drafts_and_the_graph_of_their_target: {"speculative": 12},
    a_token_by_a_graph_and_drafts_by_kernels: {"decode": 7, "eager": 9},
    prompts_in_pieces: {"decode": 76, "prefill": 4}, many_prompts_in_pieces: {"decode": 60, "prefill": 20},
}  # fmt: skip
"""Shape of a loop -> its steps, where fetches and passes tell how many there are, sure or not."""


@pytest.mark.parametrize("shape", COUNTS, ids=lambda shape: shape.__name__)
def test_a_step_is_one_pass_whatever_is_fetched_between(shape: Callable[[Host], None]) -> None:
    host = Host(Script())
    shape(host)
    assert find_steps(host.script.trace, phase="all").phases == COUNTS[shape]


@pytest.mark.parametrize(("every", "sure"), [(5, False), (40, True)])
def test_prompts_in_which_others_may_decode_are_doubted_if_there_are_many(every: int, sure: bool) -> None:
    host = Host(Script())
    for number in range(80):
        host.copy()
        if number % every == every - 1:
            host.kernels([*layers(8), "argmax"], PROMPT_KERNEL_NS, 640)
        else:
            host.kernels([*layers(8), "argmax"] + ["paged_attention_v1"] * 3)
        for _ in range(3):  # sequences
            host.copy("DtoH")
        host.sync()
    steps = find_steps(host.script.trace, phase="all")
    assert steps.phases == {"decode": 80 - 80 // every, "prefill": 80 // every}
    assert (steps.confidence >= UNSURE) is sure
    assert sure or "other sequences may decode at the same time" in steps.notes[0]


@pytest.mark.parametrize(
    "text", ["cls_token", "image decode 3", "vae.decode", "encoder/token_type_embeddings", "layer3.forward"]
)
def test_marks_that_only_have_a_likely_word_in_them_are_doubted(text: str) -> None:
    host = Host(Script())
    for _ in range(6):
        begin = host.now
        host.copy()
        host.kernels(layers(3))
        host.fetch()
        host.script.range(text, begin, host.now)
    assert find_steps(host.script.trace).confidence < UNSURE


def test_a_mark_around_a_whole_request_is_no_token() -> None:
    host = Host(Script())
    for number in range(4):
        begin = host.now
        for _ in range(10):
            host.copy()
            host.kernels([*layers(3), "mul_mat_vec"])
            host.fetch()
        host.script.range(f"ProfilerStep#{number}", begin, host.now)
    assert find_steps(host.script.trace).what == "4 iterations"


def test_training_beside_decoding_is_told_step_by_step() -> None:
    host = Host(Script())
    for number in range(12):
        host.copy()
        host.kernels([*layers(8), *(BACKWARD if number % 6 == 5 else ["paged_attention_v1"] * 8)])
        host.fetch()
    phases = find_steps(host.script.trace, phase="all").phases
    assert phases.get("decode", 0) <= 10
    assert phases.get("training", 0) <= 2
