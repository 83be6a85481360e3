"""`TopicConfig`: settings of one topic, under Kafka's names with `_` for `.`; ours begin with `lastword_`."""

from __future__ import annotations

import dataclasses
from typing import Any

from lastword.config.setting import choice, count, duration, flag, policy, ratio, size, table, word
from lastword.wire import INT32_MAX, INT64_MAX

STRATEGIES = ("kafka", "generational")
ACKS = ("os", "disk")


@dataclasses.dataclass(frozen=True)
class TopicConfig:
    """Values in their units: `_bytes` and `_ms` whole numbers, ratios 0 to 1.

    The defaults are Kafka's, but `cleanup_policy` has none: while nobody says so, nothing is removed.
    """

    cleanup_policy: frozenset[str] | None = policy(
        "behaviour",
        "What may be removed: superseded records (compact), old segments (delete), both. Not set: nothing.",
    )
    segment_bytes: int = size(
        "1GiB",
        "cost",
        "A segment is closed before it grows past this. Smaller: cleaning moves less at a time, more files.",
        low=14,
        high=INT32_MAX,
    )
    segment_ms: int = duration(
        "7d",
        "cost",
        "A segment is closed when its first record is this old, also without new appends.",
        low=1,
    )
    segment_jitter_ms: int = duration(
        0, "cost", "Up to this much is taken off segment.ms at random, so that not all logs roll at once."
    )
    segment_index_bytes: int = size(
        "10MiB",
        "cost",
        "Room in each index of a segment; a full one closes the segment.",
        low=4,
        high=INT32_MAX,
    )
    index_interval_bytes: int = size(
        4096,
        "cost",
        "Log bytes between two index entries. Smaller: faster lookups, larger indexes.",
        high=INT32_MAX,
    )
    max_message_bytes: int = size(1048588, "behaviour", "Largest batch that is accepted.", high=INT32_MAX)
    retention_ms: int = duration(
        "7d", "behaviour", "With policy delete: segments whose newest record is older go. -1: none.", low=-1
    )
    retention_bytes: int = size(
        -1, "behaviour", "With policy delete: oldest segments go while the log is larger. -1: none.", low=-1
    )
    delete_retention_ms: int = duration(
        "1d",
        "behaviour",
        "How long a tombstone stays once it was cleaned. A reader slower than this may miss a deletion.",
    )
    min_compaction_lag_ms: int = duration(
        0, "behaviour", "Records younger than this are not cleaned. Longer: more history, more garbage."
    )
    max_compaction_lag_ms: int = duration(
        INT64_MAX,
        "behaviour",
        "Dirty records older than this are cleaned whatever the ratio. Shorter: more rewriting.",
        low=1,
    )
    min_cleanable_dirty_ratio: float = ratio(
        0.5,
        "cost",
        "Share of the log that must be dirty before a round is due. Lower: less garbage, more rewriting.",
    )
    file_delete_delay_ms: int = duration(
        "1m", "cost", "How long a removed segment's files stay for readers that are still in them."
    )
    flush_messages: int = count(INT64_MAX, "cost", "Sync after this many records, whatever the ack.", low=1)
    flush_ms: int = duration(
        INT64_MAX, "cost", "At an append: sync if the last sync is older than this, whatever the ack."
    )
    preallocate: bool = flag(
        False,
        "cost",
        "Kept for Kafka, which extends a new segment's file to its full size; nothing is extended here.",
    )
    compression_type: str = choice(
        "producer",
        "cost",
        "Codec of appended batches. producer or uncompressed: none is applied here.",
        ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    compression_gzip_level: int = count(
        -1, "cost", "1 fast to 9 small; -1 is zlib's own choice.", low=-1, high=9
    )
    compression_lz4_level: int = count(
        9, "cost", "1 to 17; 9 selects the fast compressor, as in Kafka.", low=1, high=17
    )
    compression_zstd_level: int = count(
        3, "cost", "Negative is faster, up to 22 smaller.", low=-131072, high=22
    )
    message_timestamp_type: str = choice(
        "CreateTime",
        "behaviour",
        "Whose time a record carries: its maker's, or that of the append.",
        ("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = duration(
        INT64_MAX, "behaviour", "Refuse records with a timestamp further back than this."
    )
    message_timestamp_after_max_ms: int = duration(
        INT64_MAX, "behaviour", "Refuse records with a timestamp further ahead than this."
    )
    lastword_ack: str = choice(
        "os",
        "behaviour",
        "What an append waits for: os survives a killed process, disk a power cut (an fsync per group).",
        ACKS,
    )
    lastword_strategy: str = choice(
        "generational",
        "cost",
        "Which segments a round takes. generational: those whose garbage pays; kafka: all, by dirty ratio.",
        STRATEGIES,
    )
    lastword_ttl_ms: int = duration(
        -1,
        "behaviour",
        "Values older than this expire: the cleaner appends a tombstone. A header of this name sets a "
        "record's own. 0: only records with such a header expire; -1: none, and headers are not looked at.",
        low=-1,
    )
    lastword_key_serializer: str | None = word(None, "behaviour", "Saved when the topic is created.")
    lastword_value_serializer: str | None = word(None, "behaviour", "Saved when the topic is created.")
    lastword_partitioner: str | None = word(
        None, "behaviour", "Saved when the topic is created: murmur2 or crc32."
    )
    sources: dict[str, str] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def compacts(self) -> bool:
        return self.cleanup_policy is not None and "compact" in self.cleanup_policy

    @property
    def compression_level(self) -> int | None:
        """Of the codec that appended batches get; None if none is applied."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type)

    @property
    def deletes(self) -> bool:
        return self.cleanup_policy is not None and "delete" in self.cleanup_policy

    def source(self, name: str) -> str:
        """`argument`, `environment`, `lastword.toml:9 [topics.users]`, or `default`."""
        return self.sources.get(name.replace("_", "."), "default")

    def contradictions(self) -> list[tuple[str, str]]:
        """(setting, sentence) for values that are fine alone but not together."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            low, high = self.min_compaction_lag_ms, self.max_compaction_lag_ms
            return [
                (
                    "min.compaction.lag.ms",
                    f"min.compaction.lag.ms {low} is above max.compaction.lag.ms {high}",
                )
            ]
        return []

    def replace(self, **values: Any) -> TopicConfig:
        return dataclasses.replace(self, **values)


TOPIC_SETTINGS = table(TopicConfig)
