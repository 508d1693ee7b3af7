"""Typed columns: a table is a frozen class of arrays of equal length, so that each column has a name and a type.

`Columns` is the base of all tables, `Names` a column of texts of which each is kept once. The functions below number,
group and match rows that are equal in several columns; all take and return arrays. pandas stands at the border only:
`frame()` makes a DataFrame for users, exports and the page.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tracer.model.intervals import Bools, Floats, Ints
from tracer.model.schema import MISSING

if sys.version_info >= (3, 11):
    from typing import dataclass_transform
else:
    from typing_extensions import dataclass_transform

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

Rows = Ints | Bools | slice
"""Chosen rows: their positions, a mask, or a slice."""
Texts = NDArray[np.object_]
Letters = NDArray[np.str_]

NEVER: Final = np.iinfo(np.int64).max
"""A time after all others, ns; `-NEVER` is before all others."""

_DENSE: Final = 4  # so many numbers per row may be listed to find rows by their number
_Table = TypeVar("_Table", bound="Columns")


@dataclass_transform(frozen_default=True, eq_default=False)
class Columns:
    """A table: every annotation of a subclass is a column, an array (or `Names`) of the same length.

    Tables behave as frozen dataclasses. Making one hundred dataclasses took a tenth of a command's time.

    Example:
        >>> class Spans(Columns):
        ...     start: Ints
        ...     end: Ints
        >>> spans = Spans(np.array([0, 5]), np.array([4, 9]))
        >>> len(spans), spans[spans.start > 0].end
        (2, array([9]))
    """

    _names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls._names = (*cls._names, *(name for name in cls.__annotations__ if name not in cls._names))

    def __init__(self, *columns: Any, **named: Any) -> None:
        given = dict(zip(self._names, columns, strict=False)) | named
        if len(given) < len(columns) + len(named) or given.keys() != {*self._names}:
            raise TypeError(f"{type(self).__name__} has the columns {', '.join(self._names)}")
        self.__dict__.update(given)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._names)})"

    def __len__(self) -> int:
        return len(getattr(self, self._names[0]))

    def __getitem__(self, rows: Rows) -> Self:
        return type(self)(*(getattr(self, name)[rows] for name in self._names))

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return cls._names

    @classmethod
    def from_table(cls, table: Columns, **more: Any) -> Self:
        """A table whose columns are those of another one, but for the columns given here."""
        return cls(**{name: getattr(table, name) for name in cls.column_names() if name not in more}, **more)

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[float]]) -> Self:
        """The table of these rows of numbers."""
        return cls(*map(np.array, zip(*rows, strict=True) if rows else [()] * len(cls.column_names())))

    def changed(self, **columns: Any) -> Self:
        """The table with other values in some columns."""
        return type(self)(**{name: getattr(self, name) for name in self._names} | columns)

    def records(self) -> list[dict[str, Any]]:
        """The rows, by column."""
        names = self.column_names()
        columns = ([*each] if isinstance(each, Names) else each.tolist() for each in (getattr(self, n) for n in names))
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def frame(self) -> pd.DataFrame:
        """The same as a DataFrame; names become categorical columns."""
        import pandas as pd

        given: dict[str, Any] = {}
        for name in self.column_names():
            each = getattr(self, name)
            given |= each.columns() if isinstance(each, Several) else {name: each}
        columns = {name: each.categorical() if isinstance(each, Names) else each for name, each in given.items()}
        return pd.DataFrame(columns, copy=False)


class Several:
    """A column that is several in a DataFrame."""

    def columns(self) -> dict[str, Any]:
        """These, by name."""
        raise NotImplementedError


def joined(tables: Sequence[_Table]) -> _Table:
    """The rows of several tables of one kind, one behind the other; at least one table."""
    if len(tables) == 1:
        return tables[0]
    kind = type(tables[0])
    parts = ([getattr(table, name) for table in tables] for name in kind.column_names())
    return kind(*(Names.joined(each) if isinstance(each[0], Names) else np.concatenate(each) for each in parts))


@dataclass(frozen=True, eq=False)
class Names:
    """A column of texts: for each row a code, the position of its text in `words`, which has each text once.

    Example:
        >>> names = Names.of(["copy", "launch", "copy"])
        >>> names.codes.tolist(), names.words.tolist(), names.rows("copy").tolist()
        ([0, 1, 0], ['copy', 'launch'], [True, False, True])
    """

    codes: NDArray[np.signedinteger[Any]]
    words: Texts

    @classmethod
    def of(cls, texts: Iterable[str]) -> Names:
        """The column of these texts."""
        import pandas as pd

        codes, words = pd.factorize(np.array([*texts], dtype=object))
        return cls(np.asarray(codes, np.int64), np.asarray(words, dtype=object))

    @classmethod
    def of_series(cls, names: pd.Series) -> Names:
        """The column of a categorical series without missing values."""
        categories = names.cat.categories
        return cls(np.asarray(names.cat.codes), np.asarray(categories, dtype=object))

    @classmethod
    def at_codes(cls, codes: Ints, texts: Sequence[str] | Texts) -> Names:
        """The column of texts[codes], where a text may occur more than once."""
        import pandas as pd

        merged, words = pd.factorize(np.asarray(texts, dtype=object))
        if len(words) < len(merged):
            codes = np.asarray(merged, np.int64)[codes]
        return cls(np.asarray(codes, np.int64), np.asarray(words, dtype=object))

    @classmethod
    def joined(cls, parts: Sequence[Names]) -> Names:
        """Several columns, one behind the other."""
        if len({id(part.words) for part in parts}) == 1:
            return cls(np.concatenate([part.codes for part in parts]), parts[0].words)
        offsets = np.cumsum([0, *(len(part.words) for part in parts)])
        codes = np.concatenate([part.codes + offset for part, offset in zip(parts, offsets[:-1], strict=True)])
        return cls.at_codes(codes, np.concatenate([part.words for part in parts]))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Rows) -> Names:
        return Names(self.codes[rows], self.words)

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts.tolist())

    @property
    def texts(self) -> Texts:
        """The text of each row."""
        return self.words[self.codes] if len(self.words) else np.zeros(len(self.codes), dtype=object)

    @property
    def in_order(self) -> Names:
        """The same, with the words in the order of the alphabet."""
        order = np.argsort(self.words.astype(str), kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return Names(place[self.codes], self.words[order])

    def at(self, row: int) -> str:
        """The text of one row."""
        return str(self.words[self.codes[row]])

    def rows(self, *words: str) -> Bools:
        """Which rows have one of these texts."""
        return self.chosen(set(words).__contains__)

    def chosen(self, wanted: Callable[[str], object]) -> Bools:
        """Which rows have a wanted text; each distinct text is asked for once."""
        if not len(self.codes):
            return np.zeros(0, dtype=bool)
        return np.array([bool(wanted(str(word))) for word in self.words])[self.codes]

    def categorical(self) -> pd.Categorical:
        """The same for pandas."""
        import pandas as pd

        return pd.Categorical.from_codes(self.codes, pd.Index(self.words, dtype="str"), validate=False)


class Caused(Protocol):
    """What a call caused, or a call: rows with its process and its correlation id."""

    @property
    def process(self) -> Any:
        """Of each row."""

    @property
    def correlation(self) -> Any:
        """Of each row."""


class Correlated(Columns):
    """A table with the columns `process` and `correlation`, whose rows are found by them."""

    @cached_property
    def _places(self) -> Correlations:
        return Correlations(self.process, self.correlation)  # type: ignore[attr-defined]

    def of(self, rows: Caused) -> Ints:
        """For each of `rows`, the position here of the first row with its (process, correlation), or -1."""
        return self._places.of(np.asarray(rows.process), np.asarray(rows.correlation))


class Correlations:
    """Finds rows by (process, correlation); made once for a table.

    Args:
        process, correlation: of each row; a negative correlation belongs to no row.
    """

    def __init__(self, process: Ints, correlation: Ints) -> None:
        self._length = len(process)
        if not self._length:
            return
        self._processes = process[:1] if (process == process[0]).all() else np.unique(process)
        self._low = int(correlation.min())
        self._span = int(correlation.max()) - self._low + 1
        self._distinct: Ints | None = None
        if len(self._processes) * self._span > NEVER:  # no profiler numbers calls like this, but a file may
            self._distinct = np.unique(correlation)
            correlation = np.searchsorted(self._distinct, correlation)
            self._low, self._span = 0, len(self._distinct)
        self._key, _ = self._keys(process, correlation)
        self._first: Ints | None = None

    def of(self, process: Ints, correlation: Ints) -> Ints:
        """The position of the first row of each (process, correlation), or -1."""
        if not self._length or not len(process):
            return np.full(len(process), -1, dtype=np.int64)
        given = correlation >= 0
        if self._distinct is not None:
            at = np.minimum(np.searchsorted(self._distinct, correlation), len(self._distinct) - 1)
            correlation = np.where(self._distinct[at] == correlation, at, MISSING)
        key, known = self._keys(process, correlation)
        known &= given
        key = np.where(known, key, 0)
        numbers = len(self._processes) * self._span
        if self._first is None and numbers <= _DENSE * (self._length + len(process)) + 1024:
            self._first = np.full(numbers, -1, dtype=np.int64)
            self._first[self._key[::-1]] = np.arange(self._length)[::-1]  # of equal keys the last assignment stays
        if self._first is not None:
            return np.where(known, self._first[key], -1)
        order, ordered = self._sorted
        place = np.minimum(np.searchsorted(ordered, key), self._length - 1)
        return np.where(known & (ordered[place] == key), order[place], -1)

    @cached_property
    def _sorted(self) -> tuple[Ints, Ints]:
        """The rows by key, and their keys."""
        order = np.argsort(self._key, kind="stable")
        return order, self._key[order]

    def _keys(self, process: Ints, correlation: Ints) -> tuple[Ints, Bools]:
        """Process and correlation as one number, and which rows have one."""
        number = correlation - self._low
        inside = (number >= 0) & (number < self._span)
        if len(self._processes) == 1:
            return number, (process == self._processes[0]) & inside
        place = np.minimum(np.searchsorted(self._processes, process), len(self._processes) - 1)
        return place * self._span + number, (self._processes[place] == process) & inside


def match_rows(table: Caused, rows: Caused) -> Ints:
    """`Correlated.of` for DataFrames: for each of `rows`, the position in `table` of the first row with its (process,
    correlation), or -1."""
    of_table, of_rows = (
        [np.asarray(column, np.int64) for column in (each.process, each.correlation)] for each in (table, rows)
    )
    return Correlations(*of_table).of(*of_rows)


def of_thread(frame: pd.DataFrame, process: int, thread: int) -> pd.DataFrame:
    """The rows of a thread, of a DataFrame."""
    return frame[(frame["process"] == process) & (frame["thread"] == thread)]


def numbered(*columns: ArrayLike) -> tuple[Ints, list[tuple[Any, ...]]]:
    """Number the distinct rows in order of appearance: the number of each row, and the distinct rows.

    Example:
        >>> numbered([3, 1, 3], [0, 0, 0])
        (array([0, 1, 0]), [(3, 0), (1, 0)])
    """
    values = [np.asarray(column) for column in columns]
    codes, _ = numbers(*values)
    first = np.unique(codes, return_index=True)[1]
    return codes, list(zip(*(each[first].tolist() for each in values), strict=True))


def numbers(*columns: ArrayLike) -> tuple[Ints, int]:
    """Number the rows that are equal in these columns, 0, 1, ... in order of appearance; and how many numbers there
    are. Columns with one value in all rows, which most recordings have, take almost no time.

    Example:
        >>> numbers([3, 1, 3], [0, 0, 0])
        (array([0, 1, 0]), 2)
    """
    import pandas as pd

    values = [np.asarray(column) for column in columns]
    number, count = np.zeros(len(values[0]), np.int64), min(len(values[0]), 1)
    for each in values:
        if (each == each[:1]).all():
            continue
        mine, different = pd.factorize(each, use_na_sentinel=False)
        if count == 1:
            number, count = mine, len(different)
            continue
        number, distinct = pd.factorize(number * len(different) + mine)
        count = len(distinct)
    return np.asarray(number, dtype=np.int64), count


def several(*columns: NDArray[Any]) -> bool:
    """Whether any two rows differ in these columns."""
    return any((each != each[:1]).any() for each in columns)


def grouped(*columns: NDArray[Any]) -> Iterator[tuple[tuple[int, ...], Ints]]:
    """(its integers in these columns, the positions of its rows) of each group of equal rows, in order of appearance.

    Example:
        >>> [(key, at.tolist()) for key, at in grouped(np.array([1, 0, 1]))]
        [((1,), [0, 2]), ((0,), [1])]
    """
    number, count = numbers(*columns)
    order = np.argsort(number, kind="stable") if count > 1 else np.arange(len(number))
    sizes = np.bincount(number, minlength=count)
    for rows in np.split(order, np.cumsum(sizes)[:-1]) if count else ():
        yield tuple(int(each[rows[0]]) for each in columns), rows


def runs(*columns: NDArray[Any]) -> tuple[Ints, Ints]:
    """The positions of the rows sorted by their integers in these columns, stably; and where in that order each group
    of equal rows begins, as `numpy.ufunc.reduceat` takes it.

    Example:
        >>> runs(np.array([1, 0, 1]))
        (array([1, 0, 2]), array([0, 1]))
    """
    values = [each for each in columns if (each != each[:1]).any()] or [np.zeros(len(columns[0]), np.int64)]
    order = np.argsort(values[0], kind="stable") if len(values) == 1 else np.lexsort(values[::-1])
    begins = np.logical_or.reduce([each[order][1:] != each[order][:-1] for each in values])
    return order, np.flatnonzero(np.append(True, begins))[: len(order)]


def ranks(*columns: NDArray[Any]) -> Ints:
    """Number the rows by their integers in these columns, 0, 1, ... in the order of these integers.

    Example:
        >>> ranks(np.array([1, 0, 1]), np.array([7, 9, 7])).tolist()
        [1, 0, 1]
    """
    order, first = runs(*columns)
    number = np.empty(len(order), np.int64)
    number[order] = np.repeat(np.arange(len(first)), np.diff(first, append=len(order)))
    return number


def within(*columns: NDArray[Any]) -> Ints:
    """For each row, how many of the rows before it are equal to it in these columns.

    Example:
        >>> within(np.array([5, 5, 7, 5])).tolist()
        [0, 1, 0, 2]
    """
    order, first = runs(*columns)
    counted = np.empty(len(order), np.int64)
    counted[order] = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    return counted


def positions(mine: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]) -> Ints:
    """For each row of some columns, the position of the last row that is equal to it in other columns, or -1.

    Example:
        >>> device, step = np.array([0, 0, 1]), np.array([7, 8, 7])
        >>> positions([np.array([1, 1]), np.array([7, 8])], [device, step]).tolist()
        [2, -1]
    """
    of_mine, of_theirs = _alike(mine, theirs)
    at = np.full(max(of_mine.max(initial=-1), of_theirs.max(initial=-1)) + 1, -1)
    at[of_theirs] = np.arange(len(of_theirs))
    return at[of_mine]


def pairs(mine: Sequence[Ints], theirs: Sequence[Ints]) -> tuple[Ints, Ints]:
    """All pairs of a row of some columns and a row of other columns that are equal: the positions of both, in the order
    of the former.

    Example:
        >>> pairs([np.array([7, 8])], [np.array([8, 7, 8])])
        (array([0, 1, 1]), array([1, 0, 2]))
    """
    of_mine, of_theirs = _alike(mine, theirs)
    order = np.argsort(of_theirs, kind="stable")
    low, high = (np.searchsorted(of_theirs[order], of_mine, side=side) for side in ("left", "right"))
    row = np.repeat(np.arange(len(of_mine)), high - low)
    return row, order[np.arange(len(row)) + np.repeat(high - np.cumsum(high - low), high - low)]


def quantiles(values: Ints, number: Ints, share: float) -> tuple[Ints, Floats]:
    """The groups that rows belong to, ascending, and this quantile of each one's values, linear between two of them.

    Example:
        >>> quantiles(np.array([5, 1, 9, 2]), np.array([0, 3, 3, 3]), 0.25)
        (array([0, 3]), array([5. , 1.5]))
    """
    order = np.argsort(values)
    if len(number) and (number != number[0]).any():
        order = order[np.argsort(number[order], kind="stable")]
    values, number = values[order].astype(np.float64), number[order]
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1]))[: len(number)]
    place = share * (np.diff(first, append=len(number)) - 1)
    low = first + place.astype(np.int64)
    return number[first], values[low] + (values[np.minimum(low + 1, len(values) - 1)] - values[low]) * (place % 1)


def last_at(mine: Sequence[Ints], times: ArrayLike, theirs: Sequence[Ints], when: Ints) -> Ints:
    """For each row of some columns, the position of the last row of other columns that is equal to it and whose time
    (`when`, ns) is at or before one of `times`, or -1; of equal times that of the last row.

    Example:
        >>> event, recorded = np.array([1, 2, 1]), np.array([5, 6, 9])
        >>> last_at([np.array([1, 1, 2])], [8, 9, 5], [event], recorded).tolist()
        [0, 2, -1]
    """
    if not len(when):
        return np.full(len(mine[0]), -1)
    of_mine, of_theirs = _alike(mine, theirs)
    by_time = np.argsort(when, kind="stable")
    rank = np.empty(len(when), np.int64)  # from 1, of each of theirs
    rank[by_time] = np.arange(1, len(when) + 1)
    begun = np.searchsorted(when[by_time], np.asarray(times), side="right")  # how many of them, at each time
    key = of_theirs * (len(when) + 1) + rank
    order = np.argsort(key, kind="stable")
    last = np.append(order, -1)[np.searchsorted(key[order], of_mine * (len(when) + 1) + begun, side="right") - 1]
    return np.where((last >= 0) & (of_theirs[last] == of_mine), last, -1)


def first_at(mine: Sequence[Ints], times: Ints, theirs: Sequence[Ints], when: Ints) -> Ints:
    """For each row of some columns, the position of the first row of other columns that is equal to it and whose time
    (`when`, ns) is at or after one of `times`, or -1; of equal times that of the first row.

    Example:
        >>> event, recorded = np.array([1, 2, 1]), np.array([5, 6, 9])
        >>> first_at([np.array([1, 1, 2])], np.array([6, 10, 5]), [event], recorded).tolist()
        [2, -1, 1]
    """
    behind = last_at(mine, -times, [each[::-1] for each in theirs], -when[::-1])
    return np.where(behind >= 0, len(when) - 1 - behind, -1)


def _alike(mine: Sequence[Ints], theirs: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Numbers that are equal for rows, of both, that are equal in all columns."""
    number, _ = numbers(*(np.concatenate(pair) for pair in zip(mine, theirs, strict=True)))
    return number[: len(mine[0])], number[len(mine[0]) :]


