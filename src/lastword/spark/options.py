"""Parse the options of `format("lastword")`: their names, values and defaults.

Names and meanings are those of Spark's Kafka source if it has them, so that a job can be moved by changing
the format and the address. Names are compared without case, as Spark passes them. An unknown option is
refused with the nearest name: a misspelt `endingOffset` would otherwise silently read to the end.

    Kafka's client options (`kafka.*` and four more)   one warning: there is no client here
    kafka.isolation.level                              read as `isolationLevel`
    kafka.bootstrap.servers                            refused: `path` replaces it
    options that Kafka's source refuses                refused, with the replacement
    options of a stream (`maxOffsetsPerTrigger` ...)   one warning in a batch, as in Kafka's source
    storage.*, storage.secret.*                        options of a bucket's store; plans hide the second form
    the end of a read (`endingOffsets` ...)            refused in a stream, which has no end
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

from lastword.config import TOPIC_SETTINGS
from lastword.errors import LastwordError, SparkOptionError, UsageError, nearest
from lastword.objects import is_secret, is_url, open_store
from lastword.parse import parse_bytes, parse_duration_ms, parse_setting_ms
from lastword.value_formats import ENVELOPES, FORMATS, OPTIONS, SHARED, format_of
from lastword.value_formats.interface import ValueFormat
from lastword.values import ProgressLike

# ---------------------------------------------------------------- values that travel to the tasks


EARLIEST, LATEST = -2, -1  # as in Kafka's offset JSON

Offsets = dict[str, dict[int, int]]


View = Literal["log", "newest", "changes"]


@dataclass(frozen=True, slots=True, repr=False)
class StorageOptions:
    """The options of a store, as `lastword.open(storage_options=...)` takes them. Its text has names only."""

    items: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, path: str, given: Mapping[str, str] | None) -> StorageOptions:
        """Check the options for a path; no request is sent.

        Raises:
            UsageError: The path is a directory, which has no options.
            NotALogDirError, UnknownSettingError, InvalidSettingError, MissingError: As `open_store`.
        """
        if not is_url(path):
            if given:
                raise UsageError(
                    "storage options are for a log in a bucket", remedy="leave them out for a directory"
                )
            return NO_STORAGE
        storage = cls(tuple(sorted((str(name), str(value)) for name, value in (given or {}).items())))
        open_store(path, dict(storage.items)).close()
        return storage

    def named(self) -> dict[str, str]:
        """Return the options under their names in Spark."""
        return {(SECRET if is_secret(name) else STORAGE) + name: value for name, value in self.items}

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(name for name, _ in self.items)})"


NO_STORAGE = StorageOptions()


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a read. The first field below that is given decides, as in Kafka's source.

    timestamp_ms   one time for every partition: the first record that is not older
    timestamps     topic -> partition -> time in ms
    offsets        topic -> partition -> offset, EARLIEST or LATEST
    everywhere     EARLIEST or LATEST for every partition
    """

    everywhere: int
    offsets: Offsets | None = None
    timestamps: Offsets | None = None
    timestamp_ms: int | None = None

    def named(self) -> Offsets | None:
        """Return the JSON that decides, or None. It must name exactly the partitions that are read."""
        if self.timestamp_ms is not None:
            return None
        return self.timestamps if self.timestamps is not None else self.offsets


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """The partitions to read: exactly one of the three fields is given."""

    topics: tuple[str, ...] = ()
    assigned: dict[str, tuple[int, ...]] = field(default_factory=dict)
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of one micro-batch of a stream; None is no limit.

    max_offsets, max_bytes   approximate upper limits, shared in proportion to each partition's backlog
    min_offsets              wait for this many offsets, but no longer than max_delay_ms
    """

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000


@dataclass(frozen=True, slots=True)
class ColumnFormats:
    """The formats of keys and values; without a format a column has bytes.

    key_schema, value_schema   the type of the column in Spark's DDL, if the user gives no schema
    permissive                 a key or value that cannot be decoded is null, and in column `_corrupt_record`
    """

    key: ValueFormat | None = None
    value: ValueFormat | None = None
    key_schema: str | None = None
    value_schema: str | None = None
    permissive: bool = False

    def of(self, name: str) -> ValueFormat | None:
        """Return the format of a column."""
        return self.key if name == "key" else self.value if name == "value" else None

    def schema_of(self, name: str) -> str | None:
        """Return the DDL of a column's type."""
        return self.key_schema if name == "key" else self.value_schema if name == "value" else None

    def __bool__(self) -> bool:
        return self.key is not None or self.value is not None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read.

    max_partition_bytes    a task reads about this many bytes of the log at most (cut at index entries)
    max_partition_records  a task covers at most this many offsets
    min_partitions         the least number of tasks, if index entries allow it
    late_start             for a start time above every record: `error`, or `latest` (nothing to read)
    keys                   only records of these keys
    lease                  a stream holds a lease of this name, and advances it with every batch it commits
    """

    path: str
    selection: TopicSelection
    start: Bound
    end: Bound
    late_start: Literal["error", "latest"]
    include_headers: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_partition_records: int | None
    max_partition_bytes: int
    view: View
    keys: tuple[bytes, ...] | None
    isolation: Literal["read_committed", "read_uncommitted"]
    limits: BatchLimits = BatchLimits()
    lease: str | None = None
    lease_max_age_ms: int = 7 * 86_400_000
    formats: ColumnFormats = ColumnFormats()
    storage: StorageOptions = NO_STORAGE


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write.

    settings             topic settings by their Kafka names, for a topic to be created
    commit_timeout_ms    how long a commit waits for a holder of the lock that does not ingest it
    producer, sequence   name a batch, so that it is written once; a stream names its batches itself
    """

    path: str
    topic: str | None
    partitions: int | None
    ack: Literal["disk", "os"]
    null_value: Literal["delete", "error"]
    settings: dict[str, str]
    commit_timeout_ms: int = 60_000
    producer: str | None = None
    sequence: int | None = None
    formats: ColumnFormats = ColumnFormats()
    storage: StorageOptions = NO_STORAGE


