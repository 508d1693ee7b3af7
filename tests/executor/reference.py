"""Decoding in float64, written apart from the executor: one token of one sequence after another, no mask, no batch."""

from __future__ import annotations

import numpy as np


def norm(x, weight, shape):
    """Of the last dimension."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + shape.norm_eps) * weight


def rotate(x, position, shape):
    """x (heads, head size): pairs as complex numbers, turned; what is not in a pair stays."""
    dims = shape.rope_dims or x.shape[1]
    turn = np.exp(1j * position * shape.rope_base ** (-2 * np.arange(dims // 2) / dims))
    turned = x.copy()
    if shape.rope_mode == "normal":
        pairs = (x[:, 0:dims:2] + 1j * x[:, 1:dims:2]) * turn
        turned[:, 0:dims:2], turned[:, 1:dims:2] = pairs.real, pairs.imag
    else:
        pairs = (x[:, : dims // 2] + 1j * x[:, dims // 2 : dims]) * turn
        turned[:, :dims] = np.concatenate([pairs.real, pairs.imag], axis=1)
    return turned


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def decode(weights, tokens, shape):
    """Logits (len(tokens), vocabulary) of one sequence that is fed these tokens, one a step; shape is a Shape."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    memory = [{} for _ in range(shape.layers)]
    return np.stack([_step(w, memory, token, position, shape) for position, token in enumerate(tokens)])


def _step(w, memory, token, position, shape):
    x = w["token_embd.weight"][token]
    for layer in range(shape.layers):
        blk = f"blk.{layer}."
        own = {name.removeprefix(blk).removesuffix(".weight"): v for name, v in w.items() if name.startswith(blk)}
        h = norm(x, own["attn_norm"], shape)
        x = x + (attention if "attn_q" in own else delta_net)(own, memory[layer], h, position, shape)
        h = norm(x, own["ffn_norm"], shape)
        x = x + (swiglu(own, "", h) if shape.experts is None else mixture(own, h, shape))
    return w["output.weight"] @ norm(x, w["output_norm.weight"], shape)


def attention(w, memory, h, position, shape):
    def normed(name, heads):
        x = w[name] @ h
        if shape.qk_norm == "row":
            x = norm(x, w[name + "_norm"], shape)
        x = x.reshape(heads, shape.head_size)
        return norm(x, w[name + "_norm"], shape) if shape.qk_norm == "head" else x

    q = rotate(normed("attn_q", shape.heads), position, shape)
    keys, values = memory.setdefault("keys", []), memory.setdefault("values", [])
    keys.append(rotate(normed("attn_k", shape.kv_heads), position, shape))
    values.append((w["attn_v"] @ h).reshape(shape.kv_heads, shape.head_size))
    heads = []
    for head in range(shape.heads):
        kv = head // (shape.heads // shape.kv_heads)
        k, v = np.stack([row[kv] for row in keys]), np.stack([row[kv] for row in values])
        heads.append(softmax(k @ q[head] / shape.head_size**0.5) @ v)
    gate = sigmoid(w["attn_gate"] @ h) if shape.gated_attention else 1
    return w["attn_output"] @ (np.concatenate(heads) * gate)


def delta_net(w, memory, h, position, shape):
    net = shape.delta_net
    q, k, v = (_convolved(w, memory, name, h) for name in ("ssm_q", "ssm_k", "ssm_v"))
    q, k = q.reshape(net.key_heads, net.key_size), k.reshape(net.key_heads, net.key_size)
    v, z = v.reshape(net.heads, net.value_size), (w["ssm_z"] @ h).reshape(net.heads, net.value_size)
    beta = sigmoid(w["ssm_beta"] @ h)
    decay = np.exp(w["ssm_a"] * np.log1p(np.exp(w["ssm_alpha"] @ h + w["ssm_dt.bias"])))
    state = memory.setdefault("state", np.zeros((net.heads, net.key_size, net.value_size)))
    out = np.empty_like(v)
    for head in range(net.heads):
        key_head = head // (net.heads // net.key_heads)
        unit_q, unit_k = (x[key_head] / np.linalg.norm(x[key_head]) for x in (q, k))
        s = state[head] * decay[head]
        state[head] = s + np.outer(unit_k, beta[head] * (v[head] - s.T @ unit_k))
        out[head] = state[head].T @ unit_q / net.key_size**0.5
    return w["ssm_out"] @ (norm(out, w["ssm_norm"], shape) * silu(z)).reshape(-1)


def _convolved(w, memory, name, h):
    kernel = w[name + "_conv1d"]
    inputs = memory.setdefault(name, [np.zeros(len(kernel))] * (kernel.shape[1] - 1))
    inputs.append(w[name] @ h)
    return silu(sum(kernel[:, j] * x for j, x in enumerate(inputs[-kernel.shape[1] :])))


def swiglu(w, suffix, h):
    return w["ffn_down" + suffix] @ (silu(w["ffn_gate" + suffix] @ h) * (w["ffn_up" + suffix] @ h))


def mixture(w, h, shape):
    probs = softmax(w["ffn_gate_inp"] @ h)
    chosen = sorted(range(len(probs)), key=lambda e: -probs[e])[: shape.experts.used]
    total = sum(probs[e] for e in chosen) if shape.experts.renormalise else 1
    gate, up, down = (w[f"ffn_{name}_exps"] for name in ("gate", "up", "down"))
    out = sum(probs[e] / total * (down[e] @ (silu(gate[e] @ h) * (up[e] @ h))) for e in chosen)
    if shape.experts.shared:
        out = out + sigmoid(w["ffn_gate_inp_shexp"] @ h) * swiglu(w, "_shexp", h)
    return out
