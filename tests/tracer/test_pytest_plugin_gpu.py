"""The pytest plugin counts the calls of code on a GPU."""

import pytest

from tests.tracer.test_pytest_plugin import PLUGIN, line_of

ON_A_GPU = {
    "cupy": """
import cupy
stream, x = cupy.cuda.Stream(non_blocking=True), cupy.ones(1024, cupy.float32)
BUDGET = {"syncs": 1, "launches": 1, "copies": 0}

def work():
    with stream:
        cupy.add(x, 1, out=x)

def wait():
    stream.synchronize()  # waits
""",
    "torch": """
import torch
x = torch.ones(1024, device="cuda")
BUDGET = {"syncs": 1, "launches": 1, "copies": 0}

def work():
    x.add_(1)

def wait():
    torch.cuda.synchronize()  # waits
""",
    "cuda.bindings": """
import numpy as np
from cuda.bindings import runtime
_, stream = runtime.cudaStreamCreate()
_, memory = runtime.cudaMalloc(64)
values = np.zeros(64, np.uint8)
BUDGET = {"syncs": 1, "launches": 0, "copies": 1}

def work():
    runtime.cudaMemcpyAsync(memory, values.ctypes.data, 64, runtime.cudaMemcpyKind.cudaMemcpyHostToDevice, stream)

def wait():
    runtime.cudaStreamSynchronize(stream)  # waits
""",
}
STEPS = """
import pytest

@pytest.mark.sync_budget(**BUDGET, backend="cupti")
@pytest.mark.parametrize("waits", [1, 2])
def test_it(recording, waits):
    work()
    wait()
    for index in range(5):
        with recording.token(index):
            work()
            for _ in range(waits):
                wait()
"""


@pytest.mark.gpu
@pytest.mark.parametrize("library", ON_A_GPU)
def test_code_on_a_gpu(pytester: pytest.Pytester, library: str) -> None:
    """In a process of its own: CUPTI's state belongs to the process."""
    pytest.importorskip(library)
    source = ON_A_GPU[library] + STEPS
    pytester.makepyfile(test_inner=source)
    result = pytester.runpytest_subprocess(*PLUGIN, "-W", "default")  # of the libraries' own
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["  ✗ syncs      found 2      allowed 1      1 too many", "signature found: *",
         "first surplus call: cu*Synchronize* µs into step 1, in token",
         f"  test_inner.py:{line_of(source, '# waits')} in wait", "      *ynchronize(*  # waits"]
    )  # fmt: skip
