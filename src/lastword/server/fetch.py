"""Fetch with sessions and long polls; ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

A read of a partition (`read_log`) finds the batch that contains the offset, and as many whole batches behind
it as the limits allow. The answer has them as ranges of the segments' open files: a segment that a cleaning
replaces meanwhile stays readable. The first batch of an answer is sent even if it is above the limits, or a
client could never pass it.

Long polls. A fetch without enough bytes waits for an append to one of its partitions, or for its time, which
is that of an idle connection at most. Only the partitions that were appended to are read again.
A fetch that waits has a call in `on_append` of the log.

In a bucket a read that needs a request runs in the pool, and its bytes are in memory before they are sent.
What was just committed is in memory anyway. Commits of this process wake the fetches that wait; for those of
others the newest version is loaded once a second while a fetch waits.

Sessions. A client names a session instead of its unchanged partitions, and its answer has the partitions that
changed. A partition whose records are sent is the last in the next answer, so that all have their turn.
Sessions are kept in memory. If there are too many, the least recently used is dropped for a new one, unless
it was used a short time ago: then the new client has no session, and names all its partitions each time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lastword.errors import LastwordError, OffsetOutOfRangeError
from lastword.files import WouldWait
from lastword.partition.reads import read_again, record_at_time, record_of_largest_time
from lastword.protocol import FileRange, Request, codes, messages
from lastword.protocol.schemas import ZERO_UUID, Message
from lastword.records.compression import limit_of
from lastword.server.aborted import AbortedTransactions
from lastword.server.context import failure
from lastword.server.newest import NewestReads
from lastword.server.topics import NEWEST as NEWEST_SUFFIX
from lastword.server.topics import NOT_HOSTED, Refused, Refusing

if TYPE_CHECKING:
    from lastword.records.record import RawRecord
    from lastword.segment.segment import Segment
    from lastword.server.context import Handlers, ServerContext
    from lastword.server.security import Peer
    from lastword.server.topics import ServedLog

MOST_BYTES = 55 << 20
"""Most bytes of one answer, also if the request allows more: Kafka's `fetch.max.bytes` of a broker."""
MOST_SESSIONS = 1000
KEPT_SECONDS = 120.0
"""A session that was used in this time is not dropped for a new one: Kafka's default."""
POLL_SECONDS = 1.0
"""How often a version is loaded while a fetch waits, if other processes may commit."""
MOST_SEGMENTS, MOST_COMMITS = 16, 64
"""Most segments of one read of a partition, and in a bucket, where each commit makes one. A reader of emptied
segments gets records in its first answer."""
READ_COMMITTED = 1
FIRST_WITH_IDS = 13
"""The first version that names topics by their ids."""
_log = logging.getLogger("lastword.server")
EARLIEST, LATEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -2, -1, -3, -4, -5, -6


class Read(NamedTuple):
    """The batches of one partition that answer a fetch.

    Attributes:
        records: Ranges of files; their bytes, if the files may need requests.
        size: Their bytes.
        end: An offset that none of their records reaches.
    """

    records: list[Any]
    size: int
    end: int


NOTHING = Read([], 0, 0)


def read_log(log: ServedLog, offset: int, limit: int, most_bytes: int, *, first: bool) -> Read:
    """Return whole batches from the batch that contains `offset` on, below `limit`.

    Args:
        log: The log.
        offset: The first offset, not below the log start.
        limit: Batches that begin at or above this offset are left out.
        most_bytes: The most bytes.
        first: The first batch may be larger.
    """
    return read_again(lambda: _read(log, offset, limit, most_bytes, first), log.refresh)


def _read(log: ServedLog, offset: int, limit: int, most_bytes: int, first: bool) -> Read:
    if offset >= limit:
        return NOTHING
    ranges: list[Any] = []
    size, covered = 0, offset
    most_segments = MOST_COMMITS if log.files.sends_requests else MOST_SEGMENTS
    for segment in log.segment_set.starting_at(offset):
        if segment.base_offset >= limit or len(ranges) == most_segments:
            break
        start = segment.position_of(offset)
        end = segment.size if segment.next_offset <= limit else segment.end_position_of(limit)
        if start >= end:
            continue
        stop, above = _whole_batches(segment, start, end, most_bytes - size, first and not size)
        if stop > start:
            covered = min(segment.next_offset, limit) if above is None else above
            ranges.append(FileRange(segment.handle, start, stop - start))
            size += stop - start
        if stop < end:
            break
    if not ranges:
        return NOTHING
    if log.files.sends_requests:
        return Read([part.file.pread(part.length, part.position) for part in ranges], size, covered)
    return Read(ranges, size, covered)


