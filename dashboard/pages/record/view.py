"""The state of the record page: what all pages share, and values of some of the command's options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias

from pydantic import Field

from dashboard.links import Form, Linked, Query, part
from dashboard.view import View

ADDRESS: Final = "record/"
_NAME: Final = re.compile("[a-z_]{1,40}")
_MOST_VALUES, _LONGEST = 40, 400
_Text: TypeAlias = Annotated[str, Field(max_length=_LONGEST)]


def _others(_: str, query: Query) -> dict[str, str]:
    """The last value of each name that is not one of what all pages share."""
    names = [name for name in query if name not in View.names() and _NAME.fullmatch(name)]
    return {name: query[name][-1][:_LONGEST] for name in names[:_MOST_VALUES]}


_VALUES: Final = Form(lambda _, values: list(values.items()), _others)


@dataclass(frozen=True)
class RecordView(Linked):
    """The state of the page.

    Attributes:
        shared: the theme, and what links to other pages keep.
        values: name of an option -> its value as in a link; not checked yet.
    """

    shared: Annotated[View, part(View)]
    values: Annotated[Mapping[str, _Text], Field(max_length=_MOST_VALUES), _VALUES] = field(default_factory=dict)


def text_of(value: Any) -> str:
    """The value of a form field, as in a link; empty for none or an invalid one."""
    if isinstance(value, list):
        return ",".join(each for each in value if isinstance(each, str))[:_LONGEST]
    return str(value)[:_LONGEST] if isinstance(value, str | int) else ""
