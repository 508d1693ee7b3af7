"""Records vLLM, SGLang, JAX and transformers, with the steps counted by the engine and its rate without a profiler.

A Llama with 1.1 B parameters and random weights in bf16 decodes, in one process per call of this script: first the
repeats without a profiler, then one window of each case under `--window`. DIR/NAME.json holds the engine's counts and
its rate in each repeat and each window. Nothing is downloaded. Needs a GPU, and
`pip install vllm==0.23.0` or `pip install transformers==5.17.0 torch`.

Usage: python benchmarks/record_engines.py ENGINE -o DIR --name NAME [--cases CASE,...] [--window none|cuda|torch]

vLLM (cases b1, b8, and joining: two requests join four), with its engine in a child process, the default:
  python benchmarks/record_engines.py vllm -o DIR --name untraced
  nsys profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --cuda-graph-trace=graph --trace-fork-before-exec=true
    --capture-range=cudaProfilerApi --capture-range-end=repeat -o DIR/graph
    python benchmarks/record_engines.py vllm -o DIR --name graph --window cuda
  VLLM_NVTX_SCOPES_FOR_PROFILING=1 adds marks; with --trace=cuda the recording has no marks.
SGLang (cases b1, b8) and JAX (cases step, ahead) have no windows:
  python benchmarks/record_engines.py sglang -o DIR --name untraced
transformers, one case per process, because a profiler has lasting effects (static, static-eager: `generate` with a
static cache, compiled into CUDA graphs or not; batching, batching-graphs: `generate_batch`, continuous batching):
  python benchmarks/record_engines.py transformers -o DIR --name static --cases static --window torch
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

MODEL: Final = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
WIDER: Final = {"num_hidden_layers": 16, "intermediate_size": 8192, "num_key_value_heads": 8}
"""SGLang's differs in this: another model of 1.1 B parameters."""
PROMPT: Final = 16
JOINS_AFTER: Final = 24  # steps
VLLM_CASES: Final = {  # step -> lengths of the prompts that arrive after it
    "b1": {0: [PROMPT]},
    "b8": {0: [PROMPT] * 8},
    "joining": {0: [PROMPT] * 4, JOINS_AFTER: [200] * 2},
}
SETTLE_S: Final = 4  # time for nsys to write a window and wait for the next


class Step(NamedTuple):
    """One iteration as counted by the engine: sequences that got their first token, and those that got a later one."""

    time: float
    first: int
    further: int

    @property
    def kind(self) -> str:
        """Decode, prefill, or mixed if some sequences read their prompt while others get a later token."""
        return "decode" if not self.first else "mixed" if self.further else "prefill"


Generate = Callable[[int], list[Step]]


def figures(generate: Generate, tokens: int) -> dict[str, Any]:
    """Generate; return the number of steps of each kind, and decode steps/s over consecutive decode steps."""
    start = time.perf_counter()
    steps = generate(tokens)
    wall = time.perf_counter() - start
    decoding = [b.time - a.time for a, b in pairwise(steps) if a.kind == b.kind == "decode"]
    return {
        **{kind: sum(step.kind == kind for step in steps) for kind in ("decode", "prefill", "mixed")},
        "sequences": sorted({step.further for step in steps if step.kind == "decode"}),
        "tokens": sum(step.first + step.further for step in steps),
        "wall_s": round(wall, 5),
        "decode_steps_per_s": round(len(decoding) / sum(decoding), 2),
        "steps_per_s": round(len(steps) / wall, 2),
    }


def measured(generate: Generate, options: argparse.Namespace, window: Any, tokens: int) -> dict[str, Any]:
    """Run the repeats without a window, and the window if requested."""
    for _ in range(3):  # compiles, captures, warms up
        generate(tokens)
    runs = [figures(generate, options.tokens or tokens) for _ in range(options.repeats)]
    result: dict[str, Any] = {"repeats": runs}
    if options.window != "none":
        generate(tokens)
        with window:
            result["window"] = figures(generate, tokens)
    return result


