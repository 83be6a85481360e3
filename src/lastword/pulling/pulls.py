"""`pull`: copy topics of a Kafka cluster, whole or what is new, once or following.

```
 metadata ──> topics in the directory ──> rounds ──> positions of groups
                                           │
             one thread for each leader:   ends of the logs, epochs ── checks ──> Fetch ──> append_copies ─┐
                                                                                   └──────────────────────┘
```

A round ends for all threads when a partition has to be asked elsewhere: its leader has moved, a broker does
not answer, metadata are old. The next round begins with new metadata. A failed request is repeated with a
backoff, without progress for `RETRY_SECONDS` at most (following: without a limit).

Before the first fetch of a partition, and again after an error, the copy is compared with the log of the
cluster, so that a copy never continues with another log:

- the topic id, and the id of the cluster (saved as the setting `lastword.pulled.from`);
- the log end: not below that of the copy;
- the leader epoch of the copy's end: it does not end below it (OffsetForLeaderEpoch);
- the last batch of the copy: records with equal offsets are equal. Either log may have been cleaned since.

Records that the cluster has deleted (retention, DeleteRecords) raise the log start of the copy, as a
follower does. A compacted log has gaps, which stay: the copy has exactly the batches of the cluster, and
ends where the cluster's log ends.

Memory: `BUFFER_BYTES` are divided among the leaders, and an answer has one batch at least, of `MAX_FRAME` at
most.
"""

from __future__ import annotations

