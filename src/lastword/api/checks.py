"""The verbs that check a log: `verify` its files, and `audit` its keys against delivered offsets.

The delivered offsets come from a mapping, a table, a file, or another log.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lastword.api.open_dirs import OpenDirs, Topics
from lastword.api.reader import ranges
from lastword.api.schema import TopicSchema
from lastword.api.serializers import Serializer, field_bytes
from lastword.arrow import pa
from lastword.errors import LastwordError, PartialFailure, StorageError, UnknownTopicError, UsageError
from lastword.parse import check_count, check_path
from lastword.state.newest import newest
from lastword.state.snapshot_file import format_of, read_batches, read_lines
from lastword.tools.audit import KINDS, Audit, AuditRow, Delivered, DeliveredKey, Logged
from lastword.tools.audit import audit as audit_topic
from lastword.tools.findings import Problem
from lastword.tools.verify import Verification
from lastword.tools.verify import verify as verify_partitions
from lastword.values import Meter, ProgressLike, listener

if TYPE_CHECKING:
    from lastword.files import Files
    from lastword.logdir import LogDirectory
    from lastword.partition.moment import Range


def verify(
    dirs: OpenDirs,
    topic: Topics,
    partition: int | None,
    *,
    quick: bool,
    md5: bool,
    progress: ProgressLike | bool | None,
) -> Verification:
    """See `LogDir.verify`. In a bucket, every object that the log names is checked, with one listing."""
    missing = _missing_objects(dirs)
    result = verify_partitions(
        dirs.files,
        dirs.paths,
        [
            (name, number, dirs.log_dir(name, number).directory(name, number))
            for name, number in dirs.select(topic, partition)
        ],
        quick=quick,
        md5=md5,
        md5_memory_bytes=dirs.settings.instance.map_bytes,
        progress=listener(progress),
        clock=dirs.clock,
    )
    named = {(problem.file, problem.code) for problem in missing}
    others = (problem for problem in result.problems if (problem.file, problem.code) not in named)
    problems = (*missing, *(_located(dirs, problem) for problem in others))
    return replace(result, ok=result.ok and not missing, problems=problems)


def _located(dirs: OpenDirs, problem: Problem) -> Problem:
    """Return a problem of a file in a bucket with the object to restore: no file can be removed there."""
    place = dirs.object_of(problem.file)
    if place is None:
        return problem
    url, first, last = place
    return replace(
        problem,
        text=f"{problem.text}; the file is bytes {first}-{last} of {url}",
        repairable=False,
        remedy=f"restore {url} from a copy, or an older version of it",
    )


def _missing_objects(dirs: OpenDirs) -> list[Problem]:
    try:
        return [
            Problem(
                str(error.file), error.position, None, error.code, error.message, False, error.remedy or ""
            )
            for error in dirs.missing_objects()
        ]
    except StorageError as error:  # no permission to list, for example
        text = f"its objects were not checked: {error.message}"
        return [Problem(str(error.file), None, None, "unreadable", text, False, error.remedy or "")]


def audit(
    dirs: OpenDirs,
    topic: str | None,
    partition: int | None,
    delivered: Any,
    *,
    most_rows: int,
    progress: ProgressLike | bool | None,
) -> Audit:
    """See `LogDir.audit`."""
    most_rows = check_count("most_rows", most_rows, "rows")
    other, its_topic = _other_log(delivered)
    there: Mapping[str, Mapping[int, LogDirectory]] = {}
    if topic is None and other is not None and its_topic is None:
        here, there = list(dirs.topics()), other.topics()
        for name in sorted(set(here) ^ set(there)):
            where, known = (other.paths, list(there)) if name in here else (dirs.paths, here)
            raise UnknownTopicError.named(name, ", ".join(where), known)
        chosen = dirs.select_by_topic(None, partition)
    else:
        chosen = dirs.select_by_topic(dirs.only_topic(topic), partition)
    failed: list[LastwordError] = []
    sizes: dict[str, int] = {}
    # All partitions of a topic are compared in one audit: a key in another partition is not a difference.
    for name, numbers in chosen.items():
        views, errors = dirs.checked_views((name, number) for number in numbers)
        failed += errors.values()
        if not errors:
            sizes[name] = sum(segment.size for view in views.values() for segment in view.segments)
    meter = Meter("audit", progress, sum(sizes.values()))
    map_bytes = dirs.settings.instance.map_bytes
    counts: Counter[str] = Counter(dict.fromkeys(("right", *KINDS), 0))
    rows: list[AuditRow] = []
    left_off, ok = 0, True
    for name, size in sizes.items():
        with PartialFailure.collecting(failed):
            with meter.part(size) as update:
                numbers = chosen[name] if partition is None else list(dirs.partitions(name))
                schema = TopicSchema.of(name, numbers, dirs.config(name))
                result = audit_topic(
                    name,
                    _logged(dirs, name, chosen[name]),
                    _delivered(delivered, schema, dirs.local_files, map_bytes, there.get(name)),
                    memory_bytes=map_bytes,
                    partition=partition,
                    partition_of=schema.partition_of,
                    most_rows=most_rows - len(rows),
                    progress=update,
                )
            counts.update(result.counts)
            rows += result.rows
            left_off += result.left_off
            ok &= result.ok
    result = Audit(ok and not failed, dict(counts), tuple(rows), left_off)
    return PartialFailure.check(result, failed)


def _logged(dirs: OpenDirs, topic: str, numbers: Sequence[int]) -> list[Logged]:
    """Return the log's side of an audit of these partitions."""
    views = {number: dirs.view(topic, number) for number in numbers}
    return [
        Logged(range_, dirs.gone_below(topic, range_.partition))
        for range_ in ranges(views, "earliest", "latest")
    ]


