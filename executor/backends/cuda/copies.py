"""Copies of the CUDA backend: to the device through the driver or a pinned slot, to the host, and between GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from executor.backends.cuda.handles import CopyCount, CudaArray, CudaEvent, Streams, address, staging_ring
from executor.backends.cuda.runtime import Cuda
from executor.backends.interface import Backend, HostArray
from executor.backends.weight_formats import encoded
from executor.graph import Tensor
from tracer.errors import ExecutionError

_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3
_PEER_ACCESS_ALREADY_ENABLED: Final = 704  # cudaErrorPeerAccessAlreadyEnabled
TAKEN_BY_DRIVER: Final = 256
"""Up to this many bytes a copy reads the caller's pageable memory: the driver puts them into its command buffer before
the call returns. For 4 bytes this saves the GPU 1 of 2.5 us over pinned memory (H200), but 2 KiB cost the host more.
"""


class CudaCopies(Backend):
    """The copy functions of the backend.

    Attributes:
        _copies: number of copies issued and completed, per stream.
        _copied: event recorded after copies to other GPUs; created on first use.
        _reached: GPUs for which peer access has been tried.
    """

    _cuda: Cuda
    _device: int
    _streams: Streams
    _copies: dict[int, CopyCount]
    _copied: CudaEvent | None
    _reached: set[int]
    _copy: Callable[[int, int, int, int, int], None]
    _wait: Callable[[int], None]

    def activate(self) -> None:
        """Make this GPU the current one."""
        self._cuda.runtime.setDevice(self._device)

    @contextmanager
    def _here(self) -> Iterator[None]:
        """Make this GPU current in the context: a strategy may need an event of one GPU between calls to another."""
        runtime = self._cuda.runtime
        before = runtime.getDevice()
        runtime.setDevice(self._device)
        try:
            yield
        finally:
            runtime.setDevice(before)

    def copy_to_device(self, destination: CudaArray, source: HostArray, stream: int) -> None:
        """Take the values now, in the driver if they are few, else in a pinned slot; the GPU copies from there."""
        if (slot := destination.slot) is not None and slot.number > slot.copies.done:
            self.synchronize(slot.stream)
        self._copy_in(destination, source, stream)

    def _copy_in(self, destination: CudaArray, source: HostArray, stream: int) -> None:
        if source is destination.source:  # as in earlier steps
            self._copy(destination.ptr, destination.source_ptr, destination.nbytes, _TO_DEVICE, self._streams[stream])
            return
        if destination.host_dtype != source.dtype or destination.shape != source.shape:
            raise _unlike(source, destination)
        if (destination.nbytes <= TAKEN_BY_DRIVER or not self.staged) and source.flags.c_contiguous:
            destination.source, destination.source_ptr = source, address(source)
            self._copy_in(destination, source, stream)
        else:
            self._copy_staged(destination, source, stream)

    def _copy_staged(self, destination: CudaArray, source: HostArray, stream: int) -> None:
        slot, copies = destination.slot, self._copies[stream]
        if slot is None:
            slot = staging_ring(self._cuda, destination.shape, destination.dtype)
        destination.slot = slot.next
        slot.values[...] = source
        self._copy(destination.ptr, slot.address, destination.nbytes, _TO_DEVICE, self._streams[stream])
        copies.issued = slot.number = copies.issued + 1
        slot.copies, slot.stream = copies, stream

    def copy_constant_to_device(self, destination: CudaArray, source: HostArray, stream: int) -> None:
        """Copy directly from the caller's memory; asynchronous only if that is pinned (`host_array`)."""
        if destination.host_dtype != source.dtype or destination.shape != source.shape:
            raise _unlike(source, destination)
        self._copy(destination.ptr, address(source), destination.nbytes, _TO_DEVICE, self._streams[stream])

    def copy_to_host(self, destination: HostArray, source: CudaArray, stream: int) -> None:
        """Copy directly to the caller's memory; asynchronous only if that is pinned (`host_array`)."""
        if source.host_dtype != destination.dtype or destination.shape != source.shape:
            raise _unlike(source, destination)
        self._copy(address(destination), source.ptr, source.nbytes, _TO_HOST, self._streams[stream])

    def copy_on_device(self, tensor: Tensor, destination: CudaArray, source: CudaArray, stream: int) -> None:
        """Issue a copy."""
        self._copy(destination.ptr, source.ptr, tensor.nbytes, _ON_DEVICE, self._streams[stream])

    def copy_to_peer(
        self, peer: Backend, destination: CudaArray, source: CudaArray, stream: int, after: CudaEvent
    ) -> None:
        """Copy on this GPU's stream; the peer's stream waits for the copy."""
        if not isinstance(peer, CudaCopies):
            raise ExecutionError(f"backend 'cuda' cannot copy to backend {peer.name!r}")
        if destination.dtype != source.dtype or destination.shape != source.shape:
            raise _unlike(source, destination)
        if self._copied is None:
            self._copied = self.event()
        self._reach(peer._device)
        self.event_wait(after, stream)
        own, runtime = self._streams[stream], self._cuda.runtime
        runtime.memcpyPeerAsync(destination.ptr, peer._device, source.ptr, self._device, source.nbytes, own)
        self.event_record(self._copied, stream)
        peer.event_wait(self._copied, stream)
        peer._copies[stream].wait_for(self._copies[stream])

    def _reach(self, device: int) -> None:
        """Enable direct writes to the memory of another GPU if the machine can; else copies go through the host."""
        runtime = self._cuda.runtime
        if device not in self._reached:
            self._reached.add(device)
            if runtime.deviceCanAccessPeer(self._device, device):
                with self._here():
                    try:
                        runtime.deviceEnablePeerAccess(device)
                    except runtime.CUDARuntimeError as error:
                        if error.status != _PEER_ACCESS_ALREADY_ENABLED:  # enabled by another backend or library
                            raise

    def load(self, destination: CudaArray, source: HostArray) -> None:
        """Copy in one blocking call; float32 values are encoded in the weight's dtype."""
        self.activate()
        values = encoded(source, destination.dtype)
        if destination.shape != source.shape or destination.nbytes != values.nbytes:
            raise _unlike(source, destination)
        self._copy(destination.ptr, address(values), values.nbytes, _TO_DEVICE, self._streams[0])
        self._wait(self._streams[0])


def _unlike(source: HostArray | CudaArray, destination: HostArray | CudaArray) -> ExecutionError:
    return ExecutionError(
        f"cannot copy {source.dtype}{list(source.shape)} to {destination.dtype}{list(destination.shape)}"
    )
