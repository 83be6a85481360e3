"""Copies of partitions from one leader: `Copy` is the state of one, `Leader` checks and fetches them.

Before the first fetch of a partition, and again after an error, the copy is compared with the log of the
cluster, so that a copy never continues with another log:

- the log end: not below that of the copy;
- the leader epoch of the copy's end: it does not end below it (OffsetForLeaderEpoch);
- the last batch of the copy: records with equal offsets are equal. Either log may have been cleaned since.

Records that the cluster has deleted (retention, DeleteRecords) raise the log start of the copy, as a
follower does. A compacted log has gaps, which stay: the copy has exactly the batches of the cluster, and
ends where the cluster's log ends. Only where a cleaning of lastword has joined batches over the end of the
copy, the copy gets a batch of the records that it lacks.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lastword.api.open_dirs import OpenDirs
from lastword.clock import Clock
from lastword.errors import (
    CorruptBatchError,
    DivergedLogError,
    LastwordError,
    RecordTooLargeError,
    UnsupportedVersionError,
)
from lastword.logdir.checkpoints import LogStart, TopicPartition
from lastword.partition.log import PartitionLog
from lastword.protocol import codes
from lastword.protocol.messages import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from lastword.protocol.schemas import ZERO_UUID
from lastword.pulling.cluster import MAX_FRAME, NO_NODE, BrokerConnection, PartitionFacts, refused
from lastword.records import formats
from lastword.records.batch import BatchBuilder, BatchHeader
from lastword.records.record import RawRecord
from lastword.segment.segment import Segment
from lastword.units import format_bytes
from lastword.values import Value, plural

PARTITION_BYTES = 4 << 20
WAIT_MS = 500
"""How long a broker may wait for new records; also until a pull that follows ends after `stop`."""
EMPTY_ANSWERS = 3
"""Answers without a batch after which a log has none up to its end."""
EARLIEST, LATEST = -2, -1
_STEP = struct.Struct(">qi")
_OVERHEAD = 12

_log = logging.getLogger("lastword.pull")


@dataclass(frozen=True, slots=True)
class PullResult(Value):
    """The result of `pull` for one partition.

    Attributes:
        topic: The topic.
        partition: The partition.
        log_start: The log start of the copy.
        first_offset: The log end of the copy before.
        next_offset: The log end of the copy now.
        remote_end: The log end in the cluster; -1: the pull was stopped before it was known.
        batches: Batches that were appended.
        records: Their records, with markers of transactions.
        pulled_bytes: Their bytes.
        gone_offsets: Offsets that the cluster had deleted before they were pulled.
        positions: Positions of groups in this partition that are saved.
        reason: Why the copy ends below `remote_end`; None: it does not.
    """

    topic: str
    partition: int
    log_start: int
    first_offset: int
    next_offset: int
    remote_end: int
    batches: int
    records: int
    pulled_bytes: int
    gone_offsets: int = 0
    positions: int = 0
    reason: str | None = None

    def __str__(self) -> str:
        gone = f", {plural(self.gone_offsets, 'offset')} deleted before" if self.gone_offsets else ""
        end = f" of {self.remote_end}" if self.reason and self.remote_end >= 0 else ""
        end += f" ({self.reason})" if self.reason else ""
        return (
            f"{self.topic}-{self.partition}: {plural(self.records, 'record')} in "
            f"{plural(self.batches, 'batch')} ({format_bytes(self.pulled_bytes)}), "
            f"from offset {self.first_offset} to {self.next_offset}{end}{gone}"
        )


class RemoteEnds(NamedTuple):
    """Where the log of a leader starts and ends, and the end of the copy's epoch there (-1: not known)."""

    start: int
    end: int
    epoch: int
    epoch_end: int


class LastBatch(NamedTuple):
    """The last batch of a copy that has records, and these by offset."""

    header: BatchHeader
    records: dict[int, RawRecord]


