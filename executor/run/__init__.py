"""Runs and records configurations: warm-up first, then the interleaved repeats of all configurations."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain

import numpy as np

from executor.backends import backend_class, device_errors, open_backend
from executor.backends.interface import Backend, HostArray
from executor.graph.fusion import fuse
from executor.graph.models import MODELS, Builder, sample_on_device
from executor.graph.models.kv_cache import KvCache, plan_cache
from executor.graph.models.step import DecodeStep, random_tokens
from executor.names import lookup
from executor.planning import Prepared, prepare
from executor.planning.devices import Device
from executor.run.configuration import Configuration, check
from executor.scheduling.launchers import OUTCOMES
from executor.scheduling.memory import Backends, Weights, load_weights
from executor.scheduling.prompts import Prefill
from executor.scheduling.run_hazards import refuse_hazards, run_races
from executor.scheduling.run_waits import StepWait, step_waits
from executor.scheduling.scheduler import GrowingScheduler, Halves, Scheduler, halves_of
from executor.scheduling.strategies import STRATEGIES, Strategy, for_prompts
from tracer.errors import UsageError
from tracer.model.trace import Trace
from tracer.recorders import annotate
from tracer.recorders.host import HostRecorder

WeightsKey = tuple[str, str | None, int]
"""Model, weight format, seed."""


@dataclass(frozen=True)
class Planned:
    """What is known of a configuration before it runs.

    Attributes:
        prepared: its plan; in halves, that of the first one.
        races: why it is unsafe, a sentence each; it runs anyway if hazards are allowed.
        waits: what each wait of a token step orders; empty if that is unknown.
    """

    prepared: Prepared
    races: tuple[str, ...]
    waits: tuple[StepWait, ...]


@dataclass(frozen=True)
class Result:
    """The result of a configuration.

    Attributes:
        planned: what was known of it before.
        seconds: duration of each repeat, from before the first step until all its work was done.
        tokens: (repeats, tokens, batch), as sampled.
        logits: (repeats, tokens, batch, vocabulary) if requested.
        trace: the recording, including warm-up.
        graphs: outcomes of the graphs of each split (`launchers.OUTCOMES`) over all token steps.
        spans: start and end of the warm-up and of each repeat, ns of `time.monotonic_ns`.
    """

    configuration: Configuration
    planned: Planned
    seconds: list[float]
    tokens: HostArray
    logits: HostArray | None
    trace: Trace
    graphs: list[dict[str, int]]
    spans: list[tuple[int, int]]

    @property
    def prepared(self) -> Prepared:
        """Its plan; in halves, that of the first one."""
        return self.planned.prepared


def execute(
    configurations: Sequence[Configuration], *, keep_logits: bool | Container[Configuration] = False,
    progress: Callable[[], None] = lambda: None, models: Mapping[str, Builder] = MODELS,
    strategies: Mapping[str, type[Strategy]] = STRATEGIES, open_backend: Callable[[Device], Backend] = open_backend,
    make_recorder: Callable[[], HostRecorder | None] = HostRecorder,
) -> list[Result]:  # fmt: skip
    """Run all configurations on one instance of each backend.

    Args:
        keep_logits: the configurations whose logits are returned for every step; True for all.
        progress: called after each warm-up and each repeat.
        open_backend: device -> started backend.
        make_recorder: creates the recorder of each configuration, for backends that report their calls
            (`Backend.reports`); None for no recording, in a pass that is recorded from outside. The trace is then
            empty.

    Raises:
        UsageError: an unknown name or a number out of range.
        UnsafePlanError: options that are unsafe together. Nothing has run.
        ExecutionError: a backend failed.
    """
    for configuration in configurations:
        check(configuration)
    kept = configurations if keep_logits is True else keep_logits or ()
    runs = [_Run(c, c in kept, models, strategies, make_recorder()) for c in configurations]
    with ExitStack() as stack:
        backends: dict[Device, Backend] = {}
        stack.enter_context(device_errors(backends))
        for device in dict.fromkeys(device for run in runs for device in run.devices):
            backends[device] = stack.enter_context(closing(open_backend(device)))
        if any(run.records for run in runs):
            launches = max(run.launches * max(run.configuration.tokens, run.configuration.warmup) for run in runs)
            for backend in backends.values():
                backend.expect_steps(launches)
        weights: dict[WeightsKey, Weights] = {}
        for run in runs:
            run.place(backends, weights)
        for run in runs:
            run.warm_up()
            progress()
        for repeat in range(max((c.repeats for c in configurations), default=0)):
            for run in runs:
                if repeat < run.configuration.repeats:
                    run.repeat(repeat)
                    progress()
    return [run.result() for run in runs]


def plan_configuration(configuration: Configuration) -> Planned:
    """Plan a configuration, without running it or starting its backend.

    Raises:
        UsageError: an unknown name or a number out of range.
    """
    check(configuration)
    return _Run(configuration, False, MODELS, STRATEGIES, None).planned


class _Run:
    """The state of one configuration during warm-up and repeats."""

    def __init__(
        self, configuration: Configuration, keep_logits: bool,
        models: Mapping[str, Builder], strategies: Mapping[str, type[Strategy]], recorder: HostRecorder | None,
    ) -> None:  # fmt: skip
        self.configuration = c = configuration
        self._keep_logits = keep_logits
        self._strategy = lookup("strategy", c.strategy, strategies)()
        most, prompts = max(c.tokens, c.warmup, c.reserve), c.prompts

        @cache
        def planned(context: int) -> KvCache:
            return plan_cache(c.kv, prompts.lengths, most, context, shared=c.shared_prompt)

        build: Builder = partial(
            lookup("model", c.model, models), cache=planned,
            **{name: value for name in ("weights", "context") if (value := getattr(c, name)) is not None},
        )  # fmt: skip
        on_device = self._strategy.advances_on_device
        if c.halves and on_device:
            raise UsageError(f"strategy {c.strategy!r} advances on the device: its steps cannot be run in halves")
        step = build(batch=c.batch, on_device=on_device, history=most, keep_logits=keep_logits)
        if c.halves and any(node.updates for node in step.graph.nodes if not node.op.endswith("set_rows")):
            raise UsageError(f"model {c.model!r} has recurrent state: its steps cannot be run in halves")
        if not prompts.together and any(node.updates for node in step.graph.nodes):
            raise UsageError(f"model {c.model!r} has recurrent state: prompts need equal lengths and cannot be shared")
        parts = [{"batch": len(half), "sequences": half} for half in halves_of(c.batch)] if c.halves else []
        steps = [[build(**part, attended=size) for size in step.sizes or (None,)] for part in parts]
        steps = steps or [[*(build(batch=c.batch, attended=size) for size in step.sizes[:-1]), step]]
        self._parts = [
            [
                self._prepare(sample_on_device(each) if c.sampling == "device" and not on_device else each,
                              c.concurrency, c.allocator)
                for each in sizes
            ]
            for sizes in steps
        ]  # fmt: skip
        self.prepared = self._parts[0][-1]
        self._cache = step.cache
        self._prefill = Prefill(prompts, build, self._prepare, c.seed) if any(prompts.lengths) else None
        sizes, others, given = self._parts[0], self._parts[1:], self._prompts
        races = [prepared.races for prepared in self._all if prepared.races]
        if c.allow_hazards:
            reasons, tape = run_races(sizes, self._strategy, prefill=given, others=others)
            races += reasons
        else:
            tape = refuse_hazards(sizes, self._strategy, prefill=given, others=others)
        self.planned = Planned(self.prepared, tuple(dict.fromkeys(races)), tuple(step_waits(tape)))
        self._first = random_tokens(step.vocabulary, c.seed, c.batch)
        self._recorder = recorder
        self._seconds, self._spans = list[float](), list[tuple[int, int]]()
        self._tokens, self._logits = list[HostArray](), list[HostArray]()

    def _prepare(self, step: DecodeStep, concurrency: str = "sequential", allocator: str | None = None) -> Prepared:
        c = self.configuration
        fused = fuse(step) if c.fusion or (c.fusion is None and backend_class(c.backend).fuses) else step
        return prepare(fused, c.placement, concurrency, allocator, allow_hazards=c.allow_hazards)

    @property
    def records(self) -> bool:
        """Whether the backend of the configuration reports to a recorder."""
        return self._recorder is not None

    @property
    def launches(self) -> int:
        """How many splits a token step launches."""
        return sum(len(sizes[-1].splits) for sizes in self._parts)

    @property
    def devices(self) -> list[Device]:
        """The devices of its splits."""
        return list(dict.fromkeys(part.split.device for prepared in self._all for part in prepared.splits))

    @property
    def _prompts(self) -> list[Prepared]:
        return self._prefill.prepared if self._prefill else []

    @property
    def _all(self) -> list[Prepared]:
        return [*self._prompts, *chain.from_iterable(self._parts)]

    def place(self, backends: Backends, weights: dict[WeightsKey, Weights]) -> None:
        """Allocate memory. Runs with equal model, format and seed on a device share weights."""
        c = self.configuration
        loaded = weights.setdefault((c.model, c.weights, c.seed), {})
        self._backends = [backends[device] for device in self.devices]
        for backend in self._backends:
            backend.accompany(self._backends)
        for prepared in self._all:
            load_weights(backends, [part.split for part in prepared.splits], c.seed, loaded)
        make = partial(Scheduler, backends, launch=c.launch, weights=loaded, allow_hazards=c.allow_hazards)
        of_prompts = partial(make, strategy=for_prompts(self._strategy))
        prefill = self._prefill.place(of_prompts) if self._prefill else None
        make = partial(make, keep_logits=self._keep_logits, alternates=c.halves)
        schedulers: list[GrowingScheduler] = []
        for number, part in enumerate(self._parts):
            own = partial(make, strategy=type(self._strategy)() if number else self._strategy)
            sizes = [own(prepared=part[0], prefill=prefill)]
            for prepared in part[1:]:
                sizes.append(own(prepared=prepared, smaller=sizes[-1]))
            schedulers.append(GrowingScheduler(sizes))
            prefill = sizes[0]  # the other half has the same state
        self._scheduler = Halves(self._cache, schedulers) if c.halves else schedulers[0]

    def _begin(self) -> None:
        """Start all sequences, computing any prompts up to the first sampled tokens."""
        if self._prefill is None:
            self._scheduler.begin(self._first)
            return
        with annotate("prefill"):
            first = self._prefill.run()
        self._scheduler.begin(first, np.array(self.configuration.prompts.lengths))

    def warm_up(self) -> None:
        """Run the steps before the first repeat, which are recorded as `warmup`."""
        with self._recording():
            self._begin()
            self._steps("warmup", self.configuration.warmup)

    def repeat(self, number: int) -> None:
        """Run all tokens once, from the first."""
        with self._recording():
            self._begin()
            with annotate("repeat", index=number):
                start = self._backends[0].clock()
                tokens, logits = self._steps("token", self.configuration.tokens)
                self._seconds.append((self._backends[0].clock() - start) / 1e9)
            if self.prepared.step.history is not None and isinstance(self._scheduler, GrowingScheduler):
                history = self._scheduler.now.read_history()
                tokens, logits = list(history["tokens"]), list(history.get("logits", ()))
        self._tokens.append(np.stack(tokens))
        if self._keep_logits:
            self._logits.append(np.stack(logits))

    def _steps(self, text: str, count: int) -> tuple[list[HostArray], list[HostArray]]:
        tokens, kept = [], []
        for index in range(count):
            with annotate(text, index=index):
                self._scheduler.step()
            if not self._strategy.advances_on_device:
                tokens.append(self._scheduler.now.tokens)
                if self._keep_logits:
                    kept.append(self._scheduler.now.logits)
        self._scheduler.now.finish()
        return tokens, kept

    @contextmanager
    def _recording(self) -> Iterator[None]:
        start, recorder = time.monotonic_ns(), self._recorder
        with ExitStack() as stack:
            if recorder is not None:
                for backend in self._backends:
                    backend.report_to(recorder)
                recorder.start()
                stack.callback(recorder.stop)
            yield
            for backend in self._backends if recorder is not None else ():
                backend.report_late()
        self._spans.append((start, time.monotonic_ns()))

    def result(self) -> Result:
        logits = np.stack(self._logits) if self._keep_logits else None
        trace = self._recorder.trace if self._recorder is not None else Trace({})
        graphs = [{name: piece.outcomes[name] for name in OUTCOMES} for piece in self._scheduler.now.pieces]
        return Result(
            self.configuration, self.planned, self._seconds, np.stack(self._tokens), logits, trace, graphs, self._spans
        )
