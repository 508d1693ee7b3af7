"""vLLM: a worker that launches a step, and reads its tokens then or a step later."""

from __future__ import annotations

from tests.engines.drawn import Drawn
from tests.engines.machine import COPY_STREAM, Graph, Host, Kernel, Program
from tests.engines.models import sampling
from tests.engines.recorded import GRAPH, NODE, PROFILERS
from tests.engines.scene import Scene, kind
from tests.engines.truth import CAPTURE, DECODE, MIXED, PREFILL, WARM_UP, Truth
from tracer import Trace
from tracer.model.trace import LIGHT

SLOTS = Kernel("_compute_slot_mapping_kernel", 2_500)
THREAD_OF_RESULTS = 202


def send(scene: Scene, copies: int) -> None:
    """The inputs, and the kernel that prepares them."""
    for _ in range(copies):
        scene.host.copy("HtoD", 8 * scene.batch)
    scene.host.launch(SLOTS)


def fetch(scene: Scene) -> None:
    """The tokens of all sequences."""
    scene.host.copy("DtoH", 8 * scene.batch)
    scene.host.sync()
    scene.host.think(scene.think_ns)


def chunk(
    scene: Scene, copies: int, tail: list[Kernel], phase: str = PREFILL, tokens: float = 1, mark: str = ""
) -> None:
    """A prompt, or a part of one; its forward pass may be marked."""
    scene.host.step(phase)
    send(scene, copies)
    since = scene.host.now
    scene.host.launches(scene.model.prompt(tokens))
    if mark:
        scene.host.mark(mark, since)
    scene.host.launches(tail)
    fetch(scene)


@kind
def vllm_full_graph(drawn: Drawn) -> tuple[Trace, Truth]:
    """A graph per token, then kernels that sample; a new block of the cache now and then."""
    scene = Scene(drawn, "vllm")
    copies, tail = drawn.whole("input copies", 1, 6), sampling(drawn)
    mark = drawn.one_of("mark", "", "", "gpu_model_runner: forward")
    block = drawn.one_of("tokens in a block of the cache", 1_000, 16, 8)
    for tokens in scene.requests():
        chunk(scene, copies, tail, mark=mark)
        for at in tokens:
            scene.host.step(DECODE)
            if not (at + 1) % block:
                scene.host.copy("HtoD", 4_096)
            send(scene, copies)
            since = scene.host.now
            scene.host.graph(scene.whole_graph(at))
            if mark:
                scene.host.mark(mark, since)
            scene.host.launches(tail)
            fetch(scene)
    return scene.done()


@kind
def vllm_whole_process(drawn: Drawn) -> tuple[Trace, Truth]:
    """From the start: warm-up passes, captures of several sizes, then requests."""
    scene = Scene(drawn, "vllm", (GRAPH, NODE, LIGHT), most_kernels=40)
    copies, tail, host = drawn.whole("input copies", 1, 6), sampling(drawn), scene.host
    for _ in range(drawn.whole("warm-up passes", 1, 3)):
        chunk(scene, copies, tail, WARM_UP, 2)
    for size in range(drawn.whole("graphs", 1, 6)):
        host.step(CAPTURE)
        host.launches(scene.model.prompt(0.1))
        host.sync_device()
        host.capture(Graph(2 + size, tuple(scene.model.token())))
        host.think(20_000_000)
    for tokens in scene.requests():
        chunk(scene, copies, tail)
        for at in tokens:
            host.step(DECODE)
            send(scene, copies)
            host.graph(scene.whole_graph(at, 2))
            host.launches(tail)
            fetch(scene)
    return scene.done()


@kind
def vllm_piecewise(drawn: Drawn) -> tuple[Trace, Truth]:
    """A graph for each piece of the model, attention launched between them."""
    scene = Scene(drawn, "vllm", PROFILERS)
    copies, tail, host, layer = drawn.whole("input copies", 1, 6), sampling(drawn), scene.host, scene.model.layer
    pieces = drawn.whole("pieces", 4, 32)
    attention = [kernel for kernel in layer if "flash" in kernel.name] or [layer[-1]]
    rest = tuple(kernel for kernel in layer if kernel not in attention)
    for tokens in scene.requests():
        chunk(scene, copies, tail)
        for _ in tokens:
            host.step(DECODE)
            send(scene, copies)
            for piece in range(pieces):
                host.graph(Graph(1 + piece, rest))
                host.launches(attention)
            host.graph(Graph(1 + pieces, (scene.model.head,)))
            host.launches(tail)
            fetch(scene)
    return scene.done()


@kind
def vllm_async(drawn: Drawn) -> tuple[Trace, Truth]:
    """Asynchronous scheduling: a step is launched before the tokens of the last one are read, by another stream."""
    scene = Scene(drawn, "vllm")
    copies, tail, host = drawn.whole("input copies", 1, 4), sampling(drawn), scene.host
    reads_in_a_thread = drawn.one_of("another thread reads", True, False)
    tokens = drawn.whole("tokens", 14, 40)
    ready: list[tuple[int, int]] = []

    def launches() -> Program:
        for at in range(tokens):
            while len(ready) > at + 1:
                yield
            host.step(DECODE)
            send(scene, copies)
            host.graph(scene.whole_graph(at))
            host.launches(tail)
            host.record(100 + at)
            host.wait(100 + at, COPY_STREAM)
            host.copy("DtoH", 8 * scene.batch, COPY_STREAM)
            host.record(1_000 + at, COPY_STREAM)
            ready.append((1_000 + at, host.now))
            yield
            if not reads_in_a_thread and at:
                host.sync_event(1_000 + at - 1)
            while reads_in_a_thread and len(done) < at:
                yield
            host.now = max(host.now, done[at - 1] if reads_in_a_thread and at else 0)
            host.think(scene.think_ns)
        if not reads_in_a_thread:
            host.sync_event(1_000 + tokens - 1)

    done: list[int] = []
    reader = Host(scene.machine, thread=THREAD_OF_RESULTS)

    def reads() -> Program:
        for at in range(tokens):
            while len(ready) <= at:
                yield
            event, when = ready[at]
            reader.now = max(reader.now, when)
            reader.at = at
            reader.sync_event(event)
            done.append(reader.now)
            yield

    programs = [(host, launches()), *([(reader, reads())] if reads_in_a_thread else [])]
    scene.machine.run(*programs)
    return scene.done()