@dataclass(eq=False)
class Copy:
    """One partition under way. Used by the thread of its leader, and between rounds by the main thread."""

    tp: TopicPartition
    topic_id: bytes | None
    log_start: int
    log_end: int
    epoch: int | None
    first_offset: int
    leader: PartitionFacts = field(default_factory=lambda: PartitionFacts(NO_NODE, -1, 0))
    remote_start: int = -1
    remote_end: int = -1
    end: int | None = None
    """The copy ends here; None: follow."""
    checked: bool = False
    restarts: bool = False
    """The copy is empty, or has no record that the cluster still has: it begins at `remote_start`."""
    last: LastBatch | None = None
    """To be compared with the cluster's log; None: it was compared, or there is none."""
    batches: int = 0
    records: int = 0
    pulled_bytes: int = 0
    gone: int = 0
    empty: int = 0
    most_bytes: int = field(default_factory=lambda: PARTITION_BYTES)
    failure: LastwordError | None = None
    """The last failure of a request that is repeated."""
    failing_since: float | None = None
    error: LastwordError | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do: the copy is complete and was compared, or failed for good."""
        if self.error is not None:
            return True
        return self.checked and self.last is None and self.end is not None and self.log_end >= self.end

    @property
    def next_offset(self) -> int:
        """The offset to fetch: of the last record of the copy, if it is still to be compared."""
        if self.restarts:
            return self.remote_start
        if self.last is not None:
            return max(self.last.records)
        return self.log_end

    def fail(self, error: LastwordError, now: float) -> None:
        """Note a failure at `now`, after which the request is repeated."""
        if self.is_done:
            return
        if self.failing_since is None:
            _log.warning("%s: %s", self.tp, error.message)
            self.failing_since = now
        self.failure, self.checked = error, False

    def result(self, positions: int = 0) -> PullResult:
        """Return the result so far."""
        reason = None
        if self.remote_end < 0 or self.log_end < self.remote_end:
            if self.error is not None or self.failure is not None:
                reason = type(self.error or self.failure).__name__
            elif not self.is_done:
                reason = "not complete"
        return PullResult(
            *self.tp,
            self.log_start,
            self.first_offset,
            self.log_end,
            max(self.remote_end, -1),
            self.batches,
            self.records,
            self.pulled_bytes,
            self.gone,
            positions,
            reason,
        )


class Leader:
    """The broker that leads some partitions, seen from their copies. Used by one thread at a time."""

    def __init__(self, connection: BrokerConnection, dirs: OpenDirs, clock: Clock, *, follow: bool) -> None:
        self.connection = connection
        self._dirs = dirs
        self._clock = clock
        self._follow = follow

    def copy_once(self, copies: list[Copy], answer_bytes: int) -> bool:
        """Check and fetch once; return False if all is done, or a partition needs a new round.

        Args:
            copies: Partitions that the broker leads.
            answer_bytes: The size of an answer, unless one batch is larger.
        """
        unchecked = [copy for copy in copies if not copy.checked and copy.error is None]
        if unchecked:
            for copy, ends in self.ends(unchecked).items():
                try:
                    self._begin(copy, ends)
                except LastwordError as error:
                    copy.error = error
        active = [copy for copy in copies if copy.checked and not copy.is_done]
        if active:
            self._fetch(active, answer_bytes)
            copies.append(copies.pop(0))  # another partition is the first in the next answer
        return any(not c.is_done for c in copies) and all(c.checked or c.is_done for c in copies)

    # -------------------------------------------------------------- checks

    def ends(self, copies: Sequence[Copy]) -> dict[Copy, RemoteEnds]:
        """Return where the logs start and end, and where the epochs of the copies end."""
        starts = self._offsets(copies, EARLIEST)
        ends = self._offsets(copies, LATEST)
        epochs = self._epoch_ends(copies)
        remote_ends = {}
        for copy in copies:
            start, end, (epoch, epoch_end) = starts.get(copy), ends.get(copy), epochs.get(copy, (-1, -1))
            if start is not None and end is not None:
                remote_ends[copy] = RemoteEnds(start, end, epoch, epoch_end)
        return remote_ends

    def _offsets(self, copies: Sequence[Copy], which: int) -> dict[Copy, int]:
        by_name: dict[str, list[Any]] = {}
        for copy in copies:
            by_name.setdefault(copy.tp.topic, []).append(
                ListOffsetsRequest.ListOffsetsPartition(
                    partition_index=copy.tp.partition, current_leader_epoch=copy.leader.epoch, timestamp=which
                )
            )
        topics = [
            ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=partitions)
            for name, partitions in by_name.items()
        ]
        answer = self.connection.ask(
            ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics, timeout_ms=10_000)
        )
        wanted = {copy.tp: copy for copy in copies}
        offsets: dict[Copy, int] = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                if tp not in wanted:
                    continue
                copy = wanted.pop(tp)
                if partition.error_code or partition.offset < 0:
                    code = partition.error_code or codes.UNKNOWN_SERVER_ERROR
                    self._refuse(copy, code, "list its offsets")
                else:
                    offsets[copy] = partition.offset
        for copy in wanted.values():
            self._refuse(copy, codes.UNKNOWN_TOPIC_OR_PARTITION, "list its offsets")
        return offsets

    def _epoch_ends(self, copies: Sequence[Copy]) -> dict[Copy, tuple[int, int]]:
        """Return for each copy the leader's largest epoch up to its own, and the end of that epoch."""
        by_name: dict[str, list[Any]] = {}
        for copy in copies:
            if copy.epoch is None:
                continue
            by_name.setdefault(copy.tp.topic, []).append(
                OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                    partition=copy.tp.partition,
                    current_leader_epoch=copy.leader.epoch,
                    leader_epoch=copy.epoch,
                )
            )
        topics = [
            OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name, partitions=partitions)
            for name, partitions in by_name.items()
        ]
        if not topics:
            return {}
        try:
            answer = self.connection.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=topics))
        except UnsupportedVersionError:
            return {}  # the last batch is compared anyway
        wanted = {copy.tp: copy for copy in copies}
        ends = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.topic, partition.partition)
                if tp in wanted and not partition.error_code:
                    ends[wanted[tp]] = partition.leader_epoch, partition.end_offset
        return ends

    def check_ends(self, copy: Copy, ends: RemoteEnds) -> None:
        """Set where the copy has to end. DivergedLogError if the leader's log ends below the copy."""
        copy.remote_start, copy.remote_end = ends.start, ends.end
        if not self._follow:
            copy.end = ends.end if copy.end is None else min(copy.end, ends.end)
        if copy.log_end > ends.end:
            raise self._diverged(copy, f"the log of the cluster ends at {ends.end}")
        if ends.start > copy.log_end:
            return  # the leader's log begins behind the copy
        if ends.epoch >= 0 and (ends.epoch != copy.epoch or ends.epoch_end < copy.log_end):
            raise self._diverged(
                copy, f"the leader epoch {ends.epoch} ends at {ends.epoch_end} in the cluster"
            )

    def _diverged(self, copy: Copy, why: str) -> DivergedLogError:
        return DivergedLogError(
            f"{copy.tp}: the copy ends at {copy.log_end} (leader epoch {copy.epoch}), and {why}: "
            "the cluster has lost records that the copy has",
            remedy="compare both; to begin again, pull to another directory or drop the topic here",
            offset=copy.log_end,
        )

    def _begin(self, copy: Copy, ends: RemoteEnds) -> None:
        """Compare the ends, take over the log start, and read the last batch of the copy."""
        self.check_ends(copy, ends)
        log, directory = self._dirs.log(*copy.tp), self._dirs.log_dir(*copy.tp)
        if ends.start > copy.log_end:
            if copy.log_end > copy.log_start:
                copy.gone += ends.start - copy.log_end
            copy.restarts, copy.last = True, None
            if ends.start == ends.end:
                directory.truncate(*copy.tp, ends.start, fully=True)
                copy.restarts = False
        else:
            self._raise_log_start(copy, ends.start)
            copy.restarts = not log.segment_set.size and copy.log_end == ends.start
            last = None if copy.restarts else last_batch(log)
            copy.last = last if last is not None and max(last.records) >= ends.start else None
        self._follow_log(copy, log)
        copy.checked, copy.empty = True, 0

    def _raise_log_start(self, copy: Copy, offset: int) -> None:
        if copy.log_start < offset <= copy.log_end:
            start = LogStart(offset, "deleted in the cluster")
            errors = self._dirs.log_dir(*copy.tp).raise_log_starts({copy.tp: start})
            for error in errors.values():
                raise error
            copy.log_start = offset

    def _follow_log(self, copy: Copy, log: PartitionLog) -> None:
        copy.log_start, copy.log_end, copy.epoch = log.log_start, log.log_end, log.epochs.latest

    def _refuse(self, copy: Copy, code: int, what: str) -> None:
        """Note an error code: the request is repeated, or the partition has failed."""
        error = refused(f"{self.connection.name}, leader of {copy.tp},", code, what)
        if code in codes.RETRIABLE or code in (codes.OFFSET_OUT_OF_RANGE, codes.UNKNOWN_SERVER_ERROR):
            copy.fail(error, self._clock.monotonic())
        else:
            copy.error = error

    # -------------------------------------------------------------- fetch

    def _fetch(self, copies: Sequence[Copy], answer_bytes: int) -> None:
        by_id = all(copy.topic_id is not None for copy in copies) and self.connection.version("Fetch") >= 13
        topics: dict[str, Any] = {}
        for copy in copies:
            topic = topics.get(copy.tp.topic)
            if topic is None:
                topic = topics[copy.tp.topic] = FetchRequest.FetchTopic(
                    topic="" if by_id else copy.tp.topic, topic_id=(by_id and copy.topic_id) or ZERO_UUID
                )
            topic.partitions.append(
                FetchRequest.FetchPartition(
                    partition=copy.tp.partition,
                    current_leader_epoch=copy.leader.epoch,
                    fetch_offset=copy.next_offset,
                    partition_max_bytes=copy.most_bytes,
                )
            )
        body = FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=max(answer_bytes, *(copy.most_bytes for copy in copies)),
            topics=list(topics.values()),
        )
        answer = self.connection.ask(body, most=1 << 15 if by_id else 12, wait=WAIT_MS / 1000)
        if answer.error_code:
            for copy in copies:
                self._refuse(copy, answer.error_code, "fetch")
            return
        wanted = {(copy.topic_id if by_id else copy.tp.topic, copy.tp.partition): copy for copy in copies}
        size = 0
        for fetched in answer.responses:
            for data in fetched.partitions:
                key = bytes(fetched.topic_id) if by_id else fetched.topic
                if (key, data.partition_index) in wanted:
                    size += self._answered(wanted.pop((key, data.partition_index)), data)
        for copy in copies if not size else ():
            self._pass_gap(copy)

    def _answered(self, copy: Copy, data: Any) -> int:
        """Take the answer for one partition; return its bytes of batches."""
        if data.error_code:
            self._refuse(copy, data.error_code, "fetch")
            return 0
        try:
            if data.high_watermark >= 0:
                copy.remote_end = max(data.high_watermark, copy.log_end)
            records = memoryview(b"" if data.records is None else data.records)
            if len(records):
                self._take(copy, records, data.high_watermark)
            if data.log_start_offset > copy.log_start and not copy.restarts:
                self._raise_log_start(copy, data.log_start_offset)
            copy.failure = copy.failing_since = None
        except LastwordError as error:
            copy.error = error
        return len(records) if copy.error is None else 0

    def _take(self, copy: Copy, data: memoryview, high_watermark: int) -> None:
        """Append the batches that are new, after a comparison of those that the copy has.

        A base offset has no checksum. A batch at or above the high watermark of the answer is not appended,
        but fetched again.
        """
        limits = [offset for offset in (copy.end, high_watermark) if offset is not None and offset >= 0]
        limit = min(limits, default=1 << 63)
        start, end, beyond = None, 0, False
        for position, size in batches_of(data):
            base = _STEP.unpack_from(data, position)[0]
            if start is None and base < copy.log_end and not copy.restarts:
                if self._compare(copy, data[position : position + size]):
                    return  # the next answer begins at the new end
                end = position + size
                continue
            if base >= limit:
                beyond = True
                break
            start = position if start is None else start
            end = position + size
        if start is not None:
            copy.last, copy.empty, copy.most_bytes = None, 0, PARTITION_BYTES
            self._append(copy, data[start:end])
        elif beyond:
            self._pass_gap(copy)
        elif end:
            copy.last = None  # compared, as far as the cluster still has it
        else:
            self._widen(copy)

    def _widen(self, copy: Copy) -> None:
        """Ask for more bytes: the first batch is not whole. Old brokers cut it at the limit."""
        if copy.most_bytes >= MAX_FRAME:
            raise RecordTooLargeError(
                f"{copy.tp}: the batch at {copy.next_offset} is larger than {format_bytes(MAX_FRAME)}",
                remedy="such a batch cannot be pulled",
            )
        copy.most_bytes *= 2

    def _append(self, copy: Copy, data: memoryview) -> None:
        log = self._dirs.log(*copy.tp)
        if copy.restarts:
            first = formats.read_header(data, 0, len(data), f"<copy of {copy.tp}>")
            base = min(first.base_offset, copy.remote_start)
            if first.last_offset < copy.remote_start:
                raise CorruptBatchError(
                    f"{copy.tp}: a batch that ends at {first.last_offset} answers a fetch from "
                    f"{copy.remote_start}",
                    code="offsets-fall",
                    remedy="nothing was appended; the broker must be checked",
                    offset=first.base_offset,
                )
            formats.check_crc(data, first, f"<copy of {copy.tp}>")
            if base != copy.log_end:
                self._dirs.log_dir(*copy.tp).truncate(*copy.tp, base, fully=True)
        headers = log.append_copies(data)
        copy.restarts = False
        copy.batches += len(headers)
        copy.records += sum(max(header.count, 0) for header in headers)
        copy.pulled_bytes += len(data)
        self._follow_log(copy, log)
        self._raise_log_start(copy, copy.remote_start)

    def _compare(self, copy: Copy, data: memoryview) -> bool:
        """Compare a batch with the last batch of the copy: records with equal offsets must be equal.

        Returns:
            Whether the batch goes on behind the copy, which has its other records now.
        """
        header = formats.read_header(data, 0, len(data), f"<copy of {copy.tp}>")
        formats.check_crc(data, header, f"<copy of {copy.tp}>")
        goes_on = header.last_offset >= copy.log_end
        if goes_on and (header.magic < 2 or header.producer_id >= 0):  # no cleaning joins these
            raise self._diverged(
                copy, f"a batch of the cluster has the offsets {header.base_offset} to {header.last_offset}"
            )
        last = copy.last
        known = {} if last is None else last.records
        if last is not None:
            if (header.crc, header.base_offset) == (last.header.crc, last.header.base_offset):
                return False
            if header.last_offset < last.header.base_offset or header.base_offset > last.header.last_offset:
                return False
        elif not goes_on:
            return False
        records = list(formats.read_records(data, header, f"<copy of {copy.tp}>", position=0))
        for record in records:
            if known.get(record.offset, record) != record:
                raise self._diverged(copy, f"the cluster has another record at {record.offset}")
        if goes_on:
            copy.last, copy.empty, copy.most_bytes = None, 0, PARTITION_BYTES
            self._append_rest(copy, header, [record for record in records if record.offset >= copy.log_end])
        return goes_on

    def _append_rest(self, copy: Copy, header: BatchHeader, records: Sequence[RawRecord]) -> None:
        """Append the last records of a batch as a batch, up to the last offset of that."""
        if records:
            base = records[0].offset
            builder = BatchBuilder(header.codec, timestamp_type=int(header.log_append))
            for record in records:
                delta = record.offset - base
                builder.append(record.timestamp, record.key, record.value, record.headers, offset_delta=delta)
            append_time = header.max_timestamp if header.log_append else None
            last_delta = header.last_offset - base
            epoch = header.leader_epoch
            data = builder.build(base, epoch, append_time=append_time, last_offset_delta=last_delta)
            self._append(copy, memoryview(data))
        else:
            log = self._dirs.log(*copy.tp)
            log.skip_to(header.next_offset)
            self._follow_log(copy, log)

    def _pass_gap(self, copy: Copy) -> None:
        """Raise the log end to that of the cluster, if the cluster has no batch in between."""
        if copy.is_done or not copy.checked or copy.end is None:
            return
        if copy.last is not None:
            copy.last = None  # the cluster has no batch from the copy's last record on
            return
        if copy.remote_end < copy.end:  # the high watermark is behind for a while, after a leader has moved
            late = codes.OFFSET_NOT_AVAILABLE
            error = refused(f"the leader of {copy.tp}", late, f"send offsets up to {copy.end}")
            copy.fail(error, self._clock.monotonic())
            return
        copy.empty += 1
        if copy.empty >= EMPTY_ANSWERS:
            try:
                self._skip_to_end(copy)
            except LastwordError as error:
                copy.error = error

    def _skip_to_end(self, copy: Copy) -> None:
        log = self._dirs.log(*copy.tp)
        if copy.restarts:
            self._dirs.log_dir(*copy.tp).truncate(*copy.tp, copy.remote_start, fully=True)
            copy.restarts = False
        assert copy.end is not None
        log.skip_to(copy.end)
        self._follow_log(copy, log)


def batches_of(data: memoryview) -> Iterable[tuple[int, int]]:
    """Yield position and size of each whole batch. CorruptBatchError for an impossible length."""
    position, end = 0, len(data)
    while end - position >= _OVERHEAD:
        offset, length = _STEP.unpack_from(data, position)
        if length < 14:  # the smallest entry of any magic
            raise CorruptBatchError(
                f"a batch cannot have length {length}", code="bad-length", position=position, offset=offset
            )
        if length > end - position - _OVERHEAD:
            return
        yield position, length + _OVERHEAD
        position += length + _OVERHEAD


def last_batch(log: PartitionLog) -> LastBatch | None:
    """Return the last batch of a log that has records, if it is near the end."""
    for segment in reversed(log.segments[-2:]):
        batch = _last_of(segment)
        if batch is not None:
            return batch
    return None


def _last_of(segment: Segment) -> LastBatch | None:
    for start in (segment.indexed_position(segment.size), 0):
        last = None
        for header in segment.headers(start):
            last = header if header.count else last
        if last is not None:
            data = segment.read_batch(last)
            records = {
                record.offset: record for record in formats.read_records(data, last, segment.file, position=0)
            }
            return LastBatch(last, records) if records else None
        if not start:
            break
    return None
