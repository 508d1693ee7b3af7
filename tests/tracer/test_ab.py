"""`intertoken ab` and `intertoken bisect`: what runs, what is read of it, what is said of failures, and the table."""

import json
import shlex
import sys

import pytest

from tests.tracer.fake_driver import run
from tracer import read
from tracer.errors import UsageError
from tracer.experiments import printed
from tracer.experiments.programs import lettered, varied

PRINTS = "import os, sys, zlib; n = int(sys.argv[1]) if len(sys.argv) > 1 else int(os.environ['N'])\n"
SPEED = "print('speed:', n * (1 + zlib.crc32(os.urandom(4)) / 2**32 / 500))"  # within 0.2 %
OUTPUTS = {
    "llama-bench": (
        """| model            |       size |     params | backend    | ngl |          test |                  t/s |
| ---------------- | ---------: | ---------: | ---------- | --: | ------------: | -------------------: |
| llama 1B Q4_0    | 606.53 MiB |     1.10 B | CUDA       |  99 |         pp512 |     21084.33 ± 80.01 |
| llama 1B Q4_0    | 606.53 MiB |     1.10 B | CUDA       |  99 |         tg128 |        748.70 ± 1.25 |

build: 4b2dae383 (6519)
""", 748.70, "tokens/s", 0.01, "4b2dae383 (6519)"),
    "llama-bench with a depth": ("| llama 1B | CUDA | tg32 @ d512 | 612.5 ± 1.2 |", 612.5, "tokens/s", 0.1, ""),
    "llama-bench -o json": (
        '[{"build_commit": "4b2dae3", "n_prompt": 512, "n_gen": 0, "avg_ts": 21084.1},'
        ' {"build_commit": "4b2dae3", "n_prompt": 0, "n_gen": 128, "avg_ns": 17, "avg_ts": 748.703110}]',
        748.70311, "tokens/s", 1e-6, "4b2dae3"),
    "llama-cli": (
        """llama_perf_context_print: prompt eval time = 25.56 ms / 9 tokens (2.84 ms each, 352.11 tokens per second)
llama_perf_context_print:        eval time = 803.03 ms / 127 runs   ( 6.32 ms per token,   158.15 tokens per second)
""", 158.15, "tokens/s", 0.01, ""),
    "vllm bench serve": (
        """============ Serving Benchmark Result ============
Request throughput (req/s):              0.76
Output token throughput (tok/s):         777.04
Peak output token throughput (tok/s):    1386.00
Total Token throughput (tok/s):          2331.11
""", 777.04, "tokens/s", 0.01, ""),
    "vllm bench throughput": (
        "INFO [core.py:58] Initializing a V1 LLM engine (v0.23.0) with config\n"
        "Throughput: 5.12 requests/s, 1310.12 total tokens/s, 655.06 output tokens/s\n",
        655.06, "tokens/s", 0.01, "v0.23.0"),
    "vllm bench latency": ("Avg latency: 0.5 seconds\n10% percentile latency: 0.4 seconds", 2, "batches/s", 0.4, ""),
    "sglang.bench_one_batch": (
        "Decode.  median latency: 0.00512 s, median throughput:    195.31 token/s\nBenchmark ...\n"
        "Decode.  median latency: 0.00500 s, median throughput:    200.00 token/s\n"
        "Total. latency:  1.275 s, throughput:    401.00 token/s\n", 200, "tokens/s", 0.01, ""),
    "a bar before it": ("50%|##  |\r100%|####|\rOutput token throughput (tok/s):  12.5\n", 12.5, "tokens/s", 0.1, ""),
    "intertoken run": ('{"measured": {"tokens_per_s": {"median": 706.35, "low": 1}}}', 706.35, "tokens/s", 0.01, ""),
}  # fmt: skip


@pytest.mark.parametrize(("text", "rate", "unit", "digit", "build"), OUTPUTS.values(), ids=OUTPUTS)
def test_rates_that_programs_print(text, rate, unit, digit, build, tmp_path):
    (tmp_path / "output").write_text(text, encoding="utf-8", newline="")
    found = printed.printed_rate(tmp_path / "output")
    assert (found.rate.per_s, found.rate.digit) == (pytest.approx(rate), pytest.approx(digit))
    assert (found.unit, found.build) == (unit, build)