def last_before(mine: Sequence[Ints], times: Ints, theirs: Sequence[Ints], starts: Ints) -> Ints:
    """For each row of some columns, the position of the last row of other columns that is equal to it and starts at or
    before a time (ns), or -1; rows that are equal must be sorted by start."""
    if not several(*(np.concatenate(pair) for pair in zip(mine, theirs, strict=True))):
        return np.searchsorted(starts, times, side="right") - 1 if len(starts) else np.full(len(times), -1)
    places = dict(grouped(*theirs))
    last = np.full(len(times), -1, dtype=np.int64)
    for key, rows in grouped(*mine):
        candidates = places.get(key, last[:0])
        last[rows] = np.append(candidates, -1)[np.searchsorted(starts[candidates], times[rows], side="right") - 1]
    return last


def most_common(texts: Texts) -> str:
    """The text that most rows have, the first by alphabet of several; at least one row."""
    words, counts = np.unique(texts.astype(str), return_counts=True)
    return str(words[np.argmax(counts)])


def among(values: NDArray[Any], wanted: Iterable[Any]) -> Bools:
    """Which values are in a small set: `np.isin` without sorting."""
    return np.asarray(np.logical_or.reduce([values == one for one in wanted]))


def spread(values: NDArray[Any], rows: Ints, missing: Any) -> NDArray[Any]:
    """values[rows], with `missing` where a row is -1.

    Example:
        >>> spread(np.array([5, 7]), np.array([1, -1]), 0).tolist()
        [7, 0]
    """
    return np.append(values, np.asarray(missing, dtype=values.dtype))[rows]


