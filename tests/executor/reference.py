"""A llama decode in float64, written apart from the executor: plain NumPy from the weights, no mask."""

from __future__ import annotations

import numpy as np

EPS, BASE = 1e-5, 10000.0


def norm(x, weight):
    return x / np.sqrt((x * x).mean() + EPS) * weight


def rotate(x, position):
    """x (heads, head size): neighbouring pairs as complex numbers, turned."""
    size = x.shape[1]
    turned = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * position * BASE ** (-2 * np.arange(size // 2) / size))
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def decode(weights, tokens, shape):
    """Logits (len(tokens), vocabulary) of one sequence that is fed these tokens, one a step; shape is a LlamaConfig."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    keys = [[] for _ in range(shape.layers)]
    values = [[] for _ in range(shape.layers)]
    return np.stack([_step(w, keys, values, token, position, shape) for position, token in enumerate(tokens)])


def _step(w, keys, values, token, position, shape):
    x = w["token_embd.weight"][token]
    head_size, group = shape.head_size, shape.heads // shape.kv_heads
    for layer in range(shape.layers):
        blk = f"blk.{layer}."
        h = norm(x, w[blk + "attn_norm.weight"])
        q = rotate((w[blk + "attn_q.weight"] @ h).reshape(shape.heads, head_size), position)
        keys[layer].append(rotate((w[blk + "attn_k.weight"] @ h).reshape(shape.kv_heads, head_size), position))
        values[layer].append((w[blk + "attn_v.weight"] @ h).reshape(shape.kv_heads, head_size))
        heads = []
        for head in range(shape.heads):
            k = np.stack([row[head // group] for row in keys[layer]])
            v = np.stack([row[head // group] for row in values[layer]])
            heads.append(softmax(k @ q[head] / head_size**0.5) @ v)
        x = x + w[blk + "attn_output.weight"] @ np.concatenate(heads)
        h = norm(x, w[blk + "ffn_norm.weight"])
        gate = w[blk + "ffn_gate.weight"] @ h
        x = x + w[blk + "ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * (w[blk + "ffn_up.weight"] @ h))
    return w["output.weight"] @ norm(x, w["output_norm.weight"])
