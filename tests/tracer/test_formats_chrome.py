"""Chrome JSON of PyTorch's profiler, rocmProfileData and others: what is read, to the nanosecond."""

import re

import pytest
from click.testing import CliRunner

from tests.tracer.kineto import EVENTS, GPU, HOST, event, events_of, read, rows, write
from tests.tracer.nsys_exports import DATA, columns_of
from tracer import analyse, formats
from tracer.cli import main
from tracer.errors import EmptyTraceError

CPU, CUDA = DATA / "pytorch-2.15-cpu.json.gz", DATA / "pytorch-2.11-cuda.json.gz"


def starts(trace, **options):
    return analyse(trace, **options).steps.table["start"].tolist()


def test_a_recording_of_pytorch_on_the_cpu():
    trace = formats.read(CPU)
    nvtx = trace["nvtx"]
    assert nvtx["domain"].value_counts()["cpu_op"] == 57
    steps = nvtx[nvtx["text"].str.startswith("ProfilerStep")]
    assert steps["text"].tolist() == [f"ProfilerStep#{number}" for number in (2, 3, 4)]
    assert steps.iloc[0][["start", "end"]].tolist() == [4413367086811519, 4413367086811519 + 279730]
    assert rows(trace, "processes", "process", "name") == [[100, "python"]]
    assert trace["threads"]["name"].tolist() == ["thread 100 (python)"]
    assert (trace.metadata["base_time_ns"], trace.notes) == (1790857026000000000, [])
    said = CliRunner().invoke(main, ["gaps", str(CPU)])
    assert (said.exit_code, said.output.splitlines()[-1]) == (2, (
        f"intertoken: {CPU}: the trace has no kernels and no graph launches; "
        "was CUDA traced (torch.profiler with activities=[CPU, CUDA], on a GPU)?"
    ))  # fmt: skip


def test_a_recording_by_pytorch_on_a_gpu():
    """24 steps of benchmarks/record_pytorch.py (two layers) on an H200, PyTorch 2.11 and CUDA 13.0."""
    found = analyse(CUDA)
    sizes = {name: len(found.trace[name]) for name in ("kernels", "memcpys", "api", "syncs", "streams", "devices")}
    assert sizes == {"kernels": 816, "memcpys": 96, "api": 1009, "syncs": 25, "streams": 1, "devices": 1}
    assert (found.trace.notes, found.steps.source, len(found.steps), len(found.gaps.table)) == ([], "nvtx", 24, 23)
    assert (found.syncs.strategy, found.syncs.signature) == ("aaag", "a k×9 a k×15 a k×10 a s")
    assert found.gaps.gap_us["p50"] == pytest.approx(172.7, abs=0.1)


def test_every_table_of_a_gpu_recording(tmp_path):
    trace = read(tmp_path, GPU)
    wanted = EVENTS["gpu"]["tables"]
    assert columns_of(trace, wanted) == wanted
    assert trace["api"]["process"].unique().tolist() == [HOST]
    assert rows(trace, "nvtx", "domain", "start", "end", "process", "thread")[-1] == [
        "gpu_user_annotation", 3_050_000, 3_450_000, -1, -1,
    ]  # fmt: skip
    assert trace.metadata == {
        "source": "PyTorch profiler, rank 0 of 2", "schema_version": 1, "base_time_ns": 1_700_000_000_000_000_000,
        "distributed": {"backend": "nccl", "rank": 0, "world_size": 2},
    }  # fmt: skip
    assert trace.notes == []


def test_times_are_exact(tmp_path):
    for ts, ns in {
        "4413367086673.450": 4413367086673450, "1790857026000000.001": 1790857026000000001, "12": 12000,
        "4007199254740993.999": 4007199254740993999, "1.5e3": 1500000, "-1.001": -1001,
    }.items():  # fmt: skip
        text = f'[{{"ph":"X","cat":"cpu_op","name":"aXb","pid":1,"tid":1,"ts":{ts},"dur":0.001}}]'
        trace = read(tmp_path, text.encode().replace(b"aXb", b"a\xffb"))  # which is no UTF-8
        assert rows(trace, "nvtx", "start", "end", "text") == [[ns, ns + 1, "a\ufffdb"]]


def test_which_annotations_are_steps(tmp_path):
    """Those of the host that mean a token; none over the device's time, and no operator or function so called."""
    late = [event("gpu_user_annotation", f"ProfilerStep#{n}", 1000 * n + 50, 900, 0, 7) for n in range(4)]
    ops = [event("cpu_op", "sgl_kernel::decode_attention", 1000 * n + 20, 10) for n in range(4)]
    functions = [event("python_function", "model.py(7): forward", 1000 * n + 20, 10) for n in range(4)]
    path = write(tmp_path / "a.json", GPU["traceEvents"] + ops + functions + late)
    plain, told = formats.read(path), formats.read(path, python_functions=True)
    assert analyse(told).steps.detail == "NVTX ranges ProfilerStep#0, ProfilerStep#1, ..."
    assert len(analyse(plain, pattern="decode").steps) == 4
    expected = analyse(read(tmp_path, [e for e in GPU["traceEvents"] if e.get("cat") != "gpu_user_annotation"]))
    assert analyse(told).gaps.table.equals(expected.gaps.table)
    decodes = [event("user_annotation", "decode", 1000 * n + at, 9) for n in range(4) for at in (20, 905)]
    trace = read(tmp_path, GPU["traceEvents"] + decodes + late)
    assert starts(trace, within="ProfilerStep") == [1_000_000 * n + 20_000 for n in range(4)]
    decodes = [event("user_annotation", "decode", 1000 * n + 2, 800) for n in range(4)]
    assert starts(read(tmp_path, GPU["traceEvents"] + decodes)) == [1_000_000 * n + 2_000 for n in range(4)]


