"""Arrow columns -> NumPy numbers and pandas categoricals, without a Python string per row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tracer.formats.nsys_schema import Ids
from tracer.model.schema import MISSING, Column


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


def categorical(codes: np.ndarray[Any, Any], texts: Any) -> pd.Categorical:
    """A categorical of texts[codes], where a text may occur more than once."""
    merged, categories = pd.factorize(pd.Series(texts, dtype="str"))
    if len(categories) < len(merged):
        codes = merged[codes]
    return pd.Categorical.from_codes(codes, categories=pd.Index(categories, dtype="str"))


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
