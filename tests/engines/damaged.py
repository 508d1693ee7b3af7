"""Recordings of a plain engine that lack something, or in which a time is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from tests.engines.drawn import Drawn
from tests.engines.models import sampling
from tests.engines.recorded import GRAPH, KINETOS, NODE, PROFILERS, without
from tests.engines.scene import Scene, kind
from tests.engines.truth import DECODE, PREFILL, Truth
from tracer import Trace
from tracer.model.schema import DEVICE_TABLES

DROPPED = 0.02


def served(drawn: Drawn, levels: tuple[str, ...]) -> Scene:
    """Prompts by kernels, tokens by kernels or a graph, and kernels that sample."""
    scene = Scene(drawn, drawn.one_of("engine", "ggml", "vllm", "torch"), levels, most_kernels=50)
    host, tail, is_eager = scene.host, sampling(drawn), drawn.one_of("eager", True, False)
    for tokens in scene.requests():
        for at in [-1, *tokens]:
            host.step(PREFILL if at < 0 else DECODE)
            host.copy("HtoD", 8 * scene.batch)
            if is_eager or at < 0:
                host.launches(scene.model.prompt() if at < 0 else scene.token(at))
            else:
                host.graph(scene.whole_graph(at))
            host.launches(tail)
            host.copy("DtoH", 8 * scene.batch)
            host.sync()
            host.think(scene.think_ns)
    return scene


@kind
def dropped_records(drawn: Drawn) -> tuple[Trace, Truth]:
    """One record of fifty is lost; the recorder does not say so."""
    scene = served(drawn, PROFILERS)
    chance = scene.machine.chance

    def fewer(name: str, frame: pd.DataFrame) -> pd.DataFrame:
        return frame[[chance.random() >= DROPPED for _ in range(len(frame))]]

    return scene.done(lambda trace: trace.map_tables(fewer))


@kind
def late_end(drawn: Drawn) -> tuple[Trace, Truth]:
    """One kernel of the recording ends far too late."""
    scene = served(drawn, (NODE, *KINETOS))
    late, at = drawn.ns("too late by", 50_000, 500_000_000), drawn.whole("of the kernels, percent", 5, 95) / 100

    def longer(name: str, frame: pd.DataFrame) -> pd.DataFrame:
        if name != "kernels":
            return frame
        end = frame["end"].to_numpy(copy=True)
        end[int(at * len(end))] += late
        return frame.assign(end=end)

    return scene.done(lambda trace: trace.map_tables(longer))


@kind
def device_clock_apart(drawn: Drawn) -> tuple[Trace, Truth]:
    """The device's clock differs from the host's."""
    return _apart(drawn, 0)


@kind
def device_clock_jumps(drawn: Drawn) -> tuple[Trace, Truth]:
    """It does so from some time on."""
    return _apart(drawn, drawn.whole("from so many percent of the records on", 5, 95) / 100)


def _apart(drawn: Drawn, since: float) -> tuple[Trace, Truth]:
    scene = served(drawn, PROFILERS)
    apart = drawn.ns("apart by", 5_000, 5_000_000) * drawn.one_of("ahead or behind", 1, -1)

    def moved(name: str, frame: pd.DataFrame) -> pd.DataFrame:
        if name not in DEVICE_TABLES or not len(frame):
            return frame
        by = (np.arange(len(frame)) >= since * len(frame)) * apart
        return frame.assign(start=frame["start"] + by, end=frame["end"] + by)

    trace, truth = scene.done(lambda trace: trace.map_tables(moved))
    return trace, replace(truth, waited=None)  # a launch that takes longer, or a clock that is later?


@kind
def kernels_only(drawn: Drawn) -> tuple[Trace, Truth]:
    """The device's side alone."""
    return served(drawn, (NODE, *KINETOS)).done(lambda trace: without(trace, "api", "syncs", "cuda_events"))


@kind
def calls_only(drawn: Drawn) -> tuple[Trace, Truth]:
    """The host's side alone."""
    return served(drawn, (GRAPH, *KINETOS)).done(
        lambda trace: without(trace, "kernels", "memcpys", "graph_launches", "memsets")
    )


@kind
def cut_at_both_ends(drawn: Drawn) -> tuple[Trace, Truth]:
    """The recorder begins and ends within a step."""
    scene = served(drawn, PROFILERS)
    first, last = (scene.machine.steps[at] for at in (drawn.whole("begins in step", 1, 3), -1))
    begin = first.start + drawn.ns("begins later than the step by", 1_000, 200_000)
    end = last.start + drawn.ns("ends later than the last step by", 1_000, 200_000)
    scene.machine.cut(begin, end)
    return scene.done()