CLEAN_TASK_BYTES = 1 << 30
"""A partition with more bytes than this below its limit is divided over tasks. Up to this size, one task is
fast enough, and it needs no scratch files.
"""


class CleanOptions(TypedDict, total=False):
    """The options of `clean` and of `plan`, which describes none of them again."""

    due: bool
    strategy: str | None
    scratch: str | None
    task_bytes: int
    progress: ProgressLike | None
    storage_options: Mapping[str, str] | None


CLEAN_DEFAULTS = CleanOptions(
    due=False, strategy=None, scratch=None, task_bytes=CLEAN_TASK_BYTES, progress=None, storage_options=None
)


# ---------------------------------------------------------------- the text of one option


Problem = ValueError
"""Raised with the end of a sentence about an option. All sentences are collected into one error."""


def hint(name: str, known: Iterable[str]) -> str:
    """Return `; nearest: x` for the most similar known name, ignoring case; or an empty text."""
    names = {known_name.lower(): known_name for known_name in known}
    near = nearest(name.lower(), names)
    return f"; nearest: {names[near]}" if near else ""


def parse_flag(text: str) -> bool:
    """Return whether the text is `true`."""
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise Problem("is true or false")
    return lowered == "true"


def parse_number(parse: Callable[[str], int], least: int, meaning: str) -> Callable[[str], int]:
    """Return a parser of a number from `least` on, whose problem is that the option is not `meaning`."""

    def parsed(text: str) -> int:
        try:
            number = parse(text)
        except (LastwordError, ValueError):
            number = least - 1
        if number < least:
            raise Problem(f"is {meaning}")
        return number

    return parsed


def _duration(parse: Callable[[str], int]) -> Callable[[str], int]:
    """Return a parser of durations, of which Spark also writes `15min`."""
    return parse_number(lambda text: parse(re.sub("min$", "m", text.strip())), 0, "a duration, such as 15m")


