"""nsys's samples of Python (`nsys profile --python-sampling=true`) -> the tables of samples.

They are marks of an NVTX domain, each with a stack as its payload, which an export has as JSON if asked for
(`nsys export --include-json=true`); the strings of its frames are in StringIds, escaped as in HTML. Only samples of
threads that ran count, as in those of the CPU. Source: exports of nsys 2025.3.2.
"""

from __future__ import annotations

from html import unescape
from typing import Final

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa

from tracer.errors import FormatError
from tracer.formats.nsys_columns import Strings, inline
from tracer.model.schema import MISSING
from tracer.model.trace import categorical

DOMAIN: Final = "Python Periodic Sampling"
JSON: Final = "jsonText"
_HOW: Final = "export the report again, with `nsys export --type sqlite --include-json=true`"


class _Frame(msgspec.Struct):
    function: int = msgspec.field(name="Function", default=MISSING)
    file: int = msgspec.field(name="File", default=MISSING)
    line: int = msgspec.field(name="Line", default=MISSING)


class _Sample(msgspec.Struct):
    state: str = msgspec.field(name="Thread state", default="")
    frames: list[_Frame] = msgspec.field(name="Frames", default=[])


_Payload = dict[str, _Sample]


def python_samples(
    nvtx: pd.DataFrame, payloads: pa.ChunkedArray, strings: Strings, notes: list[str]
) -> dict[str, pd.DataFrame]:
    """The tables `samples` and `sample_chains` of an export's Python samples; none without their stacks.

    Args:
        nvtx: from `nsys.nvtx_frame`.
        payloads: the JSON of its rows; NULL or "" without any.
        strings: StringIds.
        notes: receives a note if there are samples, all without their stacks.

    Raises:
        FormatError: the payload of a sample is not of this form. The file is not named.
    """
    texts = inline(payloads)
    samples_of = (nvtx["domain"] == DOMAIN).to_numpy()
    rows = np.flatnonzero(samples_of & (np.asarray(texts) != ""))
    if samples_of.any() and not len(rows):
        notes.append(f"{samples_of.sum()} samples of Python have no stacks and are left out: {_HOW}")
    codes, stack = np.unique(texts.codes[rows], return_inverse=True)  # most samples share their stack with others
    stacks = [_frames(str(texts.categories[code])) for code in codes]
    ran = np.array([frames is not None for frames in stacks], bool)
    rows, stack = rows[ran[stack]], stack[ran[stack]]
    if not len(rows):
        return {}
    samples = nvtx.iloc[rows][["start", "process", "thread"]].rename(columns={"start": "time"})
    samples.insert(0, "chain", np.arange(len(rows)))
    found = [
        (number, depth, *frame) for number, frames in enumerate(stacks) for depth, frame in enumerate(frames or ())
    ]
    frames = pd.DataFrame(found, columns=["stack", "depth", "function", "file", "line"], dtype=np.int64)
    names = [np.asarray(strings.named(pa.chunked_array([frames[name]]))) for name in ("file", "function")]
    rows_of = zip(names[0], frames["line"], names[1], strict=True)
    frames["symbol"] = [f"{unescape(file)}({line}): {unescape(function)}" for file, line, function in rows_of]
    chains = pd.DataFrame({"chain": samples["chain"].to_numpy(), "stack": stack}).merge(frames, on="stack")
    symbols, texts_of = pd.factorize(chains["symbol"])
    return {
        "samples": samples.reset_index(drop=True),
        "sample_chains": pd.DataFrame({
            "chain": chains["chain"], "symbol": categorical(symbols, np.asarray(texts_of, object)),
            "module": categorical(np.zeros(len(chains), np.int64), np.array([""], object)),
            "depth": chains["depth"], "unresolved": 0,
        }),
    }  # fmt: skip


def _frames(payload: str) -> list[tuple[int, int, int]] | None:
    """Function, file (ids of strings) and line of each frame, the innermost first; None if the thread did not run."""
    try:
        sample: _Sample | None = msgspec.json.decode(payload, type=_Payload).get(DOMAIN)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise FormatError(f"table NVTX_EVENTS, column {JSON} holds no sample of Python: {error}") from None
    if sample is None or sample.state != "Running":
        return None
    return [(frame.function, frame.file, frame.line) for frame in sample.frames]
