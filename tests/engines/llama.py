"""llama.cpp and ktransformers: a step copies its inputs, launches one or more graphs, and copies the logits back."""

from __future__ import annotations

from tests.engines.drawn import Drawn
from tests.engines.machine import Graph, Host, Kernel
from tests.engines.recorded import GRAPH, NODE, PROFILERS
from tests.engines.scene import Scene, kind
from tests.engines.truth import DECODE, EAGER, PREFILL, Truth
from tracer import Trace
from tracer.model.trace import LIGHT

LOGITS = 128_000
STRATEGIES = ("sccc", "saaas", "aaas", "aaag")


def send(host: Host, strategy: str, count: int) -> None:
    """The inputs of a step, by one of the strategies."""
    if strategy in ("sccc", "saaas"):
        host.sync()
    for at in range(count):
        host.copy("HtoD", 4 if at else 8_192)
        if strategy == "sccc":
            host.sync()
    if strategy in ("saaas", "aaas"):
        host.sync()


def fetch(host: Host, size: int) -> None:
    """The logits."""
    host.copy("DtoH", size)
    host.sync()


def prompt(scene: Scene, strategy: str, inputs: int, chunks: int = 1) -> None:
    """A prompt, eager, in one or more batches."""
    for _ in range(chunks):
        scene.host.step(PREFILL)
        send(scene.host, strategy, inputs)
        scene.host.launches(scene.model.prompt())
        fetch(scene.host, LOGITS)
        scene.host.think(scene.think_ns)


@kind
def llama_whole_graph(drawn: Drawn) -> tuple[Trace, Truth]:
    """A graph per token; the first token of a request may run eagerly and be captured."""
    scene = Scene(drawn, "ggml")
    strategy, inputs = drawn.one_of("strategy", *STRATEGIES), drawn.whole("inputs", 2, 7)
    captures = drawn.one_of("captures in the first token", True, False)
    host = scene.host
    for number, tokens in enumerate(scene.requests()):
        prompt(scene, strategy, inputs)
        for at in tokens:
            is_first = captures and not number and at == tokens[0]
            host.step(EAGER if is_first else DECODE)
            send(host, strategy, inputs)
            if is_first:
                host.capture(scene.whole_graph(at))
            host.graph(scene.whole_graph(at))
            fetch(host, LOGITS * scene.batch)
            host.think(scene.think_ns)
    return scene.done()


@kind
def llama_ggg(drawn: Drawn) -> tuple[Trace, Truth]:
    """Everything in one graph a token, copies included; the host waits for it and reads the result in its memory."""
    scene = Scene(drawn, "ggml")
    tokens = drawn.whole("tokens", 12, 40)
    for at in range(tokens):
        scene.host.step(DECODE)
        scene.host.graph(scene.whole_graph(at))
        scene.host.sync()
        scene.host.think(scene.think_ns)
    return scene.done()


@kind
def llama_graph_per_split(drawn: Drawn) -> tuple[Trace, Truth]:
    """16 to 128 graphs a token, each of a layer or of a part of one; the logits are fetched at the end of the token."""
    return _splits(drawn, 128)


@kind
def llama_two_graphs_in_turn(drawn: Drawn) -> tuple[Trace, Truth]:
    """The same by two graphs in turn, with other weights each time."""
    return _splits(drawn, 2)


