"""The state of the record page: what all pages share, and values of some of the command's options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import urlencode

from pydantic import Field, TypeAdapter

from dashboard.view import View, last_of, query_of, stored

ADDRESS: Final = "record/"
_SHARED: Final = {"run", "token", "align", "range", "theme", "rate"}
_MOST_VALUES, _LONGEST = 40, 400
_Text: TypeAlias = Annotated[str, Field(max_length=_LONGEST)]


@dataclass(frozen=True)
class RecordView:
    """The state of the page.

    Attributes:
        shared: the theme, and what links to other pages keep.
        values: name of an option -> its value as in a link; not checked yet.
    """

    shared: View
    values: Annotated[Mapping[str, _Text], Field(max_length=_MOST_VALUES)] = field(default_factory=dict)

    def query(self) -> str:
        """The view as the query of a link."""
        base, own = self.shared.query().removeprefix("?"), urlencode(list(self.values.items()))
        return "?" + "&".join(filter(None, (base, own))) if base or own else ""

    @classmethod
    def parse(cls, search: str | None) -> RecordView:
        """The view of a link."""
        query = query_of(search)
        names = [name for name in query if name not in _SHARED and re.fullmatch("[a-z_]{1,40}", name)]
        return cls(View.parse(search), {name: last_of(query, name)[:_LONGEST] for name in names[:_MOST_VALUES]})

    def data(self) -> dict[str, Any]:
        """The view as JSON, for a dcc.Store."""
        return self.shared.data() | {"values": dict(self.values)}

    @classmethod
    def from_data(cls, data: dict[str, Any] | None) -> RecordView:
        """The view from data that `stored` returned."""
        return stored(_READER, data)


_READER: Final = TypeAdapter(RecordView)


def text_of(value: Any) -> str:
    """The value of a form field, as in a link; empty for none or an invalid one."""
    if isinstance(value, list):
        return ",".join(each for each in value if isinstance(each, str))[:_LONGEST]
    return str(value)[:_LONGEST] if isinstance(value, str | int) else ""
