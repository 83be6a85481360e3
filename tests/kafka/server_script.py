"""One script of requests for two servers, and the comparison of their answers field by field.

A `Step` is a request as a dict, in Kafka's fields with Python's spelling. It is sent in each version of its
API that the step allows: fields that the version does not have are left out. Strings may contain `{v}`, the
version. A value may be a `Kept`: a value that an earlier answer of the same server had; or a function of all
values that were kept.

    differences = compare(side_a, side_b, steps)

Ids, hosts and times differ between two servers, so each `Side` replaces them by names.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lastword.protocol import ClientConnection
from lastword.protocol.codes import ERROR_NAMES
from lastword.protocol.schemas import APIS, ZERO_UUID, Field, Message, message_class, schema_of, within
from lastword.records.batch import read_header, read_records
from lastword.records.formats import crc_ok
from tests.server.client import batch

API = {api.name: api for api in APIS.values()}
CHANGES = {
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "AlterConfigs",
    "IncrementalAlterConfigs",
    "Metadata",
}
MARKED_PRODUCER = 1 << 50
"""A producer that no coordinator knows, for WriteTxnMarkers."""
ANSWER_SECONDS = 3
SETTLE_SECONDS = 0.01
"""A real broker answers a change before it is in the metadata that its other handlers use."""
CLOSED = "the connection was closed"
LOADING = (
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "'NOT_COORDINATOR'",
    "CONCURRENT_TRANSACTIONS",
)
TIMED_OUT = "the time was over"
SILENT = "no answer"


@dataclass(frozen=True)
class Kept:
    """A value of an earlier answer of the same server."""

    name: str


@dataclass(frozen=True)
class Step:
    """One request, in each version from `first` to `last`."""

    api: str
    label: str
    fields: dict[str, Any] = field(default_factory=dict)
    first: int = 0
    last: int = 99
    keep: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Values of the answer that later steps use."""
    bytes_of: Callable[[bytes], bytes] | None = None
    """Changes the frame of the request, without its length."""
    is_token: bool = False
    """The frame is `auth_bytes` alone, and so is its answer, as after SaslHandshake in version 0."""
    shown_bytes: Callable[[dict[str, Any], bytes], str] | None = None
    """Returns the text by which bytes of the answer are compared, from the kept values and the bytes."""
    wait: float = 0.0
    """Seconds to wait before the request."""
    client_id: str = "script"
    slow: bool = False
    """A real broker needs seconds: its controller fails, or it gives no answer."""

    @property
    def versions(self) -> range:
        api = API[self.api]
        return range(max(api.first, self.first), min(api.stable, self.last) + 1)

    def sent(self, version: int) -> tuple[int, int]:
        """Return the API key and the version that the frame has."""
        frame = struct.pack(">hhih", API[self.api].key, version, 0, -1)
        key, version = struct.unpack_from(">hh", self.bytes_of(frame) if self.bytes_of else frame)
        return key, version


@dataclass(frozen=True)
class Difference:
    """A field that the two servers answered differently."""

    place: str
    version: int
    ours: Any
    theirs: Any


class Side:
    """One of the two servers."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = (host, int(port))
        self._connections: dict[str, tuple[socket.socket, ClientConnection]] = {}
        self.kept: dict[str, Any] = {}
        self._names: dict[tuple[str, Any], str] = {}
        self._shown_bytes: Callable[[dict[str, Any], bytes], str] | None = None

    def close(self) -> None:
        for client_id in list(self._connections):
            self._drop(client_id)

    def _drop(self, client_id: str) -> None:
        self._connections.pop(client_id)[0].close()

    def ask(self, step: Step, version: int) -> Any:
        """Return the answer as dicts and lists; CLOSED or SILENT without one."""
        time.sleep(step.wait)
        body = filled(f"{step.api}Request", self._resolved(step.fields, version), version)
        client_id = step.client_id.replace("{v}", str(version))
        if client_id not in self._connections:
            sock = socket.create_connection(self._address, ANSWER_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[client_id] = sock, ClientConnection(client_id)
        sock, protocol = self._connections[client_id]
        try:
            if step.is_token:
                return self._answered(step, _token_answer(sock, body.auth_bytes), 0)
            frame = b"".join(bytes(part) for part in protocol.request(body, version))
            if step.bytes_of is not None:
                content = step.bytes_of(frame[4:])
                frame = struct.pack(">i", len(content)) + content
            if step.api == "Produce" and step.fields.get("acks") == 0:
                return self._silence(client_id, sock, frame)
            sock.sendall(frame)
            answers: list[Any] = []
            while not answers:
                data = sock.recv(1 << 20)
                if not data:
                    raise ConnectionError
                answers += protocol.receive_data(data)
        except (ConnectionError, TimeoutError) as error:
            self._drop(client_id)
            return TIMED_OUT if isinstance(error, TimeoutError) else CLOSED
        return self._answered(step, answers[0].body, version)

    def _answered(self, step: Step, answer: Any, version: int) -> dict[str, Any]:
        """Keep what later steps use, and return the answer as dicts and lists."""
        for name, get in step.keep.items():
            self.kept[name] = get(answer)
        self._shown_bytes = step.shown_bytes
        return self.shown(answer, version)

    def _silence(self, client_id: str, sock: socket.socket, frame: bytes) -> str:
        """Send a frame that has no answer; it may close the connection."""
        sock.sendall(frame)
        sock.settimeout(0.15)
        try:
            closed = sock.recv(1) == b""
        except TimeoutError:
            closed = False
        except ConnectionError:
            closed = True
        self._drop(client_id)
        return CLOSED if closed else SILENT

    def _resolved(self, value: Any, version: int) -> Any:
        if isinstance(value, Kept):
            return self.kept[value.name.format(v=version)]
        if callable(value):
            return value(self.kept)
        if isinstance(value, str):
            return value.replace("{v}", str(version))
        if isinstance(value, dict):
            return {name: self._resolved(part, version) for name, part in value.items()}
        if isinstance(value, list):
            return [self._resolved(part, version) for part in value]
        return value

    # -------------------------------------------------------------- what differs between any two servers

    def name(self, kind: str, value: Any, name: str | None = None) -> str:
        """Return the name of an id: given, or by the order of first use."""
        key = (kind, value)
        if key not in self._names:
            same = sum(other[0] == kind for other in self._names)
            self._names[key] = name or f"{kind} {same}"
        return self._names[key]

    def shown(self, message: Any, version: int) -> dict[str, Any]:
        fields = schema_of(type(message).__name__).fields
        return self._struct(message, fields, version)

    def _struct(self, message: Message, fields: list[Field], version: int) -> dict[str, Any]:
        present = [f for f in fields if within(f.versions, version) or within(f.tagged, version)]
        topic, topic_id = getattr(message, "name", None), getattr(message, "topic_id", ZERO_UUID)
        if isinstance(topic, str) and topic and topic_id != ZERO_UUID:
            self._names.setdefault(("topic", topic_id), f"id of {topic}")
        return {f.name: self._value(getattr(message, f.name), f, version) for f in present}

    def _value(self, value: Any, f: Field, version: int) -> Any:
        if f.struct is not None and value is not None:
            if f.is_array:
                return [self._struct(part, f.fields, version) for part in value]
            return self._struct(value, f.fields, version)
        if isinstance(value, list):
            shown = [self._single(part, f) for part in value]
            return sorted(shown) if f.name == "mechanisms" else shown
        return self._single(value, f)

    def _single(self, value: Any, f: Field) -> Any:
        if f.kind == "uuid":
            return "no id" if value == ZERO_UUID else self._names.get(("topic", bytes(value)), value.hex())
        if f.kind in ("records", "bytes"):
            if value is not None and self._shown_bytes is not None:
                return self._shown_bytes(self.kept, bytes(value))
            return value if value is None else bytes(value).hex()
        if f.name == "error_code":
            return ERROR_NAMES.get(value, value)
        if f.name in ("host", "port", "cluster_id", "log_dir", "total_bytes", "usable_bytes"):
            return f"<{f.name}>" if value not in (None, "", -1) else value
        if f.name == "producer_id" and value not in (-1, MARKED_PRODUCER):
            return self.name(f.name, value)
        if f.name in ("member_id", "leader", "session_id") and value not in (0, "", None):
            return self.name(f.name.replace("leader", "member_id"), value)
        if isinstance(value, str) and f"{self._address[0]}:{self._address[1]}" in value:
            return value.replace(f"{self._address[0]}:{self._address[1]}", "<address>")
        if f.name.endswith(("_ms", "timestamp", "time")) and isinstance(value, int):
            return "<now>" if abs(value - time.time() * 1000) < 600_000 else value
        return value


def _token_answer(sock: socket.socket, token: bytes) -> Message:
    """Send a token without a header; return its answer as a SaslAuthenticateResponse."""
    sock.sendall(struct.pack(">i", len(token)) + token)
    size = sock.recv(4, socket.MSG_WAITALL)
    if len(size) < 4:
        raise ConnectionError
    data = sock.recv(struct.unpack(">i", size)[0], socket.MSG_WAITALL) if any(size) else b""
    return filled("SaslAuthenticateResponse", {"auth_bytes": data}, 0)


def filled(name: str, values: dict[str, Any], version: int) -> Message:
    """Return a message of a version with these values; others are left at their defaults."""
    return _filled(message_class(name), schema_of(name).fields, values, version)


def _filled(kind: type[Message], fields: list[Field], values: dict[str, Any], version: int) -> Message:
    names = {f.name for f in fields}
    assert set(values) <= names, (kind.__name__, set(values) - names)
    given = {}
    for f in fields:
        if f.name not in values or not (within(f.versions, version) or within(f.tagged, version)):
            continue
        value = values[f.name]
        if value is None and not within(f.nullable, version):
            continue
        if f.struct is not None and value is not None:
            parts = value if f.is_array else [value]
            structs = [_filled(f.struct, f.fields, part, version) for part in parts]
            value = structs if f.is_array else structs[0]
        given[f.name] = value
    return kind(**given)


# ------------------------------------------------------------------ comparison

IDENTITIES = (
    *("name", "topic", "topic_name", "topic_id", "group_id", "resource_name", "partition_index", "partition"),
    *(
        "index",
        "api_key",
        "transactional_id",
        "log_dir",
        "node_id",
        "broker_id",
        "member_id",
        "key",
        "config_operation",
        "topic_name",
        "user",
        "partition_id",
        "replica_id",
    ),
)
"""Fields by which the elements of a list are paired."""


def paired(value: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the elements of a list by their identity; a second one of an identity is `identity#2`."""
    elements: dict[str, dict[str, Any]] = {}
    for part in value:
        identity = next((str(part[name]) for name in IDENTITIES if part.get(name) is not None), "")
        same = sum(name.partition("#")[0] == identity for name in elements)
        elements[f"{identity}#{same + 1}" if same else identity] = part
    return elements


