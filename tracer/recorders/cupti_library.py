"""libcupti: finding one copy of it, and calling it through ctypes.

A CUDA machine has several copies (toolkit, pip wheel, Nsight Compute, Triton), and two in one process do not work
together. So a copy that is already loaded comes first, then the pip wheel, then the toolkit.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

from tracer.errors import RecordError

INJECTION: Final = "NVTX_INJECTION64_PATH"
PROFILER: Final = "CUDA_INJECTION64_PATH"
"""The environment variable that names the library which the driver loads into every CUDA program."""
_TAKEN: Final = frozenset({12, 15, 26, 39})  # max limit reached, not initialized, hardware busy, several subscribers
_HINTS: Final = {
    33: "the GPU is virtualised and does not allow profiling",
    35: "the driver allows profiling to administrators only (NVreg_RestrictProfilingToAdminUsers)",
    40: "the virtual GPU does not allow profiling",
    43: "CUPTI cannot profile this MIG device",
    45: "CUPTI cannot profile under this version of WSL",
}
_NAME: Final = re.compile(r"libcupti\.so[\d.]*$")

_SIZE: Final = ctypes.POINTER(ctypes.c_size_t)
REQUEST: Final = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), _SIZE, _SIZE)
"""CUpti_BuffersCallbackRequestFunc(buffer, size, maxNumRecords)."""

COMPLETE: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)
"""CUpti_BuffersCallbackCompleteFunc(context, streamId, buffer, size, validSize)."""

CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
"""CUpti_CallbackFunc(userdata, domain, cbid, cbdata)."""


def is_cupti(path: str) -> bool:
    """Whether a path names libcupti."""
    return _NAME.search(path) is not None


class Cupti:
    """The calls of libcupti that a recorder needs; an error code becomes a RecordError.

    Attributes:
        path: the file it was loaded from.
        version: the CUPTI API version, such as 28 (CUDA 12.9) or 130001 (13.0 Update 1).
        library: the library, for calls without a method here.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.library = ctypes.CDLL(path)
        except OSError as error:
            raise RecordError(f"{path} cannot be loaded: {error}") from error
        version = ctypes.c_uint32()
        self._check("cuptiGetVersion", ctypes.byref(version))
        self.version = version.value

    def record_bytes(self, kind: int) -> int | None:
        """The size of a record of that kind of activity; None if the library (before 13.2) does not tell."""
        size, tell = ctypes.c_size_t(), getattr(self.library, "cuptiActivityGetStructSize", None)
        if tell is None or tell(ctypes.c_int(kind), ctypes.c_uint32(0), ctypes.byref(size)):
            return None
        return size.value

    def enable(self, kind: int) -> None:
        """Start collecting a kind of activity."""
        self._check("cuptiActivityEnable", ctypes.c_int(kind))

    def enable_and_dump(self, kind: int) -> None:
        """Start collecting a kind of description; existing objects are described immediately."""
        self._check("cuptiActivityEnableAndDump", ctypes.c_int(kind))

    def disable(self, kind: int) -> None:
        """Stop collecting a kind of activity."""
        self._check("cuptiActivityDisable", ctypes.c_int(kind))

    def register(self, request: Any, complete: Any) -> None:
        """Set the callbacks (a REQUEST and a COMPLETE) for buffers; the caller keeps them alive."""
        self._check("cuptiActivityRegisterCallbacks", request, complete)

    def subscribe(self, callback: Any) -> Any:
        """Register a CALLBACK, which the caller keeps alive; returns the handle of the subscription."""
        subscriber = ctypes.c_void_p()
        self._check("cuptiSubscribe", ctypes.byref(subscriber), callback, None)
        return subscriber

    def unsubscribe(self, subscriber: Any) -> None:
        """End a subscription."""
        self._check("cuptiUnsubscribe", subscriber)

    def enable_callback(self, subscriber: Any, domain: int, cbid: int) -> None:
        """Enable the callback at entry and exit of an API call."""
        numbers = ctypes.c_uint32(1), subscriber, ctypes.c_int(domain), ctypes.c_uint32(cbid)
        self._check("cuptiEnableCallback", *numbers)

    def finalize(self) -> None:
        """Detach from the process; all settings and callbacks are lost."""
        self._check("cuptiFinalize")

    def flush(self) -> None:
        """Take back all buffers, even if they are not full."""
        self._check("cuptiActivityFlushAll", ctypes.c_uint32(1))

    def dropped(self) -> int:
        """The number of records lost since the last call because there was no buffer."""
        count = ctypes.c_size_t()
        self._check("cuptiActivityGetNumDroppedRecords", None, ctypes.c_uint32(0), ctypes.byref(count))
        return count.value

    def system_thread_ids(self) -> None:
        """Use the operating system's thread ids in records."""
        self._check("cuptiSetThreadIdType", ctypes.c_int(1))

    def set_attribute(self, attribute: int, value: Any) -> None:
        """Set a CUpti_ActivityAttribute to a ctypes value."""
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._check("cuptiActivitySetAttribute", ctypes.c_int(attribute), ctypes.byref(size), ctypes.byref(value))

    def _check(self, function: str, *arguments: Any) -> None:
        if code := getattr(self.library, function)(*arguments):
            text = ctypes.c_char_p()
            self.library.cuptiGetResultString(ctypes.c_int(code), ctypes.byref(text))
            name = text.value.decode() if text.value else f"error {code}"
            raise RecordError(f"{function} failed with {name}{hint(code)}")


