"""The parts of each cause of a gap, on traces whose every nanosecond is known."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracer.handmade import PROCESS, THREAD, Script
from tracer import Trace
from tracer.analysis.causes import CAUSES, PART_COLUMNS, PARTS
from tracer.analysis.gaps import gap_report
from tracer.analysis.streams import bubble_report
from tracer.analysis.tokens import find_steps
from tracer.analysis.waited_for import GIL, HOW, RANGE, RELEASED, UNKNOWN
from tracer.errors import EmptyTraceError
from tracer.model.schema import MISSING, PYTHON_FUNCTION

OTHER = THREAD + 1


def idle(launch: tuple[int, int] = (1950, 2000)) -> Script:
    """Compute ends at 1000 and goes on at 2000; its launch is the last thing before it, nothing else happens."""
    script = Script()
    script.range("token", 0, 1050)
    script.range("token", 1050, 3000)
    script.launch((10, 20), (30, 1000))
    script.launch(launch, (2000, 2500))
    return script


def parts(script: Script | Trace) -> dict[str, int]:
    """The parts of the first gap that are not 0, which add up to it and to their causes."""
    trace = script.trace if isinstance(script, Script) else script
    row = gap_report(trace, find_steps(trace)).table.iloc[0]
    found = {name: int(row[name]) for name in PART_COLUMNS if row[name]}
    assert sum(found.values()) == row["gap"]
    assert all(sum(row[part] for part in inner) == row[cause] for cause, inner in PARTS.items())
    return found


def test_a_launch_is_its_call_and_the_way_to_the_first_kernel() -> None:
    assert parts(idle((1800, 1900))) == {"host_code": 800, "launch_call": 100, "launch_latency": 100}


def test_a_launch_made_while_the_device_computed_is_no_latency_of_the_host() -> None:
    script = Script()
    script.range("token", 0, 300)
    script.range("token", 300, 3000)
    script.launch((10, 20), (30, 1000))
    script.launch((400, 450), (2000, 2500))
    script.sync(500, 2600)
    assert parts(script) == {"launch_queued": 1000}


def test_a_copy_is_the_device_at_work_and_else_the_call() -> None:
    script = idle()
    script.copy((1100, 1150), (1130, 1180))
    assert parts(script) == {"copy_device": 50, "copy_call": 30, "launch_call": 50, "host_code": 870}


def test_a_copy_that_the_compute_did_not_wait_for_is_not_its_cause() -> None:
    script = idle()
    script.copied((500, 2600), "DtoH", script.call("cudaMemcpyAsync_v3020", 25, 28), stream=13, size=1 << 21)
    script.copied((1100, 1140), "HtoD", script.call("cudaMemcpyAsync_v3020", 30, 35))
    assert parts(script) == {"copy_device": 40, "launch_call": 50, "host_code": 910}  # the blocks of a cache, offloaded


def test_a_sync_waits_then_returns_late_or_waits_for_nothing() -> None:
    script = idle()
    script.copy((1090, 1100), (1140, 1180))
    script.sync(1110, 1250)  # waits 30 until the copy starts, the copy for 40, returns 70 later
    script.sync(1300, 1320)
    assert parts(script) == {
        "copy_device": 40, "copy_call": 10, "sync_wait": 30, "sync_return": 70, "sync_idle": 20, "launch_call": 50,
        "host_code": 780,
    }  # fmt: skip


def test_a_device_synchronisation_waits_for_any_stream() -> None:
    script = idle()
    script.copy((1090, 1100), (1140, 1180), stream=8)
    script.call("cudaDeviceSynchronize_v3020", 1110, 1250)
    assert parts(script)["sync_return"] == 70


def test_the_sync_that_saw_the_step_end_returns_late() -> None:
    script = idle()
    script.sync(500, 1060)
    assert parts(script) == {"sync_return": 60, "launch_call": 50, "host_code": 890}


def test_where_the_device_s_copies_are_not_recorded_the_sync_behind_one_waits_to_its_end() -> None:
    script = idle()
    script.call("cudaMemcpyAsync_v3020", 900, 910)
    script.sync(920, 1100)
    script.sync(1200, 1210)
    assert parts(script) == {"sync_wait": 100, "sync_idle": 10, "launch_call": 50, "host_code": 840}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("cudaMalloc_v3020", "host_allocation"),
        ("cudaFreeAsync_v11020", "host_allocation"),
        ("cuMemHostRegister_v2", "host_allocation"),
        ("hipHostMalloc", "host_allocation"),
        ("cudaGraphInstantiate_v12000", "launch_setup"),
        ("cudaGraphExecUpdate_v10020", "launch_setup"),
        ("cudaGraphUpload_v10000", "launch_setup"),
        ("cudaStreamEndCapture_v10000", "launch_setup"),
        ("cudaEventRecord_v3020", "host_api"),
        ("cudaMemGetInfo_v3020", "host_api"),
    ],
)
def test_other_calls_by_what_they_do(name: str, part: str) -> None:
    script = idle()
    script.call(name, 1100, 1160)
    assert parts(script) == {part: 60, "launch_call": 50, "host_code": 890}


def test_another_thread_at_work_may_hold_a_lock() -> None:
    script = idle()
    script.range("collate", 1200, 1500, thread=OTHER)
    script.call("cudaMalloc_v3020", 1450, 1550, thread=OTHER)
    script.call("cudaMalloc_v3020", 1210, 1220)  # the launching thread is in a call of its own meanwhile
    assert parts(script) == {
        "host_lock": 240, "other_thread": 100, "host_allocation": 10, "launch_call": 50, "host_code": 600,
    }  # fmt: skip


def python(script: Script, text: str, start: int, end: int, thread: int = THREAD) -> None:
    script.range(text, start, end, thread=thread, domain=PYTHON_FUNCTION)


LOCK = "<built-in method acquire of _thread.lock object at 0x7f>"


def test_an_open_python_function_of_another_thread_is_no_work() -> None:
    """It waits for a queue, and for longer than the window."""
    script = idle()
    python(script, "queue.py(154): get", 0, 5000, OTHER)
    python(script, LOCK, 10, 4990, OTHER)
    python(script, "engine.py(7): step", 0, 2100)
    assert parts(script) == {"launch_call": 50, "host_code": 950}


def test_a_thread_that_enters_python_functions_has_the_lock_of_the_interpreter() -> None:
    """Of what the other thread does, 60 ns lie between two steps of this one, and 100 in a wait."""
    script = idle()
    python(script, "engine.py(7): step", 0, 2100)
    for start in (1200, 1500):  # own steps
        python(script, "engine.py(9): plan", start, start + 10)
    python(script, "output.py(3): send", 900, 2500, OTHER)
    python(script, "output.py(4): encode", 1300, 1330, OTHER)
    python(script, LOCK, 1330, 1430, OTHER)
    python(script, "output.py(5): write", 1430, 1460, OTHER)
    assert parts(script) == {"host_lock": 60, "launch_call": 50, "host_code": 890}


def test_a_thread_waits_inside_the_functions_that_wait() -> None:
    script = idle()
    python(script, "engine.py(7): step", 0, 2100)
    python(script, "queue.py(154): get", 1190, 1310)
    python(script, LOCK, 1200, 1300)
    python(script, "output.py(4): encode", 1210, 1280, OTHER)
    python(script, "output.py(4): encode", 1282, 1290, OTHER)
    assert parts(script) == {"host_wait": 100, "launch_call": 50, "host_code": 850}


def waited_for(script: Script) -> list[tuple[int, str, str, float]]:
    """The threads that the host waits for: number, outermost function, how that is known, ns in the only idle piece."""
    trace = script.trace
    table = gap_report(trace, find_steps(trace)).idle.threads
    ns = (table["idle_us"] * 1e3).round()
    return list(zip(table["thread"], table["runs"], table["how"], ns, strict=True))


def test_the_thread_that_holds_the_gil_is_named() -> None:
    script = idle()
    python(script, "engine.py(7): step", 0, 2100)
    python(script, "threading.py(1012): run", 900, 2500, OTHER)
    python(script, "output.py(3): send", 900, 2500, OTHER)
    python(script, "output.py(4): encode", 1300, 1330, OTHER)
    third = OTHER + 1
    python(script, "metrics.py(1): collect", 1500, 1510, third)
    assert waited_for(script) == [
        (OTHER, "output.py(3): send", HOW[GIL], 330), (third, "metrics.py(1): collect", HOW[GIL], 10),
    ]  # fmt: skip


def test_who_releases_a_lock_is_known_if_no_other_thread_does() -> None:
    """A wait of 100 ns that one thread ends; one of 50 during which two threads release locks; one for a message."""
    script = idle()
    python(script, "engine.py(7): step", 0, 2100)
    for start, end in ((1200, 1300), (1400, 1450)):
        python(script, LOCK, start, end)
    python(script, "<built-in method recv of Socket object at 0x7f>", 1500, 1507)
    release = "<built-in method release of _thread.lock object at 0x8f>"
    for start, thread in ((1290, OTHER), (1440, OTHER), (1445, OTHER + 1), (1506, OTHER)):
        python(script, release, start, start + 1, thread)
    found = waited_for(script)
    assert (OTHER, "", HOW[RELEASED], 100) in found
    assert (MISSING, "", HOW[UNKNOWN], 57) in found
    assert parts(script)["host_wait"] == 157


def test_a_thread_inside_a_range_is_named_with_a_doubt() -> None:
    script = idle()
    script.range("collate", 1200, 1500, thread=OTHER)
    assert waited_for(script) == [(OTHER, "", HOW[RANGE], 300)]
    assert "may hold" in HOW[RANGE]


def test_host_compute_is_seen_by_the_ranges_of_splits() -> None:
    script = idle()
    script.range("split 0: host", 1200, 1700)
    script.range("split 1: cuda", 1700, 1800)
    script.copy((1250, 1260), (1255, 1265))
    assert parts(script) == {
        "host_compute": 485,
        "copy_device": 10,
        "copy_call": 5,
        "launch_call": 50,
        "host_code": 450,
    }


def test_another_device_computes_for_the_same_steps() -> None:
    script = idle()
    script.launch((1055, 1060), (1100, 1600), device=1)
    script.sync(1100, 1650, device=1)
    assert parts(script) == {"other_device": 500, "sync_return": 50, "launch_call": 55, "host_code": 395}


def test_another_device_that_decodes_by_itself_is_no_part() -> None:
    script = idle()
    script.rows["nvtx"] += [
        {
            "text": "token",
            "start": t,
            "end": t + 900,
            "process": 9,
            "thread": 9,
            "kind": "push/pop",
            "domain": "",
            "payload": None,
        }
        for t in (1000, 2000)
    ]
    for t in (1000, 2000):
        script.launch((t + 1, t + 5), (t + 50, t + 800), device=1, process=9, thread=9)
    assert "other_device" not in parts(script)


SPAN = st.tuples(st.integers(0, 5000), st.integers(0, 400)).map(lambda s: (s[0], s[0] + s[1]))
NAMES = [
    "cudaMemcpyAsync_v3020", "cudaStreamSynchronize_v3020", "cudaMalloc_v3020", "cudaGraphLaunch_v10000",
    "cudaGraphInstantiate_v12000", "cudaEventRecord_v3020",
]  # fmt: skip


@st.composite
def disorder(draw: st.DrawFn) -> Trace:
    """A few steps on two devices among calls, copies, ranges and kernels anywhere."""
    script = Script()
    for token in range(draw(st.integers(2, 5))):
        script.range("token", token * 1000, token * 1000 + 900)
        kernels = draw(st.lists(SPAN, min_size=1, max_size=3))
        script.launch((token * 1000 + 1, token * 1000 + 30), *kernels, device=draw(st.integers(0, 1)))
    threads = st.sampled_from([THREAD, OTHER])
    for span in draw(st.lists(SPAN, max_size=12)):
        script.call(draw(st.sampled_from(NAMES)), *span, thread=draw(threads))
    for span in draw(st.lists(SPAN, max_size=4)):
        script.copy((0, 1), span, stream=draw(st.integers(7, 8)))
    for span in draw(st.lists(SPAN, max_size=4)):
        script.range(draw(st.sampled_from(["split 0: host", "work"])), *span, thread=draw(threads))
    for span in draw(st.lists(SPAN, max_size=3)):
        script.kernel(*span, process=draw(st.sampled_from([PROCESS, 999])))
    for span in draw(st.lists(SPAN, max_size=3)):
        script.launch((1, 2), span, name="ncclDevKernel_SendRecv", device=draw(st.integers(0, 1)))
    return script.trace


@settings(max_examples=8)
@given(disorder())
def test_parts_add_up_to_causes_and_causes_to_the_gap_or_bubble(trace: Trace) -> None:
    steps = find_steps(trace, pattern="token")
    bubbles = bubble_report(trace, steps).table
    tables = [(bubbles.assign(whole=bubbles["length"] + bubbles["communication"]), "whole")]
    with suppress(EmptyTraceError):
        tables.append((gap_report(trace, steps).table, "gap"))
    for table, whole in tables:
        assert (table[PART_COLUMNS] >= 0).to_numpy().all()
        assert all((table[list(inner)].sum(axis=1) == table[cause]).all() for cause, inner in PARTS.items())
        assert (table[list(CAUSES)].sum(axis=1) == table[whole]).all()
        assert all(np.issubdtype(table[name].dtype, np.integer) for name in [*CAUSES, *PART_COLUMNS])
