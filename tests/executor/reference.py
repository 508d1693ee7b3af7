"""A llama decode in float64, written apart from the executor: plain NumPy from the weights, no mask."""

from __future__ import annotations

import numpy as np

WIDTH, HEADS, KV_HEADS, HEAD, LAYERS = 256, 8, 2, 32, 4
EPS, BASE = 1e-5, 10000.0


def norm(x, weight):
    return x / np.sqrt((x * x).mean() + EPS) * weight


def rotate(x, position):
    """x (heads, HEAD): neighbouring pairs as complex numbers, turned."""
    turned = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * position * BASE ** (-2 * np.arange(HEAD // 2) / HEAD))
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def decode(weights, tokens):
    """Logits (len(tokens), vocabulary) of one sequence that is fed these tokens, one a step."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    keys = [[] for _ in range(LAYERS)]
    values = [[] for _ in range(LAYERS)]
    return np.stack([_step(w, keys, values, token, position) for position, token in enumerate(tokens)])


def _step(w, keys, values, token, position):
    x = w["token_embd.weight"][token]
    for layer in range(LAYERS):
        blk = f"blk.{layer}."
        h = norm(x, w[blk + "attn_norm.weight"])
        q = rotate((w[blk + "attn_q.weight"] @ h).reshape(HEADS, HEAD), position)
        keys[layer].append(rotate((w[blk + "attn_k.weight"] @ h).reshape(KV_HEADS, HEAD), position))
        values[layer].append((w[blk + "attn_v.weight"] @ h).reshape(KV_HEADS, HEAD))
        heads = []
        for head in range(HEADS):
            k = np.stack([row[head // (HEADS // KV_HEADS)] for row in keys[layer]])
            v = np.stack([row[head // (HEADS // KV_HEADS)] for row in values[layer]])
            heads.append(softmax(k @ q[head] / HEAD**0.5) @ v)
        x = x + w[blk + "attn_output.weight"] @ np.concatenate(heads)
        h = norm(x, w[blk + "ffn_norm.weight"])
        gate = w[blk + "ffn_gate.weight"] @ h
        x = x + w[blk + "ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * (w[blk + "ffn_up.weight"] @ h))
    return w["output.weight"] @ norm(x, w["output_norm.weight"])
