"""vLLM.

A worker's step is enclosed in `execute_context_C(T)_generation_G(U)`: C sequences in prefill with T tokens, and G
sequences in decode with U tokens (more than G when it verifies drafts). All are zero if the scheduler had nothing to
compute. `detailed_trace_annotation` writes the total number of tokens after `execute_`, and sums of lengths (`sq…sk…`)
in the brackets. 0.12 wrote `execute_new_A_cached_B`, which does not distinguish prompts from decodes. Sampling and the
copy of the tokens follow after the mark has closed. Without this mark, in 0.11 to 0.23, the scopes of
VLLM_NVTX_SCOPES_FOR_PROFILING mark the forward pass (`gpu_model_runner: forward`, in 0.11 `Forward`), which opens after
the inputs have been prepared. Other scopes are parts of a step: `schedule: …`, and `llm_engine step: …` in the front
end.
Source: vllm/v1/worker/gpu_worker.py (`annotate_profile`), vllm/v1/utils.py (`compute_iteration_details`,
`record_function_or_nullcontext`), versions 0.11, 0.12, 0.15, 0.23 and 0.33. V0 had no marks except
`spec_decode_worker._run_speculative_decoding_step` (vllm/spec_decode/spec_decode_worker.py, 0.8).

Models that pool (embeddings, scores) never replay whole graphs: vllm/config/vllm.py makes their cudagraph_mode
PIECEWISE (0.19). So a whole graph decodes, but with cudagraph_mode=FULL it may compute a prompt beside.

With asynchronous scheduling (the default since 0.15) step n + 1 is launched before the host waits for the tokens of
step n.
"""

from __future__ import annotations

import re
from typing import Final

from tracer.engines.engine import GRAPH, LATE, RUN_AHEAD, SPECULATIVE, Engine, Mark, Setting, Work, batch

_COUNT: Final = r"(\d{1,9})\((?:sq)?(\d{1,9})[^()]*\)"


def _executed(match: re.Match[str]) -> Work:
    prompts, _, decodes, decode_tokens = map(int, match.groups())
    return batch(prompts, decodes, decode_tokens)


def _new_and_cached(match: re.Match[str]) -> Work:
    new, cached = map(int, match.groups())
    return Work("" if cached else batch(new, 0, 0).phase, new + cached)


EXECUTED: Final = Mark(re.compile(rf"^execute_(?:\d+_)?context_{_COUNT}_generation_{_COUNT}"), _executed)

VLLM: Final = Engine(
    "vLLM",
    marks=(
        EXECUTED,
        Mark(re.compile(r"^execute_new_(\d{1,9})_cached_(\d{1,9})$"), _new_and_cached),
        Mark(re.compile(r"^spec_decode_worker\._run_speculative_decoding_step$"), lambda _: Work(SPECULATIVE)),
        Mark(re.compile(r"^(?:gpu_model_runner: forward|Forward)$"), position=LATE),
    ),
    whole_graphs_decode=True,
    settings=(
        Setting(RUN_AHEAD, "`--async-scheduling` (`async_scheduling=True`)", "0.23.0"),
        Setting(GRAPH, '`compilation_config={"cudagraph_mode": "FULL_AND_PIECEWISE"}`', "0.23.0"),
    ),
    processes=re.compile(r"^VLLM::"),
    libraries=re.compile(r"\bvllm/(?:_C|_moe_C|v1/)"),
    kernels=re.compile(r"\bvllm::|^_compute_slot_mappings?_kernel|^kernel_unified_attention_[23]d"),
)

PARTS: Final = r"^(?:llm_engine step|schedule|gpu_model_runner|ngram_proposer_gpu|eplb): |^capture_\d+_"
"""The expression for scopes that are parts of a step, or that capture its graph."""
