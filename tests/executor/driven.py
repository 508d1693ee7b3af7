"""A backend that computes on the CPU and makes the calls of CUDA's, to a driver without a GPU.

As a module it is the process of a light pass in which this is the backend `cuda`.
"""

from __future__ import annotations

import sys
from ctypes import CDLL, Structure, byref, c_uint, c_void_p

from executor.backends import BACKENDS
from executor.backends.cpu.backend import CpuBackend
from executor.run import light_pass

COMMAND = (sys.executable, "-m", "tests.executor.driven")


class KernelNode(Structure):
    """CUDA_KERNEL_NODE_PARAMS_v1."""

    _fields_ = [("function", c_void_p), ("sizes", c_uint * 7), ("parameters", c_void_p), ("extra", c_void_p)]


class DrivenBackend(CpuBackend):
    """The backend, see the module's docstring."""

    name = "cuda"
    fuses, reports = True, False

    def __init__(self, device=0, staged=True, **options):
        super().__init__(device, staged, **options)
        self._driver = CDLL("libcuda.so.1")
        self._function, self._handles = c_void_p(), {}
        self._driver.cuModuleGetFunction(byref(self._function), None, b"kernel")

    def _handle(self, stream):
        if stream not in self._handles:
            self._driver.cuStreamCreate(byref(handle := c_void_p()), 0)
            self._handles[stream] = handle
        return self._handles[stream]

    def report_to(self, recorder):
        super().report_to(type(recorder)())  # one that never records

    def copy_to_device(self, destination, source, stream):
        self._driver.cuMemcpyHtoDAsync_v2(None, None, c_uint(destination.nbytes), self._handle(stream))
        super().copy_to_device(destination, source, stream)

    def copy_to_host(self, destination, source, stream):
        self._driver.cuMemcpyDtoHAsync_v2(None, None, c_uint(destination.nbytes), self._handle(stream))
        super().copy_to_host(destination, source, stream)

    def launch(self, kernel, stream):
        self._driver.cuLaunchKernel(self._function, *[1] * 6, 0, self._handle(stream), None, None)
        super().launch(kernel, stream)

    def synchronize(self, stream):
        super().synchronize(stream)
        self._driver.cuStreamSynchronize(self._handle(stream))

    def instantiate(self, plan, kernels):
        graph, node, executable = c_void_p(), c_void_p(), c_void_p()
        self._driver.cuGraphCreate(byref(graph), 0)
        parameters = KernelNode(self._function.value, (c_uint * 7)(*[1] * 6, 0))
        self._driver.cuGraphAddKernelNode(byref(node), graph, None, 0, byref(parameters))
        self._driver.cuGraphInstantiateWithFlags(byref(executable), graph, 0)
        return executable, super().instantiate(plan, kernels)

    def launch_graph(self, graph, stream=0):
        self._driver.cuGraphLaunch(graph[0], self._handle(stream))
        super().launch_graph(graph[1], stream)


if __name__ == "__main__":
    BACKENDS["cuda"] = "tests.executor.driven:DrivenBackend"
    sys.exit(light_pass.main(sys.argv[1:]))
