"""The command line and the Python interface: the same figures in each, tables as CSV and Parquet, clear refusals."""

import json
import tarfile

import click
import pandas as pd
import pytest
from click.testing import CliRunner

import tracer
from tests.programs import ran
from tests.recordings import LLAMA, SAMPLES, SIX
from tests.tracer.handmade import Script, decode_loop
from tests.tracer.nsys_exports import DATA
from tracer import analyse, compare, read
from tracer.cli import main
from tracer.errors import EmptyTraceError, FormatError, IncomparableError, TraceError, UsageError

BASE, OTHER = LLAMA["sccc", "graph"], LLAMA["saaas", "graph"]
RATE = 748.7


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def as_json(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_part_is_what_its_command_prints():
    found = analyse(BASE, untraced_steps_per_s=RATE)
    gaps = as_json("gaps", BASE, "--untraced-steps-per-s", RATE)
    assert (found.gaps.gap_us, found.gaps.untraced_gap_us) == (gaps["traced_gap_us"], gaps["untraced_gap_us"])
    assert found.idle.idle_us == gaps["idle_us"]
    assert found.gaps is found.gaps
    assert found.idle is found.gaps.idle
    again = analyse(read(BASE), name="mine", untraced_steps_per_s=[RATE, RATE - 1, RATE + 1])
    assert again.gaps.untraced_gap_us == found.gaps.untraced_gap_us
    assert (again.name, again.place, found.name, found.place) == ("mine", "", BASE.name, str(BASE))
    (_, other) = as_json("compare", BASE, OTHER, "--untraced-steps-per-s", RATE, "--untraced-steps-per-s", 760)["runs"]
    compared = compare(found, analyse(OTHER, untraced_steps_per_s=760))
    assert (compared.verdict, compared.speedup.estimate) == (other["verdict"], other["speedup"]["estimate"])


def test_what_lacks_raises_and_the_rest_is_there():
    script = Script()
    script.kernel(0, 100)
    lone = analyse(script.trace)
    with pytest.raises(EmptyTraceError):
        lone.gaps  # noqa: B018
    assert len(lone.trace["kernels"]) == 1
    with pytest.raises(FormatError, match="no such file"):
        analyse("nothing.sqlite")
    with pytest.raises(TraceError, match=rf"^{BASE.name}: "):
        analyse(BASE, untraced_steps_per_s=RATE / 3).gaps  # noqa: B018
    for rate in (0, -1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="a rate must be a positive number"):
            analyse(BASE, untraced_steps_per_s=rate)
    with pytest.raises(UsageError, match="steps must be consecutive"):
        analyse(BASE, steps=slice(0, 10, 2))


def test_without_steps_info_says_how_busy_the_device_is_and_with_what(tmp_path):
    script = Script()
    script.kernel(0, 4_000, stream=7, name="large")
    script.kernel(6_000, 8_000, stream=9, name="small")
    script.kernel(8_000, 10_000, stream=9, name="small")
    tracer.write(script.trace, path := tmp_path / "no-steps.sqlite")
    facts, streams = as_json("info", path), as_json("streams", path)
    assert (facts["steps"], facts["streams"], facts["devices"]) == (None, streams["streams"], streams["devices"])
    assert facts["devices"][0]["busy_share"] == 0.8
    large, small = {"name": "large", "calls": 1, "us": 4.0}, {"name": "small", "calls": 2, "us": 4.0}
    assert facts["kernels"] == [large, small]
    said = " ".join(run("info", path).stdout.split())
    assert "--pattern takes the name of a range, kernel or API call that begins a step" in said
    assert "busy device 0 80.0% of 10 µs" in said
    assert "streams 7 40.0% (1 kernel, 0 copies); 9 40.0% (2 kernels, 0 copies)" in said
    assert "kernels large 4 µs (1), small 4 µs (2)" in said
    assert "kernels" not in as_json("info", path, "--range", "some"), "of a range that is not there nothing is said"


def test_runs_that_are_compared_are_several_recordings_with_names():
    loops = [decode_loop("agAs", 20, period).trace for period in (1000, 1002, 998, 1200, 1202, 1198)]
    compared = compare(loops[:3], loops[3:], force=True)
    assert (len(compared.base.recordings), compared.unit) == (3, "recordings")
    with pytest.raises(UsageError, match="no recording given"):
        compare([], loops)
    with pytest.raises(IncomparableError):
        compare(BASE, SAMPLES / "vllm-b8-graph")
    files = [read(BASE), read(OTHER)]
    made = [tracer.Trace(dict(trace.tables), trace.metadata, list(trace.notes)) for trace in files]
    for traces, names in ((files, (BASE.name, OTHER.name)), (made, ("the base", "the other"))):
        found = compare(*traces)
        assert (found.base.name, found.other.name) == names


def test_senseless_options_are_one_line_or_a_usage_error(tmp_path):
    for command in ("info", "tokens", "syncs", "gaps", "streams"):
        wrong = run(command, SIX, "--pattern", "(")
        assert (wrong.exit_code, wrong.output.count("\n")) == (2, 1), wrong.output
        assert "--pattern '(' is not a valid regular expression" in wrong.output
        ranged = run(command, SIX, "--range", "(")
        assert (ranged.exit_code, "Traceback" in ranged.stderr) == (0 if command == "info" else 2, False)
    for rate in ("nan", "1e-300", "0", "-1", "inf", "fast"):
        assert run("gaps", BASE, "--untraced-tokens-per-s", rate).exit_code == 2, rate
    for steps in ("5", "a:b", "1:2:3"):
        result = run("syncs", SIX, "--steps", steps)
        assert (result.exit_code, "is not A:B" in result.stderr) == (2, True), steps
    no_kernels = Script()
    no_kernels.sync(0, 10)
    tracer.write(no_kernels.trace, tmp_path / "no-kernels")
    for command in ("tokens", "syncs", "gaps", "streams", "path"):
        result = run(command, tmp_path / "no-kernels")
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), command
        assert "no-kernels: the trace has no kernels and no graph launches" in result.stderr


