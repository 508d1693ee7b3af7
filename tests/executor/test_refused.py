"""What cannot be run is refused before any device is opened, in one line that says what to choose."""

import json
import re
from pathlib import Path

import pytest

from executor.backends.cpu.backend import CpuBackend
from executor.graph.models import MODELS
from executor.run import execute
from executor.run.configuration import Configuration, combinations
from executor.scheduling.strategies import GGG, SCCC, STRATEGIES, check_needs
from tests.executor.handmade import scheduler_on
from tracer import errors
from tracer.errors import ExecutionError, UnsafePlanError, UsageError

REFUSED = json.loads((Path(__file__).parent / "data" / "refused.json").read_text(encoding="utf-8"))
"""Error, options, and what is said of them, as a pattern."""


def test_what_cannot_be_run_is_refused_before_anything_is_opened():
    opened = []
    for error, options, said in REFUSED:
        options |= {"prompt": tuple(prompt)} if isinstance(prompt := options.get("prompt"), list) else {}
        with pytest.raises(getattr(errors, error)) as caught:
            execute([Configuration(**options)], open_backend=opened.append)
        assert re.search(said, str(caught.value)), (options, str(caught.value))
        assert "\n" not in str(caught.value)
    with pytest.raises(UnsafePlanError):  # also where others before it could run
        execute(combinations(Configuration(allocator="sequential"), ["sccc"], ["sequential", "branches"]),
                open_backend=opened.append)  # fmt: skip
    assert opened == []


def test_a_backend_without_guarantees_runs_only_what_waits():
    assert [name for name, cls in STRATEGIES.items() if not cls.needs][:2] == ["sccc", "saaas"]
    for name, cls in STRATEGIES.items():
        if not cls.needs:
            check_needs(cls(), "bare", frozenset())
        else:
            with pytest.raises(UnsafePlanError, match=rf"'{name}' .*'bare'.*Choose one of sccc, saaas"):
                check_needs(cls(), "bare", frozenset())
    with pytest.raises(UnsafePlanError, match="aaag"):
        execute([Configuration(strategy="aaag", tokens=1)], open_backend=lambda *_: CpuBackend(staged=False))


@pytest.mark.parametrize(("strategy", "on_device"), [(SCCC, True), (GGG, False)])
def test_strategy_and_graph_must_agree_on_who_advances(strategy, on_device):
    step, backend = MODELS["tiny"](on_device=on_device, history=1), CpuBackend()
    with pytest.raises(ExecutionError, match="only one advances on the device"):
        scheduler_on(backend, step, strategy())
    backend.close()


def test_what_a_model_cannot_do():
    with pytest.raises(ValueError, match="takes one token per sequence, not 4"):
        MODELS["tiny"](prompt=4, on_device=True)
    with pytest.raises(ValueError, match="a model with recurrent state takes all sequences"):
        MODELS["gdn-tiny"](sequences=[0])


@pytest.mark.parametrize(
    ("options", "said"),
    [({"backend": "sim", "profile": "wdm"}, "unknown profile 'wdm'; .* Did you mean 'wddm'"),
     ({"backend": "sim", "profile": "none.json"}, "no profile none.json: give a JSON file"),
     ({"profile": "wddm"}, "backend 'cpu' takes no cost profile")],
)  # fmt: skip
def test_so_are_profiles_when_their_device_is_opened(options, said):
    with pytest.raises(UsageError, match=said):
        execute([Configuration(**options)])
