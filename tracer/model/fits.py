"""Constants of the model that cannot be determined from a recording, by GPU: `fits.toml`, and a user's own file in the
same format.

For every table the file states when its numbers were fitted, to what, and with what error. What the file does not list
for a recording's GPU is taken from the first device, with a caution (`Fits.caution`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from math import log
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from tracer.errors import FormatError, UsageError
from tracer.files.bounded import Count, Figure, toml_of, typed
from tracer.model.trace import Trace

VARIABLE: Final = "INTERTOKEN_FITS"
"""Environment variable: a user's own file. Its devices come before the shipped ones; what a device lacks is taken from
the shipped device that its name matches, and from the first."""

_SHIPPED: Final = Path(__file__).with_name("fits.toml")


class Stretch(Struct, frozen=True):
    """What node-level tracing adds to the CUDA graphs of a step, ns: per kernel, and per ns of kernels.

    Attributes:
        per_kernel, share: of the fitted line.
        error: per kernel, for 95 % of programs that were not used for the fit.
        union: the smallest ratio between the union of the kernels' times and their sum. Kernels that start early or
            run on several streams overlap; with more overlap than this, the stretch may be hidden.
    """

    per_kernel: Figure
    share: Figure
    error: Figure
    union: Figure


class CausesLeft(Struct, frozen=True):
    """The correction of causes.

    Attributes:
        launch_left: level of tracing -> the share of a graph launch (call and latency) that remains without it.
        error: of `distortion.untraced_causes`, relative to their sum.
    """

    launch_left: Mapping[str, Figure]
    error: Figure


class Usual(Struct, frozen=True):
    """Durations of edges of which a recording has no example, ns; see `causality.edges.KINDS`."""

    order_ns: Count
    launch_ns: Count
    return_ns: Count
    event_ns: Count


class GraphCosts(Struct, frozen=True):
    """CUDA graphs that a what-if creates.

    Attributes:
        order_ns: between consecutive kernels.
        early_share, early_most_ns: how much of a kernel's time is saved if it may begin before its predecessor has
            ended (programmatic dependent launch): this share, but no more than its start takes.
        launch_ns, node_ns: host time of a launch without a profiler, and for each node.
    """

    order_ns: Count
    early_share: Figure
    early_most_ns: Count
    launch_ns: Count
    node_ns: Count


class Margin(Struct, frozen=True):
    """The errors of the measured cases of one kind of what-if on one kind of recording: those of the model on programs
    that it was not fitted to.

    Half the width of a margin, in the logarithm of the speed-up, is
        share · (floor + |logarithm of the predicted speed-up|)
    where share is the 95 % quantile of error / (floor + predicted) over the measured cases, corrected for their number
    as in split conformal prediction (Vovk, Gammerman and Shafer, "Algorithmic learning in a random world", 2005).
    Coverage was counted with whole programs left out, one at a time: the share of the other programs' cases, applied
    to the cases of the one left out (benchmarks/whatif_coverage.py, results/whatif_prediction.json). Some of these
    cases were known when the model was chosen, so this is called a margin and not an interval of a stated confidence.

    Attributes:
        share: see above.
        cases, programs: number of cases and of programs.
    """

    share: Figure
    cases: Count
    programs: Count

    def half_width(self, speedup: float, floor: float) -> float:
        """Half the margin for the logarithm of a predicted speed-up."""
        return self.share * (floor + abs(log(speedup)))


class Margins(Struct, frozen=True):
    """The errors of what-ifs.

    Attributes:
        floor: how much the rate of one program varies between processes and days, roughly (see `Margin`).
        fewer_calls: strategies and syncs, for light passes.
        fewer_calls_graph, fewer_calls_node: the same for recordings made under a profiler with a known rate, which
            traced whole graphs, or every kernel and thereby stretched them.
        one_graph: one graph with early starts, for the latter.
    """

    floor: Figure
    fewer_calls: Margin
    fewer_calls_graph: Margin
    fewer_calls_node: Margin
    one_graph: Margin

    def half_width(self, margin: Margin, speedup: float) -> float:
        """Half of one of the margins for the logarithm of a predicted speed-up."""
        return margin.half_width(speedup, self.floor)


class Sampling(Struct, frozen=True):
    """The time in which the device chooses a token."""

    choose_ns: Count


class Light(Struct, frozen=True):
    """The duration that CUPTI reports for a kernel that does nothing, which the light recorder adds to what it measures
    beyond one."""

    empty_ns: Count


class Fits(Struct, frozen=True):
    """The constants for a GPU.

    Attributes:
        gpu: the part of a device's name by which they were chosen.
        called: the GPU as named in a sentence.
        foreign: the tables that were not fitted to the recording's GPU; empty for recordings that name no device.
        caution: a warning about these; None without any.
    """

    gpu: str
    called: str
    stretch: Stretch
    causes: CausesLeft
    usual: Usual
    graph: GraphCosts
    margins: Margins
    sampling: Sampling
    light: Light
    foreign: tuple[str, ...] = ()
    caution: str | None = None

    def launch_left(self, level: str) -> float:
        """The share of a graph launch (call and latency) that remains without tracing at that level."""
        return self.causes.launch_left.get(level, 1.0)


def fits_for(trace: Trace) -> Fits:
    """The constants for a recording.

    Raises:
        UsageError: the user's own file cannot be read.
    """
    return fits_of(gpu_of(trace))


def gpu_of(trace: Trace) -> str:
    """The names of the trace's devices."""
    return ", ".join(sorted(set(trace["devices"]["name"].astype("str"))))


