"""The bundled recordings: steps and calls of engines as these counted them, small files, and no secrets in them.

Recordings outside the repository are compared with their golden answers (`tests/golden/shared.py`).
"""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.recordings import ENGINES, SAMPLES
from tracer import analyse

SHARED = Path(__file__).parents[3] / "shared" / "recordings"


@pytest.mark.parametrize("name", ENGINES)
def test_engines_samples_hold_the_steps_that_the_engine_counted(name):
    truth = ENGINES[name]
    counted = json.loads((SAMPLES / name / "run.json").read_text(encoding="utf-8"))["counted"]
    assert counted == {"decode": truth.decode, "prefill": truth.prefill, "mixed": truth.mixed}
    found = analyse(SAMPLES / name)
    steps, calls = found.steps, found.syncs
    told = steps.phases.get("mixed", 0) + steps.phases.get("eager", 0)
    assert (steps.confidence >= 0.9) == (name != "transformers-static")  # no kernel of it says: one token
    assert len(steps) == steps.phases["decode"] == truth.decode
    assert steps.prefills + told <= truth.prefill + truth.mixed
    if "nvtx" in name or name.endswith("torch"):
        assert (steps.prefills, steps.phases.get("mixed", 0)) == (truth.prefill, truth.mixed)
    if truth.sequences is not None and steps.source == "nvtx":
        assert steps.table["sequences"].mode().tolist() == [truth.sequences]
    per_token = calls.launches_per_token, calls.copies_per_token, calls.syncs_per_token
    assert per_token == (truth.calls.launches, truth.calls.copies, truth.calls.syncs)


def test_samples_are_small_described_and_leak_nothing():
    files = [path for path in SAMPLES.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8_000_000
    for path in files:
        if path.suffix != ".py":
            texts = _texts(path)
            for secret in ("/home/", "/root", "/tmp/", "GPU-", "HOSTNAME", "hostname", "_KEY=", "PATH="):
                assert not any(secret in text for text in texts), f"{path}: {secret!r}"
    readme = (SAMPLES / "README.md").read_text()
    assert all(f"`{path.name}`" in readme for path in SAMPLES.iterdir() if path.is_dir())


def _texts(path):
    """What a person can read in a file: of a table, which is packed, its texts."""
    if path.suffix != ".parquet":
        return [path.read_text(encoding="utf-8")]
    file = pq.ParquetFile(path)
    columns = [field.name for field in file.schema_arrow if pa.types.is_string(field.type)]
    return [text for column in file.read(columns).columns for text in column.unique().to_pylist() if text is not None]
