"""What to run: one value that names, checks and places it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from executor.backends import BACKENDS, backend_class
from executor.backends.tape import Tape, TapeBackend
from executor.devices import HOST, Device, Placement
from executor.launchers import LAUNCHERS
from executor.names import lookup
from executor.prompts import MICRO_BATCH, Prompts
from executor.strategies import fitting
from tracer.errors import UsageError

SAMPLING: Final = ("host", "device")
EXPERTS: Final = ("device", "cpu", "copy")


@dataclass(frozen=True, slots=True)
class Configuration:
    """What to run. Every field but `repeats` and `warmup` can change the plan or the numbers.

    Attributes:
        allocator: None for the one that the concurrency mode needs.
        batch: independent sequences.
        tokens: token steps per repeat.
        prompt: tokens that sequences hold before the first token step, 0 for none; of several lengths the sequences
            take one after the other, and again from the first.
        shared_prompt: one prompt for all sequences, computed once; each goes on with a token of its own.
        micro_batch: the most prompt tokens of a step, or one of each sequence if these are more; steps follow each
            other without a fetch.
        kv: the kind of KV cache, see `kv_cache`.
        warmup: token steps before the first repeat.
        reserve: token steps for which memory is planned, where that is more than are run.
        seed: of weights and first tokens.
        weights: format of the weight matrices, a name of `models.WEIGHTS`; None for the model's own.
        context: the most tokens of a sequence; None for the model's own.
        fusion: whether to fuse chains of nodes; None for what the backend wants.
        sampling: "host" fetches the logits and takes the greatest; "device" does so on the device, and the host
            fetches the tokens. A strategy that advances on the device always samples there.
        allow_hazards: run plans in which streams race.
        devices: of the backend, which share the layers.
        gpu_layers: how many of the last layers (the output is one) the backend's devices get, the rest and the
            embedding staying on the host; None for all.
        staging: whether backends stage what asynchronous copies read, as ours do and engines often do not.
        experts: "device"; "cpu" for experts that stay on the host; "copy" for weights of experts that stay there, the
            rows that a step uses being copied.
        profile: name or file of the cost profile of a simulated device; None for the backend's own.
        threads: how many compute the products of the CPU or the host; None for what suits the machine.
        pinned: whether these stay on cores of their own.
    """

    backend: str = "cpu"
    model: str = "tiny"
    strategy: str = "sccc"
    concurrency: str = "sequential"
    allocator: str | None = None
    launch: str = "graph"
    batch: int = 1
    tokens: int = 32
    prompt: int | tuple[int, ...] = 0
    shared_prompt: bool = False
    micro_batch: int = MICRO_BATCH
    kv: str = "streams"
    repeats: int = 3
    warmup: int = 4
    reserve: int = 0
    seed: int = 0
    weights: str | None = None
    context: int | None = None
    fusion: bool | None = None
    sampling: str = "host"
    allow_hazards: bool = False
    devices: int = 1
    gpu_layers: int | None = None
    experts: str = "device"
    staging: bool = True
    profile: str | None = None
    threads: int | None = None
    pinned: bool = False

    @property
    def placement(self) -> Placement:
        """What goes where."""
        cores = (self.threads, self.pinned)
        devices = tuple(
            Device(self.backend, index, self.staging, self.profile, *cores) for index in range(self.devices)
        )
        return Placement(devices, self.gpu_layers, self.experts, Device(HOST.backend, 0, True, None, *cores))

    @property
    def name(self) -> str:
        """Name of the run directory; says only what is not usual."""
        parts = [self.model, self.strategy, self.concurrency]
        parts += [self.backend] if self.backend != "cpu" else []
        parts += [self.allocator] if self.allocator else []
        parts += [self.launch] if self.launch != "graph" else []
        parts += [f"b{self.batch}"] if self.batch != 1 else []
        parts += [self.weights] if self.weights else []
        parts += [f"c{self.context}"] if self.context else []
        parts += [self.kv] if self.kv != "streams" else []
        parts += [f"p{'+'.join(map(str, self._lengths))}"] if any(self._lengths) else []
        parts += ["shared"] if self.shared_prompt else []
        parts += [f"ub{self.micro_batch}"] if self.micro_batch != MICRO_BATCH else []
        parts += [] if self.fusion is None else ["fused" if self.fusion else "unfused"]
        parts += [] if self.sampling == "host" else ["sampled"]
        parts += ["hazards"] if self.allow_hazards else []
        parts += [f"x{self.devices}"] if self.devices != 1 else []
        parts += [f"ngl{self.gpu_layers}"] if self.gpu_layers is not None else []
        parts += [f"{self.experts}-experts"] if self.experts != "device" else []
        parts += [] if self.staging else ["unstaged"]
        parts += [Path(self.profile).stem] if self.profile else []
        parts += [f"t{self.threads}"] if self.threads else []
        parts += ["pinned"] if self.pinned else []
        return "-".join(parts)

    @property
    def _lengths(self) -> Sequence[int]:
        return (self.prompt,) if isinstance(self.prompt, int) else self.prompt

    @property
    def prompts(self) -> Prompts:
        """The prompt of each sequence."""
        return Prompts(tuple(islice(cycle(self._lengths), self.batch)), self.shared_prompt, self.micro_batch)


def check(configuration: Configuration) -> None:
    """See that its values can be.

    Raises:
        UsageError: an unknown name or a number that makes no sense.
    """
    lookup("backend", configuration.backend, BACKENDS)
    lookup("launch kind", configuration.launch, LAUNCHERS)
    lookup("sampling", configuration.sampling, dict.fromkeys(SAMPLING))
    lookup("place of the experts", configuration.experts, dict.fromkeys(EXPERTS))
    one_device = configuration.devices == 1 and configuration.gpu_layers is None and configuration.experts == "device"
    if backend_class(configuration.backend).default_profile and not one_device:
        raise UsageError(f"backend {configuration.backend!r} simulates one device that holds the whole model")
    if configuration.context is not None and configuration.context < 1:
        raise UsageError(f"context must be at least 1, not {configuration.context}")
    least_of = {
        "batch": 1,
        "tokens": 1,
        "repeats": 1,
        "warmup": 0,
        "seed": 0,
        "micro_batch": 1,
        "devices": 1,
        "gpu_layers": 0,
        "threads": 1,
    }
    for option, least in least_of.items():
        if getattr(configuration, option) is not None and getattr(configuration, option) < least:
            raise UsageError(f"{option} must be at least {least}, not {getattr(configuration, option)}")
    lengths = configuration.prompts.lengths
    if not lengths or min(lengths) < 0:
        raise UsageError(f"prompt must be at least 0, not {configuration.prompt}")
    if not isinstance(configuration.prompt, int) and len(configuration.prompt) > configuration.batch:
        raise UsageError(f"{len(configuration.prompt)} prompts are too many for a batch of {configuration.batch}")
    if configuration.shared_prompt and (len(set(lengths)) > 1 or not lengths[0]):
        raise UsageError(f"a shared prompt has one length, at least 1, not {configuration.prompt}")


def fitting_strategies(configuration: Configuration) -> list[str]:
    """The strategies that are safe on the configuration's devices."""
    c = configuration
    backend = TapeBackend(Tape(), Device(c.backend, staged=c.staging))
    cut = c.devices > 1 or c.gpu_layers is not None or c.experts != "device"
    return fitting(backend.guarantees, several=c.devices > 1, cut=cut)


def combinations(base: Configuration, strategies: Iterable[str], concurrency: Iterable[str]) -> list[Configuration]:
    """The base with every strategy in every concurrency mode."""
    return [replace(base, strategy=s, concurrency=mode) for s in strategies for mode in concurrency]
