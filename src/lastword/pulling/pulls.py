"""`pull`: copy topics of a Kafka cluster, whole or what is new, once or following.

```
 metadata ──> topics in the directory ──> rounds ──> positions of groups
                                           │
             one thread for each leader:   ends of the logs, epochs ── checks ──> Fetch ──> append_copies ─┐
                                                                                   └──────────────────────┘
```

A round ends for all threads when a partition has to be fetched elsewhere: its leader has moved, a broker does
not answer, metadata are old. The next round begins with new metadata. A failed request is repeated with a
backoff, without progress for `RETRY_SECONDS` at most (following: without a limit).

Before the first fetch of a partition the topic id is compared, and the id of the cluster, which is saved as
the setting `lastword.pulled.from`. `leader` compares the logs and appends the new batches.

Memory: `BUFFER_BYTES` are divided among the leaders, and an answer has one batch at least, of `MAX_FRAME` at
most.
"""

from __future__ import annotations

import base64
import logging
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from lastword.api.copying import make_topic, settings_of
from lastword.api.open_dirs import OpenDirs, PathLike
from lastword.api.opening import open as open_log
from lastword.clock import Clock, SystemClock
from lastword.config import MEANING, TOPIC_SETTINGS
from lastword.config.setting import NO_POLICY
from lastword.errors import (
    BrokerUnreachableError,
    ClusterDiffersError,
    InconsistentTopicIdError,
    LastwordError,
    PartialFailure,
    UnknownTopicError,
    UsageError,
    nearest,
)
from lastword.files import DEFAULT
from lastword.logdir.broker import DECIDING
from lastword.logdir.checkpoints import TopicPartition
from lastword.parse import check_path
from lastword.partition.checkpoint_file import LeaderEpochs
from lastword.partition.view import PartitionView
from lastword.protocol import codes
from lastword.protocol.messages import DescribeConfigsRequest
from lastword.pulling.client_config import client_config as read_client_config
from lastword.pulling.cluster import (
    NO_NODE,
    Cluster,
    Metadata,
    PartitionFacts,
    TopicFacts,
    backoff,
    pause,
    refused,
)
from lastword.pulling.leader import Copy, Leader, PullResult
from lastword.pulling.positions import PARTITIONS, TOPIC, ClusterPositions, SavedPositions, ask_positions
from lastword.values import Progress, ProgressLike, listener

BUFFER_BYTES = 64 << 20
FETCH_BYTES = 16 << 20
RETRY_SECONDS = 60.0
POSITIONS_SECONDS = 10.0
METADATA_SECONDS = 60.0
TICK_SECONDS = 0.1
TOPIC_RESOURCE = 2
TOPICS_AT_ONCE = 1000
"""Topics whose settings one request asks for: an answer has some kilobytes for each."""
FROM_TOPIC = 1
PULLED_FROM = "lastword.pulled.from"
COPIED_SETTINGS = [name for name in TOPIC_SETTINGS if name in MEANING or not name.startswith("lastword.")]
"""A server of ours describes MEANING to a client that names it; other brokers leave out what they lack."""
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")

_log = logging.getLogger("lastword.pull")


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
        UsageError: A topic is internal, the target is a bucket, or a client setting is not supported.
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
    to = check_path("to", to)
    if "://" in to:
        raise UsageError("pull writes to a directory", remedy="name a directory, and copy that to the bucket")
    with ExitStack() as stack:
        cluster = Cluster(bootstrap_servers, config, clock, asked_stop)
        stack.callback(cluster.close)
        metadata, names = _wanted(cluster, names)
        logs = None
        if not dry_run or DEFAULT.is_dir(to):
            mode: Any = "r" if dry_run else "a"
            logs = stack.enter_context(open_log(to, mode, log_cleaner_enable=False, clock=clock))
        dirs = None if logs is None else logs.dirs
        pulling = Pulling(cluster, dirs, clock, asked_stop, follow=follow, groups=groups)
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


