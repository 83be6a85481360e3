"""The records of a reader as a pyarrow Dataset, which DuckDB, Polars and DataFusion scan.

These engines call `scanner`, or that of a fragment, with the columns of a query. A stream
(`__arrow_c_stream__`) has no such argument: each of its columns is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs

from lastword.values import ProcessBound

NOT_A_FILE = "scan the dataset of a Reader with its own methods"


# pyarrow has no types, so mypy takes its class for Any.
class ReaderDataset(ProcessBound, pyarrow.dataset.FileSystemDataset):  # type: ignore[misc]  # untyped
    """A dataset of which each scan reads the log.

    A Dataset of pyarrow has a part in C++, which some functions use without `scanner`, such as a join or a
    union. Here that part is a file that does not exist: they raise an error, and do not find it empty.
    """

    def __init__(
        self,
        schema: pa.Schema,
        make: Callable[[Sequence[str] | None], pa.RecordBatchReader],
        given: pyarrow.dataset.Expression | None = None,
    ) -> None:
        kind = pyarrow.dataset.ParquetFileFormat()
        fragment = kind.make_fragment(NOT_A_FILE, pyarrow.fs.LocalFileSystem())
        super().__init__([fragment], schema, kind)
        self._make = make
        self._filter = given  # of each scan

    def filter(self, expression: pyarrow.dataset.Expression) -> ReaderDataset:
        """Return a dataset of the rows for which the expression is true."""
        return ReaderDataset(self.schema, self._make, self._and(expression))

    def _and(self, expression: pyarrow.dataset.Expression | None) -> pyarrow.dataset.Expression | None:
        if expression is None or self._filter is None:
            return self._filter if expression is None else expression
        return self._filter & expression

    def scanner(
        self, schema: pa.Schema | None = None, *, columns: Any = None, filter: Any = None, **options: Any
    ) -> pyarrow.dataset.Scanner:
        """Return a scanner of one scan. `schema`: the dataset's, which DataFusion gives to fragments."""
        wanted, filter = None, self._and(filter)
        if columns is not None and not isinstance(columns, dict):
            wanted = [name for name in self.schema.names if name in columns]
            if filter is not None and not self._has_columns(filter, wanted):
                wanted = None
        options.pop("cache_metadata", None)
        given = {"columns": columns, "filter": filter, "batch_readahead": 1, **options}
        return pyarrow.dataset.Scanner.from_batches(self._make(wanted), **given)

    def _has_columns(self, filter: Any, columns: Sequence[str]) -> bool:
        """Return whether a filter uses only these columns: an expression does not list its own."""
        part = pa.schema([self.schema.field(name) for name in columns])
        try:
            pyarrow.dataset.Scanner.from_batches([], schema=part, filter=filter)
        except pa.ArrowInvalid:
            return False
        return True

    def count_rows(self, filter: Any = None, **options: Any) -> int:
        """Return the number of rows. Without a filter no bytes are copied out of the log."""
        return int(self.scanner(columns=[], filter=filter, **options).count_rows())

    def get_fragments(self, filter: Any = None) -> Iterator[ReaderDataset]:
        """Return the dataset as its only fragment; DataFusion then calls `scanner` with the filter."""
        return iter([self])
