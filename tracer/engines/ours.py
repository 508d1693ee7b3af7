"""Our own executor, and programs that use common names for their steps.

`intertoken run` sets `token N`, and `prefill` around prompts. Other programs call their ranges token, decode, step,
forward or execute_model; the first of these names that occurs marks the steps. A name must be a whole word of the
text, also in CamelCase: `tokenize` is not a token, `DecodeStep` is a decode.
"""

from __future__ import annotations

import re
from typing import Final

from tracer.engines.engine import DECODE, PREFILL, Engine, Mark, Pattern, Work
from tracer.engines.jax import XLA
from tracer.engines.torch import OPERATOR
from tracer.engines.vllm import PARTS

_PREPARES: Final = r"(?i:(?<![a-z])(?:load(?:ing|s)?|compil(?:e|es|ing|ation)|autotun(?:e|es|ing))(?![a-z]))"
_NO_PART: Final = rf"^(?!.*(?:{OPERATOR}|{PARTS}|{XLA}|{_PREPARES}))(?s:.)*?"
"""Operators, the parts of an engine's step, and what loads or compiles a model are not steps, whatever words their
names contain."""


def word(name: str) -> str:
    """The expression for a text that contains a name as a whole word, in any of the usual ways to join words.

    Example:
        >>> [bool(re.search(word("decode"), text)) for text in ("decode_step(8)", "runDecode", "DecodeStep", "decoder")]
        [True, True, True, False]
    """
    camel = _camel(name)
    return rf"(?i:(?<![a-z]){name}(?![a-z]))|(?<![A-Z]){camel}(?![a-z])"


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _words(*names: str) -> Pattern:
    return Pattern(f"{_NO_PART}(?:{'|'.join(map(word, names))})")


_PROMPTS: Final = _words("prefill", "prompt", "extend")
_DECODES: Final = _words("token", "decode")


def named(match: re.Match[str]) -> Work:
    """The phase that a text names.

    Example:
        >>> [named(re.search("$", text)).phase for text in ("prefill", "token 3", "forward", "PrefillStep")]
        ['prefill', 'decode', '', 'prefill']
    """
    if _PROMPTS.search(match.string):
        return Work(PREFILL)
    return Work(DECODE if _DECODES.search(match.string) else "")


_PROMPT: Final = Mark(_PROMPTS, named, label=True, own=False)


def _called(name: str, sure: float, generality: int) -> Engine:
    marks = (Mark(_words(name), named), _PROMPT)
    return Engine(f"ranges named {name}", marks, sure=sure, plain=_plain(name), generality=generality)


def _plain(name: str) -> Pattern:
    """The expression for a text that is only that name, optionally with a number or something in brackets.

    Example:
        >>> [bool(_plain("decode").search(text)) for text in ("decode_step(8)", "Decode 3", "vae.decode", "cls_decode")]
        [True, True, False, False]
    """
    camel = _camel(name)
    prefix, suffix = r"(?:(?:run|do|engine|llm|model)[ _.:]*)?", r"(?:[ _]?(?:step|iter|iteration|pass|loop))?"
    return Pattern(rf"(?i:^{prefix}(?:{name}|{camel}){suffix}[ _:#=]*(?:\d+(?:/\d+)?|[(\[].*)?$)")


NAMES: Final = ("token", "decode", "step", "forward", "execute_model", "prefill")
OURS: Final = tuple(_called(name, 0.97, 3) for name in NAMES[:2])
USUAL: Final = tuple(_called(name, 0.85, 6) for name in NAMES[2:])