def test_convert_and_scrub_tell_what_is_left_out(tmp_path):
    folder = tmp_path / "run"
    assert run("convert", SIX, folder).exit_code == 0
    (folder / "graph.json").write_text("{}")
    (folder / "node").mkdir()
    told = run("convert", folder, tmp_path / "a.sqlite").stderr
    assert told == "note: not converted: graph.json, node (next to the recording).\n"
    with tarfile.open(DATA / "nsys-2025.3-arrowdir.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "rep_arwdir" / "other.txt").write_text("")
    removed = as_json("scrub", tmp_path / "rep_arwdir", tmp_path / "out")["removed"]
    assert [row["where"] for row in removed if row["where"].startswith("file ")] == ["file other.txt"]


READERS = {".csv": pd.read_csv, ".parquet": pd.read_parquet}


def records(table):
    rows = json.loads(table.to_json(orient="records", double_precision=6))
    return [{k: None if v == "" else v for k, v in row.items()} for row in rows]


@pytest.mark.parametrize("suffix", READERS)
def test_a_table_is_what_json_prints(suffix, tmp_path):
    sample = LLAMA["saaas", "node"]
    for command, member in {
        "tokens": "table", "syncs": "inventory", "streams": "streams", "events": "events", "gaps": None,
    }.items():  # fmt: skip
        path = tmp_path / f"{command}{suffix}"
        what, steps = (["kernels"], "3:5") if command == "events" else ([], "2:12")
        facts, table = as_json(command, sample, *what, "--steps", steps, "--table", path), READERS[suffix](path)
        assert len(table) > 1
        if member is not None:
            assert records(table) == records(pd.DataFrame(facts[member]))
    assert len(table) == facts["gaps"]  # of these the table has whole ns, whose figures are printed
    causes = table[["sync", "copy", "launch", "host", "other"]]
    assert (table.dtypes == "int64").all()
    assert (causes.sum(axis=1) == table["gap"]).all()
    assert table["gap"].median() / 1e3 == pytest.approx(facts["gap_us"]["p50"])
    assert causes.mean().to_numpy() / 1e3 == pytest.approx(list(facts["causes_us"].values()))


def test_without_steps_every_event_is_there(tmp_path):
    for name in ("kernels", "api", "nvtx", "cuda_events", "devices"):
        path = tmp_path / f"{name}.parquet"
        assert run("events", SIX, name, "--table", path).exit_code == 0
        written, recorded = pd.read_parquet(path), read(SIX)[name]
        assert len(written) == len(recorded)
        assert ("step" in written) == ("start" in recorded)
        assert name != "kernels" or (written["step"] >= 0).any()


def test_no_more_is_imported_than_is_needed_and_options_of_pandas_stay():
    """`convert` and `run` import what their help lists, `gaps` and `watch` hold what they report; completion of options
    needs as much as help."""
    done = ran("imports", BASE, str(RATE), check=True, cwd=SAMPLES.parent)
    *said, last = done.stdout.splitlines()
    p50, storage = last.split()
    assert storage == "pyarrow"  # which commands and these tests change for themselves
    assert float(p50) == as_json("gaps", BASE, "--untraced-steps-per-s", RATE)["traced_gap_us"]["p50"]
    listed = [line.split()[0] for line in said[said.index("Commands:") + 1 :] if line.startswith("  ")]
    completed = [item.value for item in main.shell_complete(click.Context(main), "")]
    assert listed[: len(completed)] == completed == main.list_commands(click.Context(main))
