"""Signatures, classes and counts on traces with known answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.handmade import THREAD, Script, decode_loop
from tracer.analysis.syncs import SyncReport, compress, expand, strategies_followed, sync_report
from tracer.analysis.tokens import find_steps


def report(letters: str, tokens: int = 8) -> SyncReport:
    script = decode_loop(letters, tokens)
    for token in range(tokens):
        script.range("token", token * 1000, token * 1000 + 900)
    return sync_report(script.trace, find_steps(script.trace))


@pytest.mark.parametrize(
    ("letters", "strategy", "signature", "syncs", "copies"),
    [
        ("sasasasgAs", "sccc", "s c×3 g a s", 5, 4),  # one sync, then blocking copies: n + 2
        ("sassassasgAss", "sccc", "(sc)×3 g a s×2", 8, 4),  # as llama.cpp: a sync before every copy
        ("scccgAs", "sccc", "s c×3 g a s", 2, 4),  # calls that block by themselves
        ("saaasgAs", "saaas", "s a×3 s g a s", 3, 4),
        (
            "sasaaaaasgAss",
            "saaas",
            "s c a×5 s g a s×2",
            5,
            7,
        ),  # llama.cpp's saaas: the embedding still blocks
        ("aaasgAs", "aaas", "a×3 s g a s", 2, 4),
        ("aaagAs", "aaag", "a×3 g a s", 1, 4),
        ("g", "ggg", "g", 0, 0),
        ("gg", "ggg", "g×2", 0, 0),
        ("gs", "none", "g s", 1, 0),  # nothing is sent, but the host waits
        ("gAs", "none", "g a s", 1, 1),
        ("gA", "ggg", "g a", 0, 1),
        ("sgg", "none", "s g×2", 1, 0),
        ("aagsaasgAs", "mixed", "a×2 g s a×2 s g a s", 3, 5),
    ],
)
def test_class_signature_and_counts(letters: str, strategy: str, signature: str, syncs: int, copies: int) -> None:
    found = report(letters)
    assert (found.strategy, found.signature) == (strategy, signature)
    assert (found.syncs_per_token, found.copies_per_token) == (syncs, copies)
    assert found.signature_share == 1.0


@pytest.mark.parametrize(("each", "syncs"), [(4, 0.25), (40, 0.0), (1, 1.0)])
def test_syncs_of_some_steps_are_counted_by_their_mean(each: int, syncs: float) -> None:
    """Where the host fetches the tokens of four steps at once; what one step of forty does no step usually does."""
    script = decode_loop("g", 40)
    for token in range(40):
        script.range("token", token * 1000, token * 1000 + 900)
        if token % each == 0:
            script.sync(token * 1000 + 800, token * 1000 + 810)
    assert sync_report(script.trace, find_steps(script.trace)).syncs_per_token == syncs


def test_a_copy_synchronised_on_another_stream_does_not_block() -> None:
    script = Script()
    for token in range(5):
        t = token * 1000
        script.range("token", t, t + 900)
        script.sync(t, t + 10)
        script.copy((t + 20, t + 30), (t + 32, t + 34), stream=13)
        script.sync(t + 40, t + 50, stream=14)
        script.launch((t + 60, t + 70), (t + 75, t + 300))
    assert sync_report(script.trace, find_steps(script.trace)).signature == "s a s k"


def test_copies_that_bring_no_input_have_no_say_in_the_class() -> None:
    script = Script()
    for token in range(5):
        t = token * 1000
        script.range("token", t, t + 900)
        script.copy((t, t + 5), (t + 6, t + 7), "DtoH")  # the logits of the step before
        script.sync(t + 10, t + 20)
        for i in range(2):
            script.copy((t + 30 + i * 40, t + 40 + i * 40), (t + 41 + i * 40, t + 42 + i * 40))
            script.sync(t + 50 + i * 40, t + 60 + i * 40)
        for i in range(3):
            script.launch((t + 200 + i * 40, t + 210 + i * 40), (t + 215 + i * 40, t + 220 + i * 40))
            script.copy((t + 220 + i * 40, t + 230 + i * 40), (t + 231 + i * 40, t + 232 + i * 40), "DtoD")
        script.launch((t + 400, t + 410), (t + 415, t + 420))
    found = sync_report(script.trace, find_steps(script.trace))
    assert (found.strategy, found.share) == ("sccc", 1.0)
    assert found.signature == "a s c×2 (ka)×3 k"


def test_inventory_says_what_each_sync_waits_for() -> None:
    script = Script()
    for token in range(4):
        t = token * 1000
        script.range("token", t, t + 900)
        script.launch((t, t + 10), (t + 20, t + 500), name="matvec")
        script.copy((t + 30, t + 40), (t + 510, t + 520), "DtoH")
        script.sync(t + 50, t + 530)
        script.sync(t + 540, t + 545)
    table = sync_report(script.trace, find_steps(script.trace)).inventory()
    assert table["waits_for"].tolist() == ["memcpy DtoH", ""]
    assert table["waiting_share"].tolist() == [1.0, 0.0]
    assert table["median_us"].tolist() == [0.48, 0.005]


@given(st.text(alphabet="sackgewq", max_size=120))
def test_compressing_loses_nothing(letters: str) -> None:
    assert expand(compress(letters)) == letters


def test_graph_launches_and_runs_of_kernel_launches_are_told_apart() -> None:
    assert compress("gkkkag" + "k" * 19) == "g k×3 a g k×19"
    assert compress("akk" * 3 + "g") == "(a k×2)×3 g"
    assert expand("(a k×2)×3 g") == "akk" * 3 + "g"


@given(st.text(alphabet="sacgk", max_size=60))
def test_every_copy_before_a_launch_follows_exactly_one_strategy(letters: str) -> None:
    before = letters[: max(letters.rfind("g"), letters.rfind("k")) + 1]
    assert sum(strategies_followed(letters).values()) == before.count("a") + before.count("c")


def test_a_run_of_launches_ends_with_its_step() -> None:
    script = Script()
    for token in range(4):
        script.range("token", token * 1000, token * 1000 + 900)
        for kernel in range(3):
            at = token * 1000 + kernel * 100
            script.launch((at, at + 10), (at + 20, at + 90))
    found = sync_report(script.trace, find_steps(script.trace))
    assert (found.signature, found.signature_share, found.launches_per_token) == ("k×3", 1.0, 3)


def test_copies_inside_a_graph_bring_input() -> None:
    script = Script()
    for token in range(4):
        t = token * 1000
        script.range("token", t, t + 900)
        script.launch((t, t + 10), (t + 30, t + 300), api="cudaGraphLaunch_v10000")
        script._on_stream("memcpys", t + 20, t + 25, 7, script.rows["api"][-1]["correlation"], kind="HtoD", bytes=4)
    found = sync_report(script.trace, find_steps(script.trace))
    assert (found.strategy, found.signature, found.copies_per_token) == ("aaag", "g", 0)


def test_what_another_thread_waits_for_holds_no_launch_back() -> None:
    script = Script()
    for token in range(4):
        t = token * 1000
        script.range("token", t, t + 900)
        script.launch((t, t + 10), (t + 30, t + 300), api="cudaGraphLaunch_v10000")
        script.copy((t + 15, t + 20), (t + 300, t + 305), "DtoH")
        script.sync(t + 25, t + 310, thread=THREAD + 1)
    found = sync_report(script.trace, find_steps(script.trace))
    assert (found.strategy, found.syncs_per_token) == ("ggg", 1)
