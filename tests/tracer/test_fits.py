"""Constants by GPU: where each comes from, what other GPUs get, and a user's own file."""

import pytest
from click.testing import CliRunner
from msgspec import structs

import tracer
from tests.recordings import LLAMA
from tests.tracer.bases import predicted
from tracer.cli import main
from tracer.errors import UsageError
from tracer.model.fits import VARIABLE, Fits, fits_of
from tracer.model.trace import Trace
from tracer.stored import Cache
from tracer.whatif.edits import WithoutSyncs

OTHER = "NVIDIA A100-SXM4-80GB"
TABLES = {*Fits.__struct_fields__} - {"gpu", "called", "foreign", "caution"}


def test_what_a_device_lacks_is_the_first_ones_with_a_caution():
    known, other, listed = map(fits_of, ("NVIDIA H200", OTHER, "NVIDIA H100 80GB HBM3"))
    whole = "all constants of the model were fitted to an H200"
    assert (known.caution, known.foreign, other.foreign) == (None, (), tuple(sorted(TABLES)))
    assert other.caution == f"{whole}, not to the GPU of this recording, where they may be wrong"
    assert structs.replace(other, foreign=(), caution=None) == known
    assert (listed.light.empty_ns, known.light.empty_ns) == (896, 544)
    same = {"light": known.light, "gpu": "H200", "called": "an H200", "foreign": (), "caution": None}
    assert structs.replace(listed, **same) == known
    assert listed.foreign == tuple(sorted(TABLES - {"light"}))
    assert listed.caution.startswith("all constants of the model but those of light were fitted to an H200, not to")
    for gpu in ("NVIDIA GH200 480GB", "NVIDIA H100, NVIDIA H200"):  # a similar name, or several
        assert fits_of(gpu).caution is not None


def test_what_the_constants_decide_carries_the_caution_once():
    for gpu, times in (("NVIDIA H200", 0), (OTHER, 1)):
        trace = tracer.read(LLAMA["sccc", "graph"])
        trace = Trace(dict(trace.tables) | {"devices": trace["devices"].assign(name=gpu)}, trace.metadata)
        found = tracer.analyse(trace, untraced_steps_per_s=748.7)
        notes = predicted(trace, WithoutSyncs(), rate=748.7).notes
        assert (found.gaps.warning or "").count("fitted to an H200") == times
        assert sum("fitted to an H200" in note for note in notes) == times


def test_a_users_own_numbers_replace_those_shipped(tmp_path, monkeypatch):
    own = tmp_path / "own.toml"
    own.write_text('[[device]]\ngpu = "A100"\ncalled = "our A100"\n[device.graph]\nlaunch_ns = 3100\n')
    shipped, before = fits_of(OTHER), Cache(tmp_path).entry(own)
    monkeypatch.setenv(VARIABLE, str(own))
    found = fits_of(OTHER)
    assert found.graph == structs.replace(shipped.graph, launch_ns=3100)
    assert (found.called, found.stretch) == ("our A100", shipped.stretch)
    assert found.foreign == tuple(sorted(TABLES - {"graph"}))
    assert found.caution.startswith("all constants of the model but those of graph were fitted to an H200")
    assert fits_of("NVIDIA H200").graph == shipped.graph
    assert Cache(tmp_path).entry(own) != before  # what was computed with other constants is not reused


def test_a_damaged_or_missing_file_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none.toml"))
    result = CliRunner().invoke(main, ["gaps", str(LLAMA["sccc", "graph"])])
    assert (result.exit_code, f"{VARIABLE}=" in result.output, result.output.count("\n")) == (2, True, 1)
    for number, (text, problem) in enumerate((
        ("[[device]\n", "Expected"), ("[device]\ngpu = 'A100'\n", "no \\[\\[device\\]\\]"),
        ("[[device]]\ngpu = 'A100'\n[device.graph]\nnode_ns = -1\n", r"Expected `int` >= 0 - at `\$.graph.node_ns`"),
        ("[[device]]\ngpu = 'A100'\n[device.graph]\nnode_ns = 'x'\n", r"got `str` - at `\$.graph.node_ns`"),
        ("[[device]]\ngpu = 'A100'\ngraph = 3\n", "graph is not a table"),
        ("[[device]]\ngpu = 'A100'\n[device.strech]\nshare = 1\n", "there is no table strech"),
    )):  # fmt: skip
        (tmp_path / f"{number}.toml").write_text(text)
        monkeypatch.setenv(VARIABLE, str(tmp_path / f"{number}.toml"))
        with pytest.raises(UsageError, match=problem):
            fits_of(OTHER)
