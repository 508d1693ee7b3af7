"""TensorRT-LLM, JAX, PyTorch without an engine, and loops that do not decode."""

from __future__ import annotations

from tests.engines.drawn import Drawn
from tests.engines.machine import Graph, Host, Kernel, Program
from tests.engines.models import Model, sampling
from tests.engines.recorded import GRAPH, KINETO, KINETOS, NODE, OLD_KINETO, PROFILERS
from tests.engines.scene import Scene, kind
from tests.engines.truth import DECODE, DIFFUSION, OTHER, PREFILL, TRAINING, Truth
from tracer import Trace
from tracer.model.trace import LIGHT


@kind
def tensorrt_polls_memory(drawn: Drawn) -> tuple[Trace, Truth]:
    """The device writes tokens into memory that the host reads until they are there: no call waits or copies."""
    scene = Scene(drawn, "tensorrt", (GRAPH, NODE))
    copies, host, tail = drawn.whole("input copies", 0, 4), scene.host, sampling(drawn)
    mark = drawn.one_of("mark", "", "execute")
    for tokens in scene.requests():
        for at in [-1, *tokens]:
            host.step(PREFILL if at < 0 else DECODE)
            since = host.now
            for _ in range(copies):
                host.copy("HtoD", 4 * scene.batch)
            if at < 0:
                host.launches(scene.model.prompt())
            else:
                host.graph(scene.whole_graph(at))
            host.launches(tail)
            if mark:
                host.mark(mark, since)
            host.poll_memory()
            host.think(scene.think_ns)
    return scene.done()


@kind
def tensorrt_marked(drawn: Drawn) -> tuple[Trace, Truth]:
    """The executor marks its forward passes."""
    scene = Scene(drawn, "tensorrt", PROFILERS)
    copies, host, tail, number = drawn.whole("input copies", 1, 4), scene.host, sampling(drawn), 0
    for tokens in scene.requests():
        for at in [-1, *tokens]:
            host.step(PREFILL if at < 0 else DECODE)
            since = host.now
            for _ in range(copies):
                host.copy("HtoD", 4 * scene.batch)
            if at < 0:
                host.launches(scene.model.prompt())
            else:
                host.graph(scene.whole_graph(at))
            number += 1
            requests = f"{int(at < 0)} ctx reqs, {0 if at < 0 else scene.batch} gen reqs"
            host.mark(f"[Executor] _forward_step {number}: {requests}", since)
            host.launches(tail)
            host.copy("DtoH", 4 * scene.batch)
            host.sync()
            host.think(scene.think_ns)
    return scene.done()


def read_by_host_function(host: Host, size: int) -> None:
    """A copy, and a host function behind it that wakes the host: no sync."""
    host.copy("DtoH", size)
    host.call("host function", host.machine.costs.event)
    host.poll_memory()


@kind
def jax_step(drawn: Drawn) -> tuple[Trace, Truth]:
    """A compiled function a step, by graphs or kernels, whose result is read at once or a step later."""
    scene = Scene(drawn, "xla", (GRAPH, NODE, LIGHT))
    host, tokens = scene.host, drawn.whole("tokens", 14, 40)
    are_graphs, is_late = drawn.one_of("a graph", True, False), drawn.one_of("read a step later", False, True)
    has_prompt = drawn.one_of("has a prompt", True, False)
    if has_prompt:
        host.step(PREFILL)
        host.copy("HtoD", 2_048)
        host.launches(scene.model.prompt(), what="launch ex")
        read_by_host_function(host, 4 * scene.batch)
    ends: list[int] = []
    for at in range(tokens):
        host.step(DECODE)
        host.copy("HtoD", 4 * scene.batch)
        if are_graphs:
            host.graph(scene.whole_graph(at))
        else:
            host.launches(scene.token(at), what="launch ex")
        if not is_late:
            read_by_host_function(host, 4 * scene.batch)
        else:
            host.copy("DtoH", 4 * scene.batch)
            host.call("host function", scene.machine.costs.event)
            ends.append(scene.machine.free[0, host.stream])
            if at:
                host.now = max(host.now, ends[-2])
        host.think(scene.think_ns)
    return scene.done()


@kind
def jax_scan(drawn: Drawn) -> tuple[Trace, Truth]:
    """Several steps in one launch: a loop whose passes the host launches without a wait, and reads together."""
    scene = Scene(drawn, "xla", (GRAPH, NODE))
    host, at_once = scene.host, drawn.whole("steps in one launch", 2, 16)
    are_graphs = drawn.one_of("a graph", True, False)
    for launch in range(drawn.whole("launches", 4, 10)):
        for at in range(at_once):
            host.step(DECODE)
            if not at:
                host.copy("HtoD", 4 * scene.batch)
            if are_graphs:
                host.graph(scene.whole_graph(launch))
            else:
                host.launches(scene.token(launch), what="launch ex")
        read_by_host_function(host, 4 * scene.batch * at_once)
        host.think(scene.think_ns)
    return scene.done()


