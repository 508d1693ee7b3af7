"""llama.cpp and other programs built on ggml.

It sets no marks. Each step (`llama_decode`) copies its inputs, launches a CUDA graph or the same kernels one by one,
and copies the logits of each sequence back, for which the host waits. Batches of several tokens run without a graph
(ggml/src/ggml-cuda/ggml-cuda.cu, `check_node_graph_compatibility`). Source: ggml/src/ggml-backend.cpp
(`ggml_backend_sched_compute_splits`), src/llama-context.cpp; kernels: ggml/src/ggml-cuda.
"""

from __future__ import annotations

import re
from typing import Final

from tracer.engines.engine import COPIES, GRAPH, Engine, Setting

LLAMA_CPP: Final = Engine(
    "llama.cpp",
    whole_graphs_decode=True,
    one_sequence_graphs=True,
    generality=2,
    settings=(
        Setting(COPIES, "`ggml_backend_sched_compute_splits` in ggml/src/ggml-backend.cpp", "ggml 0.25.3"),
        Setting(GRAPH, "CUDA graphs: run without `GGML_CUDA_DISABLE_GRAPHS`", "ggml 0.25.3"),
    ),
    processes=re.compile(r"^llama-"),
    libraries=re.compile(r"\blib(?:llama|ggml(?:-\w+)?)\.so"),
    kernels=re.compile(
        r"\b(?:mul_mat_vec_[qf]|mul_mat_q|quantize_q8_1|quantize_mmq_q8_1|k_get_rows\w*|rms_norm_f32)\b"
    ),
)
