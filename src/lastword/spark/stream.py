"""The streaming source: the end of each micro-batch, and the offsets at which a restart continues.

Where it runs. `LogStreamReader` exists in one Python process beside the driver as long as the query runs, so
`latestOffset` may keep the time of the last batch. `read()` runs in workers, as in a batch, on the same
tasks.

Saved state. Spark writes the end of each batch into its checkpoint before it runs the batch, as JSON in the
shape of Kafka's source, `{"users": {"0": 123}}`: the next offset of each partition. `"#topic_ids"`, a name
that no topic can have, holds the topic ids, so that a topic that was deleted and recreated is distinguished
from one that was truncated. After a restart the unfinished batch is planned again from these offsets alone.
Spark does not save the start of the first batch: it calls `initialOffset` twice, and again after a restart.
So `initialOffset` returns one result within a process, and a query that starts at the log's end begins with
an empty batch: the checkpoint then has the offset, and the next records are above it.

When tasks fail. Reading changes nothing, so a retry reads the same offsets; a cleaning in between may have
removed superseded records. A range that begins below the log start, or ends above the log end, is a loss and
an error (unless `failOnDataLoss` is false). Gaps are not.

With `view=changes` a batch shows the newest record of each key in its range, as the log is when a task reads
it. If that record was superseded by a record above the range, and removed by a cleaning, the key is not in
this batch; the newer record is in a later batch. So no key is lost, and a batch that runs again may have
fewer rows.

A lease. With the option `lease` the query is registered by name in each partition, at the offset where its
next batch begins, so that no tombstone is removed before the query has read it. `commit` advances the lease.
A restart continues it where its batch begins, and fails if the lease has expired and tombstones were removed
since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lastword.arrow import pa
from lastword.errors import LastwordError, OffsetOutOfRangeError, UnknownTopicError
from lastword.files import Files
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition import leases
from lastword.partition.view import PartitionView
from lastword.spark.bootstrap import Shipped, ensure_compiled, hide_traceback
from lastword.spark.bucket import change, open_directory
from lastword.spark.options import ReadOptions
from lastword.spark.schema import check_projection
from lastword.spark.splits import PartitionRange, choose, cut_points, matching, past_gap, plan

# ---------------------------------------------------------------- offsets of a checkpoint


TOPIC_IDS = "#topic_ids"
"""The key of the topic ids in the checkpoint; no topic can have this name."""

Offsets = dict[TopicPartition, int]


def to_json(offsets: Offsets, topic_ids: Mapping[str, str]) -> dict[str, Any]:
    """Return offsets by partition in the shape of Kafka's source, with the ids of topics that have one."""
    by_topic: dict[str, Any] = {}
    for (topic, number), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {})[str(number)] = offset
    ids = {topic: topic_id for topic, topic_id in topic_ids.items() if topic in by_topic}
    if ids:
        by_topic[TOPIC_IDS] = ids
    return by_topic


