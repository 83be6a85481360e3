"""Every option of `format("lastword")`: its name, what it may hold, what it means when it is absent.

Names and meanings are those of Spark's Kafka source where it has them, so that a job moves over by changing
the format and the address. Names are compared without case, as Spark hands them over. An option that is not
known is refused with the nearest name: a misspelt `endingOffset` would otherwise read to the end without a
word.

    Kafka's client options (`kafka.*` and four more)   one warning: there is no client here
    kafka.isolation.level                              taken as `isolationLevel`
    kafka.bootstrap.servers                            refused: `path` takes its place
    those that Kafka's source refuses                  refused, with what to use instead
    options of a stream (`maxOffsetsPerTrigger` ...)   one warning in a batch, as Kafka's source has it
    the end of a read (`endingOffsets` ...)            refused in a stream, which has none
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lastword.errors import SparkOptionError
from lastword.spark import option_texts as texts
from lastword.spark.option_values import EARLIEST, LATEST, Bound, Limits, ReadOptions, Wanted, WriteOptions

log = logging.getLogger(__name__)


READ: dict[str, Callable[[str], Any]] = {
    "path": texts.absolute_path,
    "subscribe": texts.names,
    "assign": texts.assignment,
    "subscribePattern": texts.pattern,
    "startingOffsets": texts.starting,
    "endingOffsets": texts.ending,
    "startingTimestamp": texts.millis,
    "endingTimestamp": texts.millis,
    "startingOffsetsByTimestamp": texts.times_json,
    "endingOffsetsByTimestamp": texts.times_json,
    "startingOffsetsByTimestampStrategy": texts.one_of("error", "latest"),
    "includeHeaders": texts.flag,
    "failOnDataLoss": texts.flag,
    "minPartitions": texts.count,
    "maxRecordsPerPartition": texts.count,
    "maxBytesPerPartition": texts.size_bytes,
    "view": texts.one_of("log", "latest", "changes"),
    "keys": texts.keys,
    "isolationLevel": texts.one_of("read_committed", "read_uncommitted"),
}

STREAM: dict[str, Callable[[str], Any]] = {
    **{name: parse for name, parse in READ.items() if not name.startswith("ending")},
    "startingOffsets": texts.stream_starting,
    "maxOffsetsPerTrigger": texts.count,
    "minOffsetsPerTrigger": texts.count,
    "maxTriggerDelay": texts.duration,
    "maxBytesPerTrigger": texts.size_bytes,
    "lease": texts.plain,
    "leaseMaxAge": texts.duration,
}

WRITE: dict[str, Callable[[str], Any]] = {
    "path": texts.absolute_path,
    "topic": texts.plain,
    "partitions": texts.count,
    "ack": texts.one_of("disk", "os"),
    "nullValue": texts.one_of("delete", "error"),
    "commitTimeout": texts.duration,
    "producer": texts.plain,
    "sequence": texts.sequence,
    "includeHeaders": texts.flag,  # Kafka's sink needs it to look at `headers`; here the column is enough
}

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
    **{f"kafka.{which}.deserializer": f"cast the column {which} after loading" for which in ("key", "value")},
    **{
        f"kafka.{which}.serializer": f"cast the column {which} to string or binary"
        for which in ("key", "value")
    },
}
"""Kafka's client options that a job may stand on, and what takes their place. Kafka's source refuses all but
the first."""

OF_A_TABLE = (
    "of a table of its catalog Spark gives a source in Python no options: CREATE TEMPORARY VIEW name USING "
    "lastword OPTIONS (path 'data', subscribe 'users') keeps them"
)
STREAM_ONLY = tuple(name.lower() for name in STREAM if name not in READ)


def parse_read(options: Mapping[str, str], *, stream: bool = False, warn: bool = True) -> ReadOptions:
    """SparkOptionError with everything that is wrong, and a remedy; a warning for what has no effect."""
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
        said = f"{' and '.join(chosen)} are both given" if chosen else "no topic is chosen"
        problems.append(f"{said}: give exactly one of subscribe, assign, subscribePattern")
    limits = Limits(
        max_offsets=values.get("maxOffsetsPerTrigger"),
        max_bytes=values.get("maxBytesPerTrigger"),
        min_offsets=values.get("minOffsetsPerTrigger"),
        max_delay_ms=values.get("maxTriggerDelay", Limits().max_delay_ms),
    )
    if stream:
        problems += _stream_problems(values, limits)
    _refuse(problems)
    return ReadOptions(
        path=values["path"],
        wanted=Wanted(values.get("subscribe", ()), values.get("assign", {}), values.get("subscribePattern")),
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
    )


def parse_schema(options: Mapping[str, str]) -> ReadOptions:
    """As a batch, or if that is refused as a stream; both refuse with the batch's sentences."""
    try:
        return parse_read(options, warn=False)
    except SparkOptionError:
        try:
            return parse_read(options, stream=True, warn=False)
        except SparkOptionError:
            pass
        raise