def test_python_functions_are_kept_where_asked_for(tmp_path):
    path = write(tmp_path / "a.json", [*GPU["traceEvents"], event("python_function", "f.py(1): f", 1, 2)])
    for options, kept in ((["--python-functions"], 1), ([], 0)):
        target = tmp_path / f"out-{kept}"
        result = CliRunner().invoke(main, ["convert", *options, str(path), str(target)])
        assert result.exit_code == 0, result.output
        assert (formats.read(target)["nvtx"]["domain"] == "python_function").sum() == kept
        assert ("1 python_function events are left out" in result.output) is not bool(kept)
    result = CliRunner().invoke(main, ["convert", "--python-functions", str(target), str(tmp_path / "again")])
    assert (result.exit_code, "run directory has no python functions" in result.output) == (2, True)


@pytest.mark.parametrize("name", EVENTS["cases"], ids=lambda name: name.partition(" (")[0])
def test_what_events_become(name, tmp_path):
    case = EVENTS["cases"][name]
    trace = read(tmp_path, events_of(case["events"]))
    found = [trace]
    for suffix in (".json.gz", ".sqlite") if "again" in case else ():
        formats.write(trace, tmp_path / f"copy{suffix}")
        found.append(formats.read(tmp_path / f"copy{suffix}"))
    for each in found:
        assert columns_of(each, case.get("tables", {})) == case.get("tables", {})
        assert each.notes == case.get("notes", each.notes)
    if "no steps" in case:
        with pytest.raises(EmptyTraceError, match=re.escape(case["no steps"])):
            analyse(trace).steps  # noqa: B018


def test_a_truncated_file_gives_what_is_there_and_a_note(tmp_path):
    for name in ("a.json", "a.json.gz"):
        path = write(tmp_path / name, GPU)
        path.write_bytes(path.read_bytes()[:-200])
        trace = formats.read(path)
        assert 0 < len(trace["kernels"]) <= 4
        assert trace.notes[0].startswith("the file is truncated: only the ")


@pytest.mark.parametrize("name", EVENTS["shapes"], ids=lambda name: name.partition(":")[0])
def test_steps_syncs_and_gaps_of_shapes(name, tmp_path):
    truth = EVENTS["shapes"][name]
    events = [each for number in range(4) for each in events_of(truth["step"], number)]
    info = {"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": [{"pg_name": "0", "ranks": "[]"}]}
    content = {"schemaVersion": 1, "triton_version": "3.2.0", "traceEvents": events, "distributedInfo": info}
    found = analyse(trace := read(tmp_path, content))
    assert found.syncs.signature == truth["signature"]
    per_step = [found.syncs.syncs_per_token, found.syncs.copies_per_token, found.syncs.launches_per_token]
    assert per_step == truth["per step"]
    assert set(found.gaps.table["gap"]) == {truth["gap"]}
    assert {cause: us for cause, us in found.gaps.causes_us.items() if us} == truth["causes"]
    assert (trace.metadata["source"], trace.metadata["distributed"]) == ("PyTorch profiler, rank 3 of 8", info)
    waited = found.syncs.calls[found.syncs.calls["name"] == "cudaEventSynchronize"]
    if len(waited):
        assert set(waited["waited_for"]) == {"second"}
        assert waited["waited_until"].tolist() == [1000 * (341 + 1000 * n) for n in range(4)]
        records = rows(trace, "cuda_events", "stream", "event", "correlation")
        assert sorted(records) == sorted([s, e, 100 * n + c] for n in range(4) for s, e, c in ((7, 1, 3), (20, 2, 6)))


def merged(host, device, ranks=2, late=5):
    """Files of several ranks, one device each, as a tool merges them by changing the pids; each starts `late` µs."""
    return [
        e | {"pid": (host if e["pid"] == HOST else device)(rank), "ts": e["ts"] + rank * late}
        for rank in range(ranks)
        for e in GPU["traceEvents"]
    ]


