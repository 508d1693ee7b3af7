"""Runs small enough to be opened many times: a page of each kind with something on it, and such as do harm."""

import json
import shutil
from functools import cache

from executor.graph.models import MODELS
from executor.planning import prepare
from executor.run import execute
from executor.run.configuration import Configuration
from executor.run.directory import run_graph, write_run
from tests.dashboard.conftest import copied
from tests.dashboard.traces import decode
from tests.recordings import LLAMA
from tracer import formats
from tracer.model.graph_json import GRAPH_FILE, write_graph

FILLED = {
    "": "#timeline .barlayer path",
    "gap/": "#made-of .ag-row",
    "syncs/": "#syncs .ag-row",
    "advice/": "#advice td",
    "whatif/": "#figures td",
    "graph/": "#memory .barlayer path",
}
"""A page's address -> what is there when it is filled."""
TRACED, TINY = LLAMA["sccc", "graph"].name, "tiny-sccc-branches"
HOSTILE = '<img src=x onerror="window.hacked=1">'


@cache
def _tiny():
    (result,) = execute([Configuration(concurrency="branches", tokens=4)])
    return result


def write_runs(runs):
    """A run of `tiny`, and the same with the graph of an 8B model, a damaged one, hostile names; and an import."""
    branches = write_run(_tiny(), runs)
    for name in ("broken", "eight", "hostile"):
        shutil.copytree(branches, runs / name)
    (runs / "broken" / GRAPH_FILE).write_text('{"schema": "intertoken.graph/1"}', encoding="utf-8")
    write_graph(eight_b(), runs / "eight" / GRAPH_FILE)
    text = (branches / GRAPH_FILE).read_text(encoding="utf-8")
    renamed = text.replace('"blk.0.attn_q"', json.dumps(HOSTILE)).replace('"flash_attn_ext"', json.dumps(HOSTILE))
    (runs / "hostile" / GRAPH_FILE).write_text(renamed, encoding="utf-8")
    formats.write(decode(), runs / "imported")
    return runs


@cache
def eight_b(concurrency="branches"):
    step = MODELS["llama-8b"](batch=1, on_device=False, history=8, keep_logits=False)
    return run_graph(prepare(step, "cpu", concurrency))


def write_filled(runs):
    """The runs of which each page shows one."""
    return copied(write_runs(runs), TRACED)