def _whole_batches(
    segment: Segment, start: int, end: int, most_bytes: int, first: bool
) -> tuple[int, int | None]:
    """Return the end of the last whole batch that fits; with `first`, of the first batch at least.

    Also returns an offset above those batches: it may be above the batch behind them. None: all batches fit.
    """
    if end - start <= most_bytes:
        return end, None
    position = max(start, segment.indexed_position(start + most_bytes))
    for header in segment.headers(position, end):
        if header.end - start > most_bytes:
            return header.end if position == start and first else position, header.last_offset + 1
        position = header.end
    return position, None


@dataclass
class PartitionFetch:
    """One partition of a fetch: the fields of the request, and the last answer (in a session)."""

    topic: str
    topic_id: bytes
    partition: int
    offset: int
    most_bytes: int
    leader_epoch: int
    is_newest: bool = False
    name: str = ""
    """The name of the topic, also if the request had its id."""
    batches: bytes | LastwordError | None = None
    """The batches of the next answer for a topic of newest records, which are read in the pool."""
    stable: int = -1
    """The last stable offset before they were read."""
    high_watermark: int = -1
    log_start: int = -1
    has_error: bool = False

    @property
    def key(self) -> tuple[str | bytes, int]:
        """Return topic and partition, by id if the request has ids."""
        return self.topic or self.topic_id, self.partition


@dataclass(eq=False, slots=True)
class FetchSession:
    """A fetch session: the partitions of a client, in order, and when it was used last.

    `has_ids`: its requests have the ids of topics. All of them do, or none.
    """

    id: int
    has_ids: bool
    partitions: OrderedDict[Any, PartitionFetch]
    used: float
    epoch: int = 1


@dataclass(eq=False, slots=True)
class Waiting:
    """A fetch that waits for bytes."""

    request: Request[messages.FetchRequest]
    session: FetchSession | None
    fetches: list[PartitionFetch]
    full: bool
    """The answer has all partitions, not only those that changed."""
    answers: list[Any] = field(default_factory=list)
    logs: list[ServedLog] = field(default_factory=list)
    future: asyncio.Future[Any] | None = None
    timer: asyncio.TimerHandle | None = None
    again: set[int] = field(default_factory=set)
    """The numbers of partitions that have grown since they were read."""
    is_reading: bool = False
    """Whether partitions are read in the pool: two reads would each lose the answers of the other."""