def _delivered(
    given: Any,
    schema: TopicSchema,
    files: Files,
    map_bytes: int,
    partitions: Mapping[int, LogDirectory] | None,
) -> Delivered:
    """Convert `given` to the other side of an audit of a topic.

    `given` is a mapping of keys to offsets; an open `LogDir` that has a topic of the same name, or a `Topic`;
    an object with `__arrow_c_stream__` and columns `key` and `offset`, and optionally `partition`; or the
    path of a `.parquet`, `.arrow` or `.jsonl` file with these columns. `partitions`: those of the topic in
    the `LogDir`, if it was listed.
    """
    dirs, name = _other_log(given)
    if dirs is not None:
        compared = ranges(dirs.views(name or schema.topic, partitions), "earliest", "latest")
        return Delivered(sum(r.end - r.start for r in compared), partial(_of_log, compared, map_bytes))
    if isinstance(given, Mapping):
        return Delivered(len(given), partial(_of_mapping, given, schema.key))
    if isinstance(given, (str, os.PathLike)):
        path = check_path("delivered", given)
        if format_of(path) == ".jsonl":
            count = sum(1 for _ in read_lines(files, path))
            return Delivered(count, partial(_of_lines, files, path, schema.saved[0]))
        return _in_batches(partial(read_batches, files, path), schema.key, path)
    if hasattr(given, "__arrow_c_stream__"):
        table = pa.table(given)  # kept, because each share of the keys reads the table again
        return _in_batches(lambda: iter(table.to_batches(16_384)), schema.key, "the Arrow data")
    raise UsageError(
        f"delivered is a {type(given).__name__}",
        remedy="a mapping of keys to offsets, a table with columns key and offset, a file, or another log",
    )


def _other_log(given: Any) -> tuple[OpenDirs | None, str | None]:
    """Return the directories of a `LogDir` or `Topic`, and the name of the `Topic`."""
    dirs, schema = getattr(given, "dirs", None), getattr(given, "schema", None)
    if not isinstance(dirs, OpenDirs):
        return None, None
    return dirs, schema.topic if isinstance(schema, TopicSchema) else None


def _of_mapping(given: Mapping[Any, int], serializer: Serializer) -> Iterator[DeliveredKey]:
    for key, offset in given.items():
        yield DeliveredKey(serializer.encode(key, "key"), _offset(offset, "the mapping"))


def _of_log(compared: list[Range], map_bytes: int) -> Iterator[DeliveredKey]:
    """Yield the newest records of another log, deletions included."""
    for range_ in compared:
        for record in newest(range_, tombstones=True, map_bytes=map_bytes):
            if record.key is not None:
                yield DeliveredKey(record.key, record.offset, range_.partition, record.value is None)


def _in_batches(
    batches: Callable[[], Iterator[pa.RecordBatch]], serializer: Serializer, source: str
) -> Delivered:
    """Return the keys and offsets of Arrow batches."""

    def rows() -> Iterator[DeliveredKey]:
        from lastword.api.arrow import binary_column

        row = 0
        for batch in batches():
            keys = binary_column(_column(batch, "key", source), serializer, "key").to_pylist()
            offsets = _column(batch, "offset", source).to_pylist()
            known = "partition" in batch.schema.names
            numbers = batch.column("partition").to_pylist() if known else [None] * len(keys)
            for key, offset, number in zip(keys, offsets, numbers, strict=True):
                row += 1
                if key is None:
                    raise UsageError(
                        f"{source} has a row without a key: row {row}, offset {offset}",
                        remedy="leave such rows out",
                    )
                yield DeliveredKey(key, _offset(offset, source), _partition(number, source))

    return Delivered(sum(batch.num_rows for batch in batches()), rows)


def _column(batch: pa.RecordBatch, name: str, source: str) -> pa.Array:
    if name not in batch.schema.names:
        raise UsageError(
            f"{source} has no column {name!r}; it has {', '.join(batch.schema.names) or 'none'}",
            remedy="columns key and offset; optionally partition",
        )
    return batch.column(name)


def _of_lines(files: Files, path: str, serializer: str | None) -> Iterator[DeliveredKey]:
    """Yield the keys and offsets of a `.jsonl` file."""
    for row, fields in enumerate(read_lines(files, path), 1):
        for name in ("key", "offset"):
            if fields.get(name) is None:
                raise UsageError(
                    f"{path} has a row without {name!r}: row {row}", remedy='{"key": ..., "offset": 17}'
                )
        key = field_bytes(fields["key"], serializer, "key")
        assert key is not None  # null was refused above
        yield DeliveredKey(key, _offset(fields["offset"], path), _partition(fields.get("partition"), path))


def _offset(given: Any, source: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise UsageError(f"{source} has the offset {given!r}", remedy="offsets are whole numbers")
    return given


def _partition(given: Any, source: str) -> int | None:
    """Return the number of a partition; None if the row has none. A column with nulls may have floats."""
    if isinstance(given, float) and given.is_integer():
        return int(given)
    if given is not None and (isinstance(given, bool) or not isinstance(given, int)):
        raise UsageError(f"{source} has the partition {given!r}", remedy="partitions are whole numbers")
    return given
