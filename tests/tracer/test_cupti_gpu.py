"""The CUPTI recorder on a GPU, in processes of its own: CUPTI's state belongs to the process."""

import json
import os
import subprocess
import sys

import pytest

import tracer
from tests.programs import PROGRAMS

pytestmark = pytest.mark.gpu
LOOP = PROGRAMS["loop on a gpu"]


def ran(body):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "0"}
    return subprocess.run(
        [sys.executable, "-c", LOOP + body], capture_output=True, text=True, timeout=300, env=environment
    )


def facts(body):
    done = ran(body)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found():
    return facts(PROGRAMS["scenes on a gpu"])


def test_launching_a_graph_is_as_fast_after_a_recording_as_before(found):
    launches = found["launches"]
    assert launches["kernels"] == [15000, 15000]
    assert launches["after"] < 2 * launches["before"] + 5
    assert launches["during"] > launches["after"]


def test_records_begin_where_cupti_says(found):
    assert found["records"]["ours"] == found["records"]["theirs"]
    assert found["records"]["unread"] == 0


def test_node_level_starts_and_stops_at_any_time_and_beside_other_threads(found):
    """And it has only the devices that the process can use."""
    assert found["turns"] == {"in_graph": 21, "copies": 7, "graphs": 0, "launches": 7, "tokens": 7}
    assert found["about turns"] == {"notes": [], "devices": [0]}
    assert found["threads"]["kernels"] >= 15
    assert found["threads"]["launched"] > 0


def test_stacks_ranges_and_names_are_the_programs(found):
    """Each call that copies, waits or launches has its caller's stack, each range is there once, and the names of
    unloaded kernels stay."""
    assert found["stacks"] == {"letters": "asg" * 5 + "s", "callers": ["loop"]}
    assert found["ranges"] == [["of cupy", "", 0xFF00FF00, "push/pop"], ["ours", "engine", 255, "push/pop"]]
    assert found["unloaded"] == ["void gone<float>(float*)", "gone"]


def test_graph_level_has_one_row_per_launch_and_may_start_again():
    counted = facts(PROGRAMS["graph level twice"])
    assert counted == {"in_graph": 0, "copies": 7, "graphs": 7, "launches": 7, "tokens": 7}
    late = ran("loop(1)\nwith tracer.record('cupti', graph_trace='graph'): pass")
    assert "RecordError: graph-level tracing must start before the first CUDA call" in late.stderr


def test_what_finds_no_buffer_is_counted():
    told = facts(PROGRAMS["more than the buffers hold"])
    assert 0 < told["kernels"] < 9000
    assert "activity records were dropped" in told["notes"][0]


def test_the_record_command_writes_the_trace_of_a_failing_script(tmp_path):
    script, target = tmp_path / "script.py", tmp_path / "out"
    script.write_text(LOOP + "import sys\nloop(6)\nassert sys.argv[1:] == ['--x']\nsys.exit(3)\n")
    command = ["tracer.cli", "record", "-o", target, "--passes", "node", "--", sys.executable, script, "--x"]
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3, done.stderr
    assert f"{target}: " in done.stderr
    assert len(tracer.read(target)["memcpys"]) == 6
