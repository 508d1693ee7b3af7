"""Arrow columns of nsys's tables: cast to their types, and -> NumPy or categoricals without a Python string per row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracer.errors import FormatError
from tracer.formats.nsys_schema import COLUMNS, Ids
from tracer.model.schema import MISSING, Column
from tracer.model.trace import categorical


class Strings:
    """StringIds, to convert ids to categoricals.

    Args:
        table: columns id and value; None if the export has no StringIds.
    """

    def __init__(self, table: pa.Table | None) -> None:
        ids = ints(table["id"]) if table is not None else np.empty(0, np.int64)
        texts = table["value"].to_numpy() if table is not None else np.empty(0, object)
        named = pd.Series(texts, index=ids, dtype="str").fillna("")
        self._texts = named[~named.index.duplicated()]

    def named(self, ids: pa.ChunkedArray) -> pd.Categorical:
        """The strings of ids; "" for NULL, and "string 7" if the export lacks string 7."""
        known = ids.fill_null(MISSING) if ids.null_count else ids
        encoded = known.combine_chunks().dictionary_encode()
        distinct = encoded.dictionary.to_numpy()
        found = self._texts.reindex(distinct).to_numpy(object, copy=True)
        unknown = [(i, id) for i, id in enumerate(distinct) if pd.isna(found[i])]
        for i, id in unknown:
            found[i] = "" if id == MISSING else f"string {id}"
        return categorical(encoded.indices.to_numpy(), found)


def inline(values: pa.ChunkedArray) -> pd.Categorical:
    """The strings of a text column; "" for NULL."""
    encoded = values.fill_null("").combine_chunks().dictionary_encode()
    return categorical(encoded.indices.to_numpy(), encoded.dictionary.to_numpy(zero_copy_only=False))


def words(ids: pa.ChunkedArray, column: Column) -> pd.Categorical:
    """The words of an enum column's ids; the column's default for NULL and unknown ids."""
    known = column.enum or {}
    codes = pc.index_in(ids, pa.array(known.values(), pa.int64())).fill_null(list(known).index(str(column.default)))
    return pd.Categorical.from_codes(codes.to_numpy(), pd.Index(list(known), dtype="str"))


def ints(values: pa.ChunkedArray, missing: int | None = None) -> Ids:
    """The numbers of an int64 column; MISSING for NULL and for `missing`."""
    numbers: Ids = (values.fill_null(MISSING) if values.null_count else values).to_numpy()
    if missing in (None, MISSING) or not (stands_for_none := numbers == missing).any():
        return numbers
    return np.where(stands_for_none, MISSING, numbers)


def typed(table: pa.Table, name: str) -> pa.Table:
    """Cast the columns of nsys table `name` to the types of `nsys_schema.COLUMNS`; others keep theirs.

    Invalid UTF-8 in texts becomes replacement characters.

    Raises:
        FormatError: a column holds a different kind of value. The file is not named.
    """
    known = COLUMNS.get(name, {})
    columns = {c: _cast(table[c], known.get(c), f"table {name}, column {c}") for c in table.column_names}
    return pa.table(columns)


def _cast(values: pa.ChunkedArray, wanted: pa.DataType | None, where: str) -> pa.ChunkedArray:
    have = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    if wanted is None:
        if values.null_count == len(values):
            return pa.chunked_array([pa.nulls(len(values))])
        return _text(values) if pa.types.is_string(have) or pa.types.is_large_string(have) else values.cast(have)
    number = pa.types.is_integer(have) or pa.types.is_floating(have) or pa.types.is_null(have)
    if values.null_count < len(values) and not number and not pa.types.is_string(wanted):
        raise FormatError(f"{where} holds {have}, not numbers")
    try:
        if pa.types.is_string(wanted):
            return _text(values)
        if values.null_count == len(values):
            return pa.chunked_array([pa.nulls(len(values), wanted)])
        # An unsigned id above 2**63 keeps its bits; a fraction is not an id.
        safe = not pa.types.is_floating(wanted) and not pa.types.is_uint64(have)
        return values.cast(wanted, safe=safe)
    except pa.ArrowException as error:
        raise FormatError(f"{where}: {str(error).splitlines()[0]}") from error


def _text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    text = values.cast(pa.string(), safe=not pa.types.is_binary(values.type))
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        decoded = [None if b is None else b.decode("utf-8", "replace") for b in text.cast(pa.binary()).to_pylist()]
        return pa.chunked_array([pa.array(decoded, pa.string())])
    return text