@kind
def transformers_eager(drawn: Drawn) -> tuple[Trace, Truth]:
    """Everything launched by PyTorch, the token and whether to stop fetched one behind the other."""
    scene = Scene(drawn, "torch", PROFILERS, most_kernels=60)
    host, tail, stops = scene.host, sampling(drawn), drawn.one_of("fetches whether to stop", True, False)
    is_blocking = drawn.one_of("blocking copies", True, False)

    def fetch(size: int) -> None:
        host.copy("DtoH", size, is_blocking=is_blocking)
        if not is_blocking:
            host.sync()

    for tokens in scene.requests():
        for at in [-1, *tokens]:
            host.step(PREFILL if at < 0 else DECODE)
            host.copy("HtoD", 8 * scene.batch)
            host.launches(scene.model.prompt() if at < 0 else scene.token(at))
            host.launches(tail)
            if stops:
                fetch(1)
                host.launch(tail[0])
            fetch(8 * scene.batch)
            host.think(scene.think_ns)
    return scene.done()


@kind
def programmatic_launches(drawn: Drawn) -> tuple[Trace, Truth]:
    """Eager kernels that each start before the one ahead of them ends."""
    scene = Scene(drawn, "torch", PROFILERS, most_kernels=60)
    host, early = scene.host, drawn.ns("starts earlier by", 300, 3_000)
    for tokens in scene.requests(2):
        for at in [-1, *tokens]:
            host.step(PREFILL if at < 0 else DECODE)
            host.copy("HtoD", 8 * scene.batch)
            host.launches(scene.model.prompt() if at < 0 else scene.token(at), early=early, what="launch ex")
            host.copy("DtoH", 8 * scene.batch)
            host.sync()
            host.think(scene.think_ns)
    return scene.done()


@kind
def speech(drawn: Drawn) -> tuple[Trace, Truth]:
    """Text to speech: a frame is a large graph and several launches of a small one, fetched once."""
    return _speech(drawn, (GRAPH, NODE, KINETO, LIGHT))


@kind
def speech_by_unknown_graphs(drawn: Drawn) -> tuple[Trace, Truth]:
    """The same where the recorder does not tell graphs apart."""
    return _speech(drawn, (OLD_KINETO,))


def _speech(drawn: Drawn, levels: tuple[str, ...]) -> tuple[Trace, Truth]:
    scene = Scene(drawn, "torch", levels, most_kernels=50)
    host, codebooks = scene.host, drawn.whole("small graphs", 4, 15)
    small = Graph(2, tuple(Model.of(drawn, "torch", "small: ", 20).token()))
    copies = drawn.one_of("copies between small graphs", True, False)
    is_distinct = drawn.one_of("each small graph is its own", False, True)
    tail = sampling(drawn)[: drawn.whole("kernels behind each graph", 0, 2)]
    for at in range(drawn.whole("frames", 12, 24)):
        host.step(DECODE)
        host.copy("HtoD", 8 * scene.batch)
        host.graph(scene.whole_graph(at))
        for book in range(codebooks):
            if copies:
                host.copy("DtoD", 8)
            host.launches(tail)
            host.graph(Graph(2 + book * is_distinct, small.kernels))
        host.launches(tail)
        host.copy("DtoH", 8 * codebooks)
        host.sync()
        host.think(scene.think_ns)
    return scene.done()


@kind
def diffusion(drawn: Drawn) -> tuple[Trace, Truth]:
    """Images: each takes several steps without a wait, and is fetched."""
    scene = Scene(drawn, "torch", PROFILERS)
    host, steps, are_graphs = scene.host, drawn.whole("steps of an image", 4, 20), drawn.one_of("graph", False, True)
    decoder = [Kernel("void cudnn::conv2d_grouped_direct", 40_000, 512)] * 6
    for image in range(drawn.whole("images", 3, 6)):
        for at in range(steps):
            host.step(DIFFUSION, whole=image)
            if not at:
                host.copy("HtoD", 77 * 768 * 2)
            if are_graphs:
                host.graph(scene.whole_graph(0))
            else:
                host.launches(scene.model.prompt(0.2))
        host.launches(decoder)
        host.copy("DtoH", 3 * 512 * 512)
        host.sync()
        host.think(scene.think_ns)
    return scene.done()


@kind
def training(drawn: Drawn) -> tuple[Trace, Truth]:
    """Forward, backward and optimizer; the loss is fetched in every iteration."""
    return _training(drawn, 1)


@kind
def training_without_a_loss_each(drawn: Drawn) -> tuple[Trace, Truth]:
    """The same with the loss fetched in every few iterations."""
    return _training(drawn, drawn.one_of("fetches the loss every", 2, 4))