def vllm(options: argparse.Namespace) -> dict[str, Any]:
    from vllm import LLM, SamplingParams

    profiler: dict[str, Any] = {"profiler": options.window}
    if options.window == "torch":
        profiler |= {"torch_profiler_dir": str(options.output.absolute()), "torch_profiler_with_stack": False,
                     "torch_profiler_dump_cuda_time_total": False}  # fmt: skip
    engine_options = dict(options.engine_options)
    graphs = {"cudagraph_mode": engine_options.pop("cudagraph_mode")} if "cudagraph_mode" in engine_options else {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        llm = LLM(model=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", seed=0,
                  max_model_len=1024, max_num_seqs=8, gpu_memory_utilization=0.3, enable_prefix_caching=False,
                  compilation_config={"cudagraph_capture_sizes": [1, 2, 4, 8], **graphs}, **engine_options,
                  **({} if options.window == "none" else {"profiler_config": profiler}))  # fmt: skip
    engine, steps, seen = llm.llm_engine, list[Step](), set[str]()
    get_output = engine.engine_core.get_output

    def counted() -> Any:
        """Count the results of one engine step, as sent by its child process."""
        results = get_output()
        requests = {result.request_id for result in results.outputs if result.new_token_ids}
        if requests:
            steps.append(Step(time.perf_counter(), len(requests - seen), len(requests & seen)))
            seen.update(requests)
        return results

    engine.engine_core.get_output = counted

    def serve(arrivals: dict[int, list[int]], tokens: int) -> list[Step]:
        steps.clear()
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        coming = dict(arrivals)
        while coming or engine.has_unfinished_requests():
            for after in [after for after in coming if after <= len(steps)]:
                prompts = [[(7 * i + j) % 31000 + 10 for j in range(n)] for i, n in enumerate(coming.pop(after))]
                llm.enqueue([{"prompt_token_ids": p} for p in prompts], sampling, use_tqdm=False)
            engine.step()
        return list(steps)

    @contextmanager
    def window() -> Iterator[None]:
        llm.start_profile()
        yield
        llm.stop_profile()
        time.sleep(SETTLE_S)

    return {
        case: measured(partial(serve, VLLM_CASES[case]), options, window(), options.steps + 1)
        for case in options.cases or VLLM_CASES
    }


def transformers(options: argparse.Namespace) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, CompileConfig, LlamaConfig

    (case,) = options.cases
    torch.manual_seed(0)
    with torch.device(options.device):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**MODEL | options.model), dtype=torch.bfloat16).eval()
    model.generation_config.update(eos_token_id=None, pad_token_id=0, do_sample=False)
    if case.startswith("batching"):
        generate = continuous(model, case == "batching-graphs")
    else:
        compiled = (
            {"compile_config": CompileConfig(mode="reduce-overhead")} if case == "static" else {"disable_compile": True}
        )
        generate = one_by_one(model, compiled)

    @contextmanager
    def window() -> Iterator[None]:
        path = options.output / f"{options.name}.pt.trace.json.gz"
        with torch.profiler.profile() as profiler:
            yield
        profiler.export_chrome_trace(str(path))

    windows = {"none": nullcontext, "cuda": torch.cuda.profiler.profile, "torch": window}
    return {case: measured(generate, options, windows[options.window](), options.steps + 1)}


def one_by_one(model: Any, compiled: dict[str, Any]) -> Generate:
    """Return `generate` at batch 1 with a static cache; a logits processor, called once per step, counts."""
    import torch

    steps: list[Step] = []

    def counted(_: Any, scores: Any) -> Any:
        steps.append(Step(time.perf_counter(), int(not steps), int(bool(steps))))
        return scores

    prompt = torch.arange(10, 10 + PROMPT, device=model.device)[None]

    def generate(tokens: int) -> list[Step]:
        steps.clear()
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens,
                       cache_implementation="static", logits_processor=[counted], **compiled)  # fmt: skip
        return list(steps)

    return generate


def continuous(model: Any, graphs: bool) -> Generate:
    """Return `generate_batch` of eight requests, four at a time: the last four are prefilled after the first four."""
    from transformers import ContinuousBatchingConfig
    from transformers.generation.continuous_batching.scheduler import FIFOScheduler

    model.set_attn_implementation("paged|sdpa")
    sizes = {"q_padding_interval_size": 16, "kv_padding_interval_size": 1024} if graphs else {}
    config = ContinuousBatchingConfig(
        block_size=64, num_blocks=64, max_batch_tokens=512, max_requests_per_batch=4, allow_block_sharing=False,
        use_cuda_graph=graphs, use_async_batching=graphs, **sizes)  # fmt: skip
    steps: list[Step] = []
    schedule_batch = FIFOScheduler.schedule_batch

    def counted(*budgets: Any) -> Any:
        """Count the scheduler's choice: a sequence that reads more than one token reads its prompt."""
        chosen = schedule_batch(*budgets)
        if chosen[0]:
            first = sum(request.query_length > 1 for request in chosen[0])
            steps.append(Step(time.perf_counter(), first, len(chosen[0]) - first))
        return chosen

    FIFOScheduler.schedule_batch = counted
    prompts = [[(7 * i + j) % 31000 + 10 for j in range(PROMPT)] for i in range(8)]

    def generate(tokens: int) -> list[Step]:
        steps.clear()
        done = model.generate_batch(prompts, continuous_batching_config=config, max_new_tokens=tokens,
                                    persistent_manager=True, warmup=False)  # fmt: skip
        assert [len(each.generated_tokens) for each in done.values()] == [tokens] * len(prompts)
        return list(steps)

    return generate