parse_count = parse_number(int, 1, "a whole number above 0")
parse_size_bytes = parse_number(parse_bytes, 1, "a size above 0, such as 128MiB")
parse_duration = _duration(parse_duration_ms)
parse_delay = _duration(parse_setting_ms)
"""Parses a duration of which a bare number is milliseconds, as in Spark."""
parse_sequence = parse_number(int, 0, "a whole number, 0 or above, that rises from batch to batch")
parse_millis = parse_number(int, -(1 << 63), "a time in milliseconds since 1970")


def parse_one_of(*values: str) -> Callable[[str], Any]:
    """Return a parser of the given words, which ignores case."""

    def parse(text: str) -> str:
        lowered = text.strip().lower()
        if lowered not in values:
            raise Problem(f"is {' or '.join(values)}{hint(lowered, values)}")
        return lowered

    return parse


def parse_names(text: str) -> tuple[str, ...]:
    """Parse names with commas between them; a repeated name counts once."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise Problem("names no topic")
    return names


def parse_pattern(text: str) -> str:
    """Check a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise Problem(f"is no regular expression as Python writes them: {error}") from None
    return text


def parse_json(shape: str, convert: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Return a parser of JSON; what `convert` raises for other JSON is the problem of the option."""

    def parse(text: str) -> Any:
        try:
            return convert(json.loads(text))
        except (AttributeError, RecursionError, TypeError, ValueError):
            raise Problem(f"is JSON like {shape}") from None

    return parse


def _assigned(value: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    """Return the partitions of each topic, at least one."""
    numbers = [number for given in value.values() for number in given]
    lists = all(isinstance(given, list) and given for given in value.values())
    if not value or not lists or not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError
    return {topic: tuple(sorted(set(given))) for topic, given in value.items()}


def _per_partition(lowest: int) -> Callable[[dict[str, dict[str, int]]], Offsets]:
    """Return a function that checks a number of at least `lowest` for each partition."""

    def convert(value: dict[str, dict[str, int]]) -> Offsets:
        pairs = [pair for given in value.values() for pair in given.items()]
        if not value or not all(p.isdecimal() and type(n) is int and n >= lowest for p, n in pairs):
            raise ValueError
        return {topic: {int(p): n for p, n in given.items()} for topic, given in value.items()}

    return convert


def _key(item: Any) -> bytes:
    """Return a key: a string (its UTF-8), or {"base64": "..."}, as `read --json` prints other keys."""
    if isinstance(item, str):
        return item.encode()
    if list(item) != ["base64"]:
        raise ValueError
    return base64.b64decode(item["base64"], validate=True)


def _keys(value: list[Any]) -> tuple[bytes, ...]:
    if not isinstance(value, list):
        raise TypeError
    return tuple(map(_key, value))


parse_assignment = parse_json('{"topic":[0,1]}', _assigned)
parse_offsets = parse_json('{"topic":{"0":23,"1":-2}}', _per_partition(EARLIEST))
parse_times = parse_json('{"topic":{"0":1767225600000}}', _per_partition(0))
parse_keys = parse_json('["ada", {"base64": "/wA="}]', _keys)


def parse_bound(default: int, useless: str = "", why: str = "") -> Callable[[str], Bound]:
    """Return a parser of a start or an end: offsets, or a word.

    Args:
        default: The bound of partitions without an offset.
        useless: The word with which there would be nothing to read.
        why: The end of the sentence about that word.
    """
    numbers = {"earliest": EARLIEST, "latest": LATEST}

    def parse(text: str) -> Bound:
        word = text.strip().lower()
        if word in numbers and word != useless:
            return Bound(numbers[word])
        if word == useless:
            raise Problem(f"cannot be {useless}{why}")
        offsets = parse_offsets(text)
        if any(number == numbers.get(useless) for given in offsets.values() for number in given.values()):
            raise Problem(f"cannot be {numbers[useless]} ({useless}){why}")
        return Bound(default, offsets=offsets)

    return parse


parse_starting = parse_bound(EARLIEST, "latest", " in a batch read: there would be nothing to read")
parse_stream_starting = parse_bound(EARLIEST)
parse_ending = parse_bound(LATEST, "earliest", ": there would be nothing to read")


def absolute_path(text: str) -> str:
    """Return a directory's absolute name, which driver and tasks share.

    A relative name starts at the driver's working directory.
    """
    if not text:
        raise Problem("is empty")
    if text.startswith("file:"):
        text = "/" + text[5:].lstrip("/")
    elif _URL.match(text):
        raise Problem("is a directory that all tasks can see (local or mounted), not a URL")
    return str(Path(text).absolute())


_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+:/")
STORES = ("s3", "gs", "az", "memory")
"""The schemes of the URLs of logs in buckets."""


def log_path(text: str) -> str:
    """Return the name of a log, which driver and tasks share: a URL, or a directory's absolute name."""
    scheme, _, rest = text.partition("://")
    if scheme.lower() in STORES:
        return f"{scheme.lower()}://{rest.rstrip('/')}"
    if _URL.match(text) and not text.startswith("file:"):
        raise Problem(
            "is a directory that all tasks can see (local or mounted), or a bucket "
            f"({', '.join(f'{name}://' for name in STORES[:-1])}), not a URL of another kind"
        )
    return absolute_path(text)


def parse_text(text: str) -> str:
    """Check that the text is not empty."""
    if not text:
        raise Problem("is empty")
    return text


# ---------------------------------------------------------------- all options


log = logging.getLogger(__name__)

HIDDEN = {"basic.auth.user.info": "secret.basic.auth.user.info"}
"""Options of formats that have another name here, which Spark hides in its plans."""

FORMAT: dict[str, Callable[[str], Any]] = {
    "value_format": parse_one_of(*FORMATS),
    "key_format": parse_one_of(*FORMATS),
    "envelope": parse_one_of(*ENVELOPES),
    **dict.fromkeys([HIDDEN.get(name, name) for name in OPTIONS], parse_text),
    **dict.fromkeys([f"key_{name}" for name in OPTIONS if name not in SHARED], parse_text),
}
"""Options of columns with a format. A format's own options are for values, with `key_` in front for keys."""

READ: dict[str, Callable[[str], Any]] = {
    "path": log_path,
    "subscribe": parse_names,
    "assign": parse_assignment,
    "subscribePattern": parse_pattern,
    "startingOffsets": parse_starting,
    "endingOffsets": parse_ending,
    "startingTimestamp": parse_millis,
    "endingTimestamp": parse_millis,
    "startingOffsetsByTimestamp": parse_times,
    "endingOffsetsByTimestamp": parse_times,
    "startingOffsetsByTimestampStrategy": parse_one_of("error", "latest"),
    "includeHeaders": parse_flag,
    "failOnDataLoss": parse_flag,
    "minPartitions": parse_count,
    "maxRecordsPerPartition": parse_count,
    "maxBytesPerPartition": parse_size_bytes,
    "view": parse_one_of("log", "newest", "changes"),
    "keys": parse_keys,
    "isolationLevel": parse_one_of("read_committed", "read_uncommitted"),
    **FORMAT,
    "value_schema": parse_text,
    "key_schema": parse_text,
    "mode": parse_one_of("failfast", "permissive"),
}

STREAM: dict[str, Callable[[str], Any]] = {
    **{name: parse for name, parse in READ.items() if not name.startswith("ending")},
    "startingOffsets": parse_stream_starting,
    "maxOffsetsPerTrigger": parse_count,
    "minOffsetsPerTrigger": parse_count,
    "maxTriggerDelay": parse_delay,
    "maxBytesPerTrigger": parse_size_bytes,
    "lease": parse_text,
    "leaseMaxAge": parse_duration,
}

WRITE: dict[str, Callable[[str], Any]] = {
    "path": log_path,
    "topic": parse_text,
    "partitions": parse_count,
    "ack": parse_one_of("disk", "os"),
    "nullValue": parse_one_of("delete", "error"),
    "commitTimeout": parse_duration,
    "producer": parse_text,
    "sequence": parse_sequence,
    "includeHeaders": parse_flag,  # Kafka's sink needs it to write `headers`; here the column is enough
    **FORMAT,
}

STORAGE = "storage."
"""The beginning of the name of each option of a store."""
SECRET = "storage.secret."
"""Another beginning of these names, which is needed for a credential whose own name Spark would show."""
_HIDDEN = re.compile(r"(?i)secret|password|token")
_PUBLIC = ("access_key_id",)  # it names a user, and is in the address of each signed request

CHOICES = ("assign", "subscribe", "subscribePattern")
NO_CLIENT = (
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
    "groupidprefix",
)
INSTEAD = {
    "kafka.bootstrap.servers": "give the log directory as 'path'",
    "kafka.auto.offset.reset": "startingOffsets says where to begin",
    "kafka.enable.auto.commit": "a stream keeps its offsets in its checkpoint",
    "kafka.interceptor.classes": "change the rows of the frame",
    **{
        f"kafka.{column}.{name}": f"cast the column {column} {cast}, or give {column}_format"
        for column in ("key", "value")
        for name, cast in (("deserializer", "after loading"), ("serializer", "to string or binary"))
    },
}
"""Kafka's client options that a job may depend on, and their replacement.

Kafka's source refuses all but the first.
"""

OF_A_TABLE = (
    "Spark passes no options of a table of its catalog to a source in Python: CREATE TEMPORARY VIEW name "
    "USING lastword OPTIONS (path 'data', subscribe 'users') keeps them"
)
STREAM_ONLY = tuple(name.lower() for name in STREAM if name not in READ)


def parse_read(options: Mapping[str, str], *, stream: bool = False, warn: bool = True) -> ReadOptions:
    """Parse the options of a read; warn of options without effect. SparkOptionError lists all problems."""
    known, other = (STREAM, {**WRITE, **READ}) if stream else (READ, WRITE)
    values, problems = _parse(
        options,
        known,
        other=[name for name in other if name not in known],
        direction="a stream" if stream else "reading",
        settings=(),
        warn=warn,
    )
    chosen = [name for name in CHOICES if name in values]
    if len(chosen) != 1 and not problems:
        problem = f"{' and '.join(chosen)} are both given" if chosen else "no topic is chosen"
        problems.append(f"{problem}: give exactly one of subscribe, assign, subscribePattern")
    limits = BatchLimits(
        max_offsets=values.get("maxOffsetsPerTrigger"),
        max_bytes=values.get("maxBytesPerTrigger"),
        min_offsets=values.get("minOffsetsPerTrigger"),
        max_delay_ms=values.get("maxTriggerDelay", BatchLimits().max_delay_ms),
    )
    if stream:
        problems += _stream_problems(values, limits)
    topics = [*values.get("subscribe", ()), *values.get("assign", {})]
    formats = _formats(values, problems, topics[0] if len(topics) == 1 else None)
    _refuse(problems)
    return ReadOptions(
        path=values["path"],
        selection=TopicSelection(
            values.get("subscribe", ()), values.get("assign", {}), values.get("subscribePattern")
        ),
        start=_bound(values, "starting", Bound(LATEST if stream else EARLIEST)),
        end=_bound(values, "ending", Bound(LATEST)),
        late_start=values.get("startingOffsetsByTimestampStrategy", "error"),
        include_headers=values.get("includeHeaders", False),
        fail_on_data_loss=values.get("failOnDataLoss", True),
        min_partitions=values.get("minPartitions"),
        max_partition_records=values.get("maxRecordsPerPartition"),
        max_partition_bytes=values.get("maxBytesPerPartition", 128 << 20),
        view=values.get("view", "log"),
        keys=values.get("keys"),
        isolation=values.get("isolationLevel", "read_committed"),
        limits=limits,
        lease=values.get("lease"),
        lease_max_age_ms=values.get("leaseMaxAge", 7 * 86_400_000),
        formats=formats,
        storage=StorageOptions.of(values["path"], values.get("storage")),
    )


def parse_schema(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options as options of a batch, otherwise of a stream. The error is that of the batch."""
    try:
        return parse_read(options, warn=False)
    except SparkOptionError:
        with suppress(SparkOptionError):
            return parse_read(options, stream=True, warn=False)
        raise


def _stream_problems(values: Mapping[str, Any], limits: BatchLimits) -> list[str]:
    problems = []
    if limits.min_offsets and limits.max_offsets and limits.min_offsets > limits.max_offsets:
        problems.append(
            f"minOffsetsPerTrigger {limits.min_offsets} is above maxOffsetsPerTrigger {limits.max_offsets}"
        )
    if values.get("view") == "newest":
        problems.append("view newest is for a batch: a stream has `changes`, the newest of each key by batch")
    return problems


def parse_write(options: Mapping[str, str], *, stream: bool = False, warn: bool = True) -> WriteOptions:
    """Parse the options of a write; warn of options without effect. SparkOptionError lists all problems."""
    values, problems = _parse(
        options, WRITE, other=READ, direction="writing", settings=TOPIC_SETTINGS, warn=warn
    )
    if not stream and ("producer" in values) != ("sequence" in values) and not problems:
        problems.append("producer and sequence come together: the writer, and the number of its batch")
    if stream:
        problems += [
            f"option '{name}' is not for a stream: its query and batch take its place"
            for name in ("producer", "sequence")
            if name in values
        ]
    formats = _formats(values, problems, values.get("topic"))
    _refuse(problems)
    return WriteOptions(
        path=values["path"],
        topic=values.get("topic"),
        partitions=values.get("partitions"),
        ack=values.get("ack", "disk"),
        null_value=values.get("nullValue", "delete"),
        settings=values.get("settings", {}),
        commit_timeout_ms=values.get("commitTimeout", 60_000),
        producer=values.get("producer"),
        sequence=values.get("sequence"),
        formats=formats,
        storage=StorageOptions.of(values["path"], values.get("storage")),
    )


def _formats(values: Mapping[str, Any], problems: list[str], topic: str | None) -> ColumnFormats:
    """Return the formats of keys and values. Options without their format are problems.

    `topic` is the topic, if there is one: a registry's subjects have its name.
    """
    if problems:
        return ColumnFormats()
    formats: dict[str, ValueFormat] = {}
    for column, prefix in (("key", "key_"), ("value", "")):
        name = values.get(f"{column}_format")
        own = {
            option: HIDDEN.get(option, option) if option in SHARED else prefix + option for option in OPTIONS
        }
        settings = {option: values[given] for option, given in own.items() if given in values}
        unused = [option for option in settings if name not in OPTIONS[option] and option not in SHARED]
        if unused:
            needed = " or ".join(OPTIONS[unused[0]])
            problems.append(
                f"option '{prefix}{unused[0]}' is for {column}_format {needed}, not {name or 'none'}"
            )
        elif name is not None:
            try:
                subject = topic and f"{topic}-{column}"
                formats[column] = format_of(name, settings, subject, envelope=values.get("envelope"))
            except ValueError as error:
                problems.append(f"option {'' if str(error).startswith(SHARED) else prefix}{error}")
        if name is None and f"{column}_schema" in values:
            problems.append(f"option '{column}_schema' needs {column}_format, which is not given")
    if "envelope" in values and not problems:
        if "value" in formats:
            formats["value"] = _in_envelope(formats["value"], problems)
        else:
            problems.append("option 'envelope' needs value_format, which is not given")
    if "mode" in values and not formats:
        problems.append("option 'mode' needs value_format or key_format, and none is given")
    return ColumnFormats(
        formats.get("key"),
        formats.get("value"),
        values.get("key_schema"),
        values.get("value_schema"),
        values.get("mode") == "permissive",
    )


def _in_envelope(value_format: ValueFormat, problems: list[str]) -> ValueFormat:
    """Return the format of change events in a format. A schema of other values is a problem."""
    from lastword.value_formats.debezium import DebeziumFormat

    events = DebeziumFormat(value_format)
    try:
        events.check_events()
    except ValueError as error:
        problems.append(f"option 'envelope': {error}")
    return events


def _parse(
    options: Mapping[str, str],
    known: Mapping[str, Callable[[str], Any]],
    *,
    other: Iterable[str],
    direction: str,
    settings: Iterable[str],
    warn: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Return values by canonical name, and sentences about problems.

    Topic settings are under `settings`, options of a store under `storage`.
    """
    if "provider" in options and "owner" in options:
        return {}, [OF_A_TABLE]
    canonical = {name.lower(): name for name in known}
    if "isolationLevel" in known:
        canonical["kafka.isolation.level"] = "isolationLevel"
    for_other = {name.lower(): name for name in other}
    given = {name.lower() for name in options}
    is_for_both = "topic" in given and any(name.lower() in given for name in CHOICES)  # a view in SQL
    values: dict[str, Any] = {}
    problems: list[str] = []
    unused: list[str] = []
    topic_settings: dict[str, str] = {}
    storage: dict[str, str] = {}
    for spelling, text in options.items():
        name = spelling.lower()
        if name in canonical:
            try:
                value = known[canonical[name]](text)
            except Problem as problem:
                problems.append(f"option '{canonical[name]}' {problem} (got {text!r})")
                continue
            if values.setdefault(canonical[name], value) != value:
                problems.append(
                    f"option '{canonical[name]}' is given twice: {values[canonical[name]]}, {value}"
                )
        elif name in settings:
            topic_settings[name] = text
        elif name.startswith(STORAGE):
            option = name.removeprefix(SECRET if name.startswith(SECRET) else STORAGE)
            storage[option] = text
            if is_secret(option) and option not in _PUBLIC and not _HIDDEN.search(name):
                problems.append(f"Spark would show option '{name}' in plans: name it '{SECRET}{option}'")
        elif name in HIDDEN:
            problems.append(f"Spark would show option '{name}' in plans: name it '{HIDDEN[name]}'")
        elif name in INSTEAD:
            problems.append(f"option '{name}' has no meaning here: {INSTEAD[name]}")
        elif name.startswith("ending") and name in for_other and direction != "writing":
            problems.append(f"option '{for_other[name]}' is not for {direction}, which has no end")
        elif name == "paths":
            problems.append("one path at a time: load each directory by itself and union the frames")
        elif is_for_both and _is_of_any(name):
            continue
        elif name.startswith("kafka.") or name in NO_CLIENT or name in STREAM_ONLY:
            unused.append(spelling)
        elif name in for_other:
            problems.append(f"option '{for_other[name]}' is not for {direction}")
        else:
            problems.append(f"unknown option '{spelling}'{hint(spelling, [*known, *settings])}")
    if "path" not in values and "path" not in options and not any("path" in problem for problem in problems):
        problems.append("no log directory is given: load(path), save(path) or option 'path'")
        if not options:
            problems.append(OF_A_TABLE)
    if unused and warn:
        log.warning("lastword: options that have no effect here: %s", ", ".join(sorted(unused)))
    if topic_settings:
        values["settings"] = topic_settings
    if storage:
        values["storage"] = storage
    return values, problems


def _is_of_any(name: str) -> bool:
    """Return whether an option is known for reading, streams or writing."""
    return name in TOPIC_SETTINGS or any(name == known.lower() for known in (*STREAM, *READ, *WRITE))


def _bound(values: Mapping[str, Any], prefix: str, default: Bound) -> Bound:
    given: Bound = values.get(f"{prefix}Offsets", default)
    return Bound(
        given.everywhere,
        given.offsets,
        values.get(f"{prefix}OffsetsByTimestamp"),
        values.get(f"{prefix}Timestamp"),
    )


def _refuse(problems: list[str]) -> None:
    if problems:
        raise SparkOptionError("; ".join(problems), remedy='all options: help("lastword.spark.options")')
