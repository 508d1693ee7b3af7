"""The trace model: every table always there, fixed dtypes, order, names."""

import pandas as pd
import pytest

from tests.tracer.handmade import Script
from tracer import Trace
from tracer.model.schema import DEVICE_TABLES, MISSING, TABLES


def test_every_table_is_there_with_its_columns_and_dtypes() -> None:
    empty, filled = Trace({}), Script()
    filled.launch((0, 1), (2, 3))
    filled.copy((4, 5), (6, 7))
    for trace in (empty, filled.trace):
        assert list(trace.tables) == list(TABLES)
        for name, table in TABLES.items():
            assert list(trace[name].columns) == table.column_names
            for column in table.columns:
                dtype = trace[name][column.name].dtype
                if column.enum is not None:
                    assert list(dtype.categories) == list(column.enum)
                elif column.is_name:
                    assert isinstance(dtype, pd.CategoricalDtype)
                else:
                    assert dtype == column.kind


def test_traces_are_alike_whichever_way_pandas_kept_names_before() -> None:
    made = []
    for storage in ("pyarrow", "python"):
        with pd.option_context("mode.string_storage", storage):
            trace = Trace({"nvtx": pd.DataFrame({"start": [0], "end": [0], "kind": ["mark"]})})
            made.append(trace["nvtx"]["kind"].dtype.categories.dtype.storage)
    assert made == ["pyarrow", "python"]


def test_unknown_tables_and_columns_are_refused() -> None:
    with pytest.raises(KeyError, match="unknown table 'kernel'"):
        Trace({"kernel": pd.DataFrame()})
    with pytest.raises(KeyError, match="has no column colour"):
        Trace.from_columns(kernels={"start": [0], "colour": [1]})


def test_activities_of_all_tables_are_named_and_in_order() -> None:
    script = Script()
    script.launch((0, 1), (20, 30), name="matvec")
    script.copy((2, 3), (10, 15), "DtoH", size=64)
    script.graph((4, 5), (40, 50))
    script.rows["memsets"].append({"start": 5, "end": 6})
    activities = script.trace.activities().frame()
    assert activities["name"].tolist() == ["memset", "memcpy DtoH", "matvec", "graph 1"]
    assert activities["table"].tolist() == ["memsets", "memcpys", "kernels", "graph_launches"]
    assert activities["bytes"].tolist() == [MISSING, 64, 0, 0]
    assert list(activities["table"].cat.categories) == list(DEVICE_TABLES)