def _stream_problems(values: Mapping[str, Any], limits: Limits) -> list[str]:
    problems = []
    if limits.min_offsets and limits.max_offsets and limits.min_offsets > limits.max_offsets:
        problems.append(
            f"minOffsetsPerTrigger {limits.min_offsets} is above maxOffsetsPerTrigger {limits.max_offsets}"
        )
    if values.get("view") == "latest":
        problems.append("view latest is for a batch: a stream has `changes`, the newest of each key by batch")
    return problems


def parse_write(options: Mapping[str, str], *, stream: bool = False, warn: bool = True) -> WriteOptions:
    """SparkOptionError with everything that is wrong, and a remedy; a warning for what has no effect."""
    from lastword.config import TOPIC_SETTINGS

    values, problems = _parse(
        options, WRITE, other=READ, direction="writing", settings=TOPIC_SETTINGS, warn=warn
    )
    if not stream and ("producer" in values) != ("sequence" in values) and not problems:
        problems.append("producer and sequence come together: who writes, and which of its batches this is")
    if stream:
        problems += [
            f"option '{name}' is not for a stream: its query and batch take its place"
            for name in ("producer", "sequence")
            if name in values
        ]
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
    )


def _parse(
    options: Mapping[str, str],
    known: Mapping[str, Callable[[str], Any]],
    *,
    other: Iterable[str],
    direction: str,
    settings: Iterable[str],
    warn: bool,
) -> tuple[dict[str, Any], list[str]]:
    """(value by canonical name, sentences about what is wrong). Settings of a topic come back under
    `settings`.
    """
    if "provider" in options and "owner" in options:
        return {}, [OF_A_TABLE]
    canonical = {name.lower(): name for name in known}
    if "isolationLevel" in known:
        canonical["kafka.isolation.level"] = "isolationLevel"
    for_other = {name.lower(): name for name in other}
    values: dict[str, Any] = {}
    problems: list[str] = []
    unused: list[str] = []
    topic_settings: dict[str, str] = {}
    for given, text in options.items():
        name = given.lower()
        if name in canonical:
            try:
                value = known[canonical[name]](text)
            except texts.Problem as problem:
                problems.append(f"option '{canonical[name]}' {problem} (got {text!r})")
                continue
            if values.setdefault(canonical[name], value) != value:
                problems.append(
                    f"option '{canonical[name]}' is given twice: {values[canonical[name]]}, {value}"
                )
        elif name in settings:
            topic_settings[name] = text
        elif name in INSTEAD:
            problems.append(f"option '{name}' has no meaning here: {INSTEAD[name]}")
        elif name.startswith("ending") and name in for_other:
            problems.append(f"option '{for_other[name]}' is not for {direction}, which has no end")
        elif name == "paths":
            problems.append("one path at a time: load each directory by itself and union the frames")
        elif name.startswith("kafka.") or name in NO_CLIENT or name in STREAM_ONLY:
            unused.append(given)
        elif name in for_other:
            problems.append(f"option '{for_other[name]}' is not for {direction}")
        else:
            problems.append(f"unknown option '{given}'{texts.hint(given, [*known, *settings])}")
    if "path" not in values and "path" not in options and not any("path" in problem for problem in problems):
        problems.append("no log directory is given: load(path), save(path) or option 'path'")
        if not options:
            problems.append(OF_A_TABLE)
    if unused and warn:
        log.warning("lastword: options that have no effect here: %s", ", ".join(sorted(unused)))
    if topic_settings:
        values["settings"] = topic_settings
    return values, problems


def _bound(values: Mapping[str, Any], which: str, default: Bound) -> Bound:
    given: Bound = values.get(f"{which}Offsets", default)
    return Bound(
        given.everywhere,
        given.offsets,
        values.get(f"{which}OffsetsByTimestamp"),
        values.get(f"{which}Timestamp"),
    )


def _refuse(problems: list[str]) -> None:
    if problems:
        raise SparkOptionError("; ".join(problems), remedy='all options: help("lastword.spark.options")')