def medians(values: NDArray[Any], number: Ints, count: int) -> Floats:
    """The median of the values of each number below `count`; NaN for a number that no row has.

    Example:
        >>> medians(np.array([1, 9, 4, 2]), np.array([0, 1, 0, 0]), 3).tolist()
        [2.0, 9.0, nan]
    """
    order, sizes = np.lexsort((values, number)), np.bincount(number, minlength=count)
    ordered, first = np.append(values[order], np.nan), np.cumsum(sizes) - sizes
    low, high = (np.where(sizes > 0, first + middle, len(values)) for middle in ((sizes - 1) // 2, sizes // 2))
    return (ordered[low] + ordered[high]) / 2


def firsts(number: Ints, count: int, rows: Ints | None = None) -> Ints:
    """The position of the first row of each number below `count`, -1 for a number that no row has. `rows` are the
    positions of the rows, if they are others than 0, 1, ...

    Example:
        >>> firsts(np.array([2, 0, 2]), 3).tolist()
        [1, -1, 0]
    """
    return lasts(number[::-1], count, (np.arange(len(number)) if rows is None else rows)[::-1])


def lasts(number: Ints, count: int, rows: Ints | None = None) -> Ints:
    """The position of the last row of each number; see `firsts`."""
    last = np.full(count, -1)
    last[number] = np.arange(len(number)) if rows is None else rows  # the last assignment stays
    return last


def ended_before(end: Ints, *columns: NDArray[Any]) -> Ints:
    """For each row, the latest end of the rows before it that are equal to it in these columns; -`NEVER` for the first.

    Example:
        >>> ended_before(np.array([9, 7, 8]), np.array([0, 0, 0])).tolist()[1:]
        [9, 9]
    """
    latest = np.full(len(end), -NEVER)
    for _, rows in grouped(*columns):
        latest[rows[1:]] = np.maximum.accumulate(end[rows])[:-1]
    return latest


def modes(values: NDArray[Any], number: Ints, count: int) -> NDArray[Any]:
    """The most common value of each number below `count`, the least of several; any value for a number that no row has.

    Example:
        >>> modes(np.array([7, 9, 7, 5]), np.array([0, 0, 0, 1]), 2).tolist()
        [7, 5]
    """
    distinct, codes = np.unique(values, return_inverse=True)
    keys, times = np.unique(number * len(distinct) + codes, return_counts=True)
    mode, order = np.zeros(count, np.int64), np.lexsort((-keys, times))
    mode[keys[order] // len(distinct)] = keys[order] % len(distinct)  # the last assignment stays
    return distinct[mode] if len(distinct) else np.empty(count, values.dtype)


def median(values: NDArray[Any]) -> float:
    """The median, NaN if there are no values."""
    return float(np.median(values)) if len(values) else float("nan")