def of_json(value: Mapping[str, Any]) -> tuple[Offsets, dict[str, str]]:
    """Return offsets by partition, and the ids of their topics."""
    ids = dict(value.get(TOPIC_IDS, {}))
    try:
        offsets = {
            TopicPartition(topic, int(number)): int(offset)
            for topic, numbers in value.items()
            if topic != TOPIC_IDS
            for number, offset in numbers.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise LastwordError(
            f"the offsets of the checkpoint are not of this source: {value!r}",
            remedy="start with a new checkpoint",
        ) from None
    return offsets, ids


def share_offsets(begin: Offsets, ends: Offsets, limit: int) -> Offsets:
    """Limit a micro-batch to about `limit` offsets.

    Each partition's share is proportional to its backlog, at least one offset, as in Spark's Kafka source.
    """
    backlog = {tp: ends[tp] - begin[tp] for tp in ends}
    total = sum(backlog.values())
    if total <= limit:
        return ends
    return {
        tp: begin[tp] + (min(size, max(1, limit * size // total)) if size else 0)
        for tp, size in backlog.items()
    }


def share_bytes(
    begin: Offsets, ends: Offsets, views: Mapping[TopicPartition, PartitionView], limit: int
) -> Offsets:
    """Limit a micro-batch to about `limit` bytes of the log.

    Each partition's share is proportional to its backlog and cut at an index entry. A partition with new
    records gets at least the bytes up to its first entry.
    """
    points = {
        tp: cut_points(PartitionRange(*tp, views[tp].directory, views[tp], begin[tp], end))
        for tp, end in ends.items()
        if end > begin[tp]
    }
    total = sum(cuts[-1][1] for cuts in points.values())
    if total <= limit:
        return ends
    shared = dict(ends)
    for tp, cuts in points.items():
        share = limit * cuts[-1][1] // total
        fitting = [offset for offset, before in cuts[1:] if before <= share]
        shared[tp] = fitting[-1] if fitting else cuts[1][0]
    return shared


# ---------------------------------------------------------------- the reader


@dataclass(frozen=True, slots=True)
class QueryPartitions:
    """The partitions that the query reads, at one moment, and the ids of topics that have an id."""

    views: dict[TopicPartition, PartitionView]
    topic_ids: dict[str, str]


class LogStreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one query. `clock`: seconds, monotonic."""

    def __init__(
        self, options: ReadOptions, schema: StructType, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.options = options
        self.schema = schema
        self.columns = check_projection(schema, options.view, options.formats)
        self._clock = clock
        self._last_batch: float | None = None
        self._target: Offsets | None = None  # with Trigger.AvailableNow: the last offsets of the query
        self._initial: dict[str, Any] | None = None
        self._pins_start = False  # the first batch must be empty
        self._warm = False
        self._leased: set[TopicPartition] = set()

    # -------------------------------------------------------------- offsets

    @hide_traceback
    def initialOffset(self) -> dict[str, Any]:
        """Return the offsets at which a new query starts."""
        if self._initial is None:
            ranges = choose(self.options)
            self._pins_start = any(range_.from_end for range_ in ranges)
            start = {TopicPartition(range_.topic, range_.partition): range_.start for range_ in ranges}
            self._initial = to_json(start, self._list().topic_ids)
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit other than `ReadAllAvailable` if options set a limit.

        Spark has no limit of several parts, so `latestOffset` reads the options.
        """
        limits = self.options.limits
        if limits.max_offsets:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    @hide_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        """Keep the current ends as the last offsets of the query."""
        self._target = {tp: _end(view, self.options) for tp, view in self._list().views.items()}

    @hide_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; `start` itself if there are no or too few records."""
        begin, ids = of_json(start)
        listing = self._list()
        views = listing.views
        recreated = self._recreated(ids, listing)
        read = {tp: offset for tp, offset in begin.items() if tp[0] not in recreated}
        begin, ends = self._ends(read, views)
        self._leased -= {tp for tp in self._leased if tp[0] in recreated}
        unleased = {tp: offset for tp, offset in begin.items() if tp not in self._leased}
        self._hold_leases(unleased, views, unread=begin.keys() - read.keys())
        if self._pins_start and start == self._initial:
            self._pins_start = False
            return start
        if self._target is not None:
            ends = {tp: min(end, max(self._target.get(tp, 0), begin[tp])) for tp, end in ends.items()}
        if not isinstance(limit, ReadAllAvailable):
            if self._wait(begin, ends):
                return start
            ends = self._limited(begin, ends, views)
        return start if ends == of_json(start)[0] and not recreated else to_json(ends, listing.topic_ids)

    @hide_traceback
    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the current ends, for Spark's metrics of the backlog."""
        listing = self._list()
        ends = {tp: _end(view, self.options) for tp, view in listing.views.items()}
        return to_json(ends, listing.topic_ids)

    def _ends(self, begin: Offsets, views: Mapping[TopicPartition, PartitionView]) -> tuple[Offsets, Offsets]:
        """Return the starts and ends of all partitions. A new partition starts at its log start.

        A lost partition is an error. If losses are to be ignored, the start moves past the loss, so that no
        batch covers offsets that do not exist.
        """
        starts, ends = {}, {}
        for tp, offset in begin.items():
            if tp not in views:
                if self.options.fail_on_data_loss:
                    raise UnknownTopicError(
                        f"{tp} is gone from {self.options.path}; it was read up to offset {offset}",
                        remedy="restore it, or set failOnDataLoss to false to go on without it",
                    )
                continue
            view = views[tp]
            end = _end(view, self.options)
            self._check_end(tp, offset, view.log_end)
            if not self.options.fail_on_data_loss:
                offset = min(max(offset, view.log_start), view.log_end)
            starts[tp] = offset
            # Never below the start: an uncommitted read may have read above the stable offset.
            ends[tp] = max(end, starts[tp])
        for tp, view in views.items():
            if tp not in starts:
                starts[tp] = view.log_start
                ends[tp] = max(_end(view, self.options), view.log_start)
        return starts, ends

    def _check_end(self, tp: TopicPartition, offset: int, log_end: int) -> None:
        if offset > log_end and self.options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{tp}: the end went backwards: this query has read up to offset {offset}, and the "
                f"log ends at {log_end}",
                remedy="restore the log, or set failOnDataLoss to false to read on from its end",
                offset=offset,
            )

    def _recreated(self, ids: Mapping[str, str], listing: QueryPartitions) -> set[str]:
        """Return the topics that were deleted and recreated, of which the query has read no record."""
        recreated = {topic for topic, known in ids.items() if listing.topic_ids.get(topic, known) != known}
        if recreated and self.options.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"topic {min(recreated)} in {self.options.path} was deleted and recreated since this query "
                "read it",
                remedy="start with a new checkpoint, or set failOnDataLoss to false to read the new one from "
                "its beginning",
            )
        return recreated

    # -------------------------------------------------------------- limits

    def _wait(self, begin: Offsets, ends: Offsets) -> bool:
        """Return whether to delay the batch: it has too few records, and the last batch is recent.

        The first batch, and batches of Trigger.AvailableNow, are never delayed.
        """
        limits = self.options.limits
        now = self._clock()
        last = self._last_batch
        new = sum(ends[tp] - begin[tp] for tp in ends)
        waits = (
            limits.min_offsets is not None
            and self._target is None
            and last is not None
            and (now - last) * 1000 < limits.max_delay_ms
            and new < limits.min_offsets
        )
        if not waits:
            self._last_batch = now
        return waits

    def _limited(
        self, begin: Offsets, ends: Offsets, views: Mapping[TopicPartition, PartitionView]
    ) -> Offsets:
        limits = self.options.limits
        if limits.max_offsets:
            shared = share_offsets(begin, ends, limits.max_offsets)
            ends = {
                tp: end if end in (begin[tp], ends[tp]) else past_gap(views[tp], end, ends[tp])
                for tp, end in shared.items()
            }
        if limits.max_bytes:
            ends = share_bytes(begin, ends, views, limits.max_bytes)
        return ends

    # -------------------------------------------------------------- batches

    @hide_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of one micro-batch, from its offsets alone.

        After a restart this is the first call.
        """
        begin, ids = of_json(start)
        until, until_ids = of_json(end)
        listing = self._list()
        views = listing.views
        recreated = self._recreated(until_ids, listing)  # then no record of this batch exists
        unread = {
            tp: view.log_start
            for tp, view in views.items()
            if tp in begin and tp[0] in ids and until_ids.get(tp[0], ids[tp[0]]) != ids[tp[0]]
        }
        begin.update(unread)
        if not self._leased:  # a restart: a lost lease is an error before the sink has the rows
            # A repeated first batch may begin later, but it has the same end.
            positions = {tp: min(offset, until.get(tp, offset)) for tp, offset in begin.items()}
            self._hold_leases(positions, views, unread={*unread, *(tp for tp in begin if tp[0] in recreated)})
        ranges = []
        for tp, last in sorted(until.items()):
            if tp[0] in recreated:
                continue
            if tp not in views:
                if self.options.fail_on_data_loss:
                    raise UnknownTopicError(
                        f"{tp} is gone from {self.options.path}, with offsets up to {last} to read",
                        remedy="restore it, or set failOnDataLoss to false to go on without it",
                    )
                continue
            view = views[tp]
            first = begin.get(tp, view.log_start)
            if first < view.log_start:
                if self.options.fail_on_data_loss and tp in begin and first < last:
                    raise OffsetOutOfRangeError(
                        f"{tp}: offset {first} is below log start {view.log_start}: records "
                        "that this query has not read were trimmed, or have expired",
                        remedy="set failOnDataLoss to false to read on from the log's start",
                        offset=first,
                    )
                first = view.log_start
            self._check_end(tp, last, view.log_end)
            last = min(last, view.log_end)
            if first < last:
                topic_id = listing.topic_ids.get(tp[0])
                ranges.append(PartitionRange(*tp, view.directory, view, first, last, topic_id=topic_id))
        if ranges and not self._warm:
            ensure_compiled()  # here, so that no worker compiles
            self._warm = True
        return plan(ranges, self.options, in_stream=True)

    @hide_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches of a task's records."""
        from lastword.spark.read import read_task

        yield from read_task(partition, self.options, self.schema, self.columns)

    @hide_traceback
    def commit(self, end: dict[str, Any]) -> None:
        """Advance the lease, if there is one: everything below `end` has been processed."""
        if self.options.lease is not None:
            self._hold_leases(of_json(end)[0], self._list().views)

    def stop(self) -> None:
        """Keep the lease, because a stopped query may continue later.

        The lease expires by its age, or is released by `lastword lease DIR TOPIC NAME --release`.
        """

    # -------------------------------------------------------------- the directory

    def _list(self) -> QueryPartitions:
        """List the partitions that the query reads. The directory is opened once for all of them."""
        directory = open_directory(self.options.path, self.options.storage)
        existing = directory.partitions_by_topic()
        selection = self.options.selection
        if selection.pattern is not None:
            topics = matching(selection.pattern, existing)
        else:
            topics = [topic for topic in selection.assigned or selection.topics if topic in existing]
        # Ids before views: if a topic is recreated in between, the next listing has another id.
        ids = {topic: directory.topic_id(topic) for topic in topics}
        partitions_read = [
            TopicPartition(topic, number)
            for topic in topics
            for number in existing[topic]
            if not selection.assigned or number in selection.assigned[topic]
        ]
        return QueryPartitions(
            {tp: directory.view(*tp) for tp in sorted(partitions_read)},
            {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None},
        )

    def _hold_leases(
        self,
        offsets: Offsets,
        views: Mapping[TopicPartition, PartitionView],
        *,
        unread: Collection[TopicPartition] = (),
    ) -> None:
        """Take or advance the lease in partitions. `unread`: the query has no record of these yet."""
        if self.options.lease is None or not offsets:
            return
        now_ms = int(time.time() * 1000)
        held = {tp: view for tp, view in views.items() if tp in offsets}

        def hold(files: Files) -> None:
            for tp, view in held.items():
                leases.register(
                    files,
                    view.directory,
                    self.options.lease or "",
                    # A loss is an error when it is read, or ignored (failOnDataLoss).
                    min(max(offsets[tp], view.log_start), view.log_end),
                    log_start=view.log_start,
                    log_end=view.log_end,
                    max_age_ms=self.options.lease_max_age_ms,
                    now_ms=now_ms,
                    # Only a new query calls initialOffset.
                    holds_nothing=tp in unread or (self._initial is not None and tp not in self._leased),
                )

        change(self.options.path, self.options.storage, hold)
        self._leased.update(held)


def _end(view: PartitionView, options: ReadOptions) -> int:
    if options.isolation == "read_committed":
        return min(view.stable_offset, view.log_end)
    return view.log_end
