"""The small tensors that change with every step, and their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.graph import Flag, Graph, Tensor
from executor.models.step import HostArrays


@dataclass(frozen=True)
class StepTensors:
    """Six tensors, as llama.cpp has them; N = S * T, see `ops`.

    Attributes:
        tokens: (N,) int32.
        positions: (N,) int32.
        k_rows: (N,) int64, the row of the K cache that each token writes.
        v_rows: the same for V.
        mask: (N, cells), 0 where a token may look, -inf elsewhere.
        outputs: (S,) int32, the rows for which logits are wanted: each sequence's last.
    """

    tokens: Tensor
    positions: Tensor
    k_rows: Tensor
    v_rows: Tensor
    mask: Tensor
    outputs: Tensor


def step_tensors(graph: Graph, sequences: int, tokens: int, context: int, flags: Flag) -> StepTensors:
    """Leaves for `tokens` tokens of each sequence and `context` cells."""
    n = sequences * tokens
    return StepTensors(
        tokens=graph.leaf("inp_tokens", (n,), "int32", flags),
        positions=graph.leaf("inp_pos", (n,), "int32", flags),
        k_rows=graph.leaf("k_idxs", (n,), "int64", flags),
        v_rows=graph.leaf("v_idxs", (n,), "int64", flags),
        mask=graph.leaf("kq_mask", (n, context), "float32", flags),
        outputs=graph.leaf("inp_out_ids", (sequences,), "int32", flags),
    )


class Feed:
    """Values of the step tensors, in arrays that are overwritten for every step."""

    def __init__(self, sequences: int, tokens: int, context: int) -> None:
        n = sequences * tokens
        self._offsets = np.tile(np.arange(tokens, dtype=np.int32), sequences)
        self._rows = np.repeat(np.arange(sequences, dtype=np.int64) * context, tokens) + self._offsets
        self._arrays: HostArrays = {
            "inp_tokens": np.zeros(n, np.int32),
            "inp_pos": np.zeros(n, np.int32),
            "k_idxs": np.zeros(n, np.int64),
            "v_idxs": np.zeros(n, np.int64),
            "kq_mask": np.zeros((n, context), np.float32),
            "inp_out_ids": np.arange(tokens - 1, n, tokens, dtype=np.int32),
        }
        self._masks = self._arrays["kq_mask"].reshape(sequences, tokens, context).swapaxes(0, 1)

    def inputs(self, position: int, tokens: np.ndarray[Any, Any]) -> HostArrays:
        """The step whose first tokens stand at this position; every token sees its sequence up to itself."""
        arrays = self._arrays
        arrays["inp_tokens"] = tokens
        np.add(self._offsets, position, out=arrays["inp_pos"])
        for name in ("k_idxs", "v_idxs"):
            np.add(self._rows, position, out=arrays[name])
        for first_hidden, mask in enumerate(self._masks, start=position + 1):
            mask[:, :first_hidden] = 0
            mask[:, first_hidden:] = -np.inf
        return arrays

    def start(self, position: int, tokens: np.ndarray[Any, Any]) -> HostArrays:
        """What a step that advances on the device has to find; it opens the mask's next cell by itself."""
        started = {name: values.copy() for name, values in self.inputs(position, tokens).items()}
        started["kq_mask"][:, position:] = -np.inf
        return started | {"one": np.ones(1, np.int32), "step": np.zeros(1, np.int64)}