class Fetches:
    """The handlers of Fetch and of the other APIs that read offsets."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._rng = random.Random()
        self._waiting: dict[ServedLog, set[Waiting]] = {}
        self._woken: set[ServedLog] = set()
        self._woken_lock = threading.Lock()
        self._is_polling = False
        self._aborted = AbortedTransactions()
        self._newest = NewestReads(context.dirs.settings.instance.lastword_newest_bytes)

    def handlers(self) -> Handlers:
        """Return the handlers by the name of the API."""
        return {
            "Fetch": self._fetch,
            "ListOffsets": self._list_offsets,
            "OffsetForLeaderEpoch": self._offset_for_leader_epoch,
            "DeleteRecords": partial(self._context.in_pool, self._delete_records),
        }

    # -------------------------------------------------------------- sessions

    def _fetch(self, request: Request[messages.FetchRequest], connection: Peer) -> Any:
        find = self._context.topics.find
        partitions = [
            (find(t.topic, t.topic_id), p.partition) for t in request.body.topics for p in t.partitions
        ]
        return self._context.with_logs(partitions, partial(self._fetched, request), waits=False)

    def _fetched(self, request: Request[messages.FetchRequest]) -> Any:
        body = request.body
        session: FetchSession | None = None
        named = OrderedDict(
            (fetch.key, fetch)
            for topic in body.topics
            for served in (self._context.topics.find(topic.topic, topic.topic_id),)
            for fetch in (
                PartitionFetch(
                    topic.topic,
                    topic.topic_id,
                    partition.partition,
                    partition.fetch_offset,
                    partition.partition_max_bytes,
                    partition.current_leader_epoch,
                    served is not None and served.is_newest,
                    topic.topic if served is None else served.name,
                )
                for partition in topic.partitions
            )
        )
        if body.session_epoch in (-1, 0):
            if body.session_id:
                self._sessions.pop(body.session_id, None)
            if body.session_epoch == 0:
                session = self._new_session(named, request.version >= FIRST_WITH_IDS)
            return self._first_answer(request, session, list(named.values()), full=True)
        session = self._sessions.get(body.session_id)
        if session is None:
            return messages.FetchResponse(error_code=codes.FETCH_SESSION_ID_NOT_FOUND)
        if session.has_ids != (request.version >= FIRST_WITH_IDS):
            return messages.FetchResponse(error_code=codes.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != body.session_epoch:
            return messages.FetchResponse(error_code=codes.INVALID_FETCH_SESSION_EPOCH)
        self._sessions.move_to_end(session.id)
        session.used = self._context.loop.time()
        session.epoch = session.epoch % 0x7FFFFFFF + 1
        for topic in body.forgotten_topics_data:
            for number in topic.partitions:
                session.partitions.pop((topic.topic or topic.topic_id, number), None)
        for key, fetch in named.items():
            known = session.partitions.get(key)
            if known is not None:
                known.offset, known.most_bytes = fetch.offset, fetch.most_bytes
                known.leader_epoch = fetch.leader_epoch
            else:
                session.partitions[key] = fetch
        return self._first_answer(request, session, list(session.partitions.values()), full=False)

    def _new_session(
        self, partitions: OrderedDict[Any, PartitionFetch], has_ids: bool
    ) -> FetchSession | None:
        """Return a new session; None if there are too many that are in use."""
        now = self._context.loop.time()
        if len(self._sessions) >= MOST_SESSIONS:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used < KEPT_SECONDS:
                return None
            del self._sessions[oldest.id]
        number = 0
        while not number or number in self._sessions:
            number = self._rng.randrange(1, 1 << 31)
        session = self._sessions[number] = FetchSession(number, has_ids, partitions, now)
        return session

    # -------------------------------------------------------------- answers

    def _first_answer(
        self,
        request: Request[messages.FetchRequest],
        session: FetchSession | None,
        fetches: list[PartitionFetch],
        full: bool,
    ) -> Any:
        waiting = Waiting(request, session, fetches, full)
        newest = [fetch for fetch in fetches if fetch.is_newest]
        if newest:
            read = self._context.in_pool(self._read_newest, request, newest)
            return self._context.then(read, lambda: self._answer_or_wait(waiting))
        unknown = (
            self._unknown_transactions(fetches) if request.body.isolation_level == READ_COMMITTED else []
        )
        if unknown:
            read = self._context.in_pool(self._read_transactions, unknown)
            return self._context.then(read, lambda: self._answer_or_wait(waiting))
        return self._answer_or_wait(waiting)

    def _unknown_transactions(self, fetches: list[PartitionFetch]) -> list[tuple[ServedLog, int]]:
        """Return log and offset of the fetches whose aborted transactions are read from batches."""
        unknown = []
        for fetch in fetches:
            with (
                contextlib.suppress(Refused, LastwordError, WouldWait),  # again when it is answered
                self._context.dirs.files.without_requests(),
            ):
                log = self._log(fetch.topic, fetch.topic_id, fetch.partition, fetch.leader_epoch)
                if log.log_start <= fetch.offset < log.log_end and not self._aborted.is_known(
                    log, fetch.offset
                ):
                    unknown.append((log, fetch.offset))
        return unknown

    def _read_transactions(self, unknown: list[tuple[ServedLog, int]]) -> None:
        for log, offset in unknown:
            with contextlib.suppress(LastwordError):
                self._aborted.of(log, offset, offset + 1)

    def _read_newest(self, request: Request[messages.FetchRequest], newest: list[PartitionFetch]) -> None:
        """Read the newest records of these partitions, in a thread of the pool."""
        left = min(request.body.max_bytes, MOST_BYTES)
        size = 0
        for fetch in newest:
            fetch.batches = b""
            try:
                log = self._log(fetch.topic, fetch.topic_id, fetch.partition, fetch.leader_epoch)
                fetch.stable = log.stable_offset
                if fetch.offset >= log.log_start:
                    most_bytes = max(min(left - size, fetch.most_bytes), 0)
                    with self._context.budget.reserved(limit_of(log.active.file)):
                        fetch.batches = self._newest.read(log, fetch.offset, most_bytes, first=not size)
            except Refused:  # again when it is answered
                continue
            except LastwordError as error:
                _log.warning("%s-%d: %s", fetch.topic or fetch.topic_id.hex(), fetch.partition, error)
                fetch.batches = error
                continue
            size += len(fetch.batches)

    def _answer_or_wait(self, waiting: Waiting) -> Any:
        read = self._context.without_requests(self._read_all, waiting)
        if isinstance(read, asyncio.Future):
            return self._context.then(read, lambda: self._response_or_wait(waiting, read.result()))
        return self._response_or_wait(waiting, read)

    def _response_or_wait(self, waiting: Waiting, is_enough: bool) -> Any:
        waits = waiting.request.body.max_wait_ms > 0 and not self._context.is_closing
        return self._wait(waiting) if waits and waiting.fetches and not is_enough else self._response(waiting)

    def _read_all(self, waiting: Waiting, again: Container[int] | None = None) -> bool:
        """Read the partitions of a fetch; return whether the answer need not wait for more.

        `again`: the numbers of those that are read again; None: all are read.
        """
        request = waiting.request
        left = min(request.body.max_bytes, MOST_BYTES)
        answers: list[Any] = [None] * len(waiting.fetches) if again is None else list(waiting.answers)
        size, has_error = sum(len(part) for answer in answers if answer for part in answer.records), False
        for number, fetch in enumerate(waiting.fetches):
            before = answers[number]
            if before is not None:
                if again is not None and number not in again:
                    continue
                size -= sum(map(len, before.records))
            answers[number], read = self._read(request, fetch, left - size, first=not size)
            size += read
            has_error = has_error or answers[number].error_code != 0
        waiting.answers = answers  # as a whole: a read that needs a request is repeated in the pool
        return size >= request.body.min_bytes or has_error

    def _changed(self, fetch: PartitionFetch, answer: Any) -> bool:
        """Return whether an incremental answer has to have the partition, besides its records."""
        return (
            answer.error_code != 0
            or fetch.high_watermark != answer.high_watermark
            or fetch.log_start != answer.log_start_offset
            or fetch.has_error
        )

    def _response(self, waiting: Waiting) -> Message:
        session = waiting.session
        responses: list[Any] = []
        at: dict[Any, Any] = {}
        for fetch, answer in zip(waiting.fetches, waiting.answers, strict=True):
            if not waiting.full and not answer.records and not self._changed(fetch, answer):
                continue
            fetch.high_watermark, fetch.log_start = answer.high_watermark, answer.log_start_offset
            fetch.has_error = answer.error_code != 0
            if session is not None and answer.records and fetch.key in session.partitions:
                session.partitions.move_to_end(fetch.key)
            key = fetch.key[0]
            topic = at.get(key)
            if topic is None:
                topic = at[key] = messages.FetchResponse.FetchableTopicResponse(
                    topic=fetch.topic, topic_id=fetch.topic_id
                )
                responses.append(topic)
            topic.partitions.append(answer)
        return messages.FetchResponse(session_id=0 if session is None else session.id, responses=responses)

    def _read(
        self, request: Request[messages.FetchRequest], fetch: PartitionFetch, most_bytes: int, *, first: bool
    ) -> tuple[Any, int]:
        """Return the answer for one partition, and its bytes of records."""
        answer = messages.FetchResponse.PartitionData(
            partition_index=fetch.partition, high_watermark=-1, aborted_transactions=None, records=[]
        )
        body = request.body
        try:
            log = self._log(fetch.topic, fetch.topic_id, fetch.partition, fetch.leader_epoch, fetch.name)
            if body.replica_id >= 0 or body.replica_state.replica_id >= 0:
                raise Refused(codes.NOT_LEADER_OR_FOLLOWER, "there are no other replicas")
            if self._context.refuse is not None:
                topic = self._context.topics.find(fetch.topic, fetch.topic_id)
                assert topic is not None
                self._context.refuse(request, topic)
            committed = body.isolation_level == READ_COMMITTED
            stable = fetch.stable if fetch.is_newest else log.stable_offset
            end = stable if fetch.is_newest else log.log_end
            answer.high_watermark = end
            answer.last_stable_offset = stable
            answer.log_start_offset = log.log_start
            if not log.log_start <= fetch.offset <= end:
                raise Refused(codes.OFFSET_OUT_OF_RANGE, "")
            if fetch.is_newest:
                batches, fetch.batches = fetch.batches, None
                if isinstance(batches, LastwordError):
                    raise batches
                answer.records = [batches] if batches else []
                answer.aborted_transactions = [] if committed else None
                return answer, len(batches or b"")
            limit = stable if committed else end
            read = read_log(log, fetch.offset, limit, min(most_bytes, fetch.most_bytes), first=first)
            answer.records = read.records
            if committed:
                found = self._aborted.of(log, fetch.offset, read.end) if read.size else []
                answer.aborted_transactions = [
                    messages.FetchResponse.AbortedTransaction(producer_id=producer_id, first_offset=first)
                    for producer_id, first in found
                ]
            return answer, read.size
        except Refused as refused:
            answer.error_code = refused.code
        except LastwordError as error:
            answer.error_code = error.kafka_code
        answer.high_watermark = answer.last_stable_offset = answer.log_start_offset = -1
        return answer, 0

    def _log(
        self, name: str, topic_id: bytes, partition: int, leader_epoch: int = -1, known: str = ""
    ) -> ServedLog:
        """Return the log of a partition; Refused if there is none, or its leader epoch is another one.

        `known`: the name that the topic of an id had before.
        """
        topic = self._context.topics.find(name, topic_id)
        if topic is None:
            unknown = codes.UNKNOWN_TOPIC_OR_PARTITION if name else codes.UNKNOWN_TOPIC_ID
            if not name and self._context.topics.get(known):
                unknown = codes.INCONSISTENT_TOPIC_ID  # deleted and created again in a session
            raise Refused(unknown, NOT_HOSTED)
        log = topic.log(partition)
        if leader_epoch >= 0:
            current = log.epochs.latest or 0
            if leader_epoch < current:
                raise Refused(codes.FENCED_LEADER_EPOCH, f"the leader epoch is {current}")
            if leader_epoch > current:
                raise Refused(codes.UNKNOWN_LEADER_EPOCH, f"the leader epoch is {current}")
        return log

    # -------------------------------------------------------------- long polls

    def _wait(self, waiting: Waiting) -> asyncio.Future[Any]:
        waiting.future = self._context.loop.create_future()
        # A client that has gone is noticed with the answer.
        most_ms = self._context.dirs.settings.instance.connections_max_idle_ms
        seconds = min(waiting.request.body.max_wait_ms, most_ms) / 1000
        waiting.timer = self._context.loop.call_later(seconds, self._answer, waiting)
        appended = False
        for fetch, answer in zip(waiting.fetches, waiting.answers, strict=True):
            log = self._log(fetch.topic, fetch.topic_id, fetch.partition)
            waiting.logs.append(log)
            others = self._waiting.get(log)
            if others is None:
                others = self._waiting[log] = set()
                log.on_append(partial(self._appended, log))
            others.add(waiting)
            try:
                with self._context.dirs.files.without_requests():
                    end = log.stable_offset if fetch.is_newest else log.log_end
            except WouldWait:
                end = -1
            appended = appended or end != answer.high_watermark
        if not self._is_polling and self._context.dirs.files.sends_requests:
            self._is_polling = True
            self._poll()
        if appended:  # between the read and the registration
            for log in waiting.logs:
                self._appended(log)
        return waiting.future

    def _poll(self) -> None:
        """Load the newest version, again and again while a fetch waits: other processes may commit."""
        self._is_polling = bool(self._waiting) and not self._context.is_closing
        if self._is_polling:
            self._context.refreshed().add_done_callback(self._polled)

    def _polled(self, done: asyncio.Future[Any]) -> None:
        if not done.cancelled() and done.exception() is not None:
            _log.warning("the newest version was not loaded: %s", done.exception())
        self._context.loop.call_later(POLL_SECONDS, self._poll)

    def _appended(self, log: ServedLog) -> None:
        """Note that a log has grown. Called with its lock held, in any thread."""
        with self._woken_lock:
            first = not self._woken
            self._woken.add(log)
        if first:
            self._context.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._woken_lock:
            woken, self._woken = self._woken, set()
        concerned: dict[Waiting, None] = {}
        for log in woken:
            concerned.update(dict.fromkeys(self._waiting.get(log, ())))
        for waiting in concerned:
            if any(fetch.is_newest for fetch in waiting.fetches):
                self._answer(waiting)  # newest records are read in the pool, by the next fetch
            else:
                self._read_again(waiting, woken)

    def _read_again(self, waiting: Waiting, woken: set[ServedLog]) -> None:
        waiting.again |= {number for number, log in enumerate(waiting.logs) if log in woken}
        while waiting.again and not waiting.is_reading:
            again, waiting.again = waiting.again, set()
            read = self._context.without_requests(self._read_all, waiting, again)
            if isinstance(read, asyncio.Future):
                waiting.is_reading = True
                read.add_done_callback(partial(self._was_read, waiting))
            elif read:
                self._answer(waiting)

    def _was_read(self, waiting: Waiting, done: asyncio.Future[Any]) -> None:
        waiting.is_reading = False
        if failure(done) or done.result():
            self._answer(waiting)
        else:
            self._read_again(waiting, set())

    def _answer(self, waiting: Waiting) -> None:
        for log in waiting.logs:
            others = self._waiting.get(log)
            if others is not None:
                others.discard(waiting)
                if not others:
                    del self._waiting[log]
                    log.on_append(None)
        waiting.logs = []
        if waiting.timer is not None:
            waiting.timer.cancel()
        if waiting.future is not None and not waiting.future.done():
            waiting.future.set_result(self._response(waiting))

    def answer_all(self) -> None:
        """Answer every fetch that waits."""
        for waiting in {waiting for others in self._waiting.values() for waiting in others}:
            self._answer(waiting)

    # -------------------------------------------------------------- offsets

    def _list_offsets(self, request: Request[messages.ListOffsetsRequest], connection: Peer) -> Any:
        special = all(p.timestamp in (EARLIEST, LATEST) for t in request.body.topics for p in t.partitions)
        if special:
            get = self._context.topics.find
            partitions = [(get(t.name), p.partition_index) for t in request.body.topics for p in t.partitions]
            return self._context.with_logs(partitions, lambda: self._listed_offsets(request))
        return self._context.in_pool(self._listed_offsets, request)

    def _listed_offsets(self, request: Request[messages.ListOffsetsRequest]) -> Message:
        body = request.body
        topics: dict[str, Any] = {}
        named = Counter(
            (topic.name, part.partition_index) for topic in body.topics for part in topic.partitions
        )
        for topic in body.topics:
            kind = messages.ListOffsetsResponse.ListOffsetsTopicResponse
            partitions = topics.setdefault(topic.name, kind(name=topic.name, partitions=[])).partitions
            for partition in topic.partitions:
                count = named.pop((topic.name, partition.partition_index), 0)
                if not count:
                    continue  # named twice, and answered
                answer = messages.ListOffsetsResponse.ListOffsetsPartitionResponse(
                    partition_index=partition.partition_index
                )
                partitions.append(answer)
                with Refusing(answer, text=False):
                    if count > 1:
                        raise Refused(codes.INVALID_REQUEST, "the partition is named twice")
                    log = self._log(
                        topic.name, ZERO_UUID, partition.partition_index, partition.current_leader_epoch
                    )
                    committed = body.isolation_level == READ_COMMITTED or topic.name.endswith(NEWEST_SUFFIX)
                    self._find_offset(log, partition.timestamp, committed, request.version, answer)
                if request.version < 4:
                    answer.leader_epoch = -1  # these versions have no field for it
        return messages.ListOffsetsResponse(topics=list(topics.values()))

    def _find_offset(
        self, log: ServedLog, timestamp: int, committed: bool, version: int, answer: Any
    ) -> None:
        end = log.stable_offset if committed else log.log_end
        oldest = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
        if timestamp < 0 and version < oldest.get(timestamp, 0):
            raise Refused(codes.UNSUPPORTED_VERSION, "")
        if timestamp in (EARLIEST, EARLIEST_LOCAL):
            answer.offset = log.log_start
            entries = log.epochs.entries
            if entries and entries[0].start_offset <= answer.offset:
                answer.leader_epoch = log.epochs.at(answer.offset + 1)
        elif timestamp == LATEST:
            answer.offset, answer.leader_epoch = end, log.epochs.latest or 0
        elif timestamp in (LATEST_TIERED, EARLIEST_PENDING):
            pass  # there are no other tiers
        elif timestamp == MAX_TIMESTAMP:
            self._find_record(log, record_of_largest_time, end, answer)
        elif timestamp >= 0:
            self._find_record(log, partial(record_at_time, timestamp=timestamp), end, answer)
        else:
            raise Refused(codes.UNSUPPORTED_VERSION, f"timestamp {timestamp}")

    def _find_record(
        self, log: ServedLog, find: Callable[[ServedLog], RawRecord | None], end: int, answer: Any
    ) -> None:
        with self._context.budget.reserved(limit_of(log.active.file)):
            record = find(log)
        if record is not None and record.offset < end:
            answer.offset, answer.timestamp = record.offset, record.timestamp
            answer.leader_epoch = log.epochs.at(record.offset + 1)

    def _offset_for_leader_epoch(
        self, request: Request[messages.OffsetForLeaderEpochRequest], connection: Peer
    ) -> Any:
        get = self._context.topics.find
        partitions = [(get(t.topic), p.partition) for t in request.body.topics for p in t.partitions]
        return self._context.with_logs(partitions, lambda: self._ends_of_epochs(request))

    def _ends_of_epochs(self, request: Request[messages.OffsetForLeaderEpochRequest]) -> Any:
        from lastword.protocol.refusals import answer_with_rows

        answer = answer_with_rows(request)
        for topic, described in zip(request.body.topics, answer.topics, strict=True):
            for wanted, result in zip(topic.partitions, described.partitions, strict=True):
                with Refusing(result, text=False):
                    log = self._log(topic.topic, ZERO_UUID, wanted.partition, wanted.current_leader_epoch)
                    result.leader_epoch, result.end_offset = _end_of_epoch(log, wanted.leader_epoch)
        return answer

    # -------------------------------------------------------------- DeleteRecords

    def _delete_records(self, request: Request[messages.DeleteRecordsRequest], connection: Peer) -> Any:
        from lastword.protocol.refusals import answer_with_rows

        answer = answer_with_rows(request)
        for topic, described in zip(request.body.topics, answer.topics, strict=True):
            for wanted, result in zip(topic.partitions, described.partitions, strict=True):
                with Refusing(result, text=False):
                    number, offset = wanted.partition_index, wanted.offset
                    result.low_watermark = self._raise_start(topic.name, number, offset)
        return answer

    def _raise_start(self, name: str, partition: int, offset: int) -> int:
        from lastword.api.cleaning import trim

        if name.endswith(NEWEST_SUFFIX):
            raise Refused(codes.INVALID_TOPIC_EXCEPTION, "")
        log = self._log(name, ZERO_UUID, partition)
        if not log.config.deletes:
            raise Refused(codes.POLICY_VIOLATION, "the configured policy does not delete records")
        if offset == -1:
            offset = log.log_end
        if not 0 <= offset <= log.log_end:
            raise OffsetOutOfRangeError.above(log.name, offset, log.log_end)
        if offset > log.log_start:
            self._context.dirs.transaction(lambda dirs: trim(dirs, name, partition, offset))
        return log.log_start


def _end_of_epoch(log: ServedLog, epoch: int) -> tuple[int, int]:
    """Return the largest epoch that is not above `epoch`, and the offset at which it ends; -1 if unknown."""
    entries = log.epochs.entries
    latest = log.epochs.latest or 0
    if epoch < 0 or epoch > latest:
        return -1, -1
    if epoch == latest:
        return epoch, log.log_end
    above = next(entry for entry in entries if entry.epoch > epoch)
    below = [entry for entry in entries if entry.epoch <= epoch]
    return (below[-1].epoch if below else epoch), above.start_offset
