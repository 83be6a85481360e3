"""`Admin`: the handlers for topics, partitions, cluster and log directories.

The server is a cluster of one node, which leads every partition: the high watermark is the log end, a leader
epoch is the newest one of the log, and a replica is always in sync.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from lastword.api.topics import delete_topics
from lastword.errors import BusyError, InvalidTopicError, LastwordError, OfflineError, StorageError
from lastword.files import real_path
from lastword.protocol import Request, codes, messages
from lastword.protocol.schemas import ZERO_UUID, Message
from lastword.segment import names
from lastword.server.context import MOST_PARTITIONS, NO_OPERATIONS
from lastword.server.topics import (
    CREATED,
    INTERNAL,
    NOT_HOSTED,
    Refused,
    Refusing,
    ServedTopic,
    check_replicas,
    check_topic_name,
)

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.server.configs import Configs
    from lastword.server.context import Answer, Handlers, ServerContext
    from lastword.server.coordinator import CoordinatorTopic
    from lastword.server.fetch import Fetches
    from lastword.server.security import Peer

TOPIC_OPERATIONS = 3576
CLUSTER_OPERATIONS = 8096
"""Bits of all operations on a topic and on a cluster, which Kafka answers without an authorizer."""
TOO_MANY = "Excessively large number of partitions per request."
CREATED_TOGETHER = 200
"""Topics that are created without a look at the client."""
_log = logging.getLogger("lastword.server")


class Admin:
    """The handlers of the APIs for topics, partitions, cluster and log directories.

    Args:
        context: The context of the handlers.
        configs: Checks and describes the settings of new topics.
        fetches: Answers the fetches that wait for a topic that is deleted.
        coordinators: The topics of the coordinators, which Metadata may create.
    """

    def __init__(
        self,
        context: ServerContext,
        configs: Configs,
        fetches: Fetches,
        coordinators: Iterable[CoordinatorTopic],
    ) -> None:
        self._context = context
        self._dirs = context.dirs
        self._topics = context.topics
        self._configs = configs
        self._fetches = fetches
        self._coordinators = {topic.name: topic for topic in coordinators}

    def handlers(self) -> Handlers:
        """Return the handlers by the name of the API."""
        in_turn, in_pool = self._context.in_turn, self._context.in_pool
        return {
            "Metadata": self._metadata,
            "CreateTopics": partial(in_turn, self._create_topics),
            "DeleteTopics": partial(in_turn, self._delete_topics),
            "CreatePartitions": partial(in_turn, self._create_partitions),
            "DescribeCluster": self._describe_cluster,
            "DescribeLogDirs": partial(in_pool, self._describe_log_dirs),
            "DescribeProducers": self._describe_producers,
            "DescribeTopicPartitions": self._describe_topic_partitions,
        }

    # -------------------------------------------------------------- cluster

    def _describe_cluster(
        self, request: Request[messages.DescribeClusterRequest], connection: Peer
    ) -> Message:
        body = request.body
        if body.endpoint_type == 2:
            text = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type "
            raise Refused(codes.MISMATCHED_ENDPOINT_TYPE, f"{text}CONTROLLER")
        if body.endpoint_type != 1:
            text = f"Unsupported endpoint type {body.endpoint_type}"
            raise Refused(codes.UNSUPPORTED_ENDPOINT_TYPE, text)
        return messages.DescribeClusterResponse(
            cluster_id=self._context.cluster_id,
            controller_id=self._context.node_id,
            brokers=[
                messages.DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=broker.id, host=broker.host, port=broker.port
                )
                for broker in self._context.brokers
            ],
            cluster_authorized_operations=CLUSTER_OPERATIONS
            if body.include_cluster_authorized_operations
            else NO_OPERATIONS,
        )

    # -------------------------------------------------------------- metadata

    def _metadata(self, request: Request[messages.MetadataRequest], connection: Peer) -> Answer:
        body = request.body
        wanted = body.topics
        if wanted is None or (not wanted and request.version == 0):
            return self._metadata_of(request, self._topics.all(), [])
        found: dict[ServedTopic, None] = {}  # a topic that is named twice is described once
        missing = []
        for topic in wanted:
            known = self._topics.find(topic.name if topic.topic_id == ZERO_UUID else None, topic.topic_id)
            if known is None:
                missing.append(topic)
            else:
                found[known] = None
        served = list(found)
        allowed = self._context.options.auto_create_topics and (
            body.allow_auto_topic_creation or request.version < 4
        )
        if allowed and any(topic.name for topic in missing):
            return self._context.in_turn(self._created_metadata, request, connection, served, missing)
        return self._metadata_of(
            request, served, [self._missing(topic, request.version) for topic in missing]
        )

    def _created_metadata(
        self,
        request: Request[messages.MetadataRequest],
        connection: Peer,
        served: list[ServedTopic],
        missing: list[Any],
    ) -> Message:
        """Create the missing topics, and return their metadata with that of the others."""
        named = [topic.name for topic in missing if topic.name]  # the others are named by their ids
        new: dict[str, tuple[int, dict[str, Any]]] = {
            name: (self._context.options.partitions, {}) for name in named if name not in self._coordinators
        }
        if sum(count for count, _ in new.values()) > MOST_PARTITIONS:
            _log.warning("%s: no topic is created: %s", connection, TOO_MANY)
            new = {}
        results = self._create_all(new, connection) if new else {}
        for name, of_coordinator in self._coordinators.items():
            if name not in named:
                continue
            try:
                of_coordinator.open()
            except LastwordError as error:
                results[name] = error
        described, refused = dict.fromkeys(served), []
        for topic in missing:
            created = self._topics.get(topic.name) if topic.name else None
            if created is None:
                result = results.get(topic.name)
                refusal = result if isinstance(result, LastwordError) else None
                refused.append(self._missing(topic, request.version, refusal))
            else:
                described[created] = None
        return self._metadata_of(request, list(described), refused)

    def _unknown_code(self, name: str) -> int:
        """Return the error of a name without a topic: it cannot have a topic, or it has none."""
        try:
            names.check_topic(name)
        except InvalidTopicError as invalid:
            return invalid.kafka_code
        return codes.UNKNOWN_TOPIC_OR_PARTITION

    def _missing(self, topic: Any, version: int, error: LastwordError | None = None) -> Message:
        code = codes.UNKNOWN_TOPIC_ID
        if topic.name is not None and topic.topic_id == ZERO_UUID:
            code = self._unknown_code(topic.name)
            if error is not None:
                code = error.kafka_code
        name = topic.name if topic.name or version >= 12 else ""
        return messages.MetadataResponse.MetadataResponseTopic(
            error_code=code, name=name, topic_id=topic.topic_id
        )

    def _metadata_of(
        self, request: Request[messages.MetadataRequest], served: list[ServedTopic], refused: list[Any]
    ) -> Message:
        body = request.body
        described = [
            messages.MetadataResponse.MetadataResponseTopic(
                name=topic.name,
                topic_id=topic.id,
                is_internal=topic.name in INTERNAL,
                partitions=[
                    self._partition(messages.MetadataResponse.MetadataResponsePartition, topic, number)
                    for number in topic.directories
                ],
                topic_authorized_operations=TOPIC_OPERATIONS
                if body.include_topic_authorized_operations
                else NO_OPERATIONS,
            )
            for topic in served
        ]
        return messages.MetadataResponse(
            brokers=[
                messages.MetadataResponse.MetadataResponseBroker(
                    node_id=broker.id, host=broker.host, port=broker.port
                )
                for broker in self._context.brokers
            ],
            cluster_id=self._context.cluster_id,
            controller_id=self._context.node_id,
            topics=described + refused,
            cluster_authorized_operations=CLUSTER_OPERATIONS
            if body.include_cluster_authorized_operations
            else NO_OPERATIONS,
        )

    def _partition(self, kind: Any, topic: ServedTopic, number: int) -> Any:
        replicas = [self._context.node_id]
        try:
            topic.directories[number].check_serves()
            return kind(
                partition_index=number,
                leader_id=self._context.node_id,
                leader_epoch=topic.leader_epoch(number),
                replica_nodes=replicas,
                isr_nodes=replicas,
            )
        except (OfflineError, StorageError):
            return kind(
                error_code=codes.LEADER_NOT_AVAILABLE,
                partition_index=number,
                leader_id=-1,
                leader_epoch=-1,
                replica_nodes=replicas,
                isr_nodes=[],
                offline_replicas=replicas,
            )

    def _describe_topic_partitions(
        self, request: Request[messages.DescribeTopicPartitionsRequest], connection: Peer
    ) -> Message:
        body = request.body
        wanted = sorted({topic.name for topic in body.topics})
        topics: list[Any] = [(name, self._topics.find(name)) for name in wanted]
        if not wanted:
            topics = [(topic.name, topic) for topic in self._topics.all()]
        first = (body.cursor.topic_name, body.cursor.partition_index) if body.cursor is not None else ("", 0)
        if first[1] < 0 or (body.cursor is not None and wanted and first[0] not in wanted):
            return _refused_partitions(wanted or [topic.name for topic in self._topics.all()])
        left = max(1, min(body.response_partition_limit, 2000))
        kind = messages.DescribeTopicPartitionsResponse
        response = kind(topics=[], next_cursor=None)
        for name, topic in topics:
            if name < first[0]:
                continue
            described = kind.DescribeTopicPartitionsResponseTopic(
                name=name, topic_authorized_operations=TOPIC_OPERATIONS
            )
            if topic is None:
                described.error_code = self._unknown_code(name)
                response.topics.append(described)
                continue
            described.topic_id, described.is_internal = topic.id, name in INTERNAL
            numbers = [n for n in topic.directories if name > first[0] or n >= first[1]]
            for number in numbers:
                if left == 0:
                    response.next_cursor = kind.Cursor(topic_name=name, partition_index=number)
                    break
                partition = self._partition(kind.DescribeTopicPartitionsResponsePartition, topic, number)
                partition.eligible_leader_replicas, partition.last_known_elr = [], []
                described.partitions.append(partition)
                left -= 1
            if described.partitions or not numbers:
                response.topics.append(described)
            if response.next_cursor is not None:
                break
        return response

    # -------------------------------------------------------------- topics

    def _create_all(
        self, topics: Mapping[str, tuple[int, dict[str, Any]]], connection: Peer
    ) -> dict[str, ServedTopic | LastwordError]:
        """Create topics as `Topics.create_all` does, and return each topic, or the error that refused it.

        CREATED_TOGETHER of them are created at a time, until the client closes its connection, or the server
        closes.
        """
        names = list(topics)
        created: dict[str, ServedTopic | LastwordError] = {}
        for start in range(0, len(names), CREATED_TOGETHER):
            part = names[start : start + CREATED_TOGETHER]
            if start and (self._context.is_closing or connection.has_gone()):
                error = BusyError("the topic was not created", remedy="send the request again")
                created |= dict.fromkeys(part, error)
                continue
            created |= self._topics.create_all({name: topics[name] for name in part})
        return created

    def _create_topics(self, request: Request[messages.CreateTopicsRequest], connection: Peer) -> Message:
        body = request.body
        twice = _twice(topic.name for topic in body.topics)
        results: dict[str, Any] = {}
        new: dict[str, tuple[int, dict[str, Any]]] = {}
        for topic in _once(body.topics):
            result = results[topic.name] = messages.CreateTopicsResponse.CreatableTopicResult(
                name=topic.name, error_message=None
            )
            with Refusing(result):
                if topic.name in twice:
                    raise Refused(codes.INVALID_REQUEST, "Duplicate topic name.")
                partitions, settings = self._checked_topic(topic)
                if body.validate_only:
                    self._dirs.check_config(topic.name, settings)
                    self._describe_created(result, partitions, CREATED | settings)
                else:
                    new[topic.name] = partitions, settings
        if sum(count for count, _ in new.values()) > MOST_PARTITIONS:
            for name in new:
                results[name].error_code, results[name].error_message = codes.POLICY_VIOLATION, TOO_MANY
            new = {}
        for name, created in (self._create_all(new, connection) if new else {}).items():
            result = results[name]
            if isinstance(created, LastwordError):
                result.error_code, result.error_message = created.kafka_code, created.message
            else:
                result.topic_id = created.id
                self._describe_created(result, new[name][0], {})
        return messages.CreateTopicsResponse(topics=list(results.values()))

    def _checked_topic(self, topic: Any) -> tuple[int, dict[str, Any]]:
        """Return the number of partitions and the settings of a requested topic."""
        check_topic_name(topic.name)
        names.check_topic(topic.name)
        if self._topics.get(topic.name) is not None:
            raise Refused(codes.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        partitions = self._count_of(topic)
        settings = self._configs.checked({config.name: config.value for config in topic.configs})
        self._dirs.check_new_topic(topic.name, settings)
        return partitions, settings

    def _describe_created(self, result: Any, partitions: int, settings: Mapping[str, Any]) -> None:
        result.num_partitions, result.replication_factor = partitions, 1
        result.configs = [
            messages.CreateTopicsResponse.CreatableTopicConfigs(
                name=row.name, value=row.value, config_source=row.source
            )
            for row in self._configs.topic_rows(result.name, settings)
        ]

    def _count_of(self, topic: Any) -> int:
        if topic.assignments:
            for field, value in (
                ("replication factor", topic.replication_factor),
                ("number of partitions", topic.num_partitions),
            ):
                if value != -1:
                    raise Refused(
                        codes.INVALID_REQUEST,
                        f"A manual partition assignment was specified, but {field} was not set to -1.",
                    )
            numbers = sorted(assignment.partition_index for assignment in topic.assignments)
            if numbers != list(range(len(numbers))):
                raise Refused(
                    codes.INVALID_REPLICA_ASSIGNMENT,
                    "partitions should be a consecutive 0-based integer sequence",
                )
            for assignment in topic.assignments:
                check_replicas(assignment.broker_ids, self._context.node_id)
            return len(numbers)
        count = self._context.options.partitions if topic.num_partitions == -1 else topic.num_partitions
        if count < 1:
            raise Refused(
                codes.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        if count > MOST_PARTITIONS:
            raise Refused(
                codes.INVALID_PARTITIONS, f"Number of partitions must be at most {MOST_PARTITIONS}."
            )
        if topic.replication_factor < 1 and topic.replication_factor != -1:
            raise Refused(
                codes.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if topic.replication_factor > 1:
            raise Refused(
                codes.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {topic.replication_factor} time(s): The target "
                f"replication factor of {topic.replication_factor} cannot be reached because only 1 "
                "broker(s) are registered.",
            )
        return int(count)

    def _delete_topics(self, request: Request[messages.DeleteTopicsRequest], connection: Peer) -> Message:
        body = request.body
        wanted = (
            [(topic.name, topic.topic_id) for topic in body.topics]
            if request.version >= 6
            else [(name, ZERO_UUID) for name in body.topic_names]
        )
        names = _twice(name for name, _ in wanted if name is not None)
        ids = _twice(topic_id for name, topic_id in wanted if name is None and topic_id != ZERO_UUID)
        by_name = {topic.id for name, _ in wanted if name is not None and (topic := self._topics.get(name))}
        by_both = by_name & {topic_id for name, topic_id in wanted if name is None}
        results = []
        deleted: dict[str, Any] = {}
        served = {(name, topic_id): self._topics.find(name, topic_id) for name, topic_id in wanted}
        for (name, topic_id), topic in served.items():
            if name is None and topic_id in by_both:
                continue  # answered by name
            result = messages.DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=topic_id)
            results.append(result)
            with Refusing(result, only=Refused):
                if name is None and topic_id == ZERO_UUID:
                    raise Refused(codes.INVALID_REQUEST, "Neither topic name nor id were specified.")
                if name is not None and topic_id != ZERO_UUID:
                    raise Refused(codes.INVALID_REQUEST, "You may not specify both topic name and topic id.")
                if name in names or topic_id in ids:
                    text = f"Duplicate topic {'id' if name is None else 'name'}."
                    raise Refused(codes.INVALID_REQUEST, text)
                if topic is None or topic.is_newest:
                    if name is None:
                        raise Refused(codes.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
                    raise Refused(codes.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)
                result.name, result.topic_id = topic.name, topic.id
                if topic.id in by_both:
                    text = "The provided topic name maps to an ID that was already supplied."
                    raise Refused(codes.INVALID_REQUEST, text)
                deleted[topic.name] = result
        for name, error in delete_topics(self._dirs, deleted).items():
            deleted[name].error_code, deleted[name].error_message = error.kafka_code, error.message
        self._topics.all()  # so that their offsets are deleted before the answer
        self._context.loop.call_soon_threadsafe(self._fetches.answer_all)
        return messages.DeleteTopicsResponse(responses=results)

    def _create_partitions(
        self, request: Request[messages.CreatePartitionsRequest], connection: Peer
    ) -> Message:
        twice = _twice(topic.name for topic in request.body.topics)
        results = []
        for topic in _once(request.body.topics):
            result = messages.CreatePartitionsResponse.CreatePartitionsTopicResult(name=topic.name)
            results.append(result)
            with Refusing(result):
                if topic.name in twice:
                    raise Refused(codes.INVALID_REQUEST, "Duplicate topic name.")
                self._add_partitions(topic, request.body.validate_only)
        return messages.CreatePartitionsResponse(results=results)

    def _add_partitions(self, topic: Any, validate_only: bool) -> None:
        served = self._topics.get(topic.name)
        if served is None:
            raise Refused(codes.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)
        if topic.name in INTERNAL:
            text = f"Groups and transactional ids are divided by the number of partitions of {topic.name}."
            raise Refused(codes.INVALID_PARTITIONS, f"{text} It cannot be changed.")
        count = len(served.directories)
        if topic.count <= count:
            text = (
                f"Topic already has {count} partition(s)."
                if topic.count == count
                else f"The topic {topic.name} currently has {count} partition(s); {topic.count} would not be "
                "an increase."
            )
            raise Refused(codes.INVALID_PARTITIONS, text)
        if topic.count > MOST_PARTITIONS:
            raise Refused(codes.INVALID_PARTITIONS, f"at most {MOST_PARTITIONS} partitions")
        if topic.assignments is not None:
            if len(topic.assignments) != topic.count - count:
                raise Refused(
                    codes.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {topic.count - count} additional partition(s), but only "
                    f"{len(topic.assignments)} assignment(s) were specified.",
                )
            for assignment in topic.assignments:
                check_replicas(assignment.broker_ids, self._context.node_id)
        if validate_only:
            return
        self._dirs.transaction(partial(_add_partitions, name=topic.name, first=count, end=topic.count))
        self._dirs.partitions_added()
        self._topics.update(topic.name)

    # -------------------------------------------------------------- log directories, producers

    def _describe_log_dirs(
        self, request: Request[messages.DescribeLogDirsRequest], connection: Peer
    ) -> Message:
        wanted = request.body.topics
        partitions_wanted = None if wanted is None else {(t.topic, n) for t in wanted for n in t.partitions}
        response, results = messages.DescribeLogDirsResponse, []
        for log_dir in self._dirs.directories:
            result = response.DescribeLogDirsResult(log_dir=real_path(log_dir.path))
            results.append(result)
            try:
                log_dir.check_serves()
                if not log_dir.files.sends_requests:  # a bucket has no size
                    disk = os.statvfs(log_dir.path)
                    result.total_bytes = disk.f_blocks * disk.f_frsize
                    result.usable_bytes = disk.f_bavail * disk.f_frsize
            except (LastwordError, OSError):
                result.error_code = codes.KAFKA_STORAGE_ERROR
                continue
            for name, numbers in log_dir.partitions_by_topic().items():
                partitions = []
                for number in numbers:
                    if partitions_wanted is not None and (name, number) not in partitions_wanted:
                        continue
                    with contextlib.suppress(LastwordError):  # a partition that cannot be opened is left out
                        size = self._dirs.served_log(log_dir, name, number).segment_set.size
                        row = response.DescribeLogDirsPartition(partition_index=number, partition_size=size)
                        partitions.append(row)
                if partitions:
                    result.topics.append(response.DescribeLogDirsTopic(name=name, partitions=partitions))
        results += [
            response.DescribeLogDirsResult(error_code=codes.KAFKA_STORAGE_ERROR, log_dir=real_path(path))
            for path in self._dirs.offline
            if path not in {log_dir.path for log_dir in self._dirs.directories}
        ]
        return response(results=results)

    def _describe_producers(
        self, request: Request[messages.DescribeProducersRequest], connection: Peer
    ) -> Any:
        partitions = [(self._topics.get(t.name), n) for t in request.body.topics for n in t.partition_indexes]
        return self._context.with_logs(partitions, lambda: self._described_producers(request))

    def _described_producers(self, request: Request[messages.DescribeProducersRequest]) -> Any:
        from lastword.protocol.refusals import answer_with_rows

        answer = answer_with_rows(request)
        for topic in answer.topics:
            served = self._topics.get(topic.name)
            for partition in topic.partitions:
                with Refusing(partition):
                    if served is None:
                        check_topic_name(topic.name)
                        raise Refused(codes.UNKNOWN_TOPIC_OR_PARTITION, NOT_HOSTED)
                    producers = served.log(partition.partition_index).producers
                    partition.active_producers = [_producer_state(producer) for producer in producers]
        return answer


def _add_partitions(dirs: OpenDirs, name: str, first: int, end: int) -> None:
    """Add the partitions `first` to `end` - 1 to a topic."""
    topic_id = dirs.topic_id(name)
    numbers = iter(range(first, end))
    for log_dir, placed in dirs.dir_set.assign({name: end - first}).items():
        log_dir.add_partitions(name, [next(numbers) for _ in placed[name]], topic_id)
    dirs.dir_set.write_list()


def _refused_partitions(topics: list[str]) -> Message:
    """Return the answer of DescribeTopicPartitions to a wrong cursor."""
    kind = messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    return messages.DescribeTopicPartitionsResponse(
        topics=[
            kind(name=name, error_code=codes.INVALID_REQUEST, topic_authorized_operations=NO_OPERATIONS)
            for name in topics
        ]
    )


def _producer_state(producer: Any) -> Any:
    start = producer.transaction_start
    return messages.DescribeProducersResponse.ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.last_timestamp,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=-1 if start is None else start,
    )


def _twice(values: Iterable[Any]) -> set[Any]:
    return {value for value, count in Counter(values).items() if count > 1}


def _once(topics: Iterable[Any]) -> list[Any]:
    """Return the topics, the first of each name: a request that names a topic twice gets one answer."""
    return list({topic.name: topic for topic in reversed(list(topics))}.values())[::-1]