def fits_of(gpu: str) -> Fits:
    """The constants for a device's name, or several; errors as in `fits_for`."""
    return _fits(gpu, *own_file())


def own_file() -> list[Any]:
    """The user's own file and its state, for keys of caches; empty if there is none."""
    path = os.environ.get(VARIABLE, "")
    try:
        return [path, os.stat(path).st_mtime_ns] if path else []
    except OSError:
        return [path]


def _is_of(device: dict[str, Any], gpu: str) -> bool:
    """Whether the constants are for every GPU of these names: a GH200 is not an H200."""
    word = re.compile(rf"(?<![A-Za-z0-9]){re.escape(device['gpu'])}(?![A-Za-z0-9])")
    return all(word.search(name) for name in gpu.split(", "))


def _replaced(value: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A table updated with the entries of another one, including nested tables."""
    inner = {key: _replaced(value[key], new) for key, new in own.items()
             if isinstance(new, dict) and isinstance(value.get(key), dict)}  # fmt: skip
    return value | own | inner


@cache
def _fits(gpu: str, own: str = "", _changed: int = 0) -> Fits:
    shipped = _devices(_SHIPPED)
    first = shipped[0]
    base = next((one for one in shipped if _is_of(one, gpu)), {} if gpu else first)
    try:
        chosen = next((one for one in _devices(Path(own)) if _is_of(one, gpu)), {}) if own else {}
        names = {key: chosen.get(key, base.get(key, first[key])) for key in ("gpu", "called")}
        known = {name: value for name, value in {**first, **base}.items() if name not in names}
        if unknown := sorted(chosen.keys() - names.keys() - known.keys()):
            raise FormatError(f"there is no table {unknown[0]}")
        tables = {name: _replaced(value, chosen.get(name, {})) for name, value in known.items()}
        foreign = tuple(sorted(tables.keys() - base.keys() - chosen.keys()))
        caution = _caution(first["called"], foreign, sorted(tables.keys() - set(foreign)))
        return typed({**tables, **names, "foreign": foreign, "caution": caution}, Fits)
    except (FormatError, TypeError) as error:
        raise UsageError(f"{VARIABLE}={own}: {error}") from error


def _caution(called: str, foreign: Sequence[str], others: Sequence[str]) -> str | None:
    if not foreign:
        return None
    some = "all constants of the model" + (f" but those of {', '.join(others)}" if others else "")
    return f"{some} were fitted to {called}, not to the GPU of this recording, where they may be wrong"


def _devices(path: Path) -> list[dict[str, Any]]:
    """The devices of a file.

    Raises:
        FormatError: it cannot be read, is not TOML, names no device, or contains anything but tables.
    """
    devices = toml_of(path).get("device")
    if not isinstance(devices, list) or not all(isinstance(d, dict) and isinstance(d.get("gpu"), str) for d in devices):
        raise FormatError("has no [[device]] with `gpu`, a part of its name")
    for device in devices:
        for name, value in device.items():
            if name not in ("gpu", "called") and not isinstance(value, dict):
                raise FormatError(f"{name} is not a table")
    return devices