@kind
def vllm_chunked_prefill(drawn: Drawn) -> tuple[Trace, Truth]:
    """Prompts in chunks, computed together with the tokens of other sequences."""
    scene = Scene(drawn, "vllm", PROFILERS, most_kernels=50)
    copies, tail = drawn.whole("input copies", 1, 6), sampling(drawn)
    scene.batch = 4
    chunk(scene, copies, tail)
    for _ in range(drawn.whole("prompts between", 1, 4)):
        for at in range(drawn.whole("tokens between", 6, 20)):
            scene.host.step(DECODE)
            send(scene, copies)
            scene.host.graph(scene.whole_graph(at))
            scene.host.launches(tail)
            fetch(scene)
        for _ in range(drawn.whole("chunks", 1, 3)):
            chunk(scene, copies, tail, MIXED)
    return scene.done()


@kind
def vllm_sizes_of_graphs(drawn: Drawn) -> tuple[Trace, Truth]:
    """Sequences come and end, so that graphs of several sizes are replayed."""
    scene = Scene(drawn, "vllm")
    copies, tail = drawn.whole("input copies", 1, 6), sampling(drawn)
    sizes = [1, 2, 4, 8, 16]
    size = drawn.whole("size at first", 0, 4)
    chunk(scene, copies, tail)
    for run in range(drawn.whole("changes", 2, 6)):
        scene.batch = sizes[size]
        graph = Graph(1 + size, tuple(k._replace(ns=round(k.ns * (1 + size / 10))) for k in scene.model.token()))
        for _ in range(drawn.whole(f"tokens of run {run}", 2, 14)):
            scene.host.step(DECODE)
            send(scene, copies)
            scene.host.graph(graph)
            scene.host.launches(tail)
            fetch(scene)
        before, size = size, drawn.whole(f"size after run {run}", 0, 4)
        if size > before:
            chunk(scene, copies, tail)
    return scene.done()


@kind
def server_recaptures(drawn: Drawn) -> tuple[Trace, Truth]:
    """Now and then a token captures its graph again before it replays it, as a new one or one that there was."""
    scene = Scene(drawn, "vllm", (GRAPH, NODE, LIGHT))
    copies, tail, every = drawn.whole("input copies", 1, 6), sampling(drawn), drawn.whole("captures every", 4, 12)
    graphs = drawn.whole("graphs", 1, 8)
    chunk(scene, copies, tail)
    for at in range(drawn.whole("tokens", 24, 48)):
        scene.host.step(DECODE)
        send(scene, copies)
        graph = scene.whole_graph(at, 1 + at // every % graphs)
        if not at % every:
            scene.host.capture(graph)
        scene.host.graph(graph)
        scene.host.launches(tail)
        fetch(scene)
    return scene.done()


@kind
def captured_sampling(drawn: Drawn) -> tuple[Trace, Truth]:
    """A graph of the model and a small one that samples."""
    scene = Scene(drawn, "vllm")
    copies, tail = drawn.whole("input copies", 1, 6), Graph(2, tuple(sampling(drawn)))
    between = drawn.one_of("waits between them", False, True)
    for tokens in scene.requests():
        chunk(scene, copies, list(tail.kernels))
        for at in tokens:
            scene.host.step(DECODE)
            send(scene, copies)
            scene.host.graph(scene.whole_graph(at))
            if between:
                scene.host.copy("DtoH", 4)
                scene.host.sync()
            scene.host.graph(tail)
            fetch(scene)
    return scene.done()


@kind
def two_engines(drawn: Drawn) -> tuple[Trace, Truth]:
    """Two engines on one GPU, in two threads or processes, each with a stream of its own."""
    scene = Scene(drawn, "vllm", (GRAPH, NODE), most_kernels=40, is_shared=True)
    apart = drawn.one_of("in two processes", True, False)
    tail, tokens = sampling(drawn), drawn.whole("tokens", 14, 30)
    scene.host.engine = "first"
    other = Host(scene.machine, 100 + apart, 301, engine="second", stream=9)

    def program(host: Host, number: int, think_ns: int) -> Program:
        for at in range(tokens):
            host.step(DECODE)
            host.copy("HtoD", 8)
            yield
            host.graph(scene.whole_graph(at, number))
            yield
            host.launches(tail)
            host.copy("DtoH", 8)
            yield
            host.sync()
            host.think(think_ns)
            yield

    thinks = scene.think_ns, drawn.ns("other host between steps", 5_000, 1_000_000)
    other.now += drawn.ns("other begins later by", 1_000, 300_000)
    scene.machine.run((scene.host, program(scene.host, 1, thinks[0])), (other, program(other, 2, thinks[1])))
    return scene.done()
