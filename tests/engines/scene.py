"""What the kinds of engines share: a machine with one host, requests of tokens, and the recording of it all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tests.engines.drawn import Drawn
from tests.engines.machine import Graph, Host, Kernel, Machine
from tests.engines.models import Model
from tests.engines.recorded import EVERY, trace_of
from tests.engines.truth import Truth, truth_of
from tracer import Trace

FEWEST_TOKENS, MOST_TOKENS = 12, 32
PROGRAMS: Final = {
    "ggml": "llama-server", "vllm": "VLLM::EngineCore", "sglang": "sglang::scheduler", "tensorrt": "trtllm-serve",
    "torch": "python3", "xla": "python3",
}  # fmt: skip


@dataclass
class Scene:
    """One recording in the making.

    Attributes:
        levels: of the recorders from which one is drawn.
        family: of `models.LAYERS`.
    """

    drawn: Drawn
    family: str
    levels: tuple[str, ...] = EVERY
    most_kernels: int = 90
    is_shared: bool = False
    processes: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        drawn = self.drawn
        self.level = drawn.one_of("level", *self.levels)
        self.machine = Machine(drawn, self.is_shared)
        self.host = Host(self.machine)
        self.model = Model.of(drawn, self.family, most=self.most_kernels)
        self.batch = drawn.one_of("sequences", 1, 1, 2, 4, 8, 16)
        self.growth = drawn.one_of("attention at the end, times as long", 1.0, 1.0, 1.5)
        self.think_ns = drawn.ns("host between steps", 5_000, 1_000_000)
        if drawn.one_of("its process is named", True, False):
            self.processes = {self.host.process: PROGRAMS[self.family], **self.processes}

    def requests(self, most: int = 3) -> Iterator[range]:
        """The tokens of each request: 12 to 32 of the first, fewer of others."""
        total = self.drawn.whole("tokens", FEWEST_TOKENS, MOST_TOKENS)
        count = self.drawn.whole("requests", 1, most)
        at = 0
        for number in range(count):
            tokens = total if not number else self.drawn.whole(f"tokens of request {number}", 4, FEWEST_TOKENS)
            yield range(at, at + tokens)
            at += tokens
            if number < count - 1:
                self.host.think(self.drawn.ns(f"pause behind request {number}", 1_000, 50_000_000))

    def token(self, at: int) -> list[Kernel]:
        """The kernels of a token, whose attention grows."""
        return self.model.token(1 + (self.growth - 1) * at / MOST_TOKENS)

    def whole_graph(self, at: int, number: int = 1) -> Graph:
        """A graph of all of them."""
        return Graph(number, tuple(self.token(at)))

    def done(self, change: Callable[[Trace], Trace] = lambda trace: trace) -> tuple[Trace, Truth]:
        """The recording and the truth."""
        return change(trace_of(self.machine, self.level, self.processes)), truth_of(self.machine, self.level)


Kind = Callable[[Drawn], tuple[Trace, Truth]]
KINDS: Final[dict[str, Kind]] = {}
"""Every kind of engine, by its name."""


def kind(simulate: Kind) -> Kind:
    """A kind of engine; the name of its function is its own."""
    KINDS[simulate.__name__] = simulate
    return simulate
