"""The calls of CUDA that the backend makes, with CuPy and the driver replaced: nothing is computed, calls are noted."""

import ctypes
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from executor.backends.cuda import backend as cuda
from executor.backends.cuda.backend import CopyCount
from executor.backends.cuda.library import Cuda, Library, Workspaces
from executor.run import execute
from executor.run.configuration import Configuration
from executor.scheduling.strategies import STRATEGIES
from tests.sync_counts.test_cpu import copies, syncs

WAITS = ("streamSynchronize", "eventSynchronize")
TOKENS_RUN = 4


class Runtime:
    """CUDA's runtime as CuPy wraps it: memory is the host's, copies are done at once, the rest is noted."""

    CUDARuntimeError = type("CUDARuntimeError", (Exception,), {})

    def __init__(self):
        self.made = []
        self._memory = {}

    def malloc(self, size):
        memory = (ctypes.c_char * size)()
        self._memory[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def free(self, address):
        del self._memory[address]

    def memcpyAsync(self, target, source, size, kind, stream):
        self.made.append("memcpyAsync")
        ctypes.memmove(target, source, size)

    def __getattr__(self, name):
        def call(*arguments):
            self.made.append(name)
            return len(self.made)

        return call


@pytest.fixture
def runtime(monkeypatch):
    made, cupy, bindings = Runtime(), MagicMock(), MagicMock()
    cupy.cuda.alloc_pinned_memory = lambda size: (ctypes.c_char * size)()
    for make in (cupy.zeros, cupy.asarray, cupy.cuda.alloc):
        make.return_value = SimpleNamespace(data=SimpleNamespace(ptr=1), ptr=1)
    cupy.RawModule.return_value.get_function.return_value.kernel.ptr = 1
    bindings.CUresult = SimpleNamespace(CUDA_SUCCESS=0, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE=910)
    bindings.cuLaunchKernelEx.return_value = (0,)
    bindings.cuGraphExecUpdate.return_value = (0, None)
    driver = MagicMock(CUDADriverError=Runtime.CUDARuntimeError)
    driver.occupancyMaxActiveBlocksPerMultiprocessor.return_value = 2
    driver.launchKernel.side_effect = lambda *_: made.made.append("launchKernel")
    library = Cuda(cupy, made, driver, bindings, "GPU", 100)
    monkeypatch.setattr(cuda, "load_cuda", lambda device: library)
    monkeypatch.setattr(Cuda, "errors", (Runtime.CUDARuntimeError,))
    return made


def run(runtime, **options):
    """The calls of the tokens of one repeat, and the result."""
    at = []
    (result,) = execute(
        [Configuration("cuda", tokens=TOKENS_RUN, repeats=1, warmup=1, **options)],
        progress=lambda: at.append(len(runtime.made)), make_recorder=lambda: None,
    )  # fmt: skip
    return runtime.made[at[0] : at[1]], result


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_token_is_one_graph_launch_that_nothing_stamps_and_waits_as_its_strategy_says(runtime, strategy):
    made, result = run(runtime, strategy=strategy)
    assert made.count("graphLaunch") == TOKENS_RUN
    assert "launchKernel" not in made
    assert result.tokens.shape == (1, TOKENS_RUN, 1)
    assert len(result.trace) == 0
    assert result.spans[0][1] <= result.spans[1][0]
    steps = made[made.index("graphLaunch") + 1 :]  # the first begins behind the start of the sequence
    steps = steps[: len(steps) - steps[::-1].index("graphLaunch")]
    assert sum(map(steps.count, WAITS)) == (TOKENS_RUN - 1) * syncs(strategy, 6)
    assert steps.count("memcpyAsync") == (TOKENS_RUN - 1) * copies(strategy, 6)


def test_a_graph_holds_the_kernels_of_the_plan_alone_which_eager_launches_make_one_by_one(runtime):
    _, result = run(runtime, strategy="aaag")
    first, last = (runtime.made.index(name) for name in ("streamBeginCapture", "streamEndCapture"))
    early = cuda.load_cuda(0).bindings.cuLaunchKernelEx.call_count
    kernels = len(result.prepared.splits[0].plan.launches)
    assert runtime.made[first:last].count("launchKernel") + early == kernels
    made, _ = run(runtime, strategy="aaag", launch="eager")
    assert made.count("launchKernel") == TOKENS_RUN * kernels
    assert "graphLaunch" not in made


def counts(*issued):
    made = [CopyCount() for _ in issued]
    for count, number in zip(made, issued, strict=True):
        count.issued = number
    return made


def test_whoever_waits_for_the_last_gpu_of_a_pipeline_knows_of_those_before_it():
    first, second, third = counts(4, 2, 1)
    second.wait_for(first)
    first.issued = 7  # later than what the second one waited for
    third.wait_for(second)
    third.done_to(third.issued)
    assert [first.done, second.done, third.done] == [4, 3, 2]


def test_an_event_says_nothing_of_waits_behind_it():
    first, second = counts(4, 2)
    event = second.issued
    second.wait_for(first)
    second.done_to(event)
    assert (first.done, second.done) == (0, 2)
    second.done_to(second.issued)
    assert first.done == 4


def test_a_handle_of_cublas_has_its_workspace_after_its_stream_and_each_graph_its_own():
    """Setting the stream drops the workspace, and without one a product allocates memory in the graph. Graphs captured
    on one stream may run beside each other."""
    places = iter(range(64, 1024, 64))
    cuda = SimpleNamespace(
        cupy=SimpleNamespace(cuda=SimpleNamespace(alloc=lambda size: SimpleNamespace(ptr=next(places))))
    )
    library, made = Library(cuda), MagicMock()
    made.configure_mock(**{f"cublas{name}_v2.return_value": 0 for name in ("Create", "SetStream", "SetWorkspace")})
    library._cublas = made, {}
    for stream in (1, 2, 1):
        library.cublas(stream)
    names = [name.removeprefix("cublas").removesuffix("_v2") for name, *_ in made.method_calls]
    assert names == 2 * ["Create", "SetStream", "SetWorkspace"]
    one, other = Workspaces(), Workspaces()
    for graph in (one, other, one):
        with library.with_workspaces(graph):
            library.cublas(1)
            library.cublas(1)
    library.cublas(1)
    used = [call.args[1].value for call in made.cublasSetWorkspace_v2.call_args_list]
    assert used == [64, 128, 192, 256, 192, 64]
    assert ([each.ptr for each in one.values()], [each.ptr for each in other.values()]) == ([192], [256])