def _splits(drawn: Drawn, graphs: int) -> tuple[Trace, Truth]:
    scene = Scene(drawn, "ggml", (GRAPH, NODE, LIGHT))
    splits = drawn.one_of("splits", 16, 24, 32, 48, 64, 128)
    syncs = drawn.one_of("waits behind each split", True, False)
    copies = drawn.one_of("copies into each split", True, False)
    has_prompt, host = drawn.one_of("has prompts", True, False), scene.host
    for tokens in scene.requests(2):
        if has_prompt:
            prompt(scene, "saaas", 4)
        for _ in range(min(len(tokens), 1200 // splits)):
            host.step(DECODE)
            send(host, "aaag", 3)
            for split in range(splits):
                if copies and split:
                    host.copy("HtoD", 4_096)
                host.graph(Graph(1 + split % graphs, tuple(scene.model.layer_at())))
                if syncs and split < splits - 1:
                    host.sync()
            fetch(host, LOGITS * scene.batch)
            host.think(scene.think_ns)
    return scene.done()


@kind
def llama_layers_on_the_host(drawn: Drawn) -> tuple[Trace, Truth]:
    """Some layers computed by the host: each token copies activations to it and back."""
    scene = Scene(drawn, "ggml", (GRAPH, NODE, LIGHT))
    host, ns = scene.host, drawn.ns("host compute", 200_000, 5_000_000)
    for tokens in scene.requests():
        prompt(scene, "saaas", 3)
        for at in tokens:
            host.step(DECODE)
            host.think(ns)
            send(host, "saaas", 3)
            host.graph(scene.whole_graph(at))
            fetch(host, LOGITS)
            host.think(scene.think_ns)
    return scene.done()


@kind
def llama_eager(drawn: Drawn) -> tuple[Trace, Truth]:
    """Without graphs."""
    scene = Scene(drawn, "ggml", (GRAPH, NODE))
    strategy, inputs, host = drawn.one_of("strategy", *STRATEGIES), drawn.whole("inputs", 2, 7), scene.host
    for tokens in scene.requests():
        prompt(scene, strategy, inputs, drawn.whole("batches of a prompt", 1, 3))
        for at in tokens:
            host.step(DECODE)
            send(host, strategy, inputs)
            host.launches(scene.token(at))
            fetch(host, LOGITS * scene.batch)
            host.think(scene.think_ns)
    return scene.done()


@kind
def ktransformers_eager(drawn: Drawn) -> tuple[Trace, Truth]:
    """Attention of each layer on the device, experts on the host between them."""
    return _experts_on_the_host(drawn, False)


@kind
def ktransformers_graphs(drawn: Drawn) -> tuple[Trace, Truth]:
    """The same with a graph for the attention of each layer, behind a kernel or alone."""
    return _experts_on_the_host(drawn, True)


def _experts_on_the_host(drawn: Drawn, are_graphs: bool) -> tuple[Trace, Truth]:
    scene = Scene(drawn, "torch", PROFILERS)
    layers, expert_ns = drawn.whole("layers with experts", 4, 32), drawn.ns("experts on the host", 50_000, 1_000_000)
    before, host = drawn.whole("kernels before each graph", 0, 1), scene.host
    attention = scene.model.layer
    for at in range(drawn.whole("tokens", 12, 24)):
        host.step(DECODE)
        host.copy("HtoD", 8 * scene.batch)
        for layer in range(layers):
            if are_graphs:
                host.launches([scene.model.embed] * before)
                host.graph(Graph(1 + layer, attention))
            else:
                host.launches(attention)
            host.copy("DtoH", 8_192 * scene.batch)
            host.sync()
            host.think(expert_ns)
            host.copy("HtoD", 8_192 * scene.batch)
        host.launches([Kernel("void at::native::layer_norm_kernel", 3_000 + at), scene.model.head])
        fetch(host, 4 * scene.batch)
        host.think(scene.think_ns)
    return scene.done()


@kind
def experts_routed_on_the_host(drawn: Drawn) -> tuple[Trace, Truth]:
    """A mixture of experts, whose router's choice the host reads in every layer before it launches the experts."""
    scene = Scene(drawn, "torch", PROFILERS)
    layers, host = drawn.whole("layers with experts", 4, 16), scene.host
    experts = [Kernel(f"void expert_gemm_{at}", 8_000) for at in range(8)]
    router = [*scene.model.layer, Kernel("void topk_router", 3_000)]
    for _ in range(drawn.whole("tokens", 12, 24)):
        host.step(DECODE)
        host.copy("HtoD", 8 * scene.batch)
        host.launch(scene.model.embed)
        for _ in range(layers):
            host.launches(router)
            fetch(host, 8 * scene.batch)
            first = int(scene.machine.chance.random() * 7)
            host.launches(experts[first : first + 2])
        host.launch(scene.model.head)
        fetch(host, 8 * scene.batch)
        host.think(scene.think_ns)
    return scene.done()


@kind
def draft_and_target(drawn: Drawn) -> tuple[Trace, Truth]:
    """A small model drafts tokens one by one, each fetched, and a large one verifies them in a graph of its own."""
    scene = Scene(drawn, "ggml", (GRAPH, NODE, LIGHT))
    drafts, host = drawn.whole("drafts", 2, 8), scene.host
    small = tuple(scene.model.layer[:4])
    for at in range(drawn.whole("steps", 12, 24)):
        host.step("speculative")
        for _ in range(drafts):
            send(host, "saaas", 3)
            host.graph(Graph(2, small))
            fetch(host, LOGITS)
        send(host, "saaas", 3)
        host.graph(scene.whole_graph(at))
        fetch(host, LOGITS * (drafts + 1))
        host.think(scene.think_ns)
    return scene.done()
