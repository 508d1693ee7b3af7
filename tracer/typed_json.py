"""JSON into dataclasses, checked against their annotations; whatever does not fit is named by where it stands."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from tracer.errors import FormatError
from tracer.json_pieces import MOST_DIGITS
from tracer.regular import check_regular

_MOST_BYTES: Final = 8 * 2**20  # of a file; the graph of an 8B model has 0.2 MB


def read_object(path: Path, schema: str) -> dict[str, Any]:
    """The object in a file, if its `schema` is that.

    Raises:
        FormatError: the file cannot be read, is too large, or has another form; the path is not in the message.
    """
    check_regular(path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise FormatError(f"has more than {_MOST_BYTES >> 20} MiB; that is no file of ours")
        data = parsed(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"is no JSON: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != schema:
        raise FormatError(f"its schema is not {schema!r}")
    return data


def parsed(text: str) -> Any:
    """JSON as Python has it.

    Raises:
        ValueError: no JSON, or with an integer of too many digits, or with half a surrogate pair, which can be neither
            written nor shown.
        RecursionError: nested too deeply.
    """
    value = json.loads(text, parse_int=_integer)
    if "\\ud" in text.casefold():
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > MOST_DIGITS:
        raise ValueError(f"contains a number with more than {MOST_DIGITS} digits")
    return int(text)


def typed_object(value: Any, wanted: Any, where: str) -> Any:
    """An instance of the dataclass `wanted` from an object; what the class does not know is left out.

    Raises:
        FormatError: no object, a field is missing or has another type.
    """
    if not isinstance(value, dict):
        raise FormatError(f"{where} is no object")
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
            raise FormatError(f"{where} is no array")
        inner = get_args(wanted)[0]
        return tuple(_typed(v, inner, f"{where}[{i}]") for i, v in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, dict):
            raise FormatError(f"{where} is no object")
        inner = get_args(wanted)[1]
        return {key: _typed(v, inner, f"{where}[{key!r}]") for key, v in value.items()}
    if wanted is float:
        if type(value) not in (int, float) or not math.isfinite(value):
            raise FormatError(f"{where} is no finite number")
        return float(value)
    if wanted not in (int, str, bool):
        return typed_object(value, wanted, where)
    if type(value) is not wanted:
        raise FormatError(f"{where} is no {wanted.__name__}")
    return value


@cache
def _hints(wanted: Any) -> dict[str, Any]:
    return get_type_hints(wanted)
