"""Constants by GPU: where each comes from, what other GPUs get, and a user's own file."""

import dataclasses
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import tracer
from tests.recordings import LLAMA
from tests.tracer.bases import base_of
from tracer.analysis.gaps import gap_report
from tracer.analysis.path.paths import Causality
from tracer.analysis.tokens import find_steps
from tracer.analysis.whatif.edits import WithoutSyncs
from tracer.analysis.whatif.prediction import predict
from tracer.cli import main
from tracer.errors import UsageError
from tracer.model.fits import VARIABLE, Fits, fits_of
from tracer.model.trace import Trace
from tracer.stored import Cache

if sys.version_info >= (3, 11):
    pass
else:
    pass

OTHER = "NVIDIA A100-SXM4-80GB"
TABLES = [f.name for f in dataclasses.fields(Fits) if f.name not in ("gpu", "called", "foreign", "caution")]


def on(gpu: str) -> Trace:
    trace = tracer.read(LLAMA["sccc", "graph"])
    devices = trace["devices"].assign(name=gpu)
    return Trace(dict(trace.tables) | {"devices": devices}, trace.metadata)


def test_a_device_that_the_file_knows_gets_no_caution_and_another_one_does() -> None:
    known, other = fits_of("NVIDIA H200"), fits_of(OTHER)
    assert known.caution is None
    whole = "all constants of the model were fitted to an H200"
    assert other.caution == f"{whole}, not to the GPU of this recording, where they may be wrong"
    assert dataclasses.replace(other, foreign=(), caution=None) == known
    assert known.foreign == ()
    assert other.foreign == tuple(sorted(TABLES))


def test_what_a_listed_device_lacks_is_the_first_ones_and_the_caution_names_what_it_has() -> None:
    first, found = fits_of("NVIDIA H200"), fits_of("NVIDIA H100 80GB HBM3")
    assert (found.light.empty_ns, first.light.empty_ns) == (896, 544)
    assert (
        dataclasses.replace(found, light=first.light, gpu="H200", called="an H200", foreign=(), caution=None) == first
    )
    assert found.foreign == tuple(sorted({*TABLES} - {"light"}))
    assert found.caution is not None
    assert found.caution.startswith("all constants of the model but those of light were fitted to an H200, not to")


@pytest.mark.parametrize("gpu", ["NVIDIA GH200 480GB", "NVIDIA H100, NVIDIA H200"])
def test_another_device_with_a_similar_name_or_beside_it_gets_the_caution(gpu: str) -> None:
    assert fits_of(gpu).caution is not None


def test_what_the_constants_decide_carries_the_caution_once() -> None:
    for gpu, times in (("NVIDIA H200", 0), (OTHER, 1)):
        trace = on(gpu)
        steps = find_steps(trace)
        warning = gap_report(trace, steps, 748.7).warning or ""
        notes = predict(base_of(Causality.of(trace), steps, 748.7), [WithoutSyncs()]).notes
        assert warning.count("fitted to an H200") == times
        assert sum("fitted to an H200" in note for note in notes) == times


def test_a_users_own_numbers_replace_those_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[[device]]\ngpu = "A100"\ncalled = "our A100"\n[device.graph]\nlaunch_ns = 3100\n')
    shipped = fits_of(OTHER)
    before = Cache(tmp_path).entry(own)
    monkeypatch.setenv(VARIABLE, str(own))
    found = fits_of(OTHER)
    assert found.graph == dataclasses.replace(shipped.graph, launch_ns=3100)
    assert found.called == "our A100"
    assert found.stretch == shipped.stretch
    assert found.foreign == tuple(sorted({*TABLES} - {"graph"}))
    assert found.caution is not None
    assert found.caution.startswith("all constants of the model but those of graph were fitted to an H200")
    assert fits_of("NVIDIA H200").graph == shipped.graph
    assert Cache(tmp_path).entry(own) != before  # what was computed with other constants is not reused


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[device]\n", "Expected"),
        ("[device]\ngpu = 'A100'\n", "no \\[\\[device\\]\\]"),
        ("[[device]]\ngpu = 'A100'\n[device.graph]\nnode_ns = -1\n", r"Expected `int` >= 0 - at `\$.graph.node_ns`"),
        ("[[device]]\ngpu = 'A100'\n[device.graph]\nnode_ns = 'x'\n", r"got `str` - at `\$.graph.node_ns`"),
        ("[[device]]\ngpu = 'A100'\ngraph = 3\n", "graph is not a table"),
        ("[[device]]\ngpu = 'A100'\n[device.strech]\nshare = 1\n", "there is no table strech"),
    ],
)
def test_a_damaged_file_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    own = tmp_path / "own.toml"
    own.write_text(text)
    monkeypatch.setenv(VARIABLE, str(own))
    with pytest.raises(UsageError, match=problem):
        fits_of(OTHER)


def test_a_missing_file_ends_a_command_with_exit_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none.toml"))
    result = CliRunner().invoke(main, ["gaps", str(LLAMA["sccc", "graph"])])
    assert result.exit_code == 2
    assert f"{VARIABLE}=" in result.output
    assert result.output.count("\n") == 1
