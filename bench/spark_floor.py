"""Measure a sink that drops its rows: the time Spark needs to bring rows to any sink written in Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this module


class ThrowAway(DataSource):
    """The format of `df.write.format("throw-away")`, once it is registered."""

    @classmethod
    def name(cls) -> str:
        return "throw-away"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer()


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()
