"""Stands for `benchmarks/advice_loops.py` where there is no PyTorch and no GPU: its turns, over loops that make the
calls of a driver without a GPU, one of them with a needless sync and one that fails."""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

sys.modules["torch"] = SimpleNamespace(no_grad=nullcontext)  # type: ignore[assignment]
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import advice_loops  # noqa: E402
from vllm import Device  # noqa: E402


def needless_sync(options):
    device = Device()

    def decode(steps):
        for _ in range(steps):
            if not options.changed:
                device.cuda.cuStreamSynchronize(device.stream)
            device.step()
        return [1] * steps

    return decode


def fails(options):
    raise RuntimeError("no such memory")


advice_loops.LOOPS.update(dict.fromkeys(advice_loops.LOOPS, fails))
advice_loops.LOOPS["needless-sync"] = needless_sync
advice_loops.main()
