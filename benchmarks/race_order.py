"""Time to find the clashes of a long program, compared with a search of all paths and with networkx's closure.

The program is a decode loop on several streams: each step fills and copies inputs, launches kernels on every stream,
joins them by events and fetches a result. One event wait is left out in every tenth step, so that accesses clash. The
rivals are the bit sets of all work before each piece of work, and networkx's transitive closure over the same edges
(on a part of the program, because it takes minutes); both then look at every pair of accesses to overlapping bytes.
All must find the same clashes.
Usage: python benchmarks/race_order.py [--operations 20000] [--part 2000] [--repeats 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import networkx as nx

from executor.run.directory import machine
from tracer.races.order import Accesses, Order
from tracer.races.program import Program

STREAMS, KERNELS = 4, 12
Pairs = set[tuple[int, int]]


def decode_loop(operations: int) -> Program:
    """The program, of at least this many operations."""
    program, step = Program(), 0
    while len(program) < operations:
        if step > 1:
            program.sync_event(("fetched", step % 2))
        for number in range(3):
            program.access(program.host(), f"host {number}", 64 * (step % 2), 64 * (step % 2 + 1), writes=True)
            copy = program.work(0)
            program.access(copy, f"host {number}", 64 * (step % 2), 64 * (step % 2 + 1), writes=False)
            program.access(copy, "arena", 64 * number, 64 * (number + 1), writes=True)
        program.record("copied", 0)
        for stream in range(1, STREAMS):
            if step % 10 or stream > 1:
                program.wait("copied", stream)
        for stream in range(STREAMS):
            for number in range(KERNELS):
                kernel = program.work(stream)
                place = 1024 * (stream + 1) + 64 * number
                program.access(kernel, "arena", place, place + 64, writes=True)
                program.access(kernel, "arena", place - 64 if number else 0, place if number else 64, writes=False)
            program.record(("done", stream), stream)
        for stream in range(1, STREAMS):
            program.wait(("done", stream), 0)
        last = program.work(0)
        program.access(last, "arena", 1024, 1024 * (STREAMS + 1), writes=False)
        program.access(last, "result", 64 * (step % 2), 64 * (step % 2 + 1), writes=True)
        program.record(("fetched", step % 2), 0)
        step += 1
    return program


def timed(run: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """The result and the median time, ms."""
    times, found = [], None
    for _ in range(repeats):
        start = time.perf_counter()
        found = run()
        times.append(time.perf_counter() - start)
    return found, statistics.median(times) * 1e3


def ours(program: Program) -> Pairs:
    found = program.order.clashes(program.accesses)
    return set(zip(found.first.tolist(), found.second.tolist(), strict=True))


def edges_of(order: Order) -> list[tuple[int, int]]:
    """All edges, with those from each operation to the next one of its lane."""
    last: dict[int, int] = {}
    edges = [*zip(order.edges.source.tolist(), order.edges.target.tolist(), strict=True)]
    for operation, lane in enumerate(order.lane.tolist()):
        if lane in last:
            edges.append((last[lane], operation))
        last[lane] = operation
    return edges


def clashes(accesses: Accesses, ordered: Callable[[int, int], bool]) -> Pairs:
    """All pairs of accesses to overlapping bytes, one a write, that are not in order."""
    by_buffer: dict[int, list[tuple[int, int, int, int, bool]]] = defaultdict(list)
    columns: Sequence[list[int]] = [
        each.tolist() for each in (accesses.operation, accesses.start, accesses.end, accesses.writes)
    ]
    for number, (buffer, *of_access) in enumerate(zip(accesses.buffer.tolist(), *columns, strict=True)):
        by_buffer[buffer].append((number, *of_access))
    return {
        (a, b)
        for rows in by_buffer.values()
        for (a, one, start, end, writes), (b, other, low, high, too) in combinations(rows, 2)
        if (writes or too) and start < high and low < end and one != other and not ordered(one, other)
    }


def by_bit_sets(program: Program) -> Pairs:
    before = [0] * len(program)
    for source, target in sorted(edges_of(program.order), key=lambda edge: edge[1]):
        before[target] |= before[source] | 1 << source
    return clashes(program.accesses, lambda one, other: bool(before[other] >> one & 1))


def by_networkx(program: Program) -> Pairs:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(program)))
    graph.add_edges_from(edges_of(program.order))
    closure = nx.transitive_closure_dag(graph)
    return clashes(program.accesses, closure.has_edge)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--part", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    whole, part = decode_loop(options.operations), decode_loop(options.part)
    found, whole_ms = timed(lambda: ours(whole), options.repeats)
    by_bits, bits_ms = timed(lambda: by_bit_sets(whole), 1)
    of_part, part_ms = timed(lambda: ours(part), options.repeats)
    closed, networkx_ms = timed(lambda: by_networkx(part), 1)
    assert found == by_bits
    assert of_part == closed
    verdicts, verdicts_ms = timed(lambda: whole.order.verdicts(whole.accesses), 1)
    result = {
        "operations": len(whole), "accesses": len(whole.accesses), "clashes": len(found), "ours_ms": whole_ms,
        "bit_sets_ms": bits_ms, "part": {"operations": len(part), "ours_ms": part_ms, "networkx_ms": networkx_ms},
        "waits": len(verdicts), "verdicts_ms": verdicts_ms,
    }  # fmt: skip
    print(f"{len(whole):,} operations, {len(whole.accesses):,} accesses: {len(found):,} clashes")
    print(f"ours {whole_ms:8.0f} ms, bit sets and pairs {bits_ms:8.0f} ms: {bits_ms / whole_ms:.0f}x")
    print(
        f"{len(part):,} operations: ours {part_ms:.1f} ms, networkx {networkx_ms:.0f} ms: {networkx_ms / part_ms:.0f}x"
    )
    print(f"{len(verdicts):,} waits, needed or not: {verdicts_ms:.0f} ms")
    if options.json:
        about = {
            "benchmark": "race_order", "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": machine(), "versions": {"networkx": version("networkx")},
        }  # fmt: skip
        options.json.write_text(json.dumps(about | result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