def differing(ours: Any, theirs: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (place, ours, theirs) of each field that differs, or element that only one answer has."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in ours:
            yield from differing(ours[name], theirs[name], f"{place}.{name}" if place else name)
    elif any(isinstance(value, list) and value and isinstance(value[0], dict) for value in (ours, theirs)):
        pairs = paired(ours or []), paired(theirs or [])
        for identity in sorted({*pairs[0], *pairs[1]}):
            a, b = (side.get(identity) for side in pairs)
            if a is None or b is None:
                yield f"{place}[{identity}]", _brief(a), _brief(b)
            else:
                yield from differing(a, b, f"{place}[{identity}]")
    elif ours != theirs:
        yield place or "answer", ours, theirs


def _brief(element: dict[str, Any] | None) -> str:
    return "absent" if element is None else str(element.get("error_code", "present"))


def compare(ours: Side, theirs: Side, steps: Iterable[Step], every: int = 1) -> Iterator[Difference]:
    """Yield the differences of all steps, each in its first, its last and every n-th version."""
    for step in steps:
        if step.slow and every > 1:
            continue
        for version in step.versions:
            if version not in (step.versions[0], step.versions[-1]) and version % every:
                continue
            answers = [_answer(side, step, version) for side in (ours, theirs)]
            if step.api in CHANGES:
                time.sleep(SETTLE_SECONDS)
            if any(isinstance(answer, str) for answer in answers):
                answers = [answer if isinstance(answer, str) else "an answer" for answer in answers]
            for place, a, b in differing(*answers):
                yield Difference(f"{step.api}/{step.label}/{place}", version, a, b)


def _answer(side: Side, step: Step, version: int) -> Any:
    """Return an answer; ask again while a coordinator of a real broker loads its topic."""
    for _ in range(50):
        answer = side.ask(step, version)
        if not any(word in str(answer) for word in LOADING):
            break
        time.sleep(0.1)
    return answer


# ------------------------------------------------------------------ the script

NOW = int(time.time() * 1000)
BATCH = batch((b"k", b"v"), (b"l", None), timestamp=NOW)
LONG = "x" * 250
HOUR = 3600_000


def _ids(answer: Any) -> dict[str, bytes]:
    return {topic.name: topic.topic_id for topic in answer.topics}


def topics(*wanted: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return the fields of CreateTopics, DeleteTopics and their like."""
    return {"topics": list(wanted), "timeout_ms": 10_000, **fields}


def new(name: str, **fields: Any) -> dict[str, Any]:
    configs = [{"name": key, "value": value} for key, value in fields.pop("configs", {}).items()]
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": configs, **fields}


def placed(*brokers: list[int], first: int = 0) -> list[dict[str, Any]]:
    return [{"partition_index": first + n, "broker_ids": ids} for n, ids in enumerate(brokers)]


def grouped(name: str, partitions: str, parts: Iterable[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the topics of a request, each with its partitions."""
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for topic, part in parts:
        by_topic.setdefault(topic, []).append(part)
    return [
        {name: topic, "topic_id": Kept(f"id of {topic}"), partitions: listed}
        for topic, listed in by_topic.items()
    ]


def produce(*parts: tuple[str, int, Any], acks: int = -1, **fields: Any) -> dict[str, Any]:
    data = grouped("name", "partition_data", ((t, {"index": at, "records": r}) for t, at, r in parts))
    return {"transactional_id": None, "acks": acks, "timeout_ms": 1000, "topic_data": data, **fields}


def fetch(
    *parts: tuple[str, int, int], most: int = 1 << 20, partition: Any = None, **fields: Any
) -> dict[str, Any]:
    more = {"partition_max_bytes": most, "current_leader_epoch": -1} | (partition or {})
    wanted = ((topic, {"partition": at, "fetch_offset": offset} | more) for topic, at, offset in parts)
    asked = grouped("topic", "partitions", wanted)
    given = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 50 << 20, "session_epoch": -1, "topics": asked}
    return given | fields


def by_name(*parts: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the topics of a request that has no ids."""
    return [
        {k: v for k, v in topic.items() if k != "topic_id"} for topic in grouped("name", "partitions", parts)
    ]


def offsets(*parts: tuple[str, int, int], **fields: Any) -> dict[str, Any]:
    more = {"current_leader_epoch": -1}
    wanted = [(topic, {"partition_index": at, "timestamp": time} | more) for topic, at, time in parts]
    return {"replica_id": -1, "topics": by_name(*wanted), **fields}


def resource(kind: int, name: str, **fields: Any) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, **fields}


def set_to(*changes: tuple[str, Any], operation: int = 0) -> list[dict[str, Any]]:
    return [{"name": name, "value": value, "config_operation": operation} for name, value in changes]


def cut(frame: bytes) -> bytes:
    return frame[:-1]


def longer(frame: bytes) -> bytes:
    return frame + b"\0\0"


def header(offset: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda frame: frame[:offset] + value + frame[offset + len(value) :]


TOPIC, BROKER = 2, 4

SET_UP_TOPICS = (
    *("users", "table", "stamped", "packed", "small", "changed", "odd"),
    *("stamped-log", "stamped-gzip", "stamped-table", "switched"),
)
STAMPED = {"message.timestamp.type": "LogAppendTime"}
SET_UP = [
    Step(
        "CreateTopics",
        "set-up",
        topics(
            new("users", num_partitions=2),
            new("table", configs={"cleanup.policy": "compact"}),
            new("stamped", configs=STAMPED),
            new("stamped-log", configs=STAMPED),
            new("stamped-gzip", configs=STAMPED | {"compression.type": "gzip"}),
            new("stamped-table", configs=STAMPED | {"cleanup.policy": "compact"}),
            new("switched"),
            new("packed", configs={"compression.type": "gzip"}),
            new("small", configs={"max.message.bytes": "300"}),
            new("changed"),
            new("odd"),
            new("configured", configs={"retention.ms": "1000", "min.compaction.lag.ms": "5"}),
        ),
        first=7,
    ),
    Step(
        "Metadata",
        "set-up",
        {"topics": [{"name": name} for name in SET_UP_TOPICS]},
        first=12,
        last=12,
        keep={f"id of {name}": (lambda answer, name=name: _ids(answer)[name]) for name in SET_UP_TOPICS}
        | {"id of nope": lambda answer: b"nope" * 4},
    ),
]


def _metadata() -> Iterator[Step]:
    def named(*names: str | None, **fields: Any) -> dict[str, Any]:
        return {"topics": [{"name": name} for name in names], **fields}

    no = {"allow_auto_topic_creation": False}
    yield Step("Metadata", "named", named("users", "table", **no))
    yield Step("Metadata", "unknown", named("nope", **no), first=4)
    yield Step("Metadata", "wrong names", named("a/b", "", "..", LONG, **no), first=4)
    yield Step("Metadata", "twice", named("users", "users", **no))
    yield Step("Metadata", "created", named("auto-{v}", allow_auto_topic_creation=True))
    yield Step("Metadata", "wrong name to create", named("a/b", allow_auto_topic_creation=True))
    yield Step("Metadata", "none", {"topics": [], **no}, first=1)
    yield Step("Metadata", "no name", named(None, **no), first=10)
    by_id = [{"name": None, "topic_id": Kept("id of users")}]
    yield Step("Metadata", "by id", {"topics": by_id, **no}, first=10)
    unknown = [{"name": None, "topic_id": b"0123456789abcdef"}]
    yield Step("Metadata", "unknown id", {"topics": unknown, **no}, first=10)
    both = [{"name": "table", "topic_id": Kept("id of users")}]
    yield Step("Metadata", "name and id", {"topics": both, **no}, first=10)
    yield Step(
        "Metadata",
        "operations",
        named(
            "users",
            include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
            **no,
        ),
        first=8,
    )


WRONG_SETTINGS = (
    ("retention.ms", "x"),
    ("retention.ms", None),
    ("retention.ms", ""),
    ("retention.ms", "-2"),
    ("nonsense", "1"),
    ("cleanup.policy", "compress"),
    ("cleanup.policy", "none"),
    ("compression.type", "lzma"),
    ("min.cleanable.dirty.ratio", "2"),
    ("segment.bytes", "1"),
    ("max.message.bytes", "-1"),
    ("min.insync.replicas", "0"),
    ("preallocate", "maybe"),
    ("message.timestamp.type", "Never"),
    ("lastword.ack", "disk"),
    ("remote.storage.enable", "true"),
)


def _create_topics() -> Iterator[Step]:
    def step(label: str, *wanted: dict[str, Any], first: int = 0, **fields: Any) -> Step:
        return Step("CreateTopics", label, topics(*wanted, **fields), first=first)

    yield step("plain", new("new-{v}", num_partitions=2))
    yield step("again", new("new-{v}"))
    yield step("checked only", new("checked-{v}", configs={"retention.ms": "5"}), validate_only=True)
    yield step("nothing")
    yield step("wrong names", *(new(name) for name in ("a/b", "", ".", "..", LONG, "é")))
    yield step("colliding names", new("users.{v}"), new("users_{v}"))
    yield step("partitions", new("p-{v}", num_partitions=0), new("q-{v}", num_partitions=-2))
    yield step("replicas", *(new(f"r{n}-{{v}}", replication_factor=n) for n in (0, 2, -2)))
    yield step("defaults", new("d-{v}", num_partitions=-1, replication_factor=-1), first=4)
    free = {"num_partitions": -1, "replication_factor": -1}
    yield step("placed", new("placed-{v}", assignments=placed([1], [1]), **free))
    yield step("placed elsewhere", new("e-{v}", assignments=placed([7]), **free))
    yield step("placed twice", new("t-{v}", assignments=placed([1, 1]), **free))
    yield step("placed nowhere", new("n-{v}", assignments=placed([]), **free))
    yield step("placed with a gap", new("g-{v}", assignments=placed([1], first=1), **free))
    yield step("placed and counted", new("c-{v}", assignments=placed([1])))
    yield step("twice", new("twice-{v}"), new("twice-{v}"), new("once-{v}"))
    yield step("no policy", new("none-{v}", configs={"cleanup.policy": "", "retention.bytes": "-1"}))
    for number, (name, value) in enumerate(WRONG_SETTINGS):
        yield step(f"{name}={value}", new(f"wrong{number}-{{v}}", configs={name: value}))
    yield step(
        "min above max lag",
        new("lag-{v}", configs={"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"}),
    )


def _change_topics() -> Iterator[Step]:
    def more(label: str, *wanted: dict[str, Any], **fields: Any) -> Step:
        return Step("CreatePartitions", label, topics(*wanted, **fields))

    def grown(name: str, count: int, *brokers: list[int]) -> dict[str, Any]:
        assigned = [{"broker_ids": ids} for ids in brokers]
        return {"name": name, "count": count, "assignments": assigned or None}

    for version in API["CreatePartitions"].first, *range(1, API["CreatePartitions"].stable + 1):
        yield Step("CreateTopics", "to grow", topics(new(f"grows-{version}")), first=7)
    yield more("checked only", grown("grows-{v}", 2), validate_only=True)
    yield more("more", grown("grows-{v}", 2))
    yield more("the same", grown("grows-{v}", 2))
    yield more("fewer", grown("grows-{v}", 1))
    yield more("none", grown("grows-{v}", 0))
    yield more("negative", grown("grows-{v}", -1))
    yield more("unknown", grown("nope", 2))
    yield more("placed", grown("grows-{v}", 3, [1]))
    yield more("placed elsewhere", grown("grows-{v}", 4, [7]))
    yield more("too few places", grown("grows-{v}", 6, [1]))
    yield more("placed twice", grown("grows-{v}", 4, [1, 1]))
    yield more("twice", grown("grows-{v}", 5), grown("grows-{v}", 6))
    yield more("of a coordinator", grown("__consumer_offsets", 99), validate_only=True)
    yield more("nothing")

    def names(label: str, *wanted: str) -> Step:
        return Step("DeleteTopics", label, {"topic_names": list(wanted), "timeout_ms": 10_000}, last=5)

    def states(label: str, *wanted: tuple[str | None, Any]) -> Step:
        given = [{"name": name, "topic_id": topic_id} for name, topic_id in wanted]
        return Step("DeleteTopics", label, {"topics": given, "timeout_ms": 10_000}, first=6)

    yield names("plain", "new-{v}")
    yield names("unknown", "nope", "a/b", "")
    yield names("twice", "users", "users")
    yield names("nothing")
    yield states("by name", ("new-{v}", ZERO_UUID))
    yield states("unknown", ("nope", ZERO_UUID), ("a/b", ZERO_UUID), (None, b"0123456789abcdef"))
    yield states("twice", ("users", ZERO_UUID), ("users", ZERO_UUID))
    yield states("twice by id", (None, Kept("id of users")), (None, Kept("id of users")))
    yield states("by name and by id", ("users", ZERO_UUID), (None, Kept("id of users")))
    yield states("name and id", ("users", Kept("id of users")))
    yield states("neither", (None, ZERO_UUID))


def _produce() -> Iterator[Step]:
    def step(label: str, *parts: tuple[str, int, Any], first: int = 0, **fields: Any) -> Step:
        return Step("Produce", label, produce(*parts, **fields), first=first)

    def one(label: str, records: Any, topic: str = "odd") -> Step:
        return step(label, (topic, 0, records))

    def with_producer(number: int, epoch: int, sequence: int) -> bytes:
        return batch((b"k", b"v"), timestamp=NOW, producer=(number, epoch, sequence))

    for acks in (-1, 1, 0):
        yield step(f"acks {acks}", ("users", 0, BATCH), acks=acks)
    for acks in (2, -2):
        yield step(f"acks {acks}", ("users", 0, BATCH), acks=acks)
    yield step("acks 0, refused", ("users", 0, BATCH[:-1]), acks=0)
    yield step("acks 0, unknown", ("nope", 0, BATCH), acks=0)
    yield step("unknown", ("nope", 0, BATCH))
    yield step("unknown partitions", ("users", 9, BATCH), ("users", -1, BATCH))
    yield step("several", ("users", 1, BATCH), ("table", 0, BATCH), ("nope", 0, BATCH))
    yield step("twice", ("odd", 0, BATCH), ("odd", 0, BATCH))
    yield step("nothing")
    yield Step("Produce", "no records", produce(("users", 0, None)), slow=True)
    yield one("empty", b"")
    yield one("two batches", BATCH + BATCH)
    yield one("wrong checksum", BATCH[:-1] + b"x")
    yield one("cut", BATCH[:-1])
    yield one("cut header", BATCH[:30])
    yield one("garbage behind", BATCH + b"xyz")
    yield one("magic 0", BATCH[:16] + b"\0" + BATCH[17:])
    yield one("magic 1", BATCH[:16] + b"\1" + BATCH[17:])
    yield one("magic 3", BATCH[:16] + b"\3" + BATCH[17:])
    for codec in range(1, 5):
        yield one(f"codec {codec}", batch((b"k", b"v" * 50), codec=codec, timestamp=NOW), "users")
        yield one(f"codec {codec} to gzip", batch((b"k", b"v" * 50), codec=codec, timestamp=NOW), "packed")
        yield one(f"codec {codec}, no data", batch((b"k", b"v"), attributes=codec, timestamp=NOW))
    for codec in (5, 7):
        yield one(f"codec {codec}", batch((b"k", b"v"), attributes=codec, timestamp=NOW))
    yield one("base offset", batch((b"k", b"v"), base_offset=7, timestamp=NOW))
    yield one("leader epoch", batch((b"k", b"v"), leader_epoch=9, timestamp=NOW), "users")
    yield one("control batch", batch((b"k", b"v"), attributes=0x20, timestamp=NOW))
    yield one("log append time", batch((b"k", b"v"), attributes=0x08, timestamp=NOW), "users")
    yield one("log append time, no time", batch((b"k", b"v"), attributes=0x08, timestamp=-1), "users")
    yield one("no time", batch((b"k", b"v"), timestamp=-1), "users")
    yield one("delete horizon", batch((b"k", b"v"), attributes=0x40, timestamp=NOW), "users")
    yield one("unused attributes", batch((b"k", b"v"), attributes=0x100, timestamp=NOW), "users")
    yield one("count 0", batch((b"k", b"v"), count=0, timestamp=NOW))
    yield one("count -1", batch((b"k", b"v"), count=-1, timestamp=NOW))
    yield one("count 2", batch((b"k", b"v"), count=2, timestamp=NOW))
    yield one("count and offset 2", batch((b"k", b"v"), count=2, last_offset_delta=1, timestamp=NOW))
    yield one("last offset", batch((b"k", b"v"), last_offset_delta=3, timestamp=NOW))
    yield one("no records in the batch", batch(count=0, last_offset_delta=-1, timestamp=NOW))
    yield one("no sequence", batch((b"k", b"v"), producer=(5, 0, -1), timestamp=NOW))
    yield one("no epoch", batch((b"k", b"v"), producer=(5, -1, 0), timestamp=NOW))
    yield one("future", batch((b"k", b"v"), timestamp=NOW + 2 * 3600_000))
    yield one("past", batch((b"k", b"v"), timestamp=1), "users")
    yield one("negative time", batch((b"k", b"v"), timestamp=-5), "users")
    yield one("stamped", BATCH, "stamped")
    yield one("too large", batch((b"k", b"v" * 400), timestamp=NOW), "small")
    yield one("too large unpacked", batch((b"k", b"v" * 4000), codec=1, timestamp=NOW), "small")
    yield one("no key", batch((b"k", b"v"), (None, b"v"), timestamp=NOW), "table")
    yield one("no key, packed", batch((b"k", b"v"), (None, b"v"), codec=2, timestamp=NOW), "table")
    yield one("no records, compacted", batch(count=0, last_offset_delta=-1, timestamp=NOW), "table")
    yield one("unknown producer, 0", with_producer(4000, 0, 0), "users")
    yield one("unknown producer, later", with_producer(5000, 0, 7), "users")
    for name, sequence in (("first", 0), ("repeated", 0), ("second", 1), ("gap", 5)):
        yield one(f"sequence: {name}", with_producer(6000, 0, sequence), "users")
    yield one("newer epoch, later", with_producer(6000, 1, 4), "users")
    yield one("newer epoch", with_producer(6000, 1, 0), "users")
    yield one("older epoch", with_producer(6000, 0, 2), "users")


def batches_shown(kept: dict[str, Any], data: bytes) -> str:
    """Describe batches without what differs between two servers: checksums, and the bytes of a codec.

    A time that an answer to Produce had is `<kept time>`, and another one near the present `<now>`.
    """
    times = {value for name, value in kept.items() if name.startswith("time ")}

    def shown(time_ms: int) -> str:
        if time_ms in times:
            return "<kept time>"
        return "<now>" if abs(time_ms - time.time() * 1000) < 600_000 else f"now{time_ms - NOW:+}"

    lines, position = [], 0
    while position + 61 <= len(data):
        header = read_header(data, position, len(data), "")
        records = [(r.offset, shown(r.timestamp), r.key, r.value) for r in read_records(data, header)]
        fields = (header.base_offset, header.last_offset, header.attributes, header.leader_epoch)
        producer = (header.producer_id, header.producer_epoch, header.base_sequence)
        times_shown = (shown(header.base_timestamp), shown(header.max_timestamp))
        is_valid = "valid" if crc_ok(data, header) else "invalid"
        lines.append(f"{is_valid} {fields} {producer} {times_shown} {records}")
        position = header.end
    return "\n".join(lines)


def _stamped() -> Iterator[Step]:
    """Yield requests for topics with the time of the append; their batches have other times."""

    def one(label: str, records: Any, topic: str = "stamped-log", **fields: Any) -> Step:
        return Step("Produce", f"stamped, {label}", produce((topic, 0, records)), wait=0.003, **fields)

    def fetched(label: str, topic: str, offset: int = 0) -> Step:
        return Step(
            "Fetch", f"stamped, {label}", fetch((topic, 0, offset)), first=11, shown_bytes=batches_shown
        )

    def at(label: str, time_ms: Any, topic: str = "stamped-log") -> Step:
        return Step("ListOffsets", f"stamped, {label}", offsets((topic, 0, time_ms)))

    def append_time(answer: Any) -> int:
        time_ms: int = answer.responses[0].partition_responses[0].log_append_time_ms
        return time_ms

    def shifted(name: str, by: int) -> Callable[[dict[str, Any]], int]:
        return lambda kept: kept[name] + by

    past = batch((b"k", b"v"), (b"l", None), timestamp=NOW - 5 * HOUR)
    for version in Step("Produce", "").versions:
        name = f"time {version}"
        yield one("kept", past, first=version, last=version, keep={name: append_time})
    yield one("acks 1", past, topic="stamped-table")
    yield one("future", batch((b"k", b"v"), timestamp=NOW + 50 * HOUR))
    yield one("negative time", batch((b"k", b"v"), timestamp=-5))
    yield one("no time", batch((b"k", b"v"), timestamp=-1))
    yield one("own append time", batch((b"k", b"v"), attributes=0x08, timestamp=NOW - 5 * HOUR))
    yield one("delete horizon", batch((b"k", b"v"), attributes=0x40, timestamp=NOW - 5 * HOUR))
    for codec in range(5):
        packed = batch((b"k", b"v" * 50), (b"l", b"w" * 50), codec=codec, timestamp=NOW - 5 * HOUR)
        for topic in ("stamped-log", "stamped-gzip", "stamped-table"):
            yield one(f"codec {codec}", packed, topic)
    yield one("no key", batch((None, b"v"), timestamp=NOW - 5 * HOUR), "stamped-table")
    yield one("wrong checksum", past[:-1] + b"x")
    for name, sequence in (("first", 0), ("repeated", 0), ("second", 1), ("gap", 5)):
        data = batch((b"k", b"v"), timestamp=NOW - 5 * HOUR, producer=(6500, 0, sequence))
        yield one(f"sequence: {name}", data)
    yield one("packed table", past, "stamped-table")
    for topic in ("stamped-log", "stamped-gzip", "stamped-table"):
        yield fetched(f"{topic} whole", topic)
        yield fetched(f"{topic} from 3", topic, 3)
    first, last = min(Step("Produce", "").versions), max(Step("Produce", "").versions)
    for special in (-1, -2, -3, -4, -5, 0):
        yield at(f"time {special}", special)
    yield at("time of the batches", NOW - 5 * HOUR)
    yield at("an hour later", NOW + HOUR)
    for by in (-1, 0, 1):
        yield at(f"first append {by:+}", shifted(f"time {first}", by))
        yield at(f"last append {by:+}", shifted(f"time {last}", by))
    yield at("largest of a table", -3, "stamped-table")
    for number, (label, kind) in enumerate(
        (("before", ""), ("append time", "LogAppendTime"), ("create time", "CreateTime"))
    ):
        if kind:
            changes = [
                resource(TOPIC, "switched", configs=set_to(("message.timestamp.type", kind), operation=0))
            ]
            yield Step("IncrementalAlterConfigs", f"switched, {label}", {"resources": changes}, first=1)
        yield Step(
            "Produce",
            f"switched, {label}",
            produce(("switched", 0, batch((b"k", b"v"), timestamp=NOW - (9 - number) * HOUR))),
            wait=0.2,
            first=12,
        )
        yield Step("Fetch", f"switched, {label}", fetch(("switched", 0, 0)), 11, shown_bytes=batches_shown)
        for name, time_ms in (("largest", -3), ("after the first", NOW - 9 * HOUR + 1), ("now", NOW)):
            yield Step("ListOffsets", f"switched, {label}, {name}", offsets(("switched", 0, time_ms)))


def _fetch() -> Iterator[Step]:
    def step(
        label: str, *parts: tuple[str, int, int], first: int = 0, keep: Any = None, **fields: Any
    ) -> Step:
        return Step("Fetch", label, fetch(*parts, **fields), first=first, keep=keep or {})

    first = ("users", 1, 0)
    yield step("whole", first)
    yield step("several", first, ("users", 0, 0), most=100)
    yield step("packed", ("packed", 0, 0))
    yield step("committed", first, isolation_level=1)
    yield step("isolation 7", first, isolation_level=7)
    yield step("from 1", ("users", 1, 1))
    yield step("end", ("users", 1, 1 << 40), ("small", 0, 0))
    yield step("negative", ("users", 1, -1), ("users", 0, -9))
    yield step("unknown", ("nope", 0, 0))
    yield step("unknown partitions", ("users", 9, 0), ("users", -1, 0))
    yield step("nothing")
    yield step("few bytes", first, most=1)
    yield step("no bytes", first, most=0)
    yield step("negative bytes", first, most=-5)
    yield step("few bytes in all", first, max_bytes=1)
    yield step("no bytes in all", first, max_bytes=0)
    yield step("negative bytes in all", first, max_bytes=-1)
    yield step("negative wait", first, max_wait_ms=-1)
    yield step("twice", first, first)
    for epoch in (0, 5, -2):
        yield step(f"leader epoch {epoch}", first, partition={"current_leader_epoch": epoch}, first=9)
    for epoch in (0, 5):
        yield step(f"fetched epoch {epoch}", first, partition={"last_fetched_epoch": epoch}, first=12)
    yield step("as replica 7", first, replica_id=7)
    yield step("as replica state 7", first, replica_state={"replica_id": 7, "replica_epoch": 1}, first=15)
    session = {"session_id": Kept("session {v}")}
    keep = {f"session {v}": (lambda answer: answer.session_id) for v in Step("Fetch", "").versions}
    opened = [step("session opened", first, ("table", 0, 0), session_epoch=0, first=7)]
    for version in opened[0].versions:
        name = f"session {version}"
        yield Step(
            "Fetch",
            "session opened",
            fetch(first, ("table", 0, 0), session_epoch=0),
            first=version,
            last=version,
            keep={name: keep[name]},
        )
    yield step("session, epoch 1", session_epoch=1, first=7, **session)
    yield step("session, epoch again", session_epoch=1, first=7, **session)
    yield step("session, epoch 2", ("users", 0, 0), session_epoch=2, first=7, **session)
    gone = [{"topic": "users", "topic_id": Kept("id of users"), "partitions": [0, 1, 9]}]
    yield step("session, forgotten", session_epoch=3, forgotten_topics_data=gone, first=7, **session)
    yield step("session, unknown partition", ("nope", 0, 0), session_epoch=4, first=7, **session)
    yield step("session, still unknown", session_epoch=5, first=7, **session)
    yield step("session, known again", ("users", 0, 1 << 40), session_epoch=6, first=7, **session)
    yield step("session closed", session_epoch=-1, first=7, **session)
    yield step("session, closed before", session_epoch=7, first=7, **session)
    yield step("session, unknown", session_epoch=1, session_id=12345, first=7)
    yield step("session, none", session_epoch=1, session_id=0, first=7)
    yield step("session of nothing", session_epoch=0, first=7)
    for label, version in (("names", 12), ("ids", 13)):
        opened = fetch(first, session_epoch=0)
        yield Step(
            "Fetch", f"session of {label} opened", opened, version, version, keep={label: keep["session 7"]}
        )
    yield step("ids in a session of names", session_epoch=1, session_id=Kept("names"), first=13)
    yield Step("Fetch", "names in a session of ids", fetch(session_epoch=1, session_id=Kept("ids")), 12, 12)
    yield step("session, negative epoch", first, session_epoch=-7, session_id=5, first=7)


def _offsets() -> Iterator[Step]:
    for timestamp in (-1, -2, -3, -4, -5, -6, -7, -9, 0, 1, NOW - 5, NOW, NOW + 9 * 3600_000):
        label = f"now{timestamp - NOW:+}" if timestamp > 10 else timestamp
        yield Step("ListOffsets", f"time {label}", offsets(("users", 1, timestamp)))
    yield Step("ListOffsets", "empty log", offsets(*(("changed", 0, at) for at in (-1,))))
    yield Step("ListOffsets", "empty log, largest time", offsets(("changed", 0, -3)))
    yield Step("ListOffsets", "committed", offsets(("users", 1, -1), isolation_level=1), first=2)
    yield Step("ListOffsets", "unknown", offsets(("nope", 0, -1), ("users", 9, -1), ("users", -1, -1)))
    yield Step("ListOffsets", "twice", offsets(("users", 1, -1), ("users", 1, -1)))
    yield Step("ListOffsets", "as replica", offsets(("users", 1, -1), replica_id=7))
    yield Step("ListOffsets", "as debugger", offsets(("users", 1, -1), replica_id=-2))
    yield Step("ListOffsets", "nothing", offsets())
    for epoch in (0, 5):
        part = {"partition_index": 1, "timestamp": -1, "current_leader_epoch": epoch}
        given = {"replica_id": -1, "topics": [{"name": "users", "partitions": [part]}]}
        yield Step("ListOffsets", f"leader epoch {epoch}", given, first=4)
    for current, epoch in ((-1, 0), (-1, 5), (-1, -1), (-1, -5), (0, 0), (5, 0)):
        part = {"partition": 1, "current_leader_epoch": current, "leader_epoch": epoch}
        given = {"replica_id": -1, "topics": [{"topic": "users", "partitions": [part]}]}
        yield Step("OffsetForLeaderEpoch", f"epoch {epoch}, current {current}", given)
    for topic, at in (("nope", 0), ("users", 9), ("changed", 0)):
        part = {"partition": at, "current_leader_epoch": -1, "leader_epoch": 0}
        given = {"replica_id": -2, "topics": [{"topic": topic, "partitions": [part]}]}
        yield Step("OffsetForLeaderEpoch", f"{topic}-{at}", given)


def _delete_records() -> Iterator[Step]:
    def step(label: str, *parts: tuple[str, int, int]) -> Step:
        wanted = by_name(*((t, {"partition_index": at, "offset": offset}) for t, at, offset in parts))
        return Step("DeleteRecords", label, {"topics": wanted, "timeout_ms": 1000})

    yield step("to 2", ("users", 1, 2))
    yield step("to 1", ("users", 1, 1))
    yield step("above", ("users", 1, 1 << 40))
    yield step("negative", ("users", 1, -2))
    yield step("compacted", ("table", 0, 1))
    yield step("unknown", ("nope", 0, 1), ("users", 9, 1), ("users", -1, 1))
    yield step("nothing")
    yield step("to the end", ("stamped", 0, -1))
    yield Step("Fetch", "below the log start", fetch(("users", 1, 0)), first=11)
    yield Step("ListOffsets", "deleted, earliest", offsets(("users", 1, -2)))
    yield Step("ListOffsets", "deleted, time", offsets(("users", 1, 1)))


def _cluster() -> Iterator[Step]:
    yield Step("ApiVersions", "plain", {"client_software_name": "tests", "client_software_version": "1"})
    yield Step("ApiVersions", "no software", {}, first=3)
    wrong = {"client_software_name": "a b", "client_software_version": "-"}
    yield Step("ApiVersions", "wrong software", wrong, first=3)
    keep = {"cluster": lambda answer: answer.cluster_id, "node": lambda answer: answer.brokers[0].broker_id}
    yield Step("DescribeCluster", "for its ids", keep=keep)
    known = {"client_software_name": "tests", "client_software_version": "1"}
    known |= {"cluster_id": Kept("cluster"), "node_id": Kept("node")}
    for label, change in (
        ("known ids", {}),
        ("another cluster", {"cluster_id": "another"}),
        ("another node", {"node_id": 77}),
        ("only the cluster", {"node_id": -1}),
        ("only another cluster", {"cluster_id": "another", "node_id": -1}),
        ("only the node", {"cluster_id": None}),
        ("only another node", {"cluster_id": None, "node_id": 77}),
        ("node -2", {"node_id": -2}),
        ("empty cluster", {"cluster_id": ""}),
    ):
        yield Step("ApiVersions", label, known | change, first=5)
    for kind in (1, 2, 3):
        yield Step("DescribeCluster", f"endpoints {kind}", {"endpoint_type": kind}, first=1)
    yield Step("DescribeCluster", "plain", {"include_cluster_authorized_operations": True})
    yield Step("DescribeCluster", "fenced", {"include_fenced_brokers": True}, first=2)

    def dirs(label: str, wanted: Any) -> Step:
        return Step("DescribeLogDirs", label, {"topics": wanted})

    yield dirs("users", [{"topic": "users", "partitions": [0, 1, 9]}])
    yield dirs("unknown", [{"topic": "nope", "partitions": [0]}])
    yield dirs("nothing", [])

    def producers(label: str, *wanted: tuple[str, list[int]]) -> Step:
        given = [{"name": name, "partition_indexes": numbers} for name, numbers in wanted]
        return Step("DescribeProducers", label, {"topics": given})

    yield producers("users", ("users", [0, 1]))
    yield producers("unknown", ("nope", [0]), ("users", [9, -1]))
    yield producers("wrong name", ("a/b", [0]))
    yield producers("nothing")

    def described(label: str, *names: str, **fields: Any) -> Step:
        wanted = [{"name": name} for name in names]
        return Step(
            "DescribeTopicPartitions", label, {"topics": wanted, "response_partition_limit": 2000, **fields}
        )

    yield described("named", "users", "table")
    yield described("unknown", "nope")
    yield described("wrong name", "a/b")
    yield described("twice", "users", "users")
    for limit in (1, 0, -1):
        yield described(f"limit {limit}", "users", "table", response_partition_limit=limit)
    for name, at in (("users", 1), ("table", 7), ("a", 0), ("zz", 0)):
        yield described(
            f"cursor {name} {at}", "users", "table", cursor={"topic_name": name, "partition_index": at}
        )
    yield described("negative cursor", "users", cursor={"topic_name": "users", "partition_index": -1})
    yield Step("InitProducerId", "plain", {"transactional_id": None, "transaction_timeout_ms": 1000})
    yield Step("InitProducerId", "no timeout", {"transactional_id": None, "transaction_timeout_ms": 0})
    yield Step("InitProducerId", "empty id", {"transactional_id": "", "transaction_timeout_ms": 1000})
    known = {"producer_id": 6000, "producer_epoch": 1}
    given = {"transactional_id": None, "transaction_timeout_ms": 1000}
    yield Step("InitProducerId", "known producer", given | known, first=3)
    yield Step("InitProducerId", "no epoch", given | {"producer_id": 6000, "producer_epoch": -1}, first=3)


def _configs() -> Iterator[Step]:
    def described(label: str, *resources: dict[str, Any], **fields: Any) -> Step:
        given = [{"configuration_keys": None, **part} for part in resources]
        return Step("DescribeConfigs", label, {"resources": given, **fields})

    yield described("topic", resource(TOPIC, "configured"), include_synonyms=True, include_documentation=True)
    some = ["retention.ms", "cleanup.policy", "nonsense"]
    yield described("some", resource(TOPIC, "configured", configuration_keys=some))
    yield described("none", resource(TOPIC, "configured", configuration_keys=[]))
    yield described("unknown", resource(TOPIC, "nope"), resource(TOPIC, "a/b"), resource(TOPIC, ""))
    yield described("twice", resource(TOPIC, "users"), resource(TOPIC, "users"))
    yield described("broker", resource(BROKER, "1"), include_synonyms=True, include_documentation=True)
    yield described("all brokers", resource(BROKER, ""), include_synonyms=True)
    yield described("wrong brokers", resource(BROKER, "7"), resource(BROKER, "x"))
    for kind in (0, 1, 3, 5, 99, -1):
        yield described(f"type {kind}", resource(kind, "1"))
    yield described("nothing")

    def altered(
        label: str, *resources: tuple[int, str, list[dict[str, Any]]], **fields: Any
    ) -> Iterator[Step]:
        """Yield the request for both APIs that change settings."""
        for api in ("AlterConfigs", "IncrementalAlterConfigs"):
            drop = () if api[0] == "I" else ("config_operation",)
            given = [
                resource(kind, name, configs=[{k: v for k, v in c.items() if k not in drop} for c in changes])
                for kind, name, changes in resources
            ]
            yield Step(
                api,
                label,
                {"resources": given, **fields},
                slow=label == "topic twice" and api == "AlterConfigs",
            )

    yield from altered("set", (TOPIC, "changed", set_to(("retention.ms", "77"), ("flush.ms", "5"))))
    yield described("after set", resource(TOPIC, "changed", configuration_keys=["retention.ms", "flush.ms"]))
    yield from altered("checked only", (TOPIC, "changed", set_to(("retention.ms", "9"))), validate_only=True)
    yield described("after check", resource(TOPIC, "changed", configuration_keys=["retention.ms"]))
    for name, value in (
        ("retention.ms", "x"),
        ("retention.ms", None),
        ("nonsense", "1"),
        ("cleanup.policy", "compact,compact"),
        ("cleanup.policy", " compact ,\tdelete "),
        ("cleanup.policy", "none"),
        ("cleanup.policy", ""),
        ("retention.ms", " 77\n"),
        ("retention.ms", "7d"),
        ("retention.bytes", "-1"),
        ("retention.bytes", "1_000"),
        ("min.cleanable.dirty.ratio", ".5f"),
        ("segment.bytes", "1"),
    ):
        yield from altered(f"{name}={value}", (TOPIC, "changed", set_to((name, value))))
    yield from altered(
        "setting twice", (TOPIC, "changed", set_to(("retention.ms", "1"), ("retention.ms", "2")))
    )
    one = (TOPIC, "changed", set_to(("retention.ms", "1")))
    yield from altered("topic twice", one, one)
    yield from altered(
        "unknown topics", *((TOPIC, name, set_to(("retention.ms", "1"))) for name in ("nope", "a/b", ""))
    )
    yield from altered("nothing")
    yield from altered("no setting", (TOPIC, "changed", []))
    for kind in (0, 1, 3, 99):
        yield from altered(f"type {kind}", (kind, "1", set_to(("retention.ms", "1"))))
    yield from altered("unknown broker", (BROKER, "7", set_to(("log.cleaner.threads", "1"))))
    yield from altered("fixed setting of a broker", (BROKER, "1", set_to(("node.id", "2"))))
    for api, changes in (
        ("IncrementalAlterConfigs", set_to(("cleanup.policy", "compact"), operation=1)),
        ("AlterConfigs", [{"name": "retention.ms", "value": "5"}]),
    ):
        asked = {"resources": [resource(TOPIC, "changed", configs=changes)]}
        yield Step(api, "policy reset", asked)
        yield described(
            f"after {api} resets", resource(TOPIC, "changed", configuration_keys=["cleanup.policy"])
        )
    for operation in (1, 2, 3):
        for name, value in (("cleanup.policy", "compact"), ("retention.ms", "5"), ("nonsense", "5")):
            changes = [resource(TOPIC, "changed", configs=set_to((name, value), operation=operation))]
            yield Step("IncrementalAlterConfigs", f"operation {operation} {name}", {"resources": changes})
    changes = [resource(TOPIC, "changed", configs=set_to(("retention.ms", "5"), operation=7))]
    yield Step("IncrementalAlterConfigs", "operation 7", {"resources": changes}, slow=True)
    yield described("after all", resource(TOPIC, "changed"))


def _groups() -> Iterator[Step]:
    def committed(label: str, topic: str = "users", group: str = "g", offset: int = 5, **fields: Any) -> Step:
        part = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_metadata": fields.pop("note", ""),
        }
        asked = grouped("name", "partitions", [(topic, part)])
        given = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": asked}
        return Step("OffsetCommit", label, given | fields)

    for kind in (0, 1, 2, 9):
        given = {"key": "g", "coordinator_keys": ["g", "h", "g"], "key_type": kind}
        yield Step("FindCoordinator", f"type {kind}", given, first=1)
    yield Step("FindCoordinator", "plain", {"key": "g", "coordinator_keys": ["g"]})
    yield Step("FindCoordinator", "no name", {"key": "", "coordinator_keys": [""]})
    yield Step("FindCoordinator", "nothing", {"coordinator_keys": []}, first=4)
    yield committed("plain")
    yield committed("unknown topic", topic="nope")
    yield committed("no group", group="")
    yield committed("negative offset", offset=-5)
    yield committed("long note", note="x" * 5000)
    yield committed("no note", note=None)
    yield committed("note of two units a character", note="\U0001f600" * 2049)
    yield committed("generation", generation_id_or_member_epoch=5, member_id="x")
    yield committed("member without generation", member_id="x")

    def fetched(label: str, topics: Any, group: str = "g", first: int = 0, **fields: Any) -> Step:
        old = (
            None if topics is None else [{"name": name, "partition_indexes": parts} for name, parts in topics]
        )
        new = topics and [
            {"name": name, "topic_id": Kept(f"id of {name}"), "partition_indexes": parts}
            for name, parts in topics
        ]
        groups = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": new}]
        given = {"group_id": group, "topics": old, "groups": groups, **fields}
        return Step("OffsetFetch", label, given, first=first)

    yield fetched("plain", [("users", [0, 1])])
    yield fetched("unknown topic", [("nope", [0])])
    yield fetched("unknown partition", [("users", [9, -1])])
    yield fetched("all", None, first=2)
    yield fetched("nothing", [])
    yield fetched("unknown group", [("users", [0])], "none")
    yield fetched("no group", [("users", [0])], "")
    yield fetched("stable", [("users", [0])], require_stable=True, first=7)

    def joined(label: str, group: str = "j-{v}", first: int = 0, keep: Any = None, **fields: Any) -> Step:
        given = {
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": "",
            "group_id": group,
        }
        given |= {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"abc"}]}
        return Step("JoinGroup", label, given | fields, first=first, keep=keep or {})

    for version in Step("JoinGroup", "").versions:
        keep = {f"member {version}": lambda answer: answer.member_id}
        step = joined("first", group=f"j-{version}")
        yield Step("JoinGroup", "first", step.fields, version, version, keep)
        if version >= 4:
            known = joined("again", group=f"j-{version}", member_id=Kept(f"member {version}"))
            yield Step("JoinGroup", "again", known.fields, version, version, keep)
    yield joined("no group", group="")
    yield joined("short session", group="s-{v}", session_timeout_ms=5)
    yield joined("long session", group="s-{v}", session_timeout_ms=1 << 30)
    yield joined("no protocols", group="s-{v}", protocols=[])
    yield joined("no protocol type", group="s-{v}", protocol_type="")
    yield joined("unknown member", group="s-{v}", member_id="x")
    yield joined("protocol without a name", group="u-{v}", protocols=[{"name": "", "metadata": b""}], first=9)
    yield joined("static", group="k", first=9, group_instance_id="i", keep={"k": lambda a: a.member_id})
    yield joined("static again", group="k", first=9, group_instance_id="i", member_id="other")
    of_k = {"group_id": "k", "member_id": Kept("k"), "generation_id": 1}
    for label, given in (
        ("of the member", {"group_instance_id": "i"}),
        ("of another instance", {"group_instance_id": "j"}),
        ("of another member", {"group_instance_id": "i", "member_id": "other"}),
        ("without its instance", {}),
    ):
        yield Step("Heartbeat", f"static, {label}", of_k | given, first=3)
    leaving = [{"member_id": "", "group_instance_id": name} for name in ("j", "i", "i")]
    yield Step("LeaveGroup", "static", {"group_id": "k", "members": leaving}, first=3, last=3)
    yield joined(
        "another protocol", protocols=[{"name": "other", "metadata": b""}], member_id=Kept("member {v}")
    )
    for version in Step("JoinGroup", "").versions:
        member = {"group_id": f"j-{version}", "member_id": Kept(f"member {version}"), "generation_id": 1}
        if version > Step("Heartbeat", "").versions[-1]:
            continue
        yield Step("Heartbeat", "before sync", member, version, version)
        plan = [{"member_id": Kept(f"member {version}"), "assignment": b"plan"}]
        kind = {"protocol_type": "consumer", "protocol_name": "range"}
        yield Step("SyncGroup", "leader", member | {"assignments": plan} | kind, version, version)
        yield Step("SyncGroup", "again", member | {"assignments": []} | kind, version, version)
        yield Step("Heartbeat", "after sync", member, version, version)
        yield Step("Heartbeat", "older generation", member | {"generation_id": 0}, version, version)
        yield Step("DescribeGroups", "stable", {"groups": [f"j-{version}"]}, version, version)
    yield Step("SyncGroup", "no protocol", {"group_id": "j-0", "member_id": "x", "generation_id": 1})
    for label, given in (
        ("unknown group", {"group_id": "none", "member_id": "x", "generation_id": 1}),
        ("unknown member", {"group_id": "j-0", "member_id": "x", "generation_id": 1}),
        ("no group", {"group_id": "", "member_id": "x", "generation_id": 1}),
    ):
        yield Step("Heartbeat", label, given)
        yield Step(
            "SyncGroup", label, given | {"assignments": [], "protocol_type": None, "protocol_name": None}
        )
        leaving = {"members": [{"member_id": "x", "group_instance_id": None}]}
        yield Step("LeaveGroup", label, {k: given[k] for k in ("group_id", "member_id")} | leaving)
    leaving = {"member_id": Kept("member 0"), "members": [{"member_id": Kept("member 0")}]}
    yield Step("DeleteGroups", "not empty", {"groups_names": ["j-0"]})
    yield Step("LeaveGroup", "member", {"group_id": "j-0", **leaving}, first=0, last=0)
    yield Step("LeaveGroup", "left before", {"group_id": "j-0", **leaving})
    yield Step("DescribeGroups", "empty and none", {"groups": ["j-0", "none", ""]})
    yield Step(
        "DescribeGroups", "operations", {"groups": ["j-0"], "include_authorized_operations": True}, first=3
    )
    yield Step("DescribeGroups", "nothing", {"groups": []})
    yield Step("ListGroups", "stable", {"states_filter": ["Stable"]}, first=4)
    yield Step("ListGroups", "unknown state", {"states_filter": ["Odd"]}, first=4)
    yield Step("ListGroups", "types", {"types_filter": ["consumer"]}, first=5)
    yield Step("DeleteGroups", "several", {"groups_names": ["j-0", "none", "", "none"]})

    def deleted(label: str, topic: str, group: str = "g") -> Step:
        asked = by_name((topic, {"partition_index": 0}))
        return Step("OffsetDelete", label, {"group_id": group, "topics": asked})

    yield deleted("unknown group", "users", "none")
    yield deleted("unknown topic", "nope")
    yield deleted("plain", "users")
    yield deleted("no group", "users", "")


def _transactions() -> Iterator[Step]:
    def who(name: str = "t-{v}", producer: Any = None, epoch: Any = None) -> dict[str, Any]:
        return {
            "transactional_id": name,
            "producer_id": Kept("producer {v}") if producer is None else producer,
            "producer_epoch": Kept("epoch {v}") if epoch is None else epoch,
        }

    def begun(version: int) -> Step:
        keep = {
            f"producer {version}": lambda answer: answer.producer_id,
            f"epoch {version}": lambda answer: answer.producer_epoch,
        }
        given = {"transactional_id": f"t-{version}", "transaction_timeout_ms": 60_000}
        return Step("InitProducerId", "transactional", given, first=4, last=4, keep=keep)

    def added(label: str, *topics: str, **given: Any) -> Step:
        listed = [{"name": name, "partitions": [0]} for name in topics]
        old = {f"v3_and_below_{key}": value for key, value in who(**given).items()}
        new = [who(**given) | {"topics": listed, "verify_only": False}]
        return Step("AddPartitionsToTxn", label, old | {"v3_and_below_topics": listed, "transactions": new})

    def group(label: str, name: str = "tg", **given: Any) -> Step:
        return Step("AddOffsetsToTxn", label, who(**given) | {"group_id": name})

    def ended(label: str, commit: bool, **given: Any) -> Step:
        return Step("EndTxn", label, who(**given) | {"committed": commit})

    def committed(label: str, topic: str = "users", name: str = "tg", **given: Any) -> Step:
        fields = {"generation_id_or_member_epoch": -1, "member_id": "", "group_id": name}
        fields |= {key: given.pop(key) for key in fields if key in given}
        part = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
        asked = grouped("name", "partitions", [(topic, part)])
        return Step("TxnOffsetCommit", label, who(**given) | fields | {"topics": asked})

    for timeout in (0, -1, 1 << 30):
        given = {"transactional_id": "timed", "transaction_timeout_ms": timeout}
        yield Step("InitProducerId", f"timeout {timeout}", given)
    given = {"transactional_id": "timed", "transaction_timeout_ms": 5000}
    yield Step("InitProducerId", "transactional, plain", given)
    yield Step("InitProducerId", "transactional, no epoch", given | {"producer_id": 5}, first=3)
    unknown = {"producer_id": 999_999_999, "producer_epoch": 3}
    yield Step("InitProducerId", "transactional, unknown", given | unknown, first=3)
    for version in range(7):
        yield begun(version)
    yield added("partitions", "users", "table")
    yield added("partitions again", "users")
    yield added("unknown topic", "users", "nope")
    yield added("no partitions")
    yield added("unknown id", "users", name="nobody")
    yield added("no id", "users", name="")
    yield added("another producer", "users", producer=12345)
    yield added("older epoch", "users", epoch=-1)
    yield added("newer epoch", "users", epoch=77)
    yield Step("DescribeTransactions", "ongoing", {"transactional_ids": ["t-0", "nobody", ""]})
    yield Step("ListTransactions", "ongoing", {"state_filters": ["Ongoing"]})
    yield Step("ListTransactions", "unknown state", {"state_filters": ["Odd"]})
    yield Step("ListTransactions", "of a producer", {"producer_id_filters": [12345]})
    yield Step("ListTransactions", "by pattern", {"transactional_id_pattern": "t-[01]"}, first=2)
    yield Step("ListTransactions", "by a wrong pattern", {"transactional_id_pattern": "t-["}, first=2)
    yield Step("ListTransactions", "by duration", {"duration_filter": 3600_000}, first=1)
    yield group("group")
    yield group("no group", name="")
    yield group("another producer", producer=12345)
    yield committed("offsets")
    yield committed("unknown topic", topic="nope")
    yield committed("no group", name="")
    yield committed("another producer", producer=12345)
    yield committed("unknown member", member_id="x", generation_id_or_member_epoch=4)
    yield committed("unknown group", name="none", member_id="x", generation_id_or_member_epoch=4)
    yield ended("commit", True)
    yield ended("commit again", True)
    yield ended("abort after commit", False)
    yield ended("unknown id", True, name="nobody")
    yield ended("another producer", True, producer=12345)
    yield ended("newer epoch", True, epoch=77)
    yield Step("DescribeTransactions", "ended", {"transactional_ids": ["t-4"]})
    yield Step("DescribeTransactions", "nothing", {"transactional_ids": []})


def _consumer_groups() -> Iterator[Step]:
    def beat(label: str, group: str = "c-{v}", **fields: Any) -> Step:
        given = {"group_id": group, "member_id": "m-{v}", "member_epoch": 0, "rebalance_timeout_ms": 10_000}
        given |= {"subscribed_topic_names": ["users"], "topic_partitions": []}
        return Step("ConsumerGroupHeartbeat", label, given | fields)

    yield beat("join")
    steady = {"rebalance_timeout_ms": -1, "subscribed_topic_names": None, "topic_partitions": None}
    yield beat("stay", member_epoch=1, **steady)
    yield beat("newer epoch", member_epoch=9, **steady)
    yield beat("unknown member", member_id="other", member_epoch=1, **steady)
    yield beat("unknown group", group="none", member_epoch=1, **steady)
    yield beat("no group", group="")
    yield beat("no member", member_id="")
    yield beat("no topics", group="d-{v}", subscribed_topic_names=None)
    yield beat("no timeout", group="d-{v}", rebalance_timeout_ms=-1)
    yield beat("partitions at the start", group="d-{v}", topic_partitions=None)
    yield beat("unknown assignor", group="d-{v}", server_assignor="mine")
    yield beat("empty instance", group="d-{v}", instance_id="")
    yield beat("epoch -3", member_epoch=-3, **steady)
    yield beat("a wrong pattern", group="d-{v}", subscribed_topic_regex="[")
    yield Step("ConsumerGroupDescribe", "described", {"group_ids": ["c-0", "none", "", "j-0"]})
    yield Step("ConsumerGroupDescribe", "nothing", {"group_ids": []})
    yield Step("ListGroups", "consumer groups", {"types_filter": ["consumer"]}, first=5)
    keep = {
        name: (lambda answer, name=name: getattr(answer, name)) for name in ("producer_id", "producer_epoch")
    }
    given = {"transactional_id": "member", "transaction_timeout_ms": 60_000}
    yield Step("InitProducerId", "of a member", given, first=4, last=4, keep=keep)
    part = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
    given = {"transactional_id": "member", "group_id": "c-0", "member_id": "m-0"}
    given |= {name: Kept(name) for name in keep}
    given |= {"topics": grouped("name", "partitions", [("users", part)])}
    keep = {"older epoch": lambda answer: answer.member_epoch}
    yield Step(
        "ConsumerGroupHeartbeat", "of c-0", beat("", "c-0", member_id="m-0").fields, first=1, keep=keep
    )
    given |= {"generation_id_or_member_epoch": Kept("older epoch")}
    yield Step("TxnOffsetCommit", "of a member's epoch", given, first=5)
    wider = beat(
        "",
        "c-0",
        member_id="m-0",
        member_epoch=Kept("older epoch"),
        subscribed_topic_names=["table", "users"],
    )
    yield Step(
        "ConsumerGroupHeartbeat", "wider", wider.fields, first=1, keep={"member epoch": keep["older epoch"]}
    )
    for label, change in (
        ("of a member's older epoch", {}),
        ("of a member", {"generation_id_or_member_epoch": Kept("member epoch")}),
        ("older epoch of a member", {"generation_id_or_member_epoch": 0}),
        ("newer epoch of a member", {"generation_id_or_member_epoch": 9}),
        ("no epoch of a member", {"generation_id_or_member_epoch": -1}),
        ("of another member", {"member_id": "other"}),
        ("of no member", {"member_id": "", "generation_id_or_member_epoch": -1}),
    ):
        yield Step("TxnOffsetCommit", label, given | change, first=5)
    yield beat("leave", member_epoch=-1, **steady)
    yield beat("left before", member_epoch=-1, **steady)
    for label, given in (
        ("joins", {}),
        ("of another member", {"member_id": "n"}),
        ("again", {}),
        ("with another instance", {"instance_id": "j"}),
        ("of another member, free", {"member_id": "n"}),
    ):
        fields = beat("", "k-8", **({"member_id": "m", "instance_id": "i"} | given)).fields
        yield Step("ConsumerGroupHeartbeat", f"static, {label}", fields, first=1)
    yield beat("a blank member", member_id=" ")
    yield Step("ConsumerGroupDescribe", "static", {"group_ids": ["k-8"]}, first=1)


def _hostile() -> Iterator[Step]:
    """Yield frames that are wrong in each version of each API."""
    for api in SERVED_ALONE:
        fields = {"acks": -1} if api == "Produce" else {}
        yield Step(api, "cut", fields, bytes_of=cut)
        yield Step(api, "longer", fields, bytes_of=longer)
        yield Step(api, "only a header", fields, bytes_of=lambda frame: frame[:14])
    yield Step(
        "Metadata",
        "negative count",
        {"topics": []},
        first=1,
        last=8,
        bytes_of=header(16, b"\xff\xff\xff\xf0"),
    )
    yield Step(
        "Metadata", "huge count", {"topics": []}, first=1, last=8, bytes_of=header(16, b"\x7f\xff\xff\xff")
    )
    for version in range(API["Produce"].first):
        yield Step(
            "Produce", f"version {version}", {"acks": -1}, 3, 3, bytes_of=header(2, bytes([0, version]))
        )
    yield Step("Metadata", "unknown version", {"topics": []}, bytes_of=header(2, b"\0\x63"))
    yield Step("ApiVersions", "unknown version", {}, bytes_of=header(2, b"\0\x63"), last=2)
    yield Step("Metadata", "unknown API", {"topics": []}, bytes_of=header(0, b"\x03\xe7"))
    yield Step("Metadata", "negative API", {"topics": []}, bytes_of=header(0, b"\xff\xff"))
    yield Step("Metadata", "long client id", {"topics": []}, bytes_of=header(8, b"\x7f\xff"))
    yield Step("Metadata", "negative client id", {"topics": []}, bytes_of=header(8, b"\xff\xfe"), last=1)


SERVED_ALONE = (
    *(
        "Produce",
        "Fetch",
        "ListOffsets",
        "Metadata",
        "ApiVersions",
        "CreateTopics",
        "DeleteTopics",
        "DeleteRecords",
    ),
    *("InitProducerId", "OffsetForLeaderEpoch", "DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs"),
    *(
        "CreatePartitions",
        "DescribeLogDirs",
        "DescribeCluster",
        "DescribeProducers",
        "DescribeTopicPartitions",
    ),
)
"""APIs without a coordinator."""


def _administration() -> Iterator[Step]:
    """Yield requests for what a node without an authorizer does not have. They change nothing."""
    acl = {"resource_type": 2, "resource_name": "users", "principal": "User:ada", "host": "*"}
    acl |= {"operation": 3, "permission_type": 3}
    wanted = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    yield Step("DescribeAcls", "all", wanted)
    yield Step("CreateAcls", "two", {"creations": [acl, acl]})
    yield Step("CreateAcls", "none", {"creations": []})
    yield Step("DeleteAcls", "all", {"filters": [wanted, wanted]})
    yield Step("CreateDelegationToken", "one", {"renewers": [], "max_lifetime_ms": 1000})
    yield Step("RenewDelegationToken", "one", {"hmac": b"x", "renew_period_ms": 1000})
    yield Step("ExpireDelegationToken", "one", {"hmac": b"x", "expiry_time_period_ms": 1000})
    yield Step("DescribeDelegationToken", "all", {"owners": None})
    for label, names in (("unknown", ["nobody"]), ("twice", ["x", "y", "x"]), ("empty", [""])):
        yield Step("DescribeUserScramCredentials", label, {"users": [{"name": name} for name in names]})
    users = {"entity_type": "user", "match_type": 2, "match": None}
    yield Step("DescribeClientQuotas", "all", {"components": []})
    yield Step("DescribeClientQuotas", "users", {"components": [users], "strict": True})
    for label, changed in (
        ("named", {"match_type": 0, "match": "x"}),
        ("wrong type", {"entity_type": "other"}),
        ("empty type", {"entity_type": ""}),
        ("wrong match", {"match_type": 7}),
        ("no name", {"match_type": 0, "match": None}),
        ("a name too many", {"match": "x"}),
    ):
        yield Step("DescribeClientQuotas", label, {"components": [users | changed]})
    yield Step("DescribeClientQuotas", "twice", {"components": [users, users]})
    entity = [{"entity_type": "user", "entity_name": "x"}]
    limit = {"key": "producer_byte_rate", "value": 1e9, "remove": False}
    for label, given, change, fields in (
        ("removed", entity, limit | {"remove": True}, {}),
        ("tried", entity, limit, {"validate_only": True}),
        ("unknown quota", entity, limit | {"key": "other"}, {"validate_only": True}),
        ("negative", entity, limit | {"value": -1.0}, {"validate_only": True}),
        ("wrong type", [{"entity_type": "other", "entity_name": "x"}], limit, {"validate_only": True}),
        ("no entity", [], limit, {"validate_only": True}),
    ):
        entries = [{"entity": given, "ops": [change]}]
        yield Step("AlterClientQuotas", label, {"entries": entries} | fields)
    yield Step("ListPartitionReassignments", "all", {"topics": None})
    some = [{"name": "users", "partition_indexes": [0]}, {"name": "missing", "partition_indexes": [0]}]
    yield Step("ListPartitionReassignments", "some", {"topics": some})
    for label, topic, number, replicas in (
        ("the same", "users", 0, [1]),
        ("cancelled", "users", 0, None),
        ("another broker", "users", 0, [2]),
        ("twice", "users", 0, [1, 1]),
        ("no replicas", "users", 0, []),
        ("unknown partition", "users", 77, [1]),
        ("unknown topic", "missing", 0, [1]),
    ):
        given = [{"name": topic, "partitions": [{"partition_index": number, "replicas": replicas}]}]
        yield Step("AlterPartitionReassignments", label, {"topics": given})
    for label, path in (("unknown", "/nowhere"), ("relative", "x")):
        where = [{"name": "users", "partitions": [0]}, {"name": "missing", "partitions": [0]}]
        yield Step("AlterReplicaLogDirs", label, {"dirs": [{"path": path, "topics": where}]})
    for label, kind in (("preferred", 0), ("unclean", 1)):
        given = [{"topic": "users", "partitions": [0, 77]}, {"topic": "missing", "partitions": [0]}]
        yield Step("ElectLeaders", label, {"election_type": kind, "topic_partitions": given})
        yield Step("ElectLeaders", f"all {label}", {"election_type": kind, "topic_partitions": None})
        yield Step("ElectLeaders", f"none {label}", {"election_type": kind, "topic_partitions": []})
    quorum = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    yield Step("DescribeQuorum", "one", {"topics": [quorum]})
    yield Step("DescribeQuorum", "another topic", {"topics": [quorum | {"topic_name": "users"}]})
    yield Step(
        "DescribeQuorum", "another partition", {"topics": [quorum | {"partitions": [{"partition_index": 1}]}]}
    )
    yield Step("DescribeQuorum", "nothing", {"topics": []})
    for label, changed in (
        ("new producer", {}),
        ("again", {}),
        ("newer coordinator", {"coordinator_epoch": 5}),
        ("older coordinator", {"coordinator_epoch": 4}),
        ("newer epoch", {"coordinator_epoch": 5, "producer_epoch": 3, "transaction_result": True}),
        ("older epoch", {"coordinator_epoch": 5, "producer_epoch": 2}),
        ("version 2", {"coordinator_epoch": 5, "producer_epoch": 3, "transaction_version": 2}),
        ("missing", {"topics": [{"name": "missing", "partition_indexes": [0]}]}),
        ("several", {"topics": [{"name": "users", "partition_indexes": [0, 77]}], "coordinator_epoch": 9}),
        ("no topics", {"topics": []}),
        ("no producer id", {"producer_id": -1}),
        ("no epoch", {"producer_epoch": -1}),
        ("no producer", {"producer_id": -1, "producer_epoch": -1}),
        ("no producer id and no topics", {"producer_id": -1, "topics": []}),
    ):
        marker = {"producer_id": MARKED_PRODUCER, "producer_epoch": 1, "transaction_result": False}
        marker |= {"topics": [{"name": "users", "partition_indexes": [0]}], "coordinator_epoch": 1}
        yield Step("WriteTxnMarkers", label, {"markers": [marker | changed]})
    yield Step("WriteTxnMarkers", "none", {"markers": []})
    for types in ([], [2], [4], [8], [16], [32], [4, 32], [99]):
        yield Step("ListConfigResources", f"types {types}", {"resource_types": types})


SCRIPT = [
    *SET_UP,
    *_metadata(),
    *_create_topics(),
    *_produce(),
    *_stamped(),
    *_fetch(),
    *_offsets(),
    *_delete_records(),
    *_cluster(),
    *_configs(),
    *_groups(),
    *_transactions(),
    *_consumer_groups(),
    *_administration(),
    *_change_topics(),
    *_hostile(),
]