@pytest.mark.parametrize("text", ["", "no rate", "Throughput: 0.00 requests/s, 0 total tokens/s, 0.00 output tokens/s"])
def test_outputs_without_a_rate(text, tmp_path):
    (tmp_path / "output").write_text(text)
    assert printed.printed_rate(tmp_path / "output") is None


def test_a_value_is_in_the_command_or_in_the_environment():
    inside, beside = varied("N=4,8", ["run", "-t{N}", "{N}"]), varied("N=4,8", ["run", "-t", "4"])
    assert [(one.name, one.command, one.environment) for one in inside] == [
        ("N=4", ("run", "-t4", "4"), {}), ("N=8", ("run", "-t8", "8"), {})
    ]  # fmt: skip
    assert [(one.command, one.environment) for one in beside] == [
        (("run", "-t", "4"), {"N": "4"}), (("run", "-t", "4"), {"N": "8"})
    ]  # fmt: skip
    assert [(one.name, one.command) for one in lettered(["a", "-x", "---", "b"])] == [("A", ("a", "-x")), ("B", ("b",))]
    for bad in ("N", "N=4", "N=4,4", "=1,2"):
        with pytest.raises(UsageError, match="--vary"):
            varied(bad, ["run"])


def ab(*arguments, code=0):
    done = run("ab", *arguments)
    assert done.exit_code == code, done.output
    return done


PROGRAM = (sys.executable, "-c", PRINTS + SPEED)
RATE = ("--rate", r"speed: ([\d.]+)")


def test_a_program_that_records_nothing(tmp_path):
    done = ab("--vary", "N=100,104,100.02", *RATE, "-o", tmp_path / "out", "--", *PROGRAM[:2], PROGRAM[2].replace(
        "int(os", "float(os"))  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0] == "|  | `N=100` | `N=104` | `N=100.02` |"
    assert lines[2].startswith("| per s | 100.")
    assert lines[3] == "| verdict | base | faster | same within ±1 % |"
    assert "made no call of the CUDA driver" in done.stdout or "without the recorder" in done.stdout
    assert "rate: as the program prints it" in done.stdout
    kept = json.loads((tmp_path / "out" / "campaign.json").read_text())
    assert kept["schema"] == "intertoken.ab/1"
    assert [each["verdict"] for each in kept["variants"]] == ["base", "faster", "same"]
    assert kept["variants"][1]["environment"] == {"N": "104"}
    assert "speed: " in (tmp_path / "out" / "round-4" / "2" / "output.txt").read_text()
    again = run("ab", "--vary", "N=1,2", "-o", tmp_path / "out", "--", *PROGRAM)
    assert (again.exit_code, "already holds something" in again.stderr) == (2, True)


@pytest.mark.usefixtures("recorder")
def test_a_program_that_is_recorded(built, tmp_path):
    """It prints no rate, so that of its recorded steps counts; the other has more syncs and copies in each run only if
    it decodes otherwise, which it does not."""
    decode = str(built.folder / "decode")
    done = ab("--rounds", 4, "--json", "-o", tmp_path / "out", "--",
              decode, "proc", "", 40, "---", decode, "dlsym", "", 40)  # fmt: skip
    facts = json.loads(done.stdout)
    assert (facts["unit"], facts["recorded"], facts["rounds"]) == ("steps/s, recorded", True, 4)
    assert facts["recording_cost"] is None
    for each in facts["variants"]:
        assert (each["syncs"], each["copies"], each["launches"]) == (1, 2, 3)
        assert each["gap_us"] > 0
        assert len(each["rates"]) == 4
    other = facts["variants"][1]
    assert other["difference"]["syncs"] == {"estimate": 0, "low": 0, "high": 0}
    assert other["speedup"]["low"] < 1.5
    assert len(read(tmp_path / "out" / "round-2" / "1" / "recording")["graph_launches"]) == 80