def hint(code: int) -> str:
    """What an error code means for the user, to be appended to a message; "" if there is nothing to add."""
    if code in _TAKEN:
        return ": another profiler uses CUPTI in this process"
    return f": {_HINTS[code]}" if code in _HINTS else ""


def refuse_other_profilers() -> None:
    """Raise RecordError under nsys and similar profilers; CUPTI itself silently loses most records."""
    if holder := os.environ.get(PROFILER):
        raise RecordError(f"{PROFILER} names another profiler ({Path(holder).name}); record without it")


def find() -> str:
    """The path of the libcupti to use. Raises RecordError, with what to install, if there is none."""
    if (path := next(chain(_loaded(), _in_wheels(), _in_toolkits()), None)) is not None:
        return str(path)
    raise RecordError("libcupti was not found: pip install 'intertoken[cupti]' (or [cupti12]), or the CUDA toolkit")


def _loaded(maps: Path = Path("/proc/self/maps")) -> Iterator[Path]:
    if maps.exists():
        for line in maps.read_text().splitlines():
            path = line.partition("/")[2]
            if path and _NAME.search(path):
                yield Path("/" + path)


def _in_wheels() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or () if spec else ():
        for pattern in ("cu13/lib/libcupti.so.*", "cuda_cupti/lib/libcupti.so.*"):
            yield from sorted(Path(root).glob(pattern))


def _in_toolkits() -> Iterator[Path]:
    named = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    installed = sorted(map(str, Path("/usr/local").glob("cuda*")), reverse=True)
    for root in (*named, *installed):
        for folder in ("extras/CUPTI/lib64", "lib64", "lib"):
            yield from sorted(Path(root, folder).glob("libcupti.so.*"))


class Driver:
    """The calls of libcuda that a recorder needs. Raises RecordError if there is no NVIDIA driver."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise RecordError("there is no NVIDIA driver here (libcuda.so.1): CUDA cannot be recorded") from error

    def has_context(self) -> bool:
        """Whether this process already uses CUDA."""
        return bool(self._devices_in_use()) or bool(self._current())

    def synchronize(self) -> None:
        """Wait for every device that this process uses, and for the calling thread's current context."""
        library, context = self._library, ctypes.c_void_p()
        for device in self._devices_in_use():
            if library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0:
                library.cuCtxPushCurrent_v2(context)
                library.cuCtxSynchronize()
                library.cuCtxPopCurrent_v2(ctypes.byref(context))
                library.cuDevicePrimaryCtxRelease_v2(device)
        if self._current():
            library.cuCtxSynchronize()

    def _devices_in_use(self) -> list[int]:
        """The devices whose primary context is active."""
        count, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        if self._library.cuDeviceGetCount(ctypes.byref(count)) != 0:  # not initialised
            return []
        used = []
        for device in range(count.value):
            self._library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(active))
            used += [device] if active.value else []
        return used

    def _current(self) -> int | None:
        context = ctypes.c_void_p()
        self._library.cuCtxGetCurrent(ctypes.byref(context))
        return context.value
