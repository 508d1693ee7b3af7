"""SGLang.

Under PyTorch's profiler every forward pass is enclosed in `step[MODE bs=B toks=T …]`: EXTEND computes prompts, DECODE a
token for each of B sequences, MIXED both; IDLE only takes part in other ranks' collectives. The mark opens after the
first launches of its step, which copy the inputs, and closes before sampling. It encloses less than the step, which is
an iteration of the scheduler (7 of 12 launches of a decode on MI300, 521 of 527 of a prompt). Since 0.5.14
`scheduler.run_batch` encloses everything that one iteration launches; ROCm's builds set vLLM's detailed mark around it.
With speculative decoding an iteration consists of drafts (DRAFT, DRAFT_LOOP; before 0.5.23 DECODE like any other), one
VERIFY (before: TARGET_VERIFY) and DRAFT_EXTEND. Source: srt/model_executor/model_runner.py (0.5.11, 0.5.14),
srt/utils/profile_utils.py (0.5.18, 0.5.23), srt/managers/scheduler.py. Versions before 0.5.11 set no marks.

Before each decode graph it copies the inputs with `torch._foreach_copy_`, whose kernel is also that of optimizers. Its
processes are titled `sglang::scheduler` (all work on devices) and `sglang::detokenizer` (srt/managers/scheduler.py).

With the overlap schedule the host waits for the tokens of a step after it has launched the next one; in versions up to
0.5.3 a different thread waits.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from tracer.engines.engine import (
    DECODE,
    EMPTY,
    FOLLOWS,
    GRAPH,
    LATE,
    LEADS,
    LEADS_VERIFIED,
    MIXED,
    PREFILL,
    RUN_AHEAD,
    SPECULATIVE,
    Engine,
    Mark,
    Setting,
    Work,
)
from tracer.engines.vllm import EXECUTED
from tracer.model.schema import MISSING

_DRAFTS: Final = ("DRAFT", "DRAFT_LOOP")
_FOLLOWING: Final = ("DRAFT_EXTEND", "DRAFT_EXTEND_V2")


def _step(match: re.Match[str]) -> Work:
    mode, size = match["mode"], re.search(r"\b(?:raw_)?bs=(\d{1,9})\b", match.string)
    sequences = int(size[1]) if size else MISSING
    if mode == "IDLE":
        return Work(EMPTY, 0, 0)
    if mode in _DRAFTS:
        return Work(SPECULATIVE, sequences, part=LEADS)
    if mode in _FOLLOWING:
        return Work(SPECULATIVE, sequences, part=FOLLOWS)
    if mode in ("VERIFY", "TARGET_VERIFY"):
        return Work(SPECULATIVE, sequences)
    if mode == "DECODE":
        return Work(DECODE, sequences, sequences, part=LEADS_VERIFIED)
    if mode in ("EXTEND", "SPLIT_PREFILL", "MIXED"):
        return Work(MIXED if mode == "MIXED" else PREFILL, sequences)
    return Work("", sequences)


SGLANG: Final = Engine(
    "SGLang",
    marks=(
        Mark(re.compile(r"^scheduler\.run_batch$")),
        replace(EXECUTED, own=False),
        Mark(re.compile(r"^step\[(?P<mode>[A-Z_0-9]+)\b"), _step, position=LATE),
    ),
    whole_graphs_decode=True,
    captures_first=True,
    settings=(
        Setting(RUN_AHEAD, "the overlap schedule: run without `--disable-overlap-schedule`", "0.5"),
        Setting(GRAPH, "CUDA graphs: run without `--disable-cuda-graph`", "0.5"),
    ),
    kernels=re.compile(
        r"\bsgl_|\bsglang::|\bcreate_\w+_kv_indices_triton\b|\bget_num_kv_splits_triton\b|\bwrite_req_to_token_pool\w*"
        r"|\bclamp_position_kernel\b|\bstore_kvcache\b|\bresolve_future_token_ids_kernel\b|\bassign_req_to_token_pool\b"
    ),
    processes=re.compile(r"^sglang::"),
    libraries=re.compile(r"\bsgl_kernel/|\bsglang/srt/"),
)