import base64
import logging
import os
import random
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from lastword.api.copying import make_topic, settings_of
from lastword.api.open_dirs import OpenDirs, PathLike
from lastword.api.opening import open as open_log
from lastword.clock import Clock, SystemClock
from lastword.config import TOPIC_SETTINGS
from lastword.errors import (
    BrokerUnreachableError,
    ClusterDiffersError,
    CorruptBatchError,
    DivergedLogError,
    InconsistentTopicIdError,
    LastwordError,
    PartialFailure,
    RecordTooLargeError,
    UnknownTopicError,
    UnsupportedVersionError,
    UsageError,
    nearest,
)
from lastword.files import DEFAULT
from lastword.logdir.checkpoints import LogStart, TopicPartition
from lastword.partition.checkpoint_file import LeaderEpochs
from lastword.protocol import codes
from lastword.protocol.messages import (
    DescribeConfigsRequest,
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from lastword.protocol.schemas import ZERO_UUID
from lastword.pulling.client_config import ClientConfig
from lastword.pulling.client_config import client_config as read_client_config
from lastword.pulling.cluster import (
    MAX_FRAME,
    NO_NODE,
    Cluster,
    Connection,
    Metadata,
    PartitionFacts,
    backoff,
    pause,
    refused,
)
from lastword.pulling.positions import PARTITIONS, TOPIC, Asked, SavedPositions, ask_positions
from lastword.records import formats
from lastword.units import format_bytes
from lastword.values import Progress, ProgressLike, Value, listener, plural

if TYPE_CHECKING:
    from lastword.partition.log import PartitionLog
    from lastword.partition.view import PartitionView
    from lastword.records.batch import BatchHeader
    from lastword.records.record import RawRecord
    from lastword.segment.segment import Segment

BUFFER_BYTES = 64 << 20
FETCH_BYTES = 16 << 20
PARTITION_BYTES = 4 << 20
WAIT_MS = 500
"""How long a broker may wait for new records; also until a pull that follows ends after `stop`."""
RETRY_SECONDS = 60.0
POSITIONS_SECONDS = 10.0
METADATA_SECONDS = 60.0
EMPTY_ANSWERS = 3
"""Answers without a batch after which a log has none up to its end."""
TICK_SECONDS = 0.1
TOPIC_RESOURCE = 2
FROM_TOPIC = 1
EARLIEST, LATEST = -2, -1
PULLED_FROM = "lastword.pulled.from"
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
_STEP = struct.Struct(">qi")
_OVERHEAD = 12

_log = logging.getLogger("lastword.pull")


@dataclass(frozen=True, slots=True)
class PullResult(Value):
    """What `pull` has done with one partition.

    Attributes:
        topic: The topic.
        partition: The partition.
        log_start: The log start of the copy.
        first_offset: The log end of the copy before.
        next_offset: The log end of the copy now.
        remote_end: The log end in the cluster.
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
        end = f" of {self.remote_end} ({self.reason})" if self.reason else ""
        return (
            f"{self.topic}-{self.partition}: {plural(self.records, 'record')} in "
            f"{plural(self.batches, 'batch')} ({format_bytes(self.pulled_bytes)}), "
            f"from offset {self.first_offset} to {self.next_offset}{end}{gone}"
        )


def pull(
    bootstrap_servers: str,
    topics: str | Sequence[str] | None,
    to: PathLike,
    *,
    follow: bool = False,
    groups: bool = True,
    dry_run: bool = False,
    client_config: Mapping[str, object] | PathLike | None = None,
    clock: Clock | None = None,
    progress: ProgressLike | bool | None = None,
    stop: Callable[[], bool] | None = None,
) -> list[PullResult]:
    """Copy topics of a Kafka cluster into a log directory, with their offsets; again: what is new.

    Batches are copied as they are: offsets, timestamps, headers, producers, transactions with their markers,
    leader epochs, compression. The topics have the ids and the settings of the cluster, and the positions of
    groups are records of `__consumer_offsets`. The directory opens here and in Kafka. A pull that was stopped
    or killed goes on where the copies end.

    Up to the high watermark, so a transaction that is open in the cluster is open in the copy. Without
    `follow` each copy ends where the cluster's log ended at the beginning of the call.

    Only pull appends to a copy: other appends are refused as long as the setting `lastword.pulled.from` of
    the topic is set. A copy may be read, cleaned and expired.

    Args:
        bootstrap_servers: `host:port` of a broker, several with commas.
        topics: Their names; None: all topics that are not internal.
        to: A log directory, made if it is absent. It holds copies of one cluster only.
        follow: Go on with new records until `stop`.
        groups: Copy the positions of groups in these topics, too.
        dry_run: Change nothing; the results have the offsets that would be copied.
        client_config: Properties of a Kafka client, or their file: `security.protocol`, `sasl.*`, `ssl.*` by
            the names of Java or of librdkafka. Certificates are PEM files.
        clock: For tests: another source of the time.
        progress: True, or a function of `Progress`.
        stop: Called while it runs; True ends the call at a safe point, with the results so far.

    Returns:
        A `PullResult` for each partition.

    Raises:
        BrokerUnreachableError: No broker answers.
        AuthenticationFailedError: The cluster refuses the credentials, or its certificate is refused.
        NotAuthorizedError: The cluster does not allow to read a topic.
        UnknownTopicError: The cluster has no such topic.
        ClusterDiffersError: The directory has copies of another cluster.
        InconsistentTopicIdError: A topic was deleted and created again in the cluster.
        DivergedLogError: A copy has records that the cluster does not have.
        PartialFailure: As above, for some partitions. It is raised at the end, with the results of the
            others. It is also an instance of the first error's class.
    """
    asked_stop = stop or (lambda: False)
    config = read_client_config(client_config)
    clock = clock or SystemClock()
    names = [topics] if isinstance(topics, str) else None if topics is None else list(dict.fromkeys(topics))
    if names is not None and any(name in INTERNAL for name in names):
        raise UsageError(
            "internal topics are not copied",
            remedy="name other topics; positions of groups are copied anyway",
        )
    if "://" in os.fspath(to):
        raise UsageError("pull writes to a directory", remedy="name a directory, and copy that to the bucket")
    with ExitStack() as stack:
        cluster = Cluster(bootstrap_servers, config, clock, asked_stop)
        stack.callback(cluster.close)
        metadata, names = _wanted(cluster, names)
        logs = None
        if not dry_run or DEFAULT.is_dir(os.fspath(to)):
            mode: Any = "r" if dry_run else "a"
            logs = stack.enter_context(open_log(to, mode, log_cleaner_enable=False, clock=clock))
        pulling = Pulling(
            cluster,
            config,
            None if logs is None else logs.dirs,
            clock,
            asked_stop,
            follow=follow,
            groups=groups,
        )
        stack.callback(pulling.close)
        return pulling.plan(metadata, names) if dry_run else pulling.run(metadata, names, listener(progress))


def _wanted(cluster: Cluster, names: list[str] | None) -> tuple[Metadata, list[str]]:
    """Return metadata with the topics to copy, and their names."""
    metadata = cluster.metadata(names)
    if names is None:
        names = [
            name for name, topic in sorted(metadata.topics.items()) if not topic.internal and not topic.error
        ]
        return metadata, [name for name in names if name not in INTERNAL]
    for name in names:
        facts = metadata.topics.get(name)
        code = codes.UNKNOWN_TOPIC_OR_PARTITION if facts is None else facts.error
        if code in (codes.UNKNOWN_TOPIC_OR_PARTITION, codes.INVALID_TOPIC_EXCEPTION):
            near = nearest(name, cluster.metadata(None).topics)
            raise UnknownTopicError(
                f"no topic {name!r} in {cluster.bootstrap}{f'; nearest: {near!r}' if near else ''}",
                remedy="check the name; a topic that this user may not describe is not shown either",
            )
        if code and code not in codes.RETRIABLE:
            raise refused(cluster.bootstrap, code, f"describe {name}")
    return metadata, names


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


class Pulling:
    """One call of `pull`."""

    def __init__(
        self,
        cluster: Cluster,
        config: ClientConfig,
        dirs: OpenDirs | None,
        clock: Clock,
        stop: Callable[[], bool],
        *,
        follow: bool,
        groups: bool,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._dirs: OpenDirs = dirs  # type: ignore[assignment]  # None only in a dry run
        self._clock = clock
        self._asked_stop = stop
        self._follow = follow
        self._groups = groups
        self._rng = random.Random()
        self._ended = threading.Event()
        self._round_over = threading.Event()
        self._connections: dict[int, Connection] = {}
        self._attempts: dict[int, int] = {}
        self._copies: dict[TopicPartition, Copy] = {}
        self._failed: dict[str, LastwordError] = {}
        self._positions_due = clock.monotonic() + POSITIONS_SECONDS
        self._positions: dict[TopicPartition, int] = {}
        self._asked: Asked | None = None
        self._saved: SavedPositions | None = None
        self._nodes = 1

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _stopped(self) -> bool:
        return self._ended.is_set() or self._asked_stop()

    # -------------------------------------------------------------- the whole call

    def plan(self, metadata: Metadata, topics: Sequence[str]) -> list[PullResult]:
        """Return what `run` would copy."""
        self._check_cluster(metadata.cluster_id)
        for name in topics:
            topic_id, copied = metadata.topics[name].topic_id, {}
            if self._dirs is not None and name in self._dirs.topics():
                self._check_copy(name, topic_id)
                copied = {number: self._dirs.view(name, number) for number in self._dirs.partitions(name)}
            for number in metadata.topics[name].partitions:
                self._copies[TopicPartition(name, number)] = _planned(
                    TopicPartition(name, number), topic_id, copied.get(number)
                )
        self._route(metadata)
        for node, copies in self._by_leader().items():
            if node == NO_NODE:
                continue
            connection = self._connection(node)
            for copy, ends in self._ends(connection, copies).items():
                self._check_ends(copy, ends)
                copy.checked = True
                copy.log_end = max(copy.log_end, ends.start)
        return [replace(result, reason=None) for result in self._results()]

    def run(
        self, metadata: Metadata, topics: Sequence[str], progress: ProgressLike | None
    ) -> list[PullResult]:
        """Copy the topics."""
        self._check_cluster(metadata.cluster_id)
        for name in topics:
            try:
                self._prepare(name, metadata)
            except LastwordError as error:
                self._failed[name] = error
        names = [name for name in topics if name not in self._failed]
        self._ask_positions(names, seconds=0)  # before the records: then the copy has the records below them
        began = self._clock.monotonic()
        try:
            self._rounds(metadata, names, progress, began)
            if self._asked is None:
                self._ask_positions(names, seconds=RETRY_SECONDS)
        finally:
            self._ended.set()
        self._save_positions(names)
        return self._results()

    def _results(self) -> list[PullResult]:
        for copy in self._copies.values():
            if copy.error is None and not copy.is_done and not self._asked_stop():
                copy.error = copy.failure
        errors = [*self._failed.values(), *(c.error for c in self._copies.values() if c.error is not None)]
        results = [copy.result(self._positions.get(tp, 0)) for tp, copy in self._copies.items()]
        if errors:
            raise PartialFailure.of([r for r in results if self._copies[_tp(r)].error is None], errors)
        return results

    # -------------------------------------------------------------- topics

    def _check_cluster(self, cluster_id: str) -> None:
        """Raise ClusterDiffersError if the directory has copies of another cluster."""
        self._cluster_id = cluster_id
        for name in () if self._dirs is None else self._dirs.topics():
            other = self._dirs.config(name).lastword_pulled_from
            if other is not None and other != cluster_id:
                raise ClusterDiffersError(
                    f"{name} in {self._dirs.paths[0]} is a copy from the cluster {other}, and "
                    f"{self._cluster.bootstrap} is the cluster {cluster_id}",
                    remedy="pull to another directory",
                    file=self._dirs.paths[0],
                )

    def _check_copy(self, name: str, topic_id: bytes | None) -> None:
        """Raise if the topic of the directory is no copy of the topic with this id."""
        known, wanted = self._dirs.topic_id(name), _id_text(topic_id)
        if None not in (known, wanted) and known != wanted:
            raise InconsistentTopicIdError(
                f"{name} in {self._dirs.paths[0]} has the topic id {known}, and {wanted} in "
                f"{self._cluster.bootstrap}: it was deleted and created again, or is another topic",
                remedy="pull to another directory, or drop the topic here first",
                file=self._dirs.paths[0],
            )
        if self._dirs.config(name).lastword_pulled_from is None and any(
            self._dirs.view(name, number).log_end for number in self._dirs.partitions(name)
        ):
            raise UsageError(
                f"{name} in {self._dirs.paths[0]} is no copy: it may have records of its own",
                remedy="pull to another directory, or drop the topic here first",
                file=self._dirs.paths[0],
            )

    def _prepare(self, name: str, metadata: Metadata) -> None:
        """Make the topic and its partitions with the cluster's settings, and add their copies."""
        facts = metadata.topics.get(name)
        if facts is None:
            return
        settings = self._settings(name)
        if name in self._dirs.topics():
            self._check_copy(name, facts.topic_id)
            own = settings_of(self._dirs, name)
            settings |= {key: value for key, value in own.items() if key.startswith("lastword.")}
        settings[PULLED_FROM] = self._cluster_id
        make_topic(self._dirs, name, list(facts.partitions), _id_text(facts.topic_id), settings)
        for number in facts.partitions:
            tp = TopicPartition(name, number)
            if tp not in self._copies:
                log = self._dirs.log(*tp)
                self._dirs.log_dir(*tp).note_copies(*tp)
                self._copies[tp] = Copy(
                    tp, facts.topic_id, log.log_start, log.log_end, log.epochs.latest, log.log_end
                )

    def _settings(self, topic: str) -> dict[str, str]:
        """Return the topic's own settings in the cluster that have an effect here, as text."""
        answer = self._cluster.ask(
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsRequest.DescribeConfigsResource(
                        resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=None
                    )
                ]
            )
        )
        result = answer.results[0]
        if result.error_code in (codes.TOPIC_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED):
            _log.warning("the settings of %s are not copied: DESCRIBE_CONFIGS is not allowed", topic)
            return {}
        if result.error_code:
            raise refused(self._cluster.bootstrap, result.error_code, f"describe the settings of {topic}")
        settings = {}
        for row in result.configs:
            setting = TOPIC_SETTINGS.get(row.name)
            if setting is None or row.config_source != FROM_TOPIC or row.value is None:
                continue
            try:
                settings[row.name] = setting.show(setting.read(row.value))
            except ValueError:
                _log.warning("%s: %s=%s is not copied: no such value here", topic, row.name, row.value)
        return settings

    # -------------------------------------------------------------- positions

    def _ask_positions(self, topics: Sequence[str], seconds: float) -> None:
        """Ask for the positions; after `seconds` of failures that may pass, note the last one."""
        began, attempt = self._clock.monotonic(), 0
        while self._groups and topics and not self._stopped():
            try:
                self._asked = ask_positions(self._cluster, topics)
                return
            except LastwordError as error:
                if not seconds:
                    _log.warning("positions of groups: %s", error.message)
                    return
                if not error.retriable or self._clock.monotonic() - began > seconds:
                    self._failed[TOPIC] = error  # raised at the end; the records are copied
                    return
                pause(self._clock, backoff(attempt, self._rng), self._stopped)
                attempt += 1

    def _save_positions(self, topics: Sequence[str]) -> None:
        if self._asked is None:
            return
        self._dirs.sync()  # a position must not survive a power cut that its records do not survive
        self._saved = self._saved or SavedPositions(self._dirs)
        ends = {tp: copy.log_end for tp, copy in self._copies.items()}
        self._positions = self._saved.save(self._asked, topics, ends, self._shape_of_positions)

    def _shape_of_positions(self) -> tuple[int, str | None]:
        facts = self._cluster.metadata([TOPIC]).topics.get(TOPIC)
        if facts is None or facts.error or not facts.partitions:
            return PARTITIONS, None
        return len(facts.partitions), _id_text(facts.topic_id)

    # -------------------------------------------------------------- rounds

    def _rounds(
        self, metadata: Metadata, topics: Sequence[str], progress: ProgressLike | None, began: float
    ) -> None:
        first = True
        while not self._stopped() and any(not copy.is_done for copy in self._copies.values()):
            if not first:
                new = self._new_metadata(topics)
                if new is None:
                    continue
                metadata = new
                for name in topics if self._follow else ():
                    try:
                        self._prepare(name, metadata)
                    except LastwordError as error:
                        _log.warning("the settings of %s: %s", name, error.message)
            first = False
            self._route(metadata)
            self._give_up()
            self._round_over.clear()
            by_leader = self._by_leader()
            self._nodes = max(1, len(by_leader))
            if by_leader:
                with ThreadPoolExecutor(len(by_leader), "lastword-pull") as pool:
                    threads = [pool.submit(self._serve, node, copies) for node, copies in by_leader.items()]
                    try:
                        self._watch(threads, topics, progress, began)
                    except BaseException:
                        self._ended.set()
                        raise

    def _watch(
        self,
        threads: Sequence[Future[None]],
        topics: Sequence[str],
        progress: ProgressLike | None,
        began: float,
    ) -> None:
        """Wait for the threads of a round; meanwhile report, and save positions if the pull follows."""
        metadata_due = self._clock.monotonic() + METADATA_SECONDS
        pending: Iterable[Future[None]] = threads
        while pending:
            done, pending = wait(pending, TICK_SECONDS)
            for thread in done:
                thread.result()
            self._report(progress, began)
            now = self._clock.monotonic()
            if self._follow and now >= metadata_due:
                self._round_over.set()
            if self._follow and self._groups and now >= self._positions_due and not self._stopped():
                self._positions_due = now + POSITIONS_SECONDS
                self._ask_positions(topics, seconds=0)
                self._save_positions(topics)

    def _report(self, progress: ProgressLike | None, began: float) -> None:
        if progress is None or self._follow:
            return
        copies = [copy for copy in self._copies.values() if copy.end is not None]
        size = sum(copy.pulled_bytes for copy in copies)
        offsets = sum(max(0, (copy.end or 0) - copy.first_offset) for copy in copies)
        done = sum(copy.log_end - copy.first_offset for copy in copies)
        total = size * offsets // done if done > 0 else size
        progress(Progress.at("pull", size, max(size, total), self._clock.monotonic() - began))

    def _new_metadata(self, topics: Sequence[str]) -> Metadata | None:
        """Return metadata for the next round; None: try again."""
        try:
            metadata = self._cluster.metadata(list(topics))
        except LastwordError as error:
            if not error.retriable:
                raise
            for copy in self._copies.values():
                self._fail(copy, error)
            self._give_up()
            self._back_off(NO_NODE)
            return None
        for name in topics:
            facts = metadata.topics.get(name)
            if facts is None or facts.error:
                code = codes.UNKNOWN_TOPIC_OR_PARTITION if facts is None else facts.error
                metadata.topics.pop(name, None)
                why = refused(self._cluster.bootstrap, code, f"describe {name}")
                if code == codes.UNKNOWN_TOPIC_OR_PARTITION:
                    why = UnknownTopicError(
                        f"{name} is not in {self._cluster.bootstrap} any more",
                        remedy="the copy stays as it is",
                    )
                for copy in self._of(name):
                    self._fail(copy, why)
                continue
            for copy in self._of(name):
                if copy.topic_id != facts.topic_id and copy.error is None:
                    copy.error = InconsistentTopicIdError(
                        f"{name} was deleted in {self._cluster.bootstrap} and created again",
                        remedy="pull to another directory, or drop the topic here first",
                    )
        return metadata

    def _of(self, topic: str) -> list[Copy]:
        return [copy for tp, copy in self._copies.items() if tp.topic == topic]

    def _route(self, metadata: Metadata) -> None:
        """Set the leader of each partition."""
        for tp, copy in self._copies.items():
            topic = metadata.topics.get(tp.topic)
            facts = None if topic is None else topic.partitions.get(tp.partition)
            copy.leader = facts or PartitionFacts(NO_NODE, -1, codes.UNKNOWN_TOPIC_OR_PARTITION)
            if copy.leader.leader not in metadata.nodes:
                copy.leader = PartitionFacts(NO_NODE, -1, copy.leader.error or codes.LEADER_NOT_AVAILABLE)

    def _by_leader(self) -> dict[int, list[Copy]]:
        by_leader: dict[int, list[Copy]] = {}
        for copy in self._copies.values():
            if not copy.is_done:
                by_leader.setdefault(copy.leader.leader, []).append(copy)
        return by_leader

    def _give_up(self) -> None:
        """Make failures final that last for too long."""
        now = self._clock.monotonic()
        for copy in self._copies.values():
            since = copy.failing_since
            lasts = not self._follow or isinstance(copy.failure, UnknownTopicError)
            if lasts and since is not None and now - since > RETRY_SECONDS and not copy.is_done:
                copy.error = copy.failure

    def _fail(self, copy: Copy, error: LastwordError) -> None:
        """Note a failure after which the request is repeated."""
        if copy.is_done:
            return
        if copy.failing_since is None:
            _log.warning("%s: %s", copy.tp, error.message)
            copy.failing_since = self._clock.monotonic()
        copy.failure, copy.checked = error, False

    def _back_off(self, node: int) -> None:
        attempt = self._attempts.get(node, 0)
        self._attempts[node] = attempt + 1
        pause(self._clock, backoff(attempt, self._rng), self._is_over)

    def _is_over(self) -> bool:
        return self._round_over.is_set() or self._stopped()

    # -------------------------------------------------------------- one leader

    def _serve(self, node: int, copies: list[Copy]) -> None:
        """Copy the partitions of one leader until all are done or the round is over."""
        try:
            if node == NO_NODE:
                for copy in copies:
                    text = f"name the leader of {copy.tp}"
                    self._fail(copy, refused(self._cluster.bootstrap, copy.leader.error, text))
            else:
                while not self._is_over() and self._once(self._connection(node), copies):
                    self._attempts.pop(node, None)
                if all(copy.is_done for copy in copies):
                    return
        except BrokerUnreachableError as error:
            self._drop(node)
            for copy in copies:
                if not copy.is_done:
                    self._fail(copy, error)
        except LastwordError as error:
            self._drop(node)
            for copy in copies:
                if not copy.is_done:
                    copy.error = error
            return
        if not self._is_over():
            self._back_off(node)
        self._round_over.set()

    def _connection(self, node: int) -> Connection:
        connection = self._connections.get(node)
        if connection is not None and connection.is_expired:
            self._drop(node)
            connection = None
        if connection is None:
            connection = self._connections[node] = self._cluster.connect(node)
        return connection

    def _drop(self, node: int) -> None:
        connection = self._connections.pop(node, None)
        if connection is not None:
            connection.close()

    def _once(self, connection: Connection, copies: list[Copy]) -> bool:
        """Check and fetch once; return False if all is done, or a partition needs a new round."""
        unchecked = [copy for copy in copies if not copy.checked and copy.error is None]
        if unchecked:
            for copy, ends in self._ends(connection, unchecked).items():
                try:
                    self._begin(copy, ends)
                except LastwordError as error:
                    copy.error = error
        active = [copy for copy in copies if copy.checked and not copy.is_done]
        if active:
            self._fetch(connection, active)
            copies.append(copies.pop(0))  # another partition is the first in the next answer
        return any(not c.is_done for c in copies) and all(c.checked or c.is_done for c in copies)

    # -------------------------------------------------------------- checks

    def _ends(self, connection: Connection, copies: Sequence[Copy]) -> dict[Copy, RemoteEnds]:
        """Ask where the logs start and end, and where the epochs of the copies end."""
        starts = self._offsets(connection, copies, EARLIEST)
        ends = self._offsets(connection, copies, LATEST)
        epochs = self._epoch_ends(connection, copies)
        found = {}
        for copy in copies:
            start, end, (epoch, epoch_end) = starts.get(copy), ends.get(copy), epochs.get(copy, (-1, -1))
            if start is not None and end is not None:
                found[copy] = RemoteEnds(start, end, epoch, epoch_end)
        return found

    def _offsets(self, connection: Connection, copies: Sequence[Copy], which: int) -> dict[Copy, int]:
        by_name: dict[str, list[Any]] = {}
        for copy in copies:
            by_name.setdefault(copy.tp.topic, []).append(
                ListOffsetsRequest.ListOffsetsPartition(
                    partition_index=copy.tp.partition,
                    current_leader_epoch=copy.leader.epoch,
                    timestamp=which,
                )
            )
        topics = [
            ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=partitions)
            for name, partitions in by_name.items()
        ]
        answer = connection.ask(
            ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics, timeout_ms=10_000)
        )
        wanted = {copy.tp: copy for copy in copies}
        offsets: dict[Copy, int] = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                if tp not in wanted:
                    continue
                asked = wanted.pop(tp)
                if partition.error_code:
                    self._refuse(connection, asked, partition.error_code, "list its offsets")
                elif partition.offset < 0:
                    self._refuse(connection, asked, codes.UNKNOWN_SERVER_ERROR, "list its offsets")
                else:
                    offsets[asked] = partition.offset
        for copy in wanted.values():
            self._refuse(connection, copy, codes.UNKNOWN_TOPIC_OR_PARTITION, "list its offsets")
        return offsets

    def _epoch_ends(self, connection: Connection, copies: Sequence[Copy]) -> dict[Copy, tuple[int, int]]:
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
            answer = connection.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=topics))
        except UnsupportedVersionError:
            return {}  # the last batch is compared anyway
        wanted = {copy.tp: copy for copy in copies}
        ends = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                asked = wanted.get(TopicPartition(topic.topic, partition.partition))
                if asked is not None and not partition.error_code:
                    ends[asked] = partition.leader_epoch, partition.end_offset
        return ends

    def _check_ends(self, copy: Copy, ends: RemoteEnds) -> None:
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
        self._check_ends(copy, ends)
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

    def _refuse(self, connection: Connection, copy: Copy, code: int, what: str) -> None:
        """Note an error code: the request is repeated, or the partition has failed."""
        error = refused(f"{connection.name}, leader of {copy.tp},", code, what)
        if code in codes.RETRIABLE or code in (codes.OFFSET_OUT_OF_RANGE, codes.UNKNOWN_SERVER_ERROR):
            self._fail(copy, error)
        else:
            copy.error = error

    # -------------------------------------------------------------- fetch

    def _fetch(self, connection: Connection, copies: Sequence[Copy]) -> None:
        by_id = all(copy.topic_id is not None for copy in copies) and connection.version("Fetch") >= 13
        topics: dict[str, Any] = {}
        for copy in copies:
            topic = topics.get(copy.tp.topic)
            if topic is None:
                topic = topics[copy.tp.topic] = FetchRequest.FetchTopic(
                    topic="" if by_id else copy.tp.topic,
                    topic_id=(by_id and copy.topic_id) or ZERO_UUID,
                    partitions=[],
                )
            topic.partitions.append(
                FetchRequest.FetchPartition(
                    partition=copy.tp.partition,
                    current_leader_epoch=copy.leader.epoch,
                    fetch_offset=copy.next_offset,
                    last_fetched_epoch=-1,
                    log_start_offset=-1,
                    partition_max_bytes=copy.most_bytes,
                )
            )
        body = FetchRequest(
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=max(
                max(copy.most_bytes for copy in copies), min(FETCH_BYTES, BUFFER_BYTES // self._nodes)
            ),
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=list(topics.values()),
            forgotten_topics_data=[],
        )
        answer = connection.ask(body, most=1 << 15 if by_id else 12, wait=WAIT_MS / 1000)
        if answer.error_code:
            for copy in copies:
                self._refuse(connection, copy, answer.error_code, "fetch")
            return
        wanted = {(copy.topic_id if by_id else copy.tp.topic, copy.tp.partition): copy for copy in copies}
        size = 0
        for fetched in answer.responses:
            for data in fetched.partitions:
                key = bytes(fetched.topic_id) if by_id else fetched.topic
                asked = wanted.pop((key, data.partition_index), None)
                if asked is not None:
                    size += self._answered(connection, asked, data)
        for copy in copies if not size else ():
            self._pass_gap(copy)

    def _answered(self, connection: Connection, copy: Copy, data: Any) -> int:
        """Take the answer for one partition; return its bytes of batches."""
        if data.error_code:
            self._refuse(connection, copy, data.error_code, "fetch")
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
        but asked for again.
        """
        limits = [offset for offset in (copy.end, high_watermark) if offset is not None and offset >= 0]
        limit = min(limits, default=1 << 63)
        start, end, beyond = None, 0, False
        for position, size in batches_of(data):
            base = _STEP.unpack_from(data, position)[0]
            if start is None and base < copy.log_end and not copy.restarts:
                self._compare(copy, data[position : position + size])
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

    def _compare(self, copy: Copy, data: memoryview) -> None:
        """Compare a batch with the last batch of the copy: records with equal offsets must be equal."""
        header = formats.read_header(data, 0, len(data), f"<copy of {copy.tp}>")
        formats.check_crc(data, header, f"<copy of {copy.tp}>")
        if header.last_offset >= copy.log_end:
            raise self._diverged(
                copy, f"a batch of the cluster has the offsets {header.base_offset} to {header.last_offset}"
            )
        last = copy.last
        if last is None or (header.crc, header.base_offset) == (last.header.crc, last.header.base_offset):
            return
        if header.last_offset < last.header.base_offset or header.base_offset > last.header.last_offset:
            return
        for record in formats.read_records(data, header, f"<copy of {copy.tp}>", position=0):
            if last.records.get(record.offset, record) != record:
                raise self._diverged(copy, f"the cluster has another record at {record.offset}")

    def _pass_gap(self, copy: Copy) -> None:
        """Raise the log end to that of the cluster, if the cluster has no batch in between."""
        if copy.is_done or not copy.checked or copy.end is None:
            return
        if copy.last is not None:
            copy.last = None  # the cluster has no batch from the copy's last record on
            return
        if copy.remote_end < copy.end:  # the high watermark is behind for a while, after a leader has moved
            late = codes.OFFSET_NOT_AVAILABLE
            self._fail(copy, refused(f"the leader of {copy.tp}", late, f"send offsets up to {copy.end}"))
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


def _planned(tp: TopicPartition, topic_id: bytes | None, view: PartitionView | None) -> Copy:
    if view is None:
        return Copy(tp, topic_id, 0, 0, None, 0)
    epoch = LeaderEpochs.load(view.files, view.directory).latest
    return Copy(tp, topic_id, view.log_start, view.log_end, epoch, view.log_end)


def _tp(result: PullResult) -> TopicPartition:
    return TopicPartition(result.topic, result.partition)


def _id_text(topic_id: bytes | None) -> str | None:
    return None if topic_id is None else base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
