"""Stands for vLLM: an engine, in a child process unless VLLM_ENABLE_V1_MULTIPROCESSING is 0, that decodes with the
calls of a driver without a GPU. `FAKE_DRIVER` names that driver, `FAKE_TRUTH` the one for a process under CUPTI."""

import ctypes
import multiprocessing
import os
import time
from types import SimpleNamespace

from tracer.recorders.light_folder import SETTINGS
from tracer.recorders.light_program import FOLDER

STEP_S = 25e-6
"""Of a step at least, so that on a fast machine, too, the ring holds the calls of all turns and blocks."""


class Device:
    """Each step launches a kernel and a graph, or with the other driver what it has, and waits."""

    def __init__(self):
        is_truth = os.environ.get("LIGHT_BLOCKS") == "truth" or is_under_cupti()
        self.cuda = cuda = ctypes.CDLL(os.environ["FAKE_TRUTH" if is_truth else "FAKE_DRIVER"])
        cuda.cuInit(0)
        self.kernel, self.stream, self.exec = (ctypes.c_void_p() for _ in range(3))
        if is_truth:
            self.kernel = ctypes.c_char_p(b"_Z6samplePfi")
            return
        graph, node = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.cuModuleGetFunction(ctypes.byref(self.kernel), None, b"sample")
        cuda.cuStreamCreate(ctypes.byref(self.stream), 0)
        cuda.cuGraphCreate(ctypes.byref(graph), 0)
        facts = (ctypes.c_uint64 * 7)(self.kernel.value)  # CUDA_KERNEL_NODE_PARAMS, whose other members are not read
        cuda.cuGraphAddKernelNode(ctypes.byref(node), graph, None, ctypes.c_size_t(0), facts)
        cuda.cuGraphInstantiateWithFlags(ctypes.byref(self.exec), graph, ctypes.c_ulonglong(0))

    def step(self):
        until = time.perf_counter() + STEP_S
        data = ctypes.create_string_buffer(16)
        self.cuda.cuMemcpyHtoDAsync_v2(ctypes.c_uint64(0), data, ctypes.c_size_t(16), self.stream)
        self.cuda.cuStreamSynchronize(self.stream)
        self.cuda.cuGraphLaunch(self.exec, self.stream)
        self.cuda.cuLaunchKernel(self.kernel, 1, 1, 1, 1, 1, 1, 0, self.stream, None, None)
        self.cuda.cuStreamSynchronize(self.stream)
        while time.perf_counter() < until:
            continue

    def profile(self, *, on):
        """As torch.cuda.profiler does."""
        (self.cuda.cuProfilerStart if on else self.cuda.cuProfilerStop)()


def is_under_cupti():
    """Whether our library has CUPTI record this process."""
    return os.path.exists(os.path.join(os.environ.get(FOLDER, ""), SETTINGS))


def serve(pipe):
    """The engine's process."""
    device = Device()
    while (asked := pipe.recv()) is not None:
        device.step() if asked == "step" else device.profile(on=asked == "start")
        pipe.send(True)


class Core:
    def __init__(self):
        self.waiting = {}
        self.child = None
        if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") == "0":
            self.device = Device()
            return
        self.pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        self.child = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
        self.child.start()

    def ask(self, what):
        self.pipe.send(what)
        self.pipe.recv()

    def get_output(self):
        if self.child:
            self.ask("step")
        else:
            self.device.step()
        outputs = [SimpleNamespace(request_id=name, new_token_ids=[1]) for name in self.waiting]
        self.waiting = {name: left - 1 for name, left in self.waiting.items() if left > 1}
        return SimpleNamespace(outputs=outputs)


class SamplingParams:
    def __init__(self, *, max_tokens, **others):
        del others
        self.max_tokens = max_tokens


class LLM:
    def __init__(self, *, model, max_num_seqs, **others):
        del others
        assert os.path.exists(f"{model}/config.json")
        assert max_num_seqs == 8
        core = Core()
        self.asked = 0
        self.llm_engine = SimpleNamespace(
            engine_core=core, has_unfinished_requests=lambda: bool(core.waiting), step=lambda: core.get_output()
        )

    def start_profile(self):
        self.llm_engine.engine_core.ask("start")

    def stop_profile(self):
        self.llm_engine.engine_core.ask("stop")

    def enqueue(self, prompts, sampling, *, use_tqdm):
        del use_tqdm
        for _ in prompts:
            self.asked += 1
            self.llm_engine.engine_core.waiting[str(self.asked)] = sampling.max_tokens
