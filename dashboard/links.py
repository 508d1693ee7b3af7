"""The views of all pages as queries of links, and as what a browser stores: one codec, told by each field's form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, asdict, fields
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar, get_type_hints
from urllib.parse import parse_qs, urlencode

from pydantic import TypeAdapter, ValidationError

_MOST_PAIRS: Final = 360
"""Maximum number of values in a query; a longer one counts as empty."""

Shown = TypeVar("Shown", bound="Linked")
Pair: TypeAlias = tuple[str, str]
Query: TypeAlias = Mapping[str, Sequence[str]]
"""Name in a link -> its values, in order."""


class Form(NamedTuple):
    """How a field of a view stands in a query.

    Attributes:
        pairs: (name in the link, value of the field) -> its names and values in a query.
        value: the inverse, (name in the link, query) -> value of the field; ValueError or LookupError if the query has
            none. The field's type checks it afterwards.
        name: its name in a link, "" for the field's own.
    """

    pairs: Callable[[str, Any], Sequence[Pair]]
    value: Callable[[str, Query], Any]
    name: str = ""

    def called(self, name: str) -> Form:
        """The form with another name in a link than the field's own."""
        return self._replace(name=name)


def one(value: Callable[[str], Any] = str, text: Callable[[Any], str] = str) -> Form:
    """A field that is one value of the query, the last if there are several."""
    return Form(lambda name, given: [(name, text(given))], lambda name, query: value(query[name][-1]))


def several(most: int | None = None, value: Callable[[str], Any] = str, text: Callable[[Any], str] = str) -> Form:
    """A tuple with one value of the query for each element; empty, repeated and invalid ones are left out, and all
    after the first `most`.
    """

    def read(name: str, query: Query) -> tuple[Any, ...]:
        found = []
        for each in filter(None, query[name]):
            with suppress(ValueError):
                found.append(value(each))
        return tuple(dict.fromkeys(found))[:most]

    return Form(lambda name, given: [(name, text(each)) for each in given] or [(name, "")], read)


def part(of: type[Linked]) -> Form:
    """A field that is itself such a dataclass, whose fields stand in the query beside the others."""
    return Form(lambda _, given: list(given.pairs()), lambda _, query: of.of_query(query))


class Linked:
    """A view, or a part of one: a frozen dataclass, each of whose fields is annotated with its form.

    A field called `shared` holds the part that all pages share; a browser stores its fields beside the page's own.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def query(self) -> str:
        """The view as the query of a link; defaults are left out."""
        pairs = list(self.pairs())
        return "?" + urlencode(pairs) if pairs else ""

    @classmethod
    def parse(cls: type[Shown], search: str | None) -> Shown:
        """The view of a link; missing or invalid values take their defaults."""
        try:
            query = parse_qs((search or "").lstrip("?"), keep_blank_values=True, max_num_fields=_MOST_PAIRS)
        except ValueError:
            query = {}
        return cls.of_query(query)

    def pairs(self) -> Iterator[Pair]:
        """The names and values of its query."""
        for each in fields(self):
            form = self._forms()[each.name]
            if (value := getattr(self, each.name)) != each.default:
                yield from form.pairs(form.name, value)

    @classmethod
    def of_query(cls: type[Shown], query: Query) -> Shown:
        """The inverse of `pairs`.

        Raises:
            ValueError: a field without a default is missing or invalid.
        """
        found = {}
        for field, form in cls._forms().items():
            with suppress(ValueError, LookupError):
                found[field] = form.value(form.name, query)
        return cls._valid(found)

    def having(self: Shown, name: str, value: Any) -> Shown:
        """The view with another, untrusted value of a field; its default if the value is invalid."""
        return self._valid({each.name: getattr(self, each.name) for each in fields(self)} | {name: value})

    def data(self) -> dict[str, Any]:
        """The view as JSON, for a dcc.Store."""
        own = asdict(self)
        shared: dict[str, Any] = own.pop("shared", {})
        return shared | own

    @classmethod
    def from_data(cls: type[Shown], data: dict[str, Any] | None) -> Shown:
        """The view from untrusted data that `data` returned; types, bounds and names are checked against the class.

        Raises:
            ValueError: the data is not such a view.
        """
        if data is not None and not isinstance(data, dict):
            raise ValueError("a view is an object")
        return cls._checked((data or {}) | {"shared": data or {}})

    @classmethod
    def _valid(cls: type[Shown], found: Mapping[str, Any]) -> Shown:
        """The view of these fields, without the invalid ones."""
        try:
            return cls._checked(found)
        except ValidationError as error:
            wrong = {each["loc"][0] for each in error.errors(include_url=False)}
            return cls._checked({k: v for k, v in found.items() if k not in wrong})

    @classmethod
    @cache
    def _forms(cls) -> dict[str, Form]:
        """The forms of the fields, with their names in a link."""
        hints = get_type_hints(cls, include_extras=True)
        forms = {
            each.name: next(known for known in hints[each.name].__metadata__ if isinstance(known, Form))
            for each in fields(cls)
        }
        return {field: form.called(form.name or field) for field, form in forms.items()}

    @classmethod
    def _checked(cls: type[Shown], found: Mapping[str, Any]) -> Shown:
        view: Shown = cls._reader().validate_python(found)
        return view

    @classmethod
    @cache
    def _reader(cls) -> TypeAdapter[Any]:
        return TypeAdapter(cls)
