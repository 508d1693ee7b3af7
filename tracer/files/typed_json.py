"""Read JSON into dataclasses, checked against their annotations; errors name the position in the JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from tracer.errors import FormatError
from tracer.files.bounded import json_of


def read_object(path: Path, schema: str) -> dict[str, Any]:
    """Read the object in a file and check its `schema`.

    Raises:
        FormatError: the file cannot be read, is too large, or has a different schema; the message has no path.
    """
    data = json_of(path)
    if not isinstance(data, dict) or data.get("schema") != schema:
        raise FormatError(f"its schema is not {schema!r}")
    return data


def typed_object(value: Any, wanted: Any, where: str) -> Any:
    """An instance of the dataclass `wanted` from an object; unknown keys are ignored.

    Raises:
        FormatError: the value is not an object, or a field is missing or has the wrong type.
    """
    if not isinstance(value, dict):
        raise FormatError(f"{where} is not an object")
    kinds = _hints(wanted)
    needed = {f.name for f in fields(wanted) if f.default is MISSING and f.default_factory is MISSING}
    if lacking := needed - value.keys():
        raise FormatError(f"{where} lacks {', '.join(sorted(lacking))}")
    return wanted(**{name: _typed(value[name], kinds[name], f"{where}.{name}") for name in kinds if name in value})


def _typed(value: Any, wanted: Any, where: str) -> Any:
    """The value as the annotated type: a dataclass or a mapping from an object, a tuple from an array, or a scalar."""
    if type(value) is int and abs(value) >= 2**63:
        raise FormatError(f"{where} is too large for 64 bits")
    origin = get_origin(wanted)
    if origin in (Union, UnionType):
        kinds = [kind for kind in get_args(wanted) if kind is not type(None)]
        arrays = [kind for kind in kinds if get_origin(kind) is tuple]
        return (
            None
            if value is None
            else _typed(value, (arrays if arrays and isinstance(value, list) else kinds)[0], where)
        )
    if origin is tuple:
        if not isinstance(value, list):
            raise FormatError(f"{where} is not an array")
        inner = get_args(wanted)[0]
        return tuple(_typed(v, inner, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, dict):
            raise FormatError(f"{where} is not an object")
        inner = get_args(wanted)[1]
        return {key: _typed(v, inner, f"{where}[{key!r}]") for key, v in value.items()}
    if wanted is float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise FormatError(f"{where} is not a finite number")
        return float(value)
    if wanted not in (int, str, bool):
        return typed_object(value, wanted, where)
    if type(value) is not wanted:
        raise FormatError(f"{where} is not of type {wanted.__name__}")
    return value


@cache
def _hints(wanted: Any) -> dict[str, Any]:
    return get_type_hints(wanted)
