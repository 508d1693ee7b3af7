"""Writes tests/executor/data/hf_reference.npz: logits that Hugging Face's models compute from our random weights.

Run it in the repository's root with PyTorch and transformers installed (made with torch 2.15, transformers 5.23):

    PYTHONPATH=. python benchmarks/hf_reference.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from executor.graph.models import Shape, build
from tests.executor.shapes import TEST_SHAPES, random_weights

Array = NDArray[Any]
Weights = dict[str, Array]
SEED = 11
TOKENS = 12
MODELS = {
    "tiny": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen3-tiny": ("Qwen3Config", "Qwen3ForCausalLM"),
    "odd-olmoe": ("OlmoeConfig", "OlmoeForCausalLM"),
    "odd-qwen3moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
    "gdn-tiny": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
}


def configuration(cls: Any, shape: Shape) -> Any:
    """Ours in the words of transformers."""
    options: dict[str, Any] = {
        "vocab_size": shape.vocabulary, "hidden_size": shape.width, "num_hidden_layers": shape.layers,
        "intermediate_size": shape.ffn, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size, "rms_norm_eps": shape.norm_eps, "tie_word_embeddings": False,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": shape.rope_base,
            "partial_rotary_factor": (shape.rope_dims or shape.head_size) / shape.head_size,
        },
    }  # fmt: skip
    if shape.experts is not None:
        options |= {
            "num_experts": shape.experts.count, "num_experts_per_tok": shape.experts.used,
            "norm_topk_prob": shape.experts.renormalise, "moe_intermediate_size": shape.ffn,
        }  # fmt: skip
    if shape.delta_net is not None:
        net = shape.delta_net
        options |= {
            "linear_num_key_heads": net.key_heads, "linear_num_value_heads": net.heads,
            "linear_key_head_dim": net.key_size, "linear_value_head_dim": net.value_size,
            "linear_conv_kernel_dim": net.kernel,
            "layer_types": [
                "full_attention" if shape.has_attention(layer) else "linear_attention" for layer in range(shape.layers)
            ],
        }  # fmt: skip
    return cls(**options)


def halves(weight: Array, heads: int) -> Array:
    """Rows of a projection whose rope turns neighbouring pairs, for one that turns halves."""
    per_head = weight.reshape(heads, -1, 2, weight.shape[-1])
    return per_head.swapaxes(1, 2).reshape(weight.shape)


def state_dict(w: Weights, shape: Shape) -> dict[str, Any]:
    """Our weights under the names and in the layouts of transformers."""
    centre = 1 if shape.delta_net is not None else 0  # Qwen3.5 keeps its norms around 0
    result = {
        "model.embed_tokens.weight": w["token_embd.weight"],
        "model.norm.weight": w["output_norm.weight"] - centre,
        "lm_head.weight": w["output.weight"],
    }
    for layer in range(shape.layers):
        prefix = f"blk.{layer}."
        own = {name.removeprefix(prefix): v for name, v in w.items() if name.startswith(prefix)}
        parts = attention(own, shape, centre) if "attn_q.weight" in own else delta_net(own)
        parts |= {
            "input_layernorm.weight": own["attn_norm.weight"] - centre,
            "post_attention_layernorm.weight": own["ffn_norm.weight"] - centre,
            **feed_forward(own),
        }
        result |= {f"model.layers.{layer}.{name}": value for name, value in parts.items()}
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in result.items()}


def attention(w: Weights, shape: Shape, centre: int) -> Weights:
    q, k = w["attn_q.weight"], w["attn_k.weight"]
    if shape.rope_mode == "normal":
        q, k = halves(q, shape.heads), halves(k, shape.kv_heads)
    if shape.gated_attention:
        pair = [x.reshape(shape.heads, shape.head_size, -1) for x in (q, w["attn_gate.weight"])]
        q = np.concatenate(pair, axis=1).reshape(-1, shape.width)
    parts = {"q_proj": q, "k_proj": k, "v_proj": w["attn_v.weight"], "o_proj": w["attn_output.weight"]}
    if shape.qk_norm is not None:
        parts |= {"q_norm": w["attn_q_norm.weight"] - centre, "k_norm": w["attn_k_norm.weight"] - centre}
    return {f"self_attn.{name}.weight": value for name, value in parts.items()}


def delta_net(w: Weights) -> Weights:
    return {
        "linear_attn.in_proj_qkv.weight": np.concatenate([w[f"ssm_{x}.weight"] for x in "qkv"]),
        "linear_attn.conv1d.weight": np.concatenate([w[f"ssm_{x}_conv1d.weight"] for x in "qkv"])[:, None],
        "linear_attn.in_proj_z.weight": w["ssm_z.weight"],
        "linear_attn.in_proj_b.weight": w["ssm_beta.weight"],
        "linear_attn.in_proj_a.weight": w["ssm_alpha.weight"],
        "linear_attn.dt_bias": w["ssm_dt.bias"],
        "linear_attn.A_log": np.log(-w["ssm_a"]),
        "linear_attn.norm.weight": w["ssm_norm.weight"],
        "linear_attn.out_proj.weight": w["ssm_out.weight"],
    }


def feed_forward(w: Weights) -> Weights:
    if "ffn_gate.weight" in w:
        return {f"mlp.{name}_proj.weight": w[f"ffn_{name}.weight"] for name in ("gate", "up", "down")}
    return {
        "mlp.gate.weight": w["ffn_gate_inp.weight"],
        "mlp.experts.gate_up_proj": np.concatenate([w["ffn_gate_exps.weight"], w["ffn_up_exps.weight"]], axis=1),
        "mlp.experts.down_proj": w["ffn_down_exps.weight"],
    }


def logits_of(name: str, tokens: Array) -> Array:
    """(tokens, vocabulary) float32."""
    shape, (config, model) = TEST_SHAPES[name], (getattr(transformers, cls) for cls in MODELS[name])
    loaded = model(configuration(config, shape)).eval()
    loaded.load_state_dict(state_dict(random_weights(build(shape).graph, SEED), shape), strict=True)
    with torch.no_grad():
        return loaded(torch.from_numpy(tokens)[None]).logits[0].numpy()


def main() -> None:
    arrays: dict[str, Any] = {"seed": np.int64(SEED)}
    for name in MODELS:
        vocabulary = TEST_SHAPES[name].vocabulary
        tokens = np.random.default_rng(SEED).integers(vocabulary, size=TOKENS)
        arrays |= {f"{name}.tokens": tokens, f"{name}.logits": logits_of(name, tokens)}
    np.savez_compressed(Path("tests/executor/data/hf_reference.npz"), **arrays)


if __name__ == "__main__":
    main()
