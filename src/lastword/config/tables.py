"""The two tables of settings: `TopicConfig` for a topic, `LogConfig` for the process with the directory.

Names are Kafka's with `_` for `.`, or begin with `lastword_`. `LogConfig` uses Kafka's broker names.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

from lastword.config.setting import (
    choice,
    count,
    directory,
    duration,
    flag,
    policy,
    ratio,
    size,
    sizes_by_path,
    table,
    word,
    words,
)
from lastword.errors import LastwordError, ReadOnlyError
from lastword.units import MIB
from lastword.wire import COMPRESSION_TYPES, INT32_MAX, INT64_MAX, UNCOMPRESSED

STRATEGIES = ("kafka", "generational")
ACKS = ("os", "disk")


class Unread(NamedTuple):
    """A value that cannot be read: nothing is removed where it would count.

    Attributes:
        why: A sentence that names the value and its source.
        remedy: What to do.
    """

    why: str
    remedy: str


@dataclasses.dataclass(frozen=True)
class TopicConfig:
    """Settings of one topic; units are part of the names (`_bytes`, `_ms`; ratios are 0 to 1).

    The defaults are Kafka's, except that `cleanup_policy` has no default: without it, nothing is removed.

    Attributes:
        cleanup_policy: Removes superseded records (compact), old segments (delete), or both. none: neither,
            whatever the defaults are. Not set: nothing is removed.
        segment_bytes: Largest size of a segment. Smaller: cleaning moves less data at a time, more files.
        segment_ms: A segment is closed when its first record is this old, even without new appends.
        segment_jitter_ms: segment.ms is reduced at random by up to this, so that logs do not roll together.
        segment_index_bytes: Largest size of each index of a segment; a full index closes the segment.
        index_interval_bytes: Log bytes between index entries. Smaller: faster lookups, larger indexes.
        max_message_bytes: Largest accepted batch.
        retention_ms: With policy delete: segments whose newest record is older are removed. -1: none.
        retention_bytes: With policy delete: the oldest segments are removed while the log is larger. -1:
            none.
        delete_retention_ms: Time that a tombstone stays after the first cleaning that finds no older record
            of its key. A slower reader may miss a deletion.
        min_compaction_lag_ms: Records younger than this are not cleaned. Longer: more history, more garbage.
        max_compaction_lag_ms: Garbage older than this is cleaned even if it is little; strategy kafka cleans
            dirty records older than this, at any dirty ratio. Shorter: more rewriting.
        min_cleanable_dirty_ratio: Strategy generational: largest share of garbage in a partition above 4
            times segment.bytes. Strategy kafka: share of the log that must be dirty before a cleaning is due.
            Lower: less garbage, more rewriting.
        file_delete_delay_ms: Time that the files of a removed segment stay for readers that still use them.
        flush_messages: Sync after this many records, with any ack.
        flush_ms: At an append: sync if the last sync is older than this, with any ack.
        preallocate: Saved for Kafka, which extends a new segment's file to its full size. Has no effect here.
        compression_type: Codec of appended batches. producer or uncompressed: no compression here.
        compression_gzip_level: 1 (fast) to 9 (small); -1: zlib's default; 0: not compressed (Kafka refuses
            0).
        compression_lz4_level: 1 to 17; 9 selects the fast compressor, as in Kafka.
        compression_zstd_level: Negative (fast) to 22 (small).
        max_decompressed_message_bytes: In a server: refuse a compressed batch with a record that is larger
            (Kafka 4.4.0).
        message_timestamp_type: Timestamp of a record: set by its producer, or the time of the append.
        message_timestamp_before_max_ms: Refuse records whose timestamp is further in the past than this.
        message_timestamp_after_max_ms: Refuse records whose timestamp is further in the future than this.
        lastword_ack: An append survives a killed process (os) or a power cut (disk: one fsync per group of
            appends).
        lastword_strategy: Segments that a cleaning rewrites. generational: those with enough garbage; kafka:
            all, by dirty ratio.
        lastword_ttl_ms: Values older than this expire: the cleaner appends a tombstone. A header of this name
            sets the time to live of one record. 0: only records with such a header expire; -1: none, headers
            are ignored.
        lastword_group_leases: In a server: tombstones at and above the committed offset of a consumer group
            stay until the group has read them, or the offset expires. Each group with commits has a lease on
            each partition.
        lastword_key_index: With cleanup.policy=compact: the first `get` of a process that may append makes an
            index of the keys, about 28 bytes a key on disk, and further ones keep it; in a bucket a cleaning
            makes it where it pays. false: each `get` reads the log.
        lastword_key_serializer: Saved when the topic is created.
        lastword_value_serializer: Saved when the topic is created.
        lastword_partitioner: Saved when the topic is created: murmur2 or crc32.
        lastword_pulled_from: Id of the Kafka cluster from which `lastword pull` copies the topic. While it is
            set, other appends are refused; unset it to write to the copy, which then cannot be pulled any
            more.
    """

    cleanup_policy: frozenset[str] | None = policy("behaviour")
    segment_bytes: int = size("1GiB", "cost", low=14, high=INT32_MAX)
    segment_ms: int = duration("7d", "cost", low=1)
    segment_jitter_ms: int = duration(0, "cost")
    segment_index_bytes: int = size("10MiB", "cost", low=4, high=INT32_MAX)
    index_interval_bytes: int = size(4096, "cost", high=INT32_MAX)
    max_message_bytes: int = size(1048588, "behaviour", high=INT32_MAX)
    retention_ms: int = duration("7d", "behaviour", low=-1)
    retention_bytes: int = size(-1, "behaviour", low=-1)
    delete_retention_ms: int = duration("1d", "behaviour")
    min_compaction_lag_ms: int = duration(0, "behaviour")
    max_compaction_lag_ms: int = duration(INT64_MAX, "behaviour", low=1)
    min_cleanable_dirty_ratio: float = ratio(0.5, "cost")
    file_delete_delay_ms: int = duration("1m", "cost")
    flush_messages: int = count(INT64_MAX, "cost", low=1)
    flush_ms: int = duration(INT64_MAX, "cost")
    preallocate: bool = flag(False, "cost")
    compression_type: str = choice("producer", "cost", ("producer", "uncompressed", *COMPRESSION_TYPES))
    compression_gzip_level: int = count(-1, "cost", low=-1, high=9)
    compression_lz4_level: int = count(9, "cost", low=1, high=17)
    compression_zstd_level: int = count(3, "cost", low=-131072, high=22)
    max_decompressed_message_bytes: int = size(INT32_MAX - 8, "behaviour", low=1, high=INT32_MAX - 8)
    message_timestamp_type: str = choice("CreateTime", "behaviour", ("CreateTime", "LogAppendTime"))
    message_timestamp_before_max_ms: int = duration(INT64_MAX, "behaviour")
    message_timestamp_after_max_ms: int = duration(INT64_MAX, "behaviour")
    lastword_ack: str = choice("os", "behaviour", ACKS)
    lastword_strategy: str = choice("generational", "cost", STRATEGIES)
    lastword_ttl_ms: int = duration(-1, "behaviour", low=-1)
    lastword_group_leases: bool = flag(True, "behaviour")
    lastword_key_index: bool = flag(True, "cost")
    lastword_key_serializer: str | None = word(None, "behaviour")
    lastword_value_serializer: str | None = word(None, "behaviour")
    lastword_partitioner: str | None = word(None, "behaviour")
    lastword_pulled_from: str | None = word(None, "behaviour")
    sources: dict[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    unread: Unread | None = dataclasses.field(default=None, repr=False)
    """The first value that decides what is removed and cannot be read: nothing is removed then."""
    damaged: LastwordError | None = dataclasses.field(default=None, compare=False, repr=False)
    """The mistake in the topic's settings file: no value is known, and appends raise it."""

    @property
    def policy(self) -> frozenset[str] | None:
        """The policy by which records may be removed; None if it is not known, or not what it needs."""
        return None if self.unread is not None else self.cleanup_policy

    @property
    def policy_text(self) -> str | None:
        """The policy as text, `none` for the empty set; None as for `policy`."""
        return None if self.policy is None else TOPIC_SETTINGS["cleanup.policy"].show(self.policy)

    @property
    def policy_unknown(self) -> str:
        """Why nothing may be removed, as a sentence, if `policy` is None."""
        if self.unread is not None:
            return f"nothing may be removed: {self.unread.why}"
        return "cleanup.policy is not set, so nothing may be removed"

    @property
    def deciding(self) -> tuple[str, ...]:
        """The settings that decide what is removed under this policy."""
        names: tuple[str, ...] = ("cleanup.policy",)
        if "compact" in (self.cleanup_policy or ()):
            names += ("min.compaction.lag.ms", "delete.retention.ms")
        if "delete" in (self.cleanup_policy or ()):
            names += ("retention.ms", "retention.bytes")
        return names

    @functools.cached_property
    def compacts(self) -> bool:
        """Whether the policy has `compact`."""
        return "compact" in (self.policy or ())

    @property
    def codec(self) -> int:
        """Codec of batches that are made here."""
        return COMPRESSION_TYPES.get(self.compression_type, UNCOMPRESSED)

    @property
    def compression_level(self) -> int | None:
        """Level of the codec of appended batches; None if they are not compressed."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type)

    @property
    def deletes(self) -> bool:
        """Whether the policy has `delete`."""
        return "delete" in (self.policy or ())

    def source(self, name: str) -> str:
        """Return the source of a value: `argument`, `environment`, `default`, or a line of the file.

        A line is shown as `lastword.topic-users.toml:2`.
        """
        return self.sources.get(name.replace("_", "."), "default")

    def contradictions(self) -> list[tuple[str, str]]:
        """Return (setting, sentence) for values that are valid alone but not together."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            low, high = self.min_compaction_lag_ms, self.max_compaction_lag_ms
            return [
                (
                    "min.compaction.lag.ms",
                    f"min.compaction.lag.ms {low} is above max.compaction.lag.ms {high}",
                )
            ]
        return []

    def check_takes_records(self, partition: str) -> None:
        """Raise an error if no records may be added to a partition of the topic."""
        if self.damaged is not None:
            raise self.damaged
        if self.lastword_pulled_from is not None:
            raise ReadOnlyError(
                f"{partition} is a copy that is pulled from the cluster {self.lastword_pulled_from}: only "
                "pull appends to it",
                remedy=f"to write to the copy and pull it no more: lastword config DIR "
                f"{partition.rpartition('-')[0]} --unset lastword.pulled.from",
            )

    def replace(self, **values: Any) -> TopicConfig:
        """Return a copy with other values."""
        return dataclasses.replace(self, **values)


