"""Settings under Kafka's names: described, changed, and checked for a new topic.

`kafka_configs.jsonl` has every public setting of Kafka 4.3.1 with type and default; `scripts/make_configs.py`
writes it from Kafka's jars. A topic's setting that has an effect here is one of `TOPIC_SETTINGS`, and is
saved in the topic's file. A setting that has none is described with its default, and may be given only that
value: a client that sets another value would rely on something that does not happen. Settings of the
broker cannot be changed by requests.

Settings of ours are not listed: a tool that copies the settings of a topic to a Kafka cluster would be
refused there. Those that say what the records mean (`MEANING`) are described to a client that names them, as
`lastword.pull` does.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lastword.config import INSTANCE_SETTINGS, MEANING, TOPIC_SETTINGS, TopicConfig
from lastword.protocol import Request, codes, messages
from lastword.protocol.schemas import Message
from lastword.server.coordinator import EXPIRATION_MS, MOST_TIMEOUT_MS
from lastword.server.topics import CREATED, Refused, Refusing, check_topic_name

if TYPE_CHECKING:
    from lastword.server.context import Handlers, ServerContext
    from lastword.server.security import Peer

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
"""Types of resources."""
FROM_TOPIC, FROM_BROKER_FILE, FROM_DEFAULT = 1, 4, 5
"""Sources of a value."""
SET, DELETE, APPEND, SUBTRACT = range(4)
TYPES = {
    name: number
    for number, name in enumerate(
        ("BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD"), 1
    )
}
"""Types of a value."""
SERVED_DEFAULTS: dict[str, Any] = {"message.timestamp.after.max.ms": 3_600_000}
"""Defaults of the server that are not those of the log: a broker refuses records from the future."""
NO_EFFECT = "A setting of Kafka that has no effect here."


class KafkaSetting(NamedTuple):
    """One setting of Kafka.

    Attributes:
        name: Its name.
        type: A key of `TYPES`.
        default: Its default as text; None if it has none.
        synonyms: Settings of the broker that give its value if it is not set, the first that is set.
    """

    name: str
    type: str
    default: str | None
    synonyms: list[str]


@cache
def kafka_settings(scope: str) -> dict[str, KafkaSetting]:
    """Return Kafka's settings of a "topic" or a "broker", by name."""
    data: bytes = __spec__.loader.get_data(f"{os.path.dirname(__file__)}/kafka_configs.jsonl")  # type: ignore[union-attr]  # also from a zip
    rows = [json.loads(line) for line in data.splitlines()]
    return {
        row["name"]: KafkaSetting(row["name"], row["type"], row["default"], row["synonyms"])
        for row in rows
        if row["scope"] == scope
    }


def served_value(config: TopicConfig, name: str) -> Any:
    """Return the value of a topic's setting that the server applies."""
    if name in SERVED_DEFAULTS and config.source(name) == "default":
        return SERVED_DEFAULTS[name]
    return getattr(config, TOPIC_SETTINGS[name].keyword)


class Row(NamedTuple):
    """One setting as it is described.

    Attributes:
        name: Its name.
        value: Its value as text; None if it has none.
        source: The source of the value.
        type: A key of `TYPES`.
        text: The documentation.
        synonyms: (name, value, source) of each place that could give the value, the first one gives it.
    """

    name: str
    value: str | None
    source: int
    type: str
    text: str
    synonyms: list[tuple[str, str | None, int]]


