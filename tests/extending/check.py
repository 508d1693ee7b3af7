"""Everything that the guide adds is found; run in the copy, with its folder and pyproject.toml."""

import sys
from pathlib import Path

import pytest


def check(folder: Path) -> None:
    from click.testing import CliRunner

    from dashboard.app import create_app
    from dashboard.view import View
    from executor.run import execute
    from executor.run.configuration import Configuration
    from tests.sync_counts.test_cpu import copies, syncs
    from tests.tracer.handmade import Script
    from tracer import read, write
    from tracer.analysis.syncs import sync_report
    from tracer.analysis.tokens import find_steps
    from tracer.cli import main

    script = Script()
    for at in range(0, 5000, 1000):
        script.range("my step 4 prefill 0 decode".replace("4", "0").replace("prefill 0", "prefill 4"), at, at + 900)
        script.launch((at + 10, at + 20), (at + 30, at + 100))
    steps = find_steps(script.trace)
    assert steps.tokens_per_step == 4, steps.tokens_per_step
    out = folder / "x.mine"
    write(script.trace, out)
    assert len(read(out)["kernels"]) == 5
    result = CliRunner().invoke(main, ["longest", str(out), "--json"])
    assert "The longest kernel." in CliRunner().invoke(main, ["--help"]).output
    assert result.exit_code == 0, result.output
    assert '"kernel_ns": 70' in result.output, result.output
    (run,) = execute([Configuration("cpu", strategy="guided", tokens=4, repeats=1, warmup=1, fusion=False)])
    report = sync_report(run.trace, find_steps(run.trace))
    assert (report.syncs_per_token, report.strategy) == (syncs("guided", 6), "aaas"), report
    assert copies("guided", 6) == 7
    assert "guided" in CliRunner().invoke(main, ["run", "--help"]).output
    write(script.trace, out.with_suffix(".sqlite"))
    app = create_app([out.with_suffix(".sqlite")])
    with app.server.test_client() as client:
        assert "Longest" in client.get("/longest/").text
        view = {"id": "view", "property": "data", "value": View(runs=("x",)).data()}
        given = {
            "inputs": [view],
            "output": "longest.children",
            "outputs": {"id": "longest", "property": "children"},
            "changedPropIds": ["view.data"],
            "state": [],
        }
        answer = client.post("/longest/_dash-update-component", json=given)
        assert "5 steps" in answer.text, answer.text
    print("all found")


if __name__ == "__main__":
    suite = ["-q", "-p", "no:cacheprovider", "tests/sync_counts/test_cpu.py", "-k", "guided and cpu"]
    assert pytest.main([*suite, "-c", sys.argv[2], "--rootdir", sys.argv[1]]) == 0
    check(Path(sys.argv[1]))