class Pulling:
    """One call of `pull`."""

    def __init__(
        self,
        cluster: Cluster,
        dirs: OpenDirs | None,
        clock: Clock,
        stop: Callable[[], bool],
        *,
        follow: bool,
        groups: bool,
    ) -> None:
        self._cluster = cluster
        self._dirs: OpenDirs = dirs  # type: ignore[assignment]  # None only in a dry run
        self._clock = clock
        self._asked_stop = stop
        self._follow = follow
        self._groups = groups
        self._rng = random.Random()
        self._ended = threading.Event()
        self._round_over = threading.Event()
        self._leaders: dict[int, Leader] = {}
        self._attempts: dict[int, int] = {}
        self._copies: dict[TopicPartition, Copy] = {}
        self._failed: dict[str, LastwordError] = {}
        self._positions_due = clock.monotonic() + POSITIONS_SECONDS
        self._positions: dict[TopicPartition, int] = {}
        self._cluster_positions: ClusterPositions | None = None
        self._saved: SavedPositions | None = None
        self._nodes = 1

    def close(self) -> None:
        """Close the connections."""
        for leader in self._leaders.values():
            leader.connection.close()
        self._leaders.clear()

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
                tp = TopicPartition(name, number)
                self._copies[tp] = _planned(tp, topic_id, copied.get(number))
        self._route(metadata)
        for node, copies in self._by_leader().items():
            if node == NO_NODE:
                continue
            leader = self._leader(node)
            for copy, ends in leader.ends(copies).items():
                leader.check_ends(copy, ends)
                copy.checked = True
                copy.log_end = max(copy.log_end, ends.start)
        return [replace(result, reason=None) for result in self._results()]

    def run(
        self, metadata: Metadata, topics: Sequence[str], progress: ProgressLike | None
    ) -> list[PullResult]:
        """Copy the topics."""
        self._check_cluster(metadata.cluster_id)
        self._failed |= self._prepare(topics, metadata)
        names = [name for name in topics if name not in self._failed]
        self._ask_positions(names, seconds=0)  # before the records: then the copy has the records below them
        began = self._clock.monotonic()
        try:
            self._rounds(metadata, names, progress, began)
            if self._cluster_positions is None:
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

    def _prepare(self, topics: Iterable[str], metadata: Metadata) -> dict[str, LastwordError]:
        """Make the topics and their partitions with the cluster's settings, and add their copies.

        Return the error of each topic that failed.
        """
        errors: dict[str, LastwordError] = {}
        names = [name for name in topics if name in metadata.topics]
        for first in range(0, len(names), TOPICS_AT_ONCE):
            some = names[first : first + TOPICS_AT_ONCE]
            try:
                described = self._described(some)
            except LastwordError as error:
                errors |= dict.fromkeys(some, error)
                continue
            for name in some:
                try:
                    settings = self._settings(name, described.get(name))
                    self._prepare_one(name, metadata.topics[name], settings)
                except LastwordError as error:
                    errors[name] = error
        return errors

    def _prepare_one(self, name: str, facts: TopicFacts, settings: dict[str, str]) -> None:
        if name in self._dirs.topics():
            self._check_copy(name, facts.topic_id)
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

    def _described(self, topics: Iterable[str]) -> dict[str, Any]:
        """Return the cluster's answer about the settings of each topic."""
        resources = [
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=topic, configuration_keys=COPIED_SETTINGS
            )
            for topic in topics
        ]
        answer = self._cluster.ask(DescribeConfigsRequest(resources=resources))
        return {result.resource_name: result for result in answer.results}

    def _settings(self, topic: str, result: Any) -> dict[str, str]:
        """Return the settings of the copy, as text.

        They are the topic's own settings in the cluster that have an effect here, and settings of ours that
        the copy has and the cluster does not describe.
        """
        own = settings_of(self._dirs, topic) if topic in self._dirs.topics() else {}
        if result is None:
            code = codes.UNKNOWN_TOPIC_OR_PARTITION
            raise refused(self._cluster.bootstrap, code, f"describe the settings of {topic}")
        if result.error_code in (codes.TOPIC_AUTHORIZATION_FAILED, codes.CLUSTER_AUTHORIZATION_FAILED):
            _log.warning("the settings of %s are not copied: DESCRIBE_CONFIGS is not allowed", topic)
            return own
        if result.error_code:
            raise refused(self._cluster.bootstrap, result.error_code, f"describe the settings of {topic}")
        described, unread = {row.name for row in result.configs}, set()
        settings = {
            name: text for name, text in own.items() if name.startswith("lastword.") and name not in described
        }
        for row in result.configs:
            setting = TOPIC_SETTINGS.get(row.name) if row.name in COPIED_SETTINGS else None
            if setting is None or row.config_source != FROM_TOPIC or row.value is None:
                continue
            try:
                settings[row.name] = setting.show(setting.read_kafka(row.value))
            except ValueError:
                _log.warning("%s: %s=%s is not copied: no such value here", topic, row.name, row.value)
                unread.add(row.name)
        if unread & set(DECIDING):  # it may mean to keep what another value removes
            settings["cleanup.policy"] = NO_POLICY
        return settings

    # -------------------------------------------------------------- positions

    def _ask_positions(self, topics: Sequence[str], seconds: float) -> None:
        """Ask for the positions; after `seconds` of failures that may pass, note the last one."""
        began, attempt = self._clock.monotonic(), 0
        while self._groups and topics and not self._stopped():
            try:
                self._saved = self._saved or SavedPositions(self._dirs)
                known = self._saved.groups(topics)
                self._cluster_positions = ask_positions(self._cluster, topics, known)
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
        if self._cluster_positions is None:
            return
        # A position must not survive a power cut that its records do not survive: other threads go on.
        ends = {tp: copy.log_end for tp, copy in self._copies.items()}
        if any(directory.has_unsynced for directory in self._dirs.directories):
            self._dirs.sync()
        assert self._saved is not None
        self._positions = self._saved.save(self._cluster_positions, topics, ends, self._shape_of_positions)

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
                for name, error in self._prepare(topics, metadata).items() if self._follow else ():
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
                copy.fail(error, self._clock.monotonic())
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
                    copy.fail(why, self._clock.monotonic())
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

    def _back_off(self, node: int) -> None:
        attempt = self._attempts.get(node, 0)
        self._attempts[node] = attempt + 1
        pause(self._clock, backoff(attempt, self._rng), self._is_over)

    def _is_over(self) -> bool:
        return self._round_over.is_set() or self._stopped()

    # -------------------------------------------------------------- one leader

    def _serve(self, node: int, copies: list[Copy]) -> None:
        """Copy the partitions of one leader until all are done or the round is over."""
        answer_bytes = min(FETCH_BYTES, BUFFER_BYTES // self._nodes)
        try:
            if node == NO_NODE:
                for copy in copies:
                    text = f"name the leader of {copy.tp}"
                    error = refused(self._cluster.bootstrap, copy.leader.error, text)
                    copy.fail(error, self._clock.monotonic())
            else:
                while not self._is_over() and self._leader(node).copy_once(copies, answer_bytes):
                    self._attempts.pop(node, None)
                if all(copy.is_done for copy in copies):
                    return
        except LastwordError as error:
            self._drop(node)
            is_repeated = isinstance(error, BrokerUnreachableError)
            for copy in copies:
                if is_repeated:
                    copy.fail(error, self._clock.monotonic())
                elif not copy.is_done:
                    copy.error = error
            if not is_repeated:
                return
        if not self._is_over():
            self._back_off(node)
        self._round_over.set()

    def _leader(self, node: int) -> Leader:
        leader = self._leaders.get(node)
        if leader is not None and leader.connection.is_expired:
            self._drop(node)
            leader = None
        if leader is None:
            connection = self._cluster.connect(node)
            leader = Leader(connection, self._dirs, self._clock, follow=self._follow)
            self._leaders[node] = leader
        return leader

    def _drop(self, node: int) -> None:
        leader = self._leaders.pop(node, None)
        if leader is not None:
            leader.connection.close()


def _planned(tp: TopicPartition, topic_id: bytes | None, view: PartitionView | None) -> Copy:
    if view is None:
        return Copy(tp, topic_id, 0, 0, None, 0)
    epoch = LeaderEpochs.load(view.files, view.directory).latest
    return Copy(tp, topic_id, view.log_start, view.log_end, epoch, view.log_end)


def _tp(result: PullResult) -> TopicPartition:
    return TopicPartition(result.topic, result.partition)


def _id_text(topic_id: bytes | None) -> str | None:
    return None if topic_id is None else base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
