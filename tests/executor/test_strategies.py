"""Strategies say what they need, and are refused where a backend does not give it."""

import pytest

from executor.backends.cpu.backend import CpuBackend
from executor.graph.models import MODELS
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.strategies import GGG, SCCC, STRATEGIES, check_needs
from tests.executor.handmade import scheduler_on
from tracer.errors import ExecutionError, UnsafePlanError

NOTHING = frozenset()


def test_a_backend_without_guarantees_runs_only_what_waits():
    assert [name for name, cls in STRATEGIES.items() if not cls.needs][:2] == ["sccc", "saaas"]
    for name, cls in STRATEGIES.items():
        if not cls.needs:
            check_needs(cls(), "bare", NOTHING)
        else:
            with pytest.raises(UnsafePlanError, match=rf"'{name}' .*'bare'.*Choose one of sccc, saaas"):
                check_needs(cls(), "bare", NOTHING)


def test_a_run_is_refused_before_anything_ran():
    with pytest.raises(UnsafePlanError, match="aaag"):
        execute([Configuration(strategy="aaag", tokens=1)], open_backend=lambda *_: CpuBackend(staged=False))
    execute([Configuration(strategy="aaas", tokens=1, repeats=1)], open_backend=lambda *_: CpuBackend(staged=False))


@pytest.mark.parametrize(("strategy", "on_device"), [(SCCC, True), (GGG, False)])
def test_strategy_and_graph_must_agree_on_who_advances(strategy, on_device):
    step = MODELS["tiny"](on_device=on_device, history=1)
    backend = CpuBackend()
    with pytest.raises(ExecutionError, match="only one advances on the device"):
        scheduler_on(backend, step, strategy())
    backend.close()