def _training(drawn: Drawn, every: int) -> tuple[Trace, Truth]:
    scene = Scene(drawn, "torch", PROFILERS, most_kernels=40)
    host = scene.host
    names = drawn.one_of("kernels are named after their pass", True, False)
    forward = scene.model.prompt(0.3)
    backward = [
        kernel._replace(name=kernel.name + "_bwd" * names, ns=2 * kernel.ns, blocks=kernel.blocks + 1)
        for kernel in reversed(forward)
    ]
    update = [Kernel("void at::native::multi_tensor_apply_kernel<adam>", 30_000)] * drawn.whole("optimizer", 1, 6)
    is_marked = drawn.one_of("the profiler marks iterations", False, False, True)
    for at in range(drawn.whole("iterations", 12, 24)):
        host.step(TRAINING)
        since = host.now
        host.copy("HtoD", 4_096 * 8 * scene.batch)
        host.launches(forward)
        host.launches(backward)
        host.launches(update)
        if not (at + 1) % every:
            host.copy("DtoH", 4)
            host.sync()
        host.think(scene.think_ns)
        if is_marked and scene.level in KINETOS:
            host.mark(f"ProfilerStep#{at}", since)
    return scene.done()


@kind
def micro_batches(drawn: Drawn) -> tuple[Trace, Truth]:
    """Two or more halves of a batch in turn, each by a graph of its own; each is fetched, or all together."""
    scene = Scene(drawn, "vllm", (GRAPH, NODE, LIGHT))
    host, count = scene.host, drawn.whole("micro-batches", 2, 4)
    together, tail = drawn.one_of("fetched together", True, False), sampling(drawn)
    for at in range(drawn.whole("tokens", 12, 24)):
        for part in range(count):
            host.step(DECODE, whole=at)
            host.copy("HtoD", 8 * scene.batch)
            host.graph(scene.whole_graph(at, 1 + part))
            host.launches(tail)
            if not together or part == count - 1:
                host.copy("DtoH", 8 * scene.batch * (count if together else 1))
                host.sync()
                host.think(scene.think_ns)
    return scene.done()


@kind
def tensor_parallel(drawn: Drawn) -> tuple[Trace, Truth]:
    """Two ranks, each a process with a device: in every layer one waits for the other."""
    scene = Scene(drawn, "vllm", (GRAPH, NODE), most_kernels=40)
    tail, tokens = sampling(drawn), drawn.whole("tokens", 14, 30)
    is_eager, reduce = drawn.one_of("eager", True, False), Kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 9_000)
    scene.host.engine = "rank 0"
    other = Host(scene.machine, 200, 201, device=1, engine="rank 1")
    begun = {scene.host: 0, other: 0}
    kernels = [scene.model.embed, *[*scene.model.layer, reduce] * min(scene.model.layers, 6), scene.model.head]

    def program(host: Host, peer: Host) -> Program:
        for at in range(tokens):
            begun[host] = at + 1
            while begun[peer] < at:
                yield
            host.step(DECODE)
            host.copy("HtoD", 8 * scene.batch)
            if is_eager:
                host.launches(kernels)
            else:
                host.graph(Graph(1, tuple(kernels)))
            yield
            host.launches(tail)
            host.copy("DtoH", 8 * scene.batch)
            host.sync()
            host.think(scene.think_ns)
            yield

    scene.machine.run((scene.host, program(scene.host, other)), (other, program(other, scene.host)))
    return scene.done()


@kind
def pipeline_stage(drawn: Drawn) -> tuple[Trace, Truth]:
    """A stage in the middle: it receives activations, replays its layers and sends on; nothing is fetched."""
    scene = Scene(drawn, "vllm", (GRAPH, NODE))
    host, waits = scene.host, drawn.one_of("waits behind each step", True, False)
    receive, send = (Kernel(f"ncclDevKernel_SendRecv_{way}", 15_000) for way in ("in", "out"))
    for at in range(drawn.whole("tokens", 14, 40)):
        host.step(DECODE)
        host.copy("HtoD", 8 * scene.batch)
        host.launch(receive)
        host.graph(scene.whole_graph(at))
        host.launch(send)
        if waits:
            host.sync()
        host.think(scene.think_ns)
    return scene.done()


@kind
def solver(drawn: Drawn) -> tuple[Trace, Truth]:
    """No model: a loop of a few kernels whose residual the host reads, by a copy that waits or a copy and a sync."""
    scene = Scene(drawn, "xla", (GRAPH, NODE, LIGHT))
    kernels = [Kernel("spmv_csr", 20_000), Kernel("axpy", 6_000), Kernel("dot", 4_000)][: drawn.whole("kernels", 2, 3)]
    host, is_blocking = scene.host, drawn.one_of("blocking copy", True, False)
    for _ in range(drawn.whole("iterations", 14, 60)):
        host.step(OTHER)
        host.launches(kernels)
        host.copy("DtoH", 8, is_blocking=is_blocking)
        if not is_blocking:
            host.sync()
        host.think(scene.think_ns)
    return scene.done()
