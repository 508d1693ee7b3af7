"""Hand-made recordings: a decode loop whose every time is known."""

from tracer.model.trace import Trace

PERIOD, GAP, LAUNCH = 1_000_000, 100_000, 20_000
KERNELS = 8


def decode(tokens: int = 6, gap: int = GAP, kernel: str = "void k<float>(T*)", nvtx: bool = True) -> Trace:
    """One thread, a copy stream (13) and a compute stream (14).

    Each token: copy call and its sync, launches of `KERNELS` kernels that fill 900 µs, sync. The gap before the next
    token's first kernel is `gap` exactly.
    """
    busy = PERIOD - gap
    api, kernels, copies, syncs, ranges = [], [], [], [], []
    number = 0
    for token in range(tokens):
        t = token * PERIOD
        number += 1
        api.append((t + 1_000, t + 3_000, number, "cudaMemcpyAsync_v3020"))
        copies.append((t + 4_000, t + 6_000, 13, number))
        number += 1
        api.append((t + 3_500, t + 7_000, number, "cudaStreamSynchronize_v3020"))
        syncs.append((t + 3_500, t + 7_000, 13, number))
        first = t + gap
        for i in range(KERNELS):
            number += 1
            api.append((t + 10_000 + i * 1_000, t + 10_900 + i * 1_000, number, "cudaLaunchKernel_v7000"))
            start = first + i * busy // KERNELS
            kernels.append((start, first + (i + 1) * busy // KERNELS, 14, number))
        number += 1
        end = first + busy - 5_000  # the next token's host work starts before its compute ends
        api.append((t + 20_000, end, number, "cudaStreamSynchronize_v3020"))
        syncs.append((t + 20_000, end, 14, number))
        ranges.append((t, t + PERIOD - 1_000, f"token {token}"))

    def columns(rows: list[tuple], names: str) -> dict[str, list]:
        return {name: [row[i] for row in rows] for i, name in enumerate(names.split())} | {"process": [7] * len(rows)}

    on_device = {"device": 0, "context": 1}
    return Trace.from_columns(
        {"source": "host"},
        api=columns(api, "start end correlation name") | {"thread": [70] * len(api)},
        kernels=columns(kernels, "start end stream correlation")
        | {k: [v] * len(kernels) for k, v in on_device.items()}
        | {"name": [kernel] * len(kernels), "short_name": ["k"] * len(kernels)},
        memcpys=columns(copies, "start end stream correlation")
        | {k: [v] * len(copies) for k, v in on_device.items()}
        | {"kind": ["HtoD"] * len(copies), "bytes": [4096] * len(copies)},
        syncs=columns(syncs, "start end stream correlation")
        | {k: [v] * len(syncs) for k, v in on_device.items()}
        | {"type": ["stream"] * len(syncs)},
        nvtx=columns(ranges if nvtx else [], "start end text")
        | {"thread": [70] * len(ranges if nvtx else []), "kind": ["push/pop"] * len(ranges if nvtx else [])},
    )