class Configs:
    """The handlers of the APIs for settings."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._dirs = context.dirs

    def handlers(self) -> Handlers:
        """Return the handlers by the name of the API."""
        alter = partial(self._context.in_turn, self._alter)
        return {
            "DescribeConfigs": self._describe,
            "IncrementalAlterConfigs": alter,
            "AlterConfigs": alter,
        }

    # -------------------------------------------------------------- describe

    def topic_rows(self, topic: str, changes: Mapping[str, Any]) -> list[Row]:
        """Return all settings of a topic, by name; `changes` is those of a topic that is not created."""
        config = self._dirs.config(topic)
        of_all = self._dirs.settings.topic("")
        is_set = self._dirs.settings.is_set
        rows = []
        for name, kafka in kafka_settings("topic").items():
            setting = TOPIC_SETTINGS.get(name)
            synonyms = _defaults(kafka)
            if setting is None:
                rows.append(Row(name, kafka.default, FROM_DEFAULT, kafka.type, NO_EFFECT, synonyms))
                continue
            value, source = shown(served_value(config, name)), FROM_DEFAULT
            if of_all.source(name) != "default" and kafka.synonyms:
                source = FROM_BROKER_FILE
                synonyms.insert(0, (kafka.synonyms[0], shown(served_value(of_all, name)), source))
            if name in changes or is_set(name, topic):
                value = shown(setting.read(changes[name])) if name in changes else value
                source = FROM_TOPIC
                synonyms.insert(0, (name, value, source))
            rows.append(Row(name, value, source, kafka.type, setting.text, synonyms))
        return rows

    def _meaning_rows(self, topic: str) -> list[Row]:
        """Return the settings of ours that say what the records of a topic mean."""
        config, rows = self._dirs.config(topic), []
        for name in MEANING:
            setting = TOPIC_SETTINGS[name]
            value = getattr(config, setting.keyword)
            source = FROM_TOPIC if self._dirs.settings.is_set(name, topic) else FROM_DEFAULT
            text, kind = None if value is None else shown(value), "LONG" if setting.unit else "STRING"
            rows.append(
                Row(name, text, source, kind, setting.text, [] if text is None else [(name, text, source)])
            )
        return rows

    def broker_rows(self) -> list[Row]:
        """Return all settings of the broker, by name."""
        values = self._broker_values()
        rows = []
        for name, setting in kafka_settings("broker").items():
            synonyms = _defaults(setting)
            value = values.get(name, setting.default)
            source = FROM_DEFAULT if name not in values or value == setting.default else FROM_BROKER_FILE
            if source == FROM_BROKER_FILE:
                synonyms.insert(0, (name, value, source))
            text = f"The value of {name} that the server applies." if name in values else NO_EFFECT
            rows.append(Row(name, value, source, setting.type, text, synonyms))
        return rows

    def _broker_values(self) -> dict[str, str]:
        """Return the values of the broker's settings that have an effect."""
        context, settings = self._context, self._dirs.settings
        options = context.options
        of_all = settings.topic("")
        address = f"{options.security_protocol}://{context.leader.host}:{context.leader.port}"
        values = {
            kafka.synonyms[0]: shown(served_value(of_all, name))
            for name, kafka in kafka_settings("topic").items()
            if name in TOPIC_SETTINGS and kafka.synonyms and of_all.source(name) != "default"
        }
        for name, setting in INSTANCE_SETTINGS.items():
            value = getattr(settings.instance, setting.keyword)
            if name in kafka_settings("broker") and value is not None:
                values[name] = shown(value)
        return values | {
            "advertised.listeners": address,
            "listeners": address,
            "auto.create.topics.enable": shown(options.auto_create_topics),
            "broker.id": str(context.node_id),
            "node.id": str(context.node_id),
            "log.dirs": ",".join(self._dirs.paths),
            "num.partitions": str(options.partitions),
            "group.coordinator.rebalance.protocols": "classic,consumer",
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": str(options.offsets_partitions),
            "offsets.topic.replication.factor": "1",
            "process.roles": "broker,controller",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": str(options.transactions_partitions),
            "transaction.state.log.replication.factor": "1",
            "transaction.max.timeout.ms": str(MOST_TIMEOUT_MS),
            "transactional.id.expiration.ms": str(EXPIRATION_MS),
        }

    def group_rows(self) -> list[Row]:
        """Return the settings of every consumer group of KIP-848. They are those of the directory."""
        instance = self._dirs.settings.instance
        values = {
            "consumer.assignment.interval.ms": 0,
            "consumer.heartbeat.interval.ms": instance.group_consumer_heartbeat_interval_ms,
            "consumer.session.timeout.ms": instance.group_consumer_session_timeout_ms,
        }
        return [
            Row(name, str(value), FROM_DEFAULT, "INT", "", [(f"group.{name}", str(value), FROM_DEFAULT)])
            for name, value in values.items()
        ]

    def _describe(self, request: Request[messages.DescribeConfigsRequest], connection: Peer) -> Message:
        body = request.body
        results = []
        for resource in body.resources:
            result = messages.DescribeConfigsResponse.DescribeConfigsResult(
                resource_type=resource.resource_type, resource_name=resource.resource_name
            )
            results.append(result)
            wanted = resource.configuration_keys
            with Refusing(result, only=Refused):
                rows, read_only = self._rows_of(resource)
                result.configs = [
                    messages.DescribeConfigsResponse.DescribeConfigsResourceResult(
                        name=row.name,
                        value=row.value,
                        read_only=read_only,
                        config_source=row.source,
                        is_sensitive=row.type == "PASSWORD",
                        synonyms=_synonyms(row) if body.include_synonyms else [],
                        config_type=TYPES[row.type],
                        documentation=row.text if body.include_documentation else None,
                    )
                    for row in rows
                    if not wanted or row.name in wanted
                ]
        return messages.DescribeConfigsResponse(results=results)

    def _rows_of(self, resource: Any) -> tuple[list[Row], bool]:
        kind, name = resource.resource_type, resource.resource_name
        if kind == TOPIC:
            topic = self._context.topics.get(name)
            if topic is None:
                check_topic_name(name)
                raise Refused(codes.UNKNOWN_TOPIC_OR_PARTITION, "")
            rows = self.topic_rows(topic.stored, {})
            is_named = not set(MEANING).isdisjoint(resource.configuration_keys or ())
            return rows + self._meaning_rows(topic.stored) if is_named else rows, False
        if kind == BROKER:
            if name and not name.isdecimal():
                raise Refused(codes.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}")
            if name not in ("", str(self._context.node_id)):
                raise Refused(
                    codes.INVALID_REQUEST,
                    f"Unexpected broker id, expected {self._context.node_id} or empty string, but received "
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
                kafka = kafka_settings("topic").get(name)
                if kafka is None:
                    raise Refused(codes.INVALID_CONFIG, f"Unknown topic config name: {name}")
                if value not in (kafka.default, None):
                    raise Refused(
                        codes.INVALID_CONFIG,
                        f"Invalid value {value} for configuration {name}: it has no effect here, so only "
                        f"{kafka.default or 'an empty value'} is allowed",
                    )
                continue
            if value is None:
                raise Refused(codes.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
            try:
                kept[name] = setting.show(setting.read_kafka(value))
            except ValueError as error:
                text = f"Invalid value {value} for configuration {name}: {error}"
                raise Refused(codes.INVALID_CONFIG, text) from None
        return kept

    def _alter(
        self,
        request: Request[messages.AlterConfigsRequest | messages.IncrementalAlterConfigsRequest],
        connection: Peer,
    ) -> Any:
        from lastword.protocol.refusals import answer_with_rows

        changes_of = self._whole if request.api.name == "AlterConfigs" else self._incremental
        answer, resources = answer_with_rows(request), list[Any](request.body.resources)
        named = Counter((resource.resource_type, resource.resource_name) for resource in resources)
        for resource, response in zip(resources, answer.responses, strict=True):
            name = resource.resource_name
            with Refusing(response):
                if named[resource.resource_type, name] > 1:
                    raise Refused(codes.INVALID_REQUEST, "Each resource must appear at most once.")
                self._check_changes(resource)
                if self._context.topics.get(name) is None:
                    raise Refused(codes.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
                changes = changes_of(resource)
                if changes.get("cleanup.policy", "") is None:
                    changes |= self._policy_of_clients(name)
                if request.body.validate_only:
                    self._dirs.check_config(name, changes)
                else:
                    self._dirs.set_config(name, changes)
        return answer

    def _check_changes(self, resource: Any) -> None:
        """Raise Refused unless the resource is a topic, and each setting is named once and has a value."""
        kind, name = resource.resource_type, resource.resource_name
        settings = [config.name for config in resource.configs]
        if kind == BROKER:
            if name not in ("", str(self._context.node_id)):
                text = f"Unexpected broker id, expected {self._context.node_id}, but received {name}"
                raise Refused(codes.INVALID_REQUEST, text)
            text = f"Cannot update these configs dynamically: [{', '.join(settings)}]"
            raise Refused(codes.INVALID_REQUEST, text)
        if kind != TOPIC:
            raise Refused(codes.INVALID_REQUEST, f"Unknown resource type {kind}")
        if not name:
            raise Refused(codes.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_topic_name(name)
        if len(set(settings)) < len(settings):
            raise Refused(codes.INVALID_REQUEST, "Error due to duplicate config keys")
        nulls = [
            config.name
            for config in resource.configs
            if config.value is None and getattr(config, "config_operation", SET) != DELETE
        ]
        if nulls:
            raise Refused(codes.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")

    def _policy_of_clients(self, topic: str) -> dict[str, Any]:
        """Return the policy of a topic whose own policy a client resets: the default of a new topic."""
        is_set = self._dirs.settings.is_set
        return (
            CREATED
            if is_set("cleanup.policy", topic) and not is_set("cleanup.policy", None, own=True)
            else {}
        )

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
        for config in resource.configs:
            name, operation, value = config.name, config.config_operation, config.value
            if operation == DELETE:
                if name in TOPIC_SETTINGS and name in kafka_settings("topic"):
                    changes[name] = None
                continue
            if operation in (APPEND, SUBTRACT):
                if name != "cleanup.policy":
                    raise Refused(
                        codes.INVALID_CONFIG,
                        f"Can't {'APPEND' if operation == APPEND else 'SUBTRACT'} to key {name} because its "
                        "type is not LIST.",
                    )
                now = self._dirs.config(resource.resource_name).cleanup_policy
                if now is None:  # the changes begin with the default, as in Kafka
                    now = frozenset({kafka_settings("topic")[name].default or ""})
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
    kind = messages.DescribeConfigsResponse.DescribeConfigsSynonym
    return [kind(name=name, value=value, source=source) for name, value, source in row.synonyms]


def _defaults(setting: KafkaSetting) -> list[tuple[str, str | None, int]]:
    """Return the synonyms of a setting that have a default, with it."""
    brokers = kafka_settings("broker")
    defaults = [(synonym, brokers[synonym].default, FROM_DEFAULT) for synonym in setting.synonyms]
    return [synonym for synonym in defaults if synonym[1] is not None]
