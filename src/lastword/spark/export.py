"""`lastword.spark.export`: bring a table of a lake to the newest values of a topic, with tasks.

Where it runs. The driver reads the table's log and lists what has changed. One task for each partition reads
its log, writes data files with its new rows, and finds the rows that died. Tasks write the live rows of files
with too many dead ones again. The driver writes the deletion vectors and the one commit.

What travels. Out: names of the table's files, and the position of a partition. Back: the facts of written
files, and for each file a bitmap of dead rows.

When tasks fail. No reader sees a file before the commit. A task that fails removes its files, and so does the
driver with those of tasks that ended. Files of a task or driver that was killed are removed as those of any
killed export: an age of seven days, at a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lastword.api.copying import storage_of_both
from lastword.api.export import KIND, Columns, FormatLike, RowForm, Source, export_topic, store_at
from lastword.errors import BusyError, LastwordError, NotSharedError, StorageError
from lastword.lake.data import DataWriter, Written
from lastword.lake.export import Change, Exported, Part, Reached, Version, Writing, change_of, rewrite
from lastword.lake.rows import TableRows
from lastword.lake.table import DataFile
from lastword.objects import ObjectStore, is_url
from lastword.spark.bootstrap import shared_log, shared_path
from lastword.spark.bucket import open_logs
from lastword.spark.options import StorageOptions
from lastword.values import ProgressLike, in_groups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

TASK_BYTES = 256 << 20
"""A task rewrites files of about this size, at least one."""


def export(
    spark: SparkSession,
    source: str | os.PathLike[str],
    topic: str,
    to: str | os.PathLike[str],
    *,
    layout: str = "vectors",
    value_format: FormatLike | None = None,
    value_schema: Any = None,
    dry_run: bool = False,
    progress: ProgressLike | bool | None = None,
    storage_options: Mapping[str, str] | None = None,
    source_storage_options: Mapping[str, str] | None = None,
) -> Exported:
    """Bring a Delta table to the newest values of a topic, with tasks: `Topic.export` for large topics.

    The table is the same, and the next export may be one without Spark.

    Args:
        spark: The session.
        source: A log directory that this process and all executors see under this name, or the URL of a log
            in a bucket. It is not changed.
        topic: The topic.
        to: "delta:PATH", a directory that all executors see, or "delta:URL".
        layout: As for `Topic.export`.
        value_format: As for `Topic.export`.
        value_schema: As for `Topic.export`.
        dry_run: Measure what the tasks would write; write nothing.
        progress: As for `Topic.export`; a partition is done when its task ends.
        storage_options: Options of the table's bucket; of both, if both are in buckets.
        source_storage_options: Options of the source's bucket, if they are others.

    Raises:
        NotSharedError: A task does not see the log, or wrote to a directory that this process does not see.
        LastwordError: As of `Topic.export`.
    """
    read_with, write_with = storage_of_both(
        [source], str(to).removeprefix(KIND), storage_options, source_storage_options
    )
    path, storage = shared_log(source, read_with)
    from lastword.spark.tasks import described

    if str(to).startswith(KIND) and to != KIND:
        to = KIND + shared_path(str(to).removeprefix(KIND))
    table_storage = StorageOptions(tuple(sorted((write_with or {}).items())))
    with open_logs(path, storage) as logs, described(spark, f"lastword export: {topic} to {to}"):
        schema = logs.topic(topic).schema
        names = schema.key.name, schema.value.name
        columns = Columns(topic, names, value_format, value_schema)

        def work(writing: Writing, passed: Callable[[int], None]) -> _SparkWork:
            place = writing.store.url, table_storage
            job = _Job(path, storage, columns, *place, writing.version, writing.dry)
            return _SparkWork(spark, job, writing.store, passed)

        return export_topic(
            logs.dirs,
            columns,
            to,
            layout=layout,
            dry_run=dry_run,
            storage_options=write_with,
            progress=progress,
            work=work,
        )


@dataclass(frozen=True, slots=True)
class _Job:
    """The log and the table of an export. `path` and `storage` are those of the log."""

    path: str
    storage: StorageOptions
    columns: Columns
    table: str
    table_storage: StorageOptions
    version: Version
    dry: bool

    def writing(self, form: RowForm) -> Writing:
        """Return what a task writes."""
        store = store_at(self.table, dict(self.table_storage.items) or None)
        return Writing(store, form.schema, self.version, self.dry)


@dataclass(frozen=True, slots=True)
class _Task:
    job: _Job

    @property
    def path(self) -> str:
        """The log, which the task must see."""
        return self.job.path

    @property
    def storage(self) -> StorageOptions:
        """The options of the log's store."""
        return self.job.storage