def sglang(options: argparse.Namespace) -> dict[str, Any]:
    """Cases b1 and b8. The engine's process launches all kernels in a child; steps are equal parts of a request's time
    without that of its first token."""
    import sglang

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL | WIDER), encoding="utf-8")
        engine = sglang.Engine(
            model_path=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", random_seed=0,
            context_length=1024, max_running_requests=8, max_total_tokens=16384, mem_fraction_static=0.3,
            disable_radix_cache=True, skip_server_warmup=True, log_level="error",
            **{"attention_backend": "triton", "sampling_backend": "pytorch", "grammar_backend": "none",
               "cuda_graph_max_bs_decode": 8, "cuda_graph_backend_prefill": "disabled"} | options.engine_options,
        )  # fmt: skip

    def seconds(batch: int, tokens: int) -> float:
        prompts = [[(7 * i + j) % 31000 + 10 for j in range(PROMPT)] for i in range(batch)]
        begin = time.perf_counter()
        engine.generate(
            input_ids=prompts, sampling_params={"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
        )
        return time.perf_counter() - begin

    def of_batch(batch: int) -> Generate:
        seconds(batch, 2)
        first = min(seconds(batch, 1) for _ in range(3))

        def generate(tokens: int) -> list[Step]:
            each = (seconds(batch, tokens) - first) / (tokens - 1)
            return [Step(i * each, batch * (not i), batch * bool(i)) for i in range(tokens)]

        return generate

    cases = {case: of_batch(int(case[1:])) for case in options.cases or ["b1", "b8"]}
    return {case: measured(generate, options, nullcontext(), options.steps + 1) for case, generate in cases.items()}


def jax(options: argparse.Namespace) -> dict[str, Any]:
    """One compiled step of products and norms. Case step: the host reads each token; ahead: it reads the one before."""
    import jax
    import numpy as np
    from jax import numpy as jnp

    layers, width, words = 24, 2048, 32000
    keys = jax.random.split(jax.random.PRNGKey(0), 2 * layers + 1)
    weights = [0.02 * jax.random.normal(key, (width, width), jnp.bfloat16) for key in keys[:-1]]
    table = 0.02 * jax.random.normal(keys[-1], (words, width), jnp.bfloat16)

    def step_of(token: Any) -> Any:
        hidden = table[token]
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            normed = hidden * jax.lax.rsqrt(jnp.mean(hidden.astype(jnp.float32) ** 2) + 1e-5).astype(hidden.dtype)
            hidden = hidden + jax.nn.silu(normed @ up) @ down
        return jnp.argmax(hidden @ table.T).astype(jnp.int32)

    step = jax.jit(step_of)

    def decoded(late: int, tokens: int) -> list[Step]:
        token, waiting, steps = jnp.int32(1), [], []
        for number in range(tokens):
            token = step(token)
            waiting.append(token)
            if len(waiting) > late:
                np.asarray(waiting.pop(0))
            steps.append(Step(time.perf_counter(), int(not number), int(bool(number))))
        token.block_until_ready()
        return steps

    lateness = {"step": 0, "ahead": 1}
    return {
        case: measured(partial(decoded, lateness[case]), options, nullcontext(), options.steps + 1)
        for case in options.cases or lateness
    }


ENGINES: Final = {"vllm": vllm, "transformers": transformers, "sglang": sglang, "jax": jax}


def machine() -> dict[str, Any]:
    """Return GPU and driver, without a host name."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu, driver = subprocess.run(query, text=True, capture_output=True, check=True).stdout.splitlines()[0].split(", ")
    return {"gpu": gpu, "driver": driver, "cpu_cores": os.cpu_count(), "os": "Linux"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--name", required=True, help="name of the JSON file")
    parser.add_argument("--cases", type=lambda text: text.split(","), default=[], help="[default: all (vllm)]")
    parser.add_argument("--window", choices=("none", "cuda", "torch"), default="none", help="recorder: cuda is a "
                        "profiler of this program, started by cudaProfilerStart; torch is PyTorch's")  # fmt: skip
    parser.add_argument("--steps", type=int, default=64, help="decode steps per sequence in a window")
    parser.add_argument(
        "--tokens", type=int, default=0, help="tokens per sequence in each repeat [default: as in the window]"
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--device", default="cuda", help="of transformers")
    parser.add_argument("--model", type=json.loads, default={}, help="changes to the model's configuration, JSON")
    parser.add_argument(
        "--engine-options", type=json.loads, default={}, help="of vLLM's LLM, JSON; also cudagraph_mode"
    )
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    cases = ENGINES[options.engine](options)
    result = {
        "name": options.name,
        "engine": options.engine,
        "window": options.window,
        "marks": os.environ.get("VLLM_NVTX_SCOPES_FOR_PROFILING") == "1",
        "versions": {name: version(name) for name in {options.engine, "jax" if options.engine == "jax" else "torch"}},
        "machine": machine() if options.device == "cuda" else {},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cases": cases,
    }
    (options.output / f"{options.name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for case, found in cases.items():
        rates = sorted(run["decode_steps_per_s"] for run in found["repeats"])
        rate = f"{rates[len(rates) // 2]} [{rates[0]}, {rates[-1]}]"
        print(f"{options.name} {case}: decode steps/s {rate}, window {found.get('window')}")


if __name__ == "__main__":
    main()
