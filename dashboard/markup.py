"""What no callback changes, as plain elements in one Dash component.

Dash's renderer asks every component that is mounted, at every change of its state, whether it has changed, and changes
its state for each component that is new: the time of an answer grows with the square of the number of components. A
table of 30 rows and 8 columns is 270 of them, or one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import groupby
from typing import Any, Final, TypeAlias, TypeGuard
from urllib.parse import urlsplit

from dash.development.base_component import Component

Tree: TypeAlias = "str | list[Any]"
"""A text, or [tag, attributes by React's names, child, child, ...]."""
_ELEMENTS: Final = "dash_html_components"
_SAFE: Final = {"", "http", "https"}
"""Schemes of links; Dash's own component takes care of any other."""
_LOADING: Final = ("src", "srcDoc", "action", "formAction", "data")
"""Attributes with addresses that Dash's own components take care of."""


class Markup(Component):
    """Elements without a Dash component of their own; drawn by `assets/markup.js`.

    Args:
        trees: the elements.
    """

    _namespace = "intertoken"
    _type = "Markup"
    _prop_names = available_properties = ["trees"]  # noqa: RUF012  # as Dash's own components have them
    _valid_wildcard_attributes = available_wildcard_properties = []  # noqa: RUF012

    def __init__(self, trees: Sequence[Tree]) -> None:
        super().__init__(trees=list(trees))  # type: ignore[no-untyped-call]  # Dash has no types


def with_markup(shown: Any) -> Any:
    """A component, or a list of components, with all parts that have no id, and so no callback, as `Markup`.

    Anything else, such as a figure or the rows of a table, is returned as it is. The components may be changed.
    """
    if _is_list(shown):
        return _gathered(shown) if any(isinstance(each, Component) for each in shown) else shown
    if not isinstance(shown, Component):
        return shown
    if _is_plain(shown):
        return Markup([_tree(shown)]) if _size(shown) > 1 else shown
    if (children := getattr(shown, "children", None)) is not None:
        shown.children = with_markup(children)
    return shown


def answering_markup(function: Callable[..., Any], *, several: bool) -> Callable[..., Any]:
    """A callback's function, whose answers have as few components as `with_markup` leaves.

    Args:
        function: of the callback.
        several: whether it answers with a list or tuple of values for as many outputs.
    """

    @wraps(function)
    def answer(*given: Any, **named: Any) -> Any:
        answers = function(*given, **named)
        return tuple(map(with_markup, answers)) if several and _is_list(answers) else with_markup(answers)

    return answer


def _gathered(shown: Sequence[Any]) -> list[Any]:
    """Siblings that follow each other and are plain are one `Markup`."""
    found: list[Any] = []
    for plain, group in groupby(shown, _is_plain):
        siblings = list(group)
        if plain and sum(map(_size, siblings)) > 1:
            found.append(Markup([_tree(each) for each in siblings if each is not None]))
        else:
            found += siblings if plain else map(with_markup, siblings)
    return found


def _is_plain(shown: Any) -> bool:
    """Whether a child is a text or an element, and so is everything in it."""
    if not isinstance(shown, Component):
        return shown is None or type(shown) in (str, int)  # React shows no bool, and floats in its own way
    return (
        shown._namespace == _ELEMENTS  # a component has no public way to ask
        and not shown._type.endswith("El")  # ObjectEl and MapEl are named otherwise
        and not any(hasattr(shown, name) for name in ("id", *_LOADING))
        and _is_safe(getattr(shown, "href", ""))
        and all(map(_is_plain, _children(shown)))
    )


def _is_safe(link: str) -> bool:
    try:
        return urlsplit(link).scheme in _SAFE
    except ValueError:
        return False


def _size(shown: Any) -> int:
    """The number of components."""
    return 1 + sum(map(_size, _children(shown))) if isinstance(shown, Component) else 0


def _children(shown: Component) -> Iterator[Any]:
    children = getattr(shown, "children", None)
    yield from children if _is_list(children) else [children]


def _is_list(shown: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(shown, (list, tuple))


def _tree(shown: Any) -> Tree:
    if not isinstance(shown, Component):
        return str(shown)
    given = shown.to_plotly_json()["props"]  # type: ignore[no-untyped-call]  # Dash has no types
    attributes = {name: value for name, value in given.items() if name != "children"}
    children = [_tree(child) for child in _children(shown) if child is not None]
    return [shown._type.lower(), attributes, *children]