@dataclass(frozen=True, slots=True)
class _ChangeTask(_Task):
    """A partition for a task to export. `files` may have rows of it."""

    number: int
    before: Reached | None
    files: tuple[DataFile, ...]


@dataclass(frozen=True, slots=True)
class _RewriteTask(_Task):
    """Files of the table, with their dead rows, for a task to write again."""

    files: tuple[tuple[DataFile, Any], ...]


class _SparkWork:
    """The tasks of one attempt."""

    def __init__(
        self, spark: SparkSession, job: _Job, store: ObjectStore, passed: Callable[[int], None]
    ) -> None:
        self._spark = spark
        self._job = job
        self._store = store
        self._passed = passed
        self.written = Written()

    def change(self, parts: Sequence[Part], rows: TableRows) -> Iterator[Change]:
        """As `Work.change`, a task for each partition."""
        tasks = [
            _ChangeTask(self._job, part.number, before, tuple(rows.of(part.number))) for part, before in parts
        ]
        for change in self._run(_change, tasks):
            self._passed(change.reached.number)
            yield change

    def rewrite(self, files: Sequence[tuple[DataFile, Any]]) -> None:
        """As `Work.rewrite`, with tasks of some files each."""
        groups = in_groups(files, lambda each: each[0].size, TASK_BYTES)
        for _ in self._run(_rewrite, [_RewriteTask(self._job, tuple(group)) for group, _ in groups]):
            pass

    def finish(self) -> None:
        """Check that this process sees the files."""
        for name in () if self._job.dry or is_url(self._store.url) else self.written.names:
            if self._store.facts(name) is None:
                raise NotSharedError(
                    f"a task wrote {name}, which is not in {self._store.url} here",
                    remedy="mount the table's directory under this name on every machine",
                    file=self._store.url,
                )

    def _run(self, function: Any, tasks: Sequence[Any]) -> Iterator[Any]:
        from lastword.spark.tasks import results_as_completed

        failed: LastwordError | None = None
        for _, result in results_as_completed(self._spark, function, tasks):
            if isinstance(result, LastwordError):  # the others end first, so that their files are removed
                failed = failed or result
                continue
            value, written = result
            self.written.add(written)
            yield value
        if failed is not None:
            raise failed


# ---------------------------------------------------------------- tasks


def _change(task: _ChangeTask) -> tuple[Change, Written] | LastwordError:
    """Write the new rows of a partition; find the rows that died."""
    job = task.job
    form = RowForm(job.columns)
    writing = job.writing(form)

    def work(writer: DataWriter) -> Change:
        with open_logs(job.path, job.storage) as logs:
            moment = Source(logs.dirs, form).moment(task.number)
            if moment.topic_id != job.version.topic_id:
                raise BusyError(f"{job.columns.topic} was made again meanwhile", remedy="export again")
            rows = TableRows(writing.store, task.files)
            return change_of(moment.partitions[0], task.before, rows, writer)

    return _written(writing, work)


def _rewrite(task: _RewriteTask) -> tuple[None, Written] | LastwordError:
    """Write the live rows of files again."""
    writing = task.job.writing(RowForm(task.job.columns))
    return _written(writing, lambda writer: rewrite(task.files, writing, writer))


def _written(writing: Writing, work: Callable[[DataWriter], T]) -> tuple[T, Written] | LastwordError:
    """Return the result of `work` and the files that it wrote, or the error that Spark need not retry."""
    with writing.store:
        writer = writing.writer()
        try:
            return work(writer), writer.close()
        except BaseException as error:
            if not writing.dry:
                with suppress(LastwordError):
                    writing.store.delete(writer.written.names)
            if isinstance(error, LastwordError) and not isinstance(error, StorageError):
                return error
            raise
