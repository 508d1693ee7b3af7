"""A comparison in one sentence: what it says in every case, and that its figures are those of the table."""

from types import SimpleNamespace
from typing import Any

import pandas as pd

from tests.tracer.truths import DATA
from tracer.analysis.comparable import Refusal
from tracer.analysis.interval import Interval
from tracer.analysis.sides import COLUMNS
from tracer.files.bounded import tomllib
from tracer.reporting.compare_words import sentence


def interval(told: Any) -> Interval | None:
    return None if told == "None" else Interval(*told)


def run(name: str, gap: float, **recording: Any) -> Any:
    facts = {"traced": False, "inflated": False, "graph_trace": "graph", "distortion": 1.0} | recording
    facts["distortion"] = None if facts["distortion"] == "None" else facts["distortion"]
    return SimpleNamespace(name=name, gap_us={"p50": gap}, recordings=(SimpleNamespace(**facts),))


def comparison(told: dict[str, Any]) -> Any:
    base, other = (
        run(**told.get("base", {"name": "sccc", "gap": 77})),
        run(**told.get("other", {"name": "saaas", "gap": 60})),
    )
    change = other.gap_us["p50"] - base.gap_us["p50"]
    gap = interval(told.get("gap_us", [change, change - 2, change + 2]))
    causes = {name: Interval(us, us - 0.5, us + 0.5) for name, us in told.get("causes", {}).items()}
    kernels = pd.DataFrame([dict(zip(("name", "verdict"), row, strict=True)) for row in told.get("kernels", [])],
                           columns=COLUMNS)  # fmt: skip
    plain = {"basis": "untraced", "verdict": "faster", "needed": None, "unit": "repeats", "method": "Welch's t"}
    return SimpleNamespace(
        base=base, other=other, rate="tokens/s", gap_us=gap, mean_gap_us=gap, kernels=kernels,
        speedup=interval(told.get("speedup", [1.014, 1.011, 1.017])), counts=told.get("counts", {}),
        busy_us=interval(told.get("busy_us", [0.0, -1.0, 1.0])),
        causes_us=dict.fromkeys(("sync", "copy", "launch", "host"), Interval(0.0, -1.0, 1.0)) | causes,
        refusal=Refusal(*told["refusal"]) if "refusal" in told else None,
        **{name: told.get(name, usual) for name, usual in plain.items()},
    )  # fmt: skip


def test_the_sentence() -> None:
    for name, told in tomllib.loads((DATA.parent / "sentences.toml").read_text(encoding="utf-8"))["truth"].items():
        assert sentence(comparison(told)) == told["says"], name