@pytest.mark.usefixtures("recorder")
def test_what_recording_costs_is_told_where_a_rate_is_printed(built):
    script = f"{built.folder}/decode proc '' 20; echo speed: 100"
    done = ab("--rounds", 2, *RATE, "--", "sh", "-c", script, "---", "sh", "-c", f"{script}1")
    assert "| per s | 100 | 1,001.0: " in done.stdout
    assert "light recorder, ±0.0 % time per unit of work by one plain run of each" in done.stdout
    assert "| syncs per step | 1 | 1 |" in done.stdout
    assert "| idle" not in done.stdout
    assert "- figures that a recording does not carry are left out: without 19 of 19 idle times: " in done.stdout


def test_without_the_recorder_and_without_a_rate_whole_processes_count():
    done = ab("--rounds", 2, "--no-recorder", "--", "sleep", "0.01", "---", "sleep", "0.2")
    assert "| verdict | base | slower |" in done.stdout or "no difference shown" in done.stdout
    assert "whole processes by the clock" in done.stdout
    assert "without the recorder: as asked" in done.stdout


FAILS = "import os, sys\npath = sys.argv[1]\nnumber = len(os.listdir(path))\nopen(f'{path}/{number}', 'w')\n"


@pytest.mark.parametrize(
    ("ends", "said"),
    [("sys.exit('no memory')", "B ended with exit code 1; it printed last: no memory (round 2)"),
     ("os.kill(os.getpid(), 9)", "B ended by SIGKILL; it printed last: speed: 100 (round 2)"),
     ("print('speed: nan')", "B has no rate in per s in round 2, as it had before")],
)  # fmt: skip
def test_a_variant_that_fails_is_named_and_the_rest_is_kept(ends, said, tmp_path):
    """In the second round."""
    (tmp_path / "count").mkdir()
    script = f"{FAILS}print('speed: 100' if number < 2 or not {ends!r}.startswith('print') else '', flush=True)\n"
    script += f"if number == 2: {ends}"
    done = run("ab", *RATE, "--no-recorder", "-o", tmp_path / "out", "--", "echo", "speed: 100.0", "---",
               sys.executable, "-c", script, tmp_path / "count")  # fmt: skip
    assert done.exit_code == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"intertoken: {said}; what was measured until then is in ")
    kept = json.loads((tmp_path / "out" / "campaign.json").read_text())
    assert kept["rounds"] == 1
    assert kept["variants"][1]["rates"] == [100]


def test_ctrl_c_ends_it_and_not_only_a_run(tmp_path):
    script = "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(9)"
    done = run("ab", "--no-recorder", "--", sys.executable, "-c", script, "---", "true")
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (130, "Aborted!")


def test_names_and_commands_stay_in_their_cells():
    done = ab("--vary", "X=a|b,`c`", "--rounds", 3, "--no-recorder", "--", "true", "<b>", "{X}")
    assert done.stdout.splitlines()[0] == r"|  | `X=a\|b` | `X='c'` |"
    assert "- `X='c'`: `true '<b>' ''c''`" in done.stdout
    assert "each pair of rounds in a drawn order and its reverse, the last without one; 95 %" in done.stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [("-- true", "give --vary NAME=a,b -- COMMAND, or two commands: -- A --- B"),
     ("-- true ---", "a command is missing"),
     ("--vary N=1 -- true", "at least two different values"),
     ("--rounds 3 --until 1 -- true --- true", "--rounds cannot be combined"),
     ("--rate speed -- true --- true", "put the number in parentheses"),
     ("--rate ( -- true --- true", "not a regular expression"),
     ("--rate (x) -- true --- true", "A: --rate (x) matches no number in what it printed"),
     ("-- true --- /nowhere/none", "/nowhere/none cannot be run: No such file or directory"),
     ("-- true --- false", "B ended with exit code 1 (plain)")],
)  # fmt: skip
def test_what_is_refused(line, said):
    done = run("ab", *shlex.split(line))
    assert done.exit_code == 2
    assert said in done.stderr.splitlines()[-1]