@pytest.mark.parametrize(
    ("host", "device", "processes"),
    [
        (lambda rank: f"[TP{rank:02}] {HOST}", lambda rank: f"[TP{rank:02}] 0", [100, 0]),
        (lambda rank: f"{rank}_{HOST + rank}", lambda rank: f"{rank}_0", [100, 101]),
        (lambda rank: f"rank {rank}", lambda rank: f"rank {rank}", [0, 1]),
        (lambda rank: f"rank {rank} python", lambda rank: f"rank {rank} GPU 0", [0, 1]),
        (lambda rank: 10**6 * rank + HOST, lambda rank: 10**6 * rank, [100, 1_000_100]),
        (lambda rank: rank, lambda rank: rank, [0, 1]),
    ],
)
def test_ranks_in_one_file_stay_apart(tmp_path, host, device, processes):
    of_profiler = {
        "ph": "i",
        "name": "Iteration Start: PyTorch Profiler",
        "pid": "Traces",
        "tid": "",
        "ts": 1,
        "s": "g",
    }
    trace = read(tmp_path, GPU | {"traceEvents": [*merged(host, device), of_profiler]})
    kernels = rows(trace, "kernels", "device", "process", "start")
    assert kernels == sorted(([d, processes[d], 1_000_000 * n + 50_000 + 5_000 * d] for n in range(4) for d in (0, 1)),
                             key=lambda row: row[2])  # fmt: skip
    assert rows(trace, "devices", "device", "name") == [[0, "GPU A"], [1, "GPU A"]]
    found = analyse(trace)
    assert found.steps.table.groupby("process").size().to_dict() == dict.fromkeys(processes, 4)
    assert sorted(zip(found.gaps.table["device"], found.gaps.table["gap"], strict=True)) == [
        (device, 600_000) for device in (0, 1) for _ in range(3)
    ]
    assert found.gaps.table["sync"].tolist() == [10_000] * 6  # each by its own thread's call
    assert trace.notes == [
        f"the file holds 2 ranks: rank 0 = process {processes[0]} and device 0, "
        f"rank 1 = process {processes[1]} and device 1"
    ]
    assert trace.metadata["source"] == "PyTorch profiler"


def test_kernels_of_a_hip_graph_are_known_as_such(tmp_path):
    events = [each for number in range(4) for each in events_of(EVENTS["hip graph step"], number, 10)]
    found = analyse(read(tmp_path, events))
    assert (found.gaps.graph_trace, found.gaps.estimated) == ("node", None)
    assert (found.syncs.signature, found.syncs.launches_per_token, found.syncs.strategy) == ("k g", 2, "ggg")


def test_a_loop_recorded_by_rocmprofiledata(tmp_path):
    trace = read(tmp_path, [{}, *(each for number in range(20) for each in events_of(EVENTS["rpd step"], number, 3))])
    assert trace.metadata["source"] == "rocmProfileData"
    assert rows(trace, "kernels", "name", "start", "end", "device", "stream", "process")[:2] == [
        ["void mm<float>(int)", 50_000, 450_000, 2, 1, 4242], ["argmax", 460_500, 500_750, 2, 1, 4242],
    ]  # fmt: skip
    assert rows(trace, "memcpys", "kind", "start", "end")[:1] == [["DtoH", 520_000, 530_000]]
    names = trace["api"].set_index("correlation")["name"].astype(str)
    assert names.loc[trace["kernels"]["correlation"]].tolist() == ["hipLaunchKernel", "hipExtModuleLaunchKernel"] * 20
    assert names.loc[trace["memcpys"]["correlation"]].tolist() == ["hipMemcpyWithStream"] * 20
    assert trace.notes[0] == "streams are hardware queues: rocmProfileData's JSON does not name those of HIP"
    assert not [note for note in trace.notes if "whole µs" in note]
    found = analyse(trace)
    assert (len(found.steps), found.syncs.signature, found.syncs.launches_per_token) == (20, "k×2 c", 2)
    assert found.gaps.gap_us["p50"] == 549.25  # from 500.75 to 1050


OF_OTHERS = {
    "gpu_op": "its work ran on an accelerator that is not supported (Intel's, recorded with unitrace)",
    "cuda": "it is of nsys2json, which leaves out what launched a kernel; give the .nsys-rep or its SQLite export",
    "Ascend Hardware": "its work ran on an accelerator that is not supported (Ascend Hardware)",
    "GPU0": "it is of rocprof (v1), which leaves out what launched a kernel; record with rocprofv3 --runtime-trace",
    "2 GPU0": "it is of rocprof (v1), which leaves out what launched a kernel; record with rocprofv3 --runtime-trace",
}


@pytest.mark.parametrize("kind", OF_OTHERS)
def test_files_of_other_tools_say_what_they_lack(tmp_path, kind):
    events = [event(kind, "k", n, 1, 6, 0) for n in range(3)]
    if kind == "cuda":
        events.append(event("cuda_api", "cudaLaunchKernel", 1, 1, "Device 0", "CUDA API 7"))
    if " " in kind or kind == "GPU0":
        events = [{"ph": "X", "name": "k", "pid": "6", "tid": "0", "ts": str(n), "dur": "1"} for n in range(3)]
        events.append({"ph": "M", "name": "process_name", "pid": "6", "args": {"name": kind}})
    path = write(tmp_path / "a.json", events)
    said = f"intertoken: {path}: the trace has no kernels and no graph launches; {OF_OTHERS[kind]}\n"
    for command in ("gaps", "streams"):
        assert CliRunner().invoke(main, [command, str(path)]).stderr.endswith(said), kind