TOPIC_SETTINGS = table(TopicConfig)

MEANING = ("lastword.key.serializer", "lastword.value.serializer", "lastword.partitioner", "lastword.ttl.ms")
"""Settings of ours that say what a topic's records mean: every copy of the records needs them, too."""


DEFAULT_MAP_BYTES = 128 * MIB
DEFAULT_SPACE_TARGET = 1.5
DEFAULT_SURVIVORSHIP_ALPHA = 0.3


@dataclasses.dataclass(frozen=True)
class LogConfig:
    """Settings of the process; units are part of the names, as in `TopicConfig`.

    Attributes:
        log_dirs: Absolute paths of directories that are opened together if one of them is named. Set it in a
            file named by `--config` or `config=`, in the environment, or as an argument; not in the
            lastword.toml of a directory.
        log_retention_check_interval_ms: Interval between checks for expired segments.
        producer_id_expiration_ms: The state of a producer that is silent for longer is removed.
        log_cleaner_enable: Clean and expire in the background while opened to append.
        log_cleaner_threads: Cleanings that run in parallel; they share the memory of the key map. With 2 or
            more, a call of `clean` uses two threads for a large partition.
        log_cleaner_dedupe_buffer_size: Memory for the key maps of all threads. If a log's keys do not fit: a
            scratch file beside the log, or more passes; never a wrong result.
        lastword_map_scratch: Directory for the keys of key maps, in mapped files without a name instead of
            memory. log.cleaner.dedupe.buffer.size then limits the rest, 10 bytes per key. Off: keys are in
            memory.
        log_cleaner_io_max_bytes_per_second: Limit on the bytes that cleaning reads and writes per drive and
            second. Not set: no limit.
        log_cleaner_backoff_ms: Pause of the background cleaner when nothing is due, and before its first
            check.
        drives: Limits for single drives, by path.
        lastword_ack: Default of the topic setting of this name.
        lastword_strategy: Default of the topic setting of this name.
        lastword_space_target: Space limit of a drive, as a multiple of its live data. Higher: less rewriting,
            longer restores.
        lastword_survivorship_alpha: Weight of the newest observation when garbage is estimated.
        lastword_decompression_max_bytes: Largest decompressed size of one batch; a larger batch raises
            DecompressionLimitError for every reader. Reading a batch of that size takes up to three times as
            much memory.
        lastword_commit_linger_ms: In a bucket: a commit waits this long for more appends of the process,
            which share its requests. The time since the last commit began counts, so the time that a commit
            takes is not added.
        lastword_commit_bytes: In a bucket: a commit does not wait for more appends when it has this many
            bytes.
        lastword_tail_bytes: In a bucket that is served: memory for the objects of the newest commits of the
            process, so that clients that read what was just appended need no request.
        lastword_objects_retention_ms: In a bucket: objects that the newest version does not need are kept
            this long, for readers of older versions.
        offsets_retention_minutes: In a server: committed offsets of a topic that no member of the group reads
            expire this long after the group became empty (protocol classic), else after they were committed.
        offsets_retention_check_interval_ms: In a server: interval between checks for expired offsets.
        group_consumer_session_timeout_ms: In a server: a member of a consumer group (KIP-848) that is silent
            for this long is removed.
        group_consumer_heartbeat_interval_ms: In a server: interval between the heartbeats of such a member. A
            rebalance takes some of them.
        broker_session_timeout_ms: A standby takes over when the active server of a log in a bucket has not
            committed for this long. The active server stops to answer after nine tenths of it. It holds from
            the next takeover on.
        broker_heartbeat_interval_ms: An idle server of a log in a bucket commits this often, to remain the
            active one: two requests. At most a third of `broker.session.timeout.ms`.
        max_connections: Connections of clients that `serve` has open; a further connection is closed. Half of
            the descriptors of the process at most: the log needs the others.
        connections_max_idle_ms: `serve` closes a connection that sent and received nothing for this long,
            unless a request of it is in work.
        socket_request_max_bytes: Largest request to `serve`; a connection that announces a larger one is
            closed.
        queued_max_request_bytes: Memory of `serve` for requests that are incomplete or in work, and for
            answers. Above, large requests are received one after the other; small ones are always received.
        lastword_decompression_bytes: Memory of `serve` for records that requests decompress at the same time;
            others wait, 30 s at most. A batch takes up to twice its records, so a batch with more than half
            of this is refused.
        lastword_newest_bytes: Memory of `serve` for the keys of the topics that clients read as
            `TOPIC@newest`.
    """

    log_dirs: tuple[str, ...] = words("behaviour")
    log_retention_check_interval_ms: int = duration("5m", "cost", low=1)
    producer_id_expiration_ms: int = duration("1d", "behaviour", low=1)
    log_cleaner_enable: bool = flag(True, "behaviour")
    log_cleaner_threads: int = count(1, "cost", low=1, high=1024)
    log_cleaner_dedupe_buffer_size: int = size(DEFAULT_MAP_BYTES, "cost", low=1 << 16)
    lastword_map_scratch: str | None = directory("cost")
    log_cleaner_io_max_bytes_per_second: int | None = size(None, "cost", low=1)
    log_cleaner_backoff_ms: int = duration("15s", "cost")
    drives: dict[str, int] = sizes_by_path("cost")  # noqa: RUF009
    lastword_ack: str = choice("os", "behaviour", ACKS)
    lastword_strategy: str = choice("generational", "cost", STRATEGIES)
    lastword_space_target: float = ratio(DEFAULT_SPACE_TARGET, "cost", low=1.1, high=10)
    lastword_survivorship_alpha: float = ratio(DEFAULT_SURVIVORSHIP_ALPHA, "cost", low=0.01)
    lastword_decompression_max_bytes: int = size("256MiB", "behaviour", low=1 << 16, high=INT32_MAX)
    lastword_commit_linger_ms: int = duration("250ms", "behaviour")
    lastword_commit_bytes: int = size("4MiB", "behaviour", low=1)
    lastword_tail_bytes: int = size("64MiB", "behaviour", low=0)
    lastword_objects_retention_ms: int = duration("1h", "behaviour")
    offsets_retention_minutes: int = count(10_080, "behaviour", low=1, high=INT32_MAX)
    offsets_retention_check_interval_ms: int = duration("10m", "cost", low=1)
    group_consumer_session_timeout_ms: int = duration("45s", "behaviour", low=1, high=INT32_MAX)
    group_consumer_heartbeat_interval_ms: int = duration("5s", "behaviour", low=1, high=INT32_MAX)
    broker_session_timeout_ms: int = duration("9s", "behaviour", low=100)
    broker_heartbeat_interval_ms: int = duration("2s", "behaviour", low=10)
    max_connections: int = count(4096, "behaviour", low=1)
    connections_max_idle_ms: int = duration("10m", "behaviour", low=1)
    socket_request_max_bytes: int = size("100MiB", "behaviour", low=1 << 10, high=INT32_MAX)
    queued_max_request_bytes: int = size("256MiB", "cost", low=1 << 20)
    lastword_decompression_bytes: int = size("512MiB", "cost", low=1 << 20)
    lastword_newest_bytes: int = size("128MiB", "cost", low=1 << 10)
    sources: dict[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def source(self, name: str) -> str:
        """Return the source of a value: `argument`, `environment`, `lastword.toml:1` or `default`."""
        return self.sources.get(name.replace("_", "."), "default")

    @property
    def map_bytes(self) -> int:
        """Memory for the key map of one thread."""
        return self.log_cleaner_dedupe_buffer_size // self.log_cleaner_threads


INSTANCE_SETTINGS = table(LogConfig)
