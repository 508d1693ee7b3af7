"""Python stacks by CUPTI's callbacks, over a stand-in that calls back as libcupti does."""

import ctypes
import inspect

import pytest

from tracer.errors import RecordError
from tracer.recorders import cupti as recorder
from tracer.recorders.cupti import CallbackData, CallStacks

NAMES = {
    1: {10: "cuLaunchKernel", 11: "cuMemAlloc_v2"},
    2: {20: "cudaStreamSynchronize_v3020", 21: "cudaMemcpyAsync_v3020", 22: "cudaMalloc_v3020",
        23: "cudaEventRecord_v3020", 24: "cudaStreamBeginCapture_v10000"},
}  # fmt: skip
ENTER, EXIT = 0, 1


class StandIn:
    """What of `Cupti` the stacks need; one subscriber, as CUPTI has it."""

    def __init__(self) -> None:
        self.library = object()
        self.callback = None
        self.enabled: set[tuple[int, int]] = set()

    def subscribe(self, callback: object) -> str:
        if self.callback is not None:
            raise RecordError("another profiler holds it in this process")
        self.callback = callback
        return "subscription"

    def enable_callback(self, subscriber: str, domain: int, cbid: int) -> None:
        assert subscriber == "subscription"
        self.enabled.add((domain, cbid))

    def unsubscribe(self, subscriber: str) -> None:
        assert subscriber == "subscription"
        self.callback = None
        self.enabled.clear()

    def call(self, domain: int, cbid: int, correlation: int) -> None:
        """What CUPTI does around an API call."""
        if (domain, cbid) in self.enabled and self.callback is not None:
            for site in (ENTER, EXIT):
                data = CallbackData(site=site, correlation=correlation)
                self.callback(None, domain, cbid, ctypes.addressof(data))


@pytest.fixture
def cupti(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    class Names:
        def __init__(self, library: object) -> None: ...

        def known(self, domain: int) -> dict[int, str]:
            return NAMES[domain]

    monkeypatch.setattr(recorder, "CallNames", Names)
    return StandIn()


def test_fields_lie_where_cupti_has_them() -> None:
    """By hand from cupti_callbacks.h: ints of 4 bytes, pointers of 8, each aligned to its size."""
    assert {name: getattr(CallbackData, name).offset for name, _ in CallbackData._fields_} == {
        "site": 0, "function": 8, "parameters": 16, "return_value": 24, "symbol": 32, "context": 40,
        "context_id": 48, "correlation_data": 56, "correlation": 64,
    }  # fmt: skip


def test_only_calls_that_launch_copy_wait_or_order_call_back(cupti: StandIn) -> None:
    stacks = CallStacks(cupti)
    stacks.start()
    assert cupti.enabled == {(1, 10), (2, 20), (2, 21), (2, 23)}
    stacks.stop()
    stacks.stop()
    assert cupti.callback is None


def test_the_stack_is_the_callers(cupti: StandIn) -> None:
    stacks = CallStacks(cupti)
    stacks.start()

    def synchronize() -> int:
        cupti.call(2, 20, correlation=7)
        return inspect.currentframe().f_lineno - 1

    line = synchronize()
    stacks.stop()
    cupti.call(2, 20, correlation=8)
    assert list(stacks.stacks) == [7]
    frames = [frame for frame in stacks.stacks[7] if frame[2] != "call"]
    assert frames[0] == (__file__, line, "synchronize")
    assert frames[1][::2] == (__file__, "test_the_stack_is_the_callers")


def test_a_second_subscriber_is_refused(cupti: StandIn) -> None:
    CallStacks(cupti).start()
    with pytest.raises(RecordError, match="another profiler"):
        CallStacks(cupti).start()
