"""The configuration of a run: its fields, its checks and its placement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from executor.backends import BACKENDS, backend_class
from executor.backends.tape import Tape, TapeBackend
from executor.names import lookup
from executor.planning.devices import HOST, Device, Placement
from executor.scheduling.launchers import LAUNCHERS
from executor.scheduling.prompts import MICRO_BATCH, Prompts
from executor.scheduling.strategies import fitting
from tracer.errors import UsageError
from tracer.files.bounded import Count

SAMPLING: Final = ("host", "device")
EXPERTS: Final = ("device", "cpu", "copy")


@dataclass(frozen=True, slots=True)
class Configuration:
    """The configuration of a run. Every field except `repeats` and `warmup` can change the plan or the results.

    Attributes:
        allocator: allocator name; None for the default of the concurrency mode.
        batch: number of independent sequences.
        tokens: token steps per repeat.
        prompt: prompt tokens per sequence, 0 for none. Several lengths are assigned to the sequences in turn.
        shared_prompt: one prompt for all sequences, computed once; each continues with its own token.
        micro_batch: maximum prompt tokens per step, but at least one per sequence; no fetch between these steps.
        kv: the kind of KV cache, see `kv_cache`.
        warmup: token steps before the first repeat.
        reserve: token steps for which memory is planned, if more than are run.
        seed: seed of the weights and the first tokens.
        weights: format of the weight matrices, a name of `models.WEIGHTS`; None for the model's own.
        context: maximum tokens per sequence; None for the model's own.
        fusion: whether to fuse chains of nodes; None for the backend's default.
        sampling: "host" fetches the logits and takes the largest; "device" samples on the device and the host fetches
            the tokens. A strategy that advances on the device always samples there.
        allow_hazards: run plans with data races between streams.
        devices: number of the backend's devices, which share the layers.
        gpu_layers: number of layers on the backend's devices, counted from the last, including the output; the others
            and the embedding stay on the host. None for all.
        staging: whether backends stage the sources of asynchronous copies. Ours do; engines often do not.
        experts: "device"; "cpu" if experts stay on the host; "copy" if only their weights do, and the rows that a step
            uses are copied.
        halves: whether the parts of each token step on the host and on the devices alternate for two halves of the
            sequences, see `scheduler.Halves`.
        profile: name or file of the cost profile of a simulated device; None for the backend's default.
        threads: number of threads for products on the CPU or the host; None for the machine's default.
        pinned: whether each of these threads is pinned to its own core.
    """

    backend: str = "cpu"
    model: str = "tiny"
    strategy: str = "sccc"
    concurrency: str = "sequential"
    allocator: str | None = None
    launch: str = "graph"
    batch: Count = 1
    tokens: Count = 32
    prompt: Count | tuple[Count, ...] = 0
    shared_prompt: bool = False
    micro_batch: Count = MICRO_BATCH
    kv: str = "streams"
    repeats: Count = 3
    warmup: Count = 4
    reserve: Count = 0
    seed: Count = 0
    weights: str | None = None
    context: Count | None = None
    fusion: bool | None = None
    sampling: str = "host"
    allow_hazards: bool = False
    devices: Count = 1
    gpu_layers: Count | None = None
    experts: str = "device"
    staging: bool = True
    halves: bool = False
    profile: str | None = None
    threads: Count | None = None
    pinned: bool = False

    @property
    def placement(self) -> Placement:
        """The placement on devices."""
        cores = (self.threads, self.pinned)
        devices = tuple(Device(self.backend, i, self.staging, self.profile, *cores) for i in range(self.devices))
        host = Device(HOST.backend, 0, True, None, *cores)
        if (simulated := backend_class(self.backend).default_profile) is not None:
            host = Device(HOST.backend, 0, self.staging, self.profile or simulated, *cores)
        return Placement(devices, self.gpu_layers, self.experts, host)

    @property
    def is_on_host(self) -> bool:
        """Whether no layer is on the backend, so that the host computes all."""
        return self.gpu_layers == 0

    @property
    def reports(self) -> bool:
        """Whether everything that computes reports to a host recorder, see `Backend.reports`; the host always does."""
        return self.is_on_host or backend_class(self.backend).reports

    @property
    def name(self) -> str:
        """Name of the run directory, which lists only non-default options."""
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
        parts += ["halves"] if self.halves else []
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
    """Check the values of a configuration.

    Raises:
        UsageError: an unknown name or a number out of range.
    """
    lookup("backend", configuration.backend, BACKENDS)
    lookup("launch kind", configuration.launch, LAUNCHERS)
    lookup("sampling", configuration.sampling, dict.fromkeys(SAMPLING))
    lookup("place of the experts", configuration.experts, dict.fromkeys(EXPERTS))
    if backend_class(configuration.backend).default_profile:
        if configuration.devices > 1:
            raise UsageError(f"backend {configuration.backend!r} simulates one device")
        if configuration.experts == "copy":
            raise UsageError(f"backend {configuration.backend!r} computes no values, which choose the experts to copy")
    least_of = dict.fromkeys(("context", "batch", "tokens", "repeats", "micro_batch", "devices", "threads"), 1)
    for option, least in (least_of | {"warmup": 0, "seed": 0, "gpu_layers": 0}).items():
        if (value := getattr(configuration, option)) is not None and value < least:
            raise UsageError(f"{option} must be at least {least}, not {value}")
    if configuration.halves:
        if configuration.batch < 2:
            raise UsageError("halves need a batch of at least 2 sequences")
        if configuration.devices > 1 or (configuration.gpu_layers is None and configuration.experts != "cpu"):
            raise UsageError("halves need one device, and layers or experts that compute on the host")
    lengths = configuration.prompts.lengths
    if not lengths or min(lengths) < 0:
        raise UsageError(f"prompt must be at least 0, not {configuration.prompt}")
    if not isinstance(configuration.prompt, int) and len(configuration.prompt) > configuration.batch:
        raise UsageError(f"{len(configuration.prompt)} prompts are too many for a batch of {configuration.batch}")
    if configuration.shared_prompt and (len(set(lengths)) > 1 or not lengths[0]):
        raise UsageError(f"a shared prompt needs one length, at least 1, not {configuration.prompt}")


def fitting_strategies(configuration: Configuration) -> list[str]:
    """Return the strategies that are safe on the configuration's devices."""
    c = configuration
    backend = TapeBackend(Tape(), Device(c.backend, staged=c.staging))
    cut = c.devices > 1 or c.gpu_layers is not None or c.experts != "device"
    return fitting(backend.guarantees, several=c.devices > 1, cut=cut)


def combinations(base: Configuration, strategies: Iterable[str], concurrency: Iterable[str]) -> list[Configuration]:
    """Return the base configuration with every strategy in every concurrency mode."""
    return [replace(base, strategy=s, concurrency=mode) for s in strategies for mode in concurrency]
