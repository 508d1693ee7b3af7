"""--table and `intertoken events`: CSV and Parquet hold what --json prints, and no file is lost or half written."""

import json
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from tests.recordings import LLAMA, SIX
from tracer import read
from tracer.cli import main
from tracer.errors import UsageError
from tracer.files.output import write_output

SAMPLE = LLAMA["saaas", "node"]
IN_JSON = {"tokens": "table", "syncs": "inventory", "streams": "streams"}
READERS = {".csv": pd.read_csv, ".parquet": pd.read_parquet}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def records(table: pd.DataFrame) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = json.loads(table.to_json(orient="records", double_precision=6))
    return [{k: None if v == "" else v for k, v in row.items()} for row in rows]


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("command", IN_JSON)
def test_the_table_is_what_json_prints(command: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"table{suffix}"
    result = run(command, SAMPLE, "--steps", "2:12", "--json", "--table", path)
    assert result.exit_code == 0, result.output
    printed = pd.DataFrame(json.loads(result.stdout)[IN_JSON[command]])
    assert len(printed) > 1
    assert records(READERS[suffix](path)) == records(printed)


@pytest.mark.parametrize("suffix", READERS)
def test_the_gaps_and_their_causes_are_whole_ns_that_give_the_printed_figures(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"gaps{suffix}"
    facts = json.loads(run("gaps", SAMPLE, "--json", "--table", path).stdout)
    table = READERS[suffix](path)
    causes = table[["sync", "copy", "launch", "host", "other"]]
    assert (table.dtypes == "int64").all()
    assert (causes.sum(axis=1) == table["gap"]).all()
    assert len(table) == facts["gaps"]
    assert table["gap"].median() / 1e3 == pytest.approx(facts["gap_us"]["p50"])
    assert causes.mean().to_numpy() / 1e3 == pytest.approx(list(facts["causes_us"].values()))


@pytest.mark.parametrize("suffix", READERS)
def test_the_kernels_of_chosen_steps(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"kernels{suffix}"
    result = run("events", SAMPLE, "kernels", "--steps", "3:5", "--json", "--table", path)
    assert result.exit_code == 0, result.output
    facts, table = json.loads(result.stdout), READERS[suffix](path)
    assert facts["schema"] == "intertoken.events/1"
    assert facts["columns"]["name"] == "full demangled name"
    assert set(table["step"]) == {3, 4}
    assert len(table) == facts["rows"] == len(facts["events"])
    assert records(table) == records(pd.DataFrame(facts["events"]))


def test_without_steps_every_event_is_there(tmp_path: Path) -> None:
    for name in ("kernels", "api", "nvtx", "cuda_events", "devices"):
        path = tmp_path / f"{name}.parquet"
        assert run("events", SIX, name, "--table", path).exit_code == 0
        written, recorded = pd.read_parquet(path), read(SIX)[name]
        assert len(written) == len(recorded)
        assert ("step" in written) == ("start" in recorded)
    assert (pd.read_parquet(tmp_path / "kernels.parquet")["step"] >= 0).any()


def test_a_file_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_text("old")

    def half(place: Path) -> None:
        place.write_text("ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match=r"t\.parquet: cannot be written: No space left on device"):
        write_output(path, half, replace=True)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UsageError, match="already exists"):
        write_output(path, half, replace=False)
