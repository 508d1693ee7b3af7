"""Values on disk with memory-mapped arrays: a tree as JSON, and one file with all arrays.

Nothing in the files is executed: a value consists of JSON's types, tuples, arrays, frames, and the dataclasses that the
caller names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

_TREE, _ARRAYS = "value.json", "arrays"
_ALIGNED: Final = 64  # bytes


def save(value: Any, directory: Path) -> None:
    """Write a value into an empty directory."""
    with open(directory / _ARRAYS, "wb", opener=_private) as arrays:
        tree = _tree(value, arrays)
        size = arrays.tell()
    with open(directory / _TREE, "w", encoding="utf-8", opener=_private) as file:
        json.dump({"bytes": size, "value": tree}, file)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def load(directory: Path, classes: Sequence[type], *, own: bool = False) -> Any:
    """Load a value written by `save`.

    Args:
        directory: the directory given to `save`.
        classes: the dataclasses that the value may contain.
        own: return ordinary contiguous arrays, writable in memory but not on disk; otherwise arrays are read-only, and
            an array of equal values stores only one.

    Raises:
        OSError: there is no value, or it cannot be read.
        ValueError, KeyError, TypeError: the tree or the length of the arrays shows that it is damaged.
    """
    tree = json.loads((directory / _TREE).read_text(encoding="utf-8"))
    size = (directory / _ARRAYS).stat().st_size
    if size != tree["bytes"]:
        raise ValueError(f"{directory}: {size} bytes of arrays, not {tree['bytes']}")
    mapped = np.memmap(directory / _ARRAYS, np.uint8, "c" if own else "r") if size else np.zeros(0, np.uint8)
    return _value(tree["value"], mapped, {known.__name__: known for known in classes})


def _tree(value: Any, arrays: IO[bytes]) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.generic():
            return value.item()
        case list():
            return [_tree(v, arrays) for v in value]
        case tuple():
            return {"tuple": [_tree(v, arrays) for v in value]}
        case dict():
            return {"dict": {k: _tree(v, arrays) for k, v in value.items()}}
        case np.ndarray():
            return _written(value, arrays)
        case pd.DataFrame():
            return {"frame": {name: _column(column, arrays) for name, column in value.items()}, "length": len(value)}
        case _ if is_dataclass(value):
            members = {f.name: _tree(getattr(value, f.name), arrays) for f in fields(value)}
            return {"class": type(value).__name__, "fields": members}
    raise TypeError(f"cannot be saved: {type(value).__name__}")


def _written(array: NDArray[Any], arrays: IO[bytes]) -> dict[str, Any]:
    """Write an array and return its place in the file; an array of equal values is stored as one value."""
    if len(array) > 1 and (array[0] == array[-1]) and (array == array[0]).all():
        return {"array": array.dtype.str, "at": _put(array[:1], arrays), "of": 1, "length": len(array)}
    return {"array": array.dtype.str, "at": _put(array, arrays), "of": len(array), "length": len(array)}


def _put(array: NDArray[Any], arrays: IO[bytes]) -> int:
    arrays.write(b"\0" * (-arrays.tell() % _ALIGNED))
    at = arrays.tell()
    arrays.write(np.ascontiguousarray(array).data)
    return at


def _column(column: pd.Series, arrays: IO[bytes]) -> dict[str, Any]:
    if column.dtype.kind in "biuf":
        return _written(column.to_numpy(), arrays)
    words = column.array if isinstance(column.dtype, pd.CategoricalDtype) else pd.Categorical(column.astype("str"))
    codes = _written(np.asarray(words.codes), arrays)
    plain = None if isinstance(column.dtype, pd.CategoricalDtype) else str(column.dtype)
    return {"words": [str(word) for word in words.categories], "codes": codes, "plain": plain}


def _value(tree: Any, mapped: NDArray[np.uint8], classes: dict[str, type]) -> Any:
    match tree:
        case list():
            return [_value(v, mapped, classes) for v in tree]
        case {"tuple": members}:
            return tuple(_value(v, mapped, classes) for v in members)
        case {"dict": members}:
            return {k: _value(v, mapped, classes) for k, v in members.items()}
        case {"array": _}:
            return _array(tree, mapped)
        case {"frame": columns, "length": length}:
            made = {name: _series(column, mapped) for name, column in columns.items()}
            return pd.DataFrame(made, index=pd.RangeIndex(length), copy=False)
        case {"class": name, "fields": members}:
            return classes[name](**{k: _value(v, mapped, classes) for k, v in members.items()})
        case dict():
            raise ValueError(f"unknown kind of value: {', '.join(tree)}")
    return tree


def _array(tree: dict[str, Any], mapped: NDArray[np.uint8]) -> NDArray[Any]:
    dtype = np.dtype(tree["array"])
    array = np.frombuffer(mapped, dtype, tree["of"], tree["at"]) if tree["of"] else np.zeros(0, dtype)
    if tree["of"] == tree["length"]:
        return array
    repeated = np.broadcast_to(array, (tree["length"],))
    return repeated.copy() if mapped.flags.writeable else repeated


def _series(column: dict[str, Any], mapped: NDArray[np.uint8]) -> Any:
    if "words" not in column:
        return _array(column, mapped)
    words = pd.Categorical.from_codes(_array(column["codes"], mapped), pd.Index(column["words"], dtype="str"))
    return words if column["plain"] is None else pd.Series(words).astype(column["plain"])
