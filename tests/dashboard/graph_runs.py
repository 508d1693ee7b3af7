"""Runs for the graph page."""

import json
import shutil
from functools import cache

from executor.graph.models import MODELS
from executor.planning import prepare
from executor.run import execute
from executor.run.configuration import Configuration
from executor.run.directory import run_graph, write_run
from tests.dashboard.traces import decode
from tracer import formats
from tracer.model.graph_json import GRAPH_FILE, write_graph

HOSTILE = '<img src=x onerror="window.hacked=1">'


@cache
def of_tiny():
    (result,) = execute([Configuration(concurrency="branches", tokens=4)])
    return result


def write_run_of_tiny(runs):
    """A run with a graph."""
    return write_run(of_tiny(), runs)


def write_runs(runs):
    """A run of `tiny`, and the same with the graph of an 8B model, a damaged one, hostile names; and an import."""
    branches = write_run_of_tiny(runs)
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
