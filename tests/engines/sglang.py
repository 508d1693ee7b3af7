"""SGLang: prompts and tokens in turn, results read at once or a step later; drafts that are verified."""

from __future__ import annotations

from tests.engines.drawn import Drawn
from tests.engines.machine import COPY_STREAM, Graph, Kernel
from tests.engines.models import sampling
from tests.engines.recorded import GRAPH, KINETOS, NODE
from tests.engines.scene import Scene, kind
from tests.engines.truth import DECODE, PREFILL, SPECULATIVE, Truth
from tracer import Trace
from tracer.model.trace import LIGHT

POSITIONS = Kernel("clamp_position_kernel", 1_800)
INDICES = Kernel("create_flashinfer_kv_indices_triton", 2_200)


def prepare(scene: Scene, copies: int) -> None:
    """The inputs of a pass."""
    for _ in range(copies):
        scene.host.copy("HtoD", 8 * scene.batch)
    scene.host.launches([POSITIONS, INDICES])


def extend(scene: Scene, copies: int) -> None:
    """A prompt."""
    prepare(scene, copies)
    since = scene.host.now
    scene.host.launches(scene.model.prompt())
    if scene.level in KINETOS:
        scene.host.mark(f"step[EXTEND bs={scene.batch} toks=512]", since)


@kind
def sglang_normal(drawn: Drawn) -> tuple[Trace, Truth]:
    """Without the overlap schedule: tokens are read before the next step; under PyTorch's profiler steps are marked."""
    scene = Scene(drawn, "sglang")
    copies, tail, host = drawn.whole("input copies", 1, 4), sampling(drawn), scene.host
    for tokens in scene.requests(5):
        host.step(PREFILL)
        extend(scene, copies)
        host.launches(tail)
        host.copy("DtoH", 8 * scene.batch)
        host.sync()
        host.think(scene.think_ns)
        for at in tokens:
            host.step(DECODE)
            prepare(scene, copies)
            since = host.now
            host.graph(scene.whole_graph(at))
            if scene.level in KINETOS:
                host.mark(f"step[DECODE bs={scene.batch} toks={scene.batch}]", since)
            host.launches(tail)
            host.copy("DtoH", 8 * scene.batch)
            host.sync()
            host.think(scene.think_ns)
    return scene.done()


@kind
def sglang_overlap(drawn: Drawn) -> tuple[Trace, Truth]:
    """With it: the tokens of a step are copied on a stream of their own, and read after the next one was launched."""
    scene = Scene(drawn, "sglang", (GRAPH, NODE, LIGHT))
    copies, tail, host = drawn.whole("input copies", 1, 4), sampling(drawn), scene.host
    polls = drawn.one_of("asks for the event instead of waiting", False, True)
    event = 0

    def behind() -> None:
        """Read the step before, once this one was launched."""
        nonlocal event
        event += 1
        host.record(event)
        host.wait(event, COPY_STREAM)
        host.copy("DtoH", 8 * scene.batch, COPY_STREAM)
        host.record(10_000 + event, COPY_STREAM)
        if event > 1:
            if polls:
                host.poll_event(10_000 + event - 1, 30_000)
            else:
                host.sync_event(10_000 + event - 1)
        host.think(scene.think_ns)

    for tokens in scene.requests():
        host.step(PREFILL)
        extend(scene, copies)
        host.launches(tail)
        behind()
        for at in tokens:
            host.step(DECODE)
            prepare(scene, copies)
            host.graph(scene.whole_graph(at))
            host.launches(tail)
            behind()
    return scene.done()


@kind
def sglang_eagle(drawn: Drawn) -> tuple[Trace, Truth]:
    """A graph drafts tokens, one verifies them, kernels or a graph extend the draft's cache."""
    return _eagle(drawn, "behind the extension")


@kind
def sglang_eagle_two_results(drawn: Drawn) -> tuple[Trace, Truth]:
    """The same where the host reads what was verified before it extends the draft's cache, and then the draft."""
    return _eagle(drawn, "before and behind the extension")


@kind
def sglang_eagle_early_result(drawn: Drawn) -> tuple[Trace, Truth]:
    """The same where the host reads only what was verified, before it extends the draft's cache."""
    return _eagle(drawn, "before the extension")


def _eagle(drawn: Drawn, reads: str) -> tuple[Trace, Truth]:
    scene = Scene(drawn, "sglang", (GRAPH, NODE, LIGHT))
    copies, host, tail = drawn.whole("input copies", 1, 4), scene.host, sampling(drawn)
    drafts, replays = drawn.whole("drafts", 2, 7), drawn.one_of("a graph for each draft", True, False)
    extends_by_graph = drawn.one_of("extends by a graph", True, False)
    draft = tuple(scene.model.layer)
    verified = Kernel("void verify_tree_greedy", 3_000)

    def extend_drafts() -> None:
        if extends_by_graph:
            host.graph(Graph(3, draft))
        else:
            host.launches(draft)

    for tokens in scene.requests():
        host.step(PREFILL)
        extend(scene, copies)
        host.copy("DtoH", 8)
        host.sync()
        if reads == "before the extension":
            extend_drafts()
            host.think(scene.think_ns)
        for at in tokens:
            host.step(SPECULATIVE)
            prepare(scene, copies)
            for _ in range(drafts if replays else 1):
                host.graph(Graph(2, draft if replays else draft * drafts))
                host.launch(tail[0])
            host.graph(scene.whole_graph(at))
            host.launches([*tail, verified])
            if "before" in reads:
                host.copy("DtoH", 8 * (drafts + 1))
                host.sync()
            extend_drafts()
            if "behind" in reads:
                host.copy("DtoH", 8 * (drafts + 1))
                host.sync()
            host.think(scene.think_ns)
    return scene.done()
