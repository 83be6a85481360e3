"""Settings under Kafka's names: described, changed, and checked for a new topic.

A setting that has an effect here is one of `TOPIC_SETTINGS`, and is saved in lastword.toml. A setting of
Kafka's that has none (`WITHOUT_EFFECT`) is described with its default, and may be given only that value: a
client that asks for another value would rely on something that does not happen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from lastword.config import TOPIC_SETTINGS
from lastword.errors import InvalidSettingError, LastwordError
from lastword.protocol import Request, codes
from lastword.protocol.messages import (
    AlterConfigsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
)
from lastword.protocol.schemas import Message
from lastword.server.topics import Refused
from lastword.server.transactions import EXPIRATION_MS, MOST_TIMEOUT_MS

if TYPE_CHECKING:
    from lastword.server.broker import Broker

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
"""Types of resources."""
FROM_TOPIC, FROM_BROKER_FILE, FROM_DEFAULT = 1, 4, 5
"""Sources of a value."""
SET, DELETE, APPEND, SUBTRACT = range(4)
BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST = range(1, 8)
"""Types of a value."""

TYPES = {
    "cleanup.policy": LIST,
    "compression.type": STRING,
    "message.timestamp.type": STRING,
    "preallocate": BOOLEAN,
    "min.cleanable.dirty.ratio": DOUBLE,
    "max.message.bytes": INT,
    "segment.bytes": INT,
    "segment.index.bytes": INT,
    "index.interval.bytes": INT,
    "compression.gzip.level": INT,
    "compression.lz4.level": INT,
    "compression.zstd.level": INT,
}
WITHOUT_EFFECT = {
    "follower.replication.throttled.replicas": (LIST, ""),
    "leader.replication.throttled.replicas": (LIST, ""),
    "local.retention.bytes": (LONG, "-2"),
    "local.retention.ms": (LONG, "-2"),
    "min.insync.replicas": (INT, "1"),
    "remote.log.copy.disable": (BOOLEAN, "false"),
    "remote.log.delete.on.disable": (BOOLEAN, "false"),
    "remote.storage.enable": (BOOLEAN, "false"),
    "unclean.leader.election.enable": (BOOLEAN, "false"),
}


class Row(NamedTuple):
    """One setting as it is described."""

    name: str
    value: str | None
    source: int
    type: int
    text: str


class Configs:
    """The handlers of the APIs for settings."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._dirs = broker.dirs

    def handlers(self) -> dict[str, Callable[[Request, Any], Any]]:
        """Return the handlers by the name of the API."""
        return {
            "DescribeConfigs": self._describe,
            "IncrementalAlterConfigs": self._alter_incrementally,
            "AlterConfigs": self._alter,
        }

    # -------------------------------------------------------------- describe

    def topic_rows(self, topic: str, changes: Mapping[str, Any]) -> list[Row]:
        """Return all settings of a topic, by name; `changes` is those of a topic that is not created."""
        config = self._dirs.config(topic)
        rows = [Row(name, value, FROM_DEFAULT, kind, "") for name, (kind, value) in WITHOUT_EFFECT.items()]
        for name, setting in TOPIC_SETTINGS.items():
            if name.startswith("lastword."):
                continue
            value = getattr(config, setting.keyword)
            source = config.source(name)
            if name in changes:
                value, origin = setting.read(changes[name]), FROM_TOPIC
            elif source == "default":
                origin = FROM_DEFAULT
            else:
                origin = FROM_TOPIC if f"[topics.{topic}]" in source else FROM_BROKER_FILE
            rows.append(Row(name, shown(value), origin, TYPES.get(name, LONG), setting.text))
        return sorted(rows)

    def broker_rows(self) -> list[Row]:
        """Return settings of the broker that clients and tools ask for."""
        broker = self._broker
        options, instance = broker.options, broker.dirs.settings.instance
        values = {
            "advertised.listeners": (STRING, f"PLAINTEXT://{broker.address}"),
            "auto.create.topics.enable": (BOOLEAN, shown(options.auto_create_topics)),
            "broker.id": (INT, str(broker.node_id)),
            "default.replication.factor": (INT, "1"),
            "delete.topic.enable": (BOOLEAN, "true"),
            "group.consumer.heartbeat.interval.ms": (INT, str(instance.group_consumer_heartbeat_interval_ms)),
            "group.consumer.session.timeout.ms": (INT, str(instance.group_consumer_session_timeout_ms)),
            "group.coordinator.rebalance.protocols": (LIST, "classic,consumer"),
            "log.cleanup.policy": (LIST, "delete"),
            "log.dirs": (STRING, ",".join(broker.dirs.paths)),
            "log.message.timestamp.type": (STRING, "CreateTime"),
            "log.retention.ms": (LONG, "604800000"),
            "message.max.bytes": (INT, "1048588"),
            "min.insync.replicas": (INT, "1"),
            "node.id": (INT, str(broker.node_id)),
            "num.partitions": (INT, str(options.partitions)),
            "offsets.retention.check.interval.ms": (LONG, str(instance.offsets_retention_check_interval_ms)),
            "offsets.retention.minutes": (INT, str(instance.offsets_retention_minutes)),
            "offsets.topic.num.partitions": (INT, str(options.offsets_partitions)),
            "offsets.topic.replication.factor": (SHORT, "1"),
            "process.roles": (LIST, "broker,controller"),
            "transaction.max.timeout.ms": (INT, str(MOST_TIMEOUT_MS)),
            "transaction.state.log.replication.factor": (SHORT, "1"),
            "transactional.id.expiration.ms": (INT, str(EXPIRATION_MS)),
        }
        return [Row(name, value, FROM_BROKER_FILE, kind, "") for name, (kind, value) in values.items()]

    def group_rows(self) -> list[Row]:
        """Return the settings of every consumer group of KIP-848. They are those of the directory."""
        instance = self._dirs.settings.instance
        values = {
            "consumer.assignment.interval.ms": 0,
            "consumer.heartbeat.interval.ms": instance.group_consumer_heartbeat_interval_ms,
            "consumer.session.timeout.ms": instance.group_consumer_session_timeout_ms,
        }
        return [Row(name, str(value), FROM_DEFAULT, INT, "") for name, value in values.items()]

    def _describe(self, request: Request, connection: Any) -> Message:
        body = request.body
        results = []
        for resource in body.resources:
            result = DescribeConfigsResponse.DescribeConfigsResult(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                error_message=None,
                configs=[],
            )
            results.append(result)
            try:
                rows, read_only = self._rows_of(resource)
            except Refused as refused:
                result.error_code, result.error_message = refused.code, refused.message
                continue
            wanted = resource.configuration_keys
            for row in rows:
                if wanted and row.name not in wanted:
                    continue
                result.configs.append(
                    DescribeConfigsResponse.DescribeConfigsResourceResult(
                        name=row.name,
                        value=row.value,
                        read_only=read_only,
                        config_source=row.source,
                        is_sensitive=False,
                        synonyms=_synonyms(row) if body.include_synonyms else [],
                        config_type=row.type,
                        documentation=row.text if body.include_documentation else None,
                    )
                )
        return DescribeConfigsResponse(results=results)

    def _rows_of(self, resource: Any) -> tuple[list[Row], bool]:
        kind, name = resource.resource_type, resource.resource_name
        if kind == TOPIC:
            if self._broker.topics.get(name) is None:
                raise Refused(
                    codes.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
                )
            return self.topic_rows(name, {}), False
        if kind == BROKER:
            if name not in ("", str(self._broker.node_id)):
                raise Refused(
                    codes.INVALID_REQUEST,
                    f"Unexpected broker id, expected {self._broker.node_id} or empty string, but received "
                    f"{name}",
                )
            return (self.broker_rows() if name else []), True
        if kind == GROUP:
            if not name:
                raise Refused(codes.INVALID_REQUEST, "Group name must not be empty")
            return self.group_rows(), True
        if kind in (BROKER_LOGGER, CLIENT_METRICS):
            return [], True
        raise Refused(codes.INVALID_REQUEST, f"Unsupported resource type: {kind}")

    # -------------------------------------------------------------- change

    def checked(self, given: Mapping[str, str | None]) -> dict[str, Any]:
        """Return the settings of a topic that are saved.

        Raises:
            Refused: A setting is unknown, its value is not allowed, or it has no effect here.
        """
        kept: dict[str, Any] = {}
        for name, value in given.items():
            setting = TOPIC_SETTINGS.get(name)
            if setting is None or name.startswith("lastword."):
                default = WITHOUT_EFFECT.get(name)
                if default is None:
                    raise Refused(codes.INVALID_CONFIG, f"Unknown topic config name: {name}")
                if value not in (default[1], None):
                    raise Refused(
                        codes.INVALID_CONFIG,
                        f"Invalid value {value} for configuration {name}: it has no effect here, so only "
                        f"{default[1] or 'an empty value'} is allowed",
                    )
                continue
            if value is None:
                raise Refused(codes.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
            kept[name] = self._parsed(name, value)
        return kept

    def _parsed(self, name: str, value: str) -> Any:
        setting = TOPIC_SETTINGS[name]
        try:
            parsed = setting.read(value)
        except ValueError as error:
            raise Refused(
                codes.INVALID_CONFIG, f"Invalid value {value} for configuration {name}: {error}"
            ) from None
        return setting.show(parsed)

    def _alter_incrementally(self, request: Request, connection: Any) -> Any:
        return self._broker.in_turn(
            self._altered, request, IncrementalAlterConfigsResponse, self._incremental
        )

    def _alter(self, request: Request, connection: Any) -> Any:
        return self._broker.in_turn(self._altered, request, AlterConfigsResponse, self._whole)

    def _altered(self, request: Request, kind: Any, changes_of: Callable[[Any], dict[str, Any]]) -> Message:
        responses = []
        for resource in request.body.resources:
            response = kind.AlterConfigsResourceResponse(
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                error_message=None,
            )
            responses.append(response)
            try:
                if resource.resource_type != TOPIC:
                    raise Refused(codes.INVALID_REQUEST, "only settings of topics can be changed")
                name = resource.resource_name
                if self._broker.topics.get(name) is None:
                    raise Refused(codes.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
                changes = changes_of(resource)
                if not request.body.validate_only:
                    self._dirs.set_config(name, changes)
            except Refused as refused:
                response.error_code, response.error_message = refused.code, refused.message
            except InvalidSettingError as error:
                response.error_code, response.error_message = codes.INVALID_CONFIG, error.message
            except LastwordError as error:
                response.error_code, response.error_message = error.kafka_code, error.message
        return kind(responses=responses)

    def _whole(self, resource: Any) -> dict[str, Any]:
        """Return the changes of AlterConfigs: what it does not name is reset."""
        named = self.checked({config.name: config.value for config in resource.configs})
        settings = self._dirs.settings
        reset = {
            name: None
            for name in TOPIC_SETTINGS
            if not name.startswith("lastword.") and settings.is_set(name, resource.resource_name)
        }
        return reset | named

    def _incremental(self, resource: Any) -> dict[str, Any]:
        """Return the changes of IncrementalAlterConfigs."""
        changes: dict[str, Any] = {}
        seen: set[str] = set()
        for config in resource.configs:
            name, operation, value = config.name, config.config_operation, config.value
            if name in seen:
                raise Refused(codes.INVALID_REQUEST, f"Error due to duplicate config keys: {name}")
            seen.add(name)
            if operation == DELETE:
                if name not in WITHOUT_EFFECT:
                    if name not in TOPIC_SETTINGS or name.startswith("lastword."):
                        raise Refused(codes.INVALID_CONFIG, f"Unknown topic config name: {name}")
                    changes[name] = None
                continue
            if operation in (APPEND, SUBTRACT):
                if name != "cleanup.policy":
                    raise Refused(
                        codes.INVALID_CONFIG,
                        f"Can't {'APPEND' if operation == APPEND else 'SUBTRACT'} to key {name} because its "
                        "type is not LIST.",
                    )
                now = self._dirs.config(resource.resource_name).cleanup_policy or frozenset()
                words = set((value or "").split(","))
                value = ",".join(sorted(now | words if operation == APPEND else now - words))
            elif operation != SET:
                raise Refused(codes.INVALID_REQUEST, f"Unknown operation {operation}")
            changes |= self.checked({name: value})
        return changes


def shown(value: Any) -> str:
    """Return a value as Kafka shows it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    return str(value)


def _synonyms(row: Row) -> list[Any]:
    return [DescribeConfigsResponse.DescribeConfigsSynonym(name=row.name, value=row.value, source=row.source)]
