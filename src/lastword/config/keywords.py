"""Settings as Python keywords, so that type checkers complete the names and report an unknown name.

Written by `scripts/make_keywords.py` from `TopicConfig` and `LogConfig`: do not edit. Values are checked when
they are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

Size = int | str
Duration = int | str


class TopicKeywords(TypedDict, total=False):
    """Settings of a topic. None resets a setting to its default."""

    cleanup_policy: str | Iterable[str] | None
    segment_bytes: Size | None
    segment_ms: Duration | None
    segment_jitter_ms: Duration | None
    segment_index_bytes: Size | None
    index_interval_bytes: Size | None
    max_message_bytes: Size | None
    retention_ms: Duration | None
    retention_bytes: Size | None
    delete_retention_ms: Duration | None
    min_compaction_lag_ms: Duration | None
    max_compaction_lag_ms: Duration | None
    min_cleanable_dirty_ratio: float | str | None
    file_delete_delay_ms: Duration | None
    flush_messages: int | str | None
    flush_ms: Duration | None
    preallocate: bool | str | None
    compression_type: str | None
    compression_gzip_level: int | str | None
    compression_lz4_level: int | str | None
    compression_zstd_level: int | str | None
    max_decompressed_message_bytes: Size | None
    message_timestamp_type: str | None
    message_timestamp_before_max_ms: Duration | None
    message_timestamp_after_max_ms: Duration | None
    lastword_ack: str | None
    lastword_strategy: str | None
    lastword_ttl_ms: Duration | None
    lastword_group_leases: bool | str | None
    lastword_key_index: bool | str | None
    lastword_key_serializer: str | None
    lastword_value_serializer: str | None
    lastword_partitioner: str | None
    lastword_pulled_from: str | None


class Keywords(TopicKeywords, total=False):
    """Settings of the directory and of its topics."""

    log_dirs: str | Iterable[str] | None
    log_retention_check_interval_ms: Duration | None
    producer_id_expiration_ms: Duration | None
    log_cleaner_enable: bool | str | None
    log_cleaner_threads: int | str | None
    log_cleaner_dedupe_buffer_size: Size | None
    lastword_map_scratch: str | None
    log_cleaner_io_max_bytes_per_second: Size | None
    log_cleaner_backoff_ms: Duration | None
    drives: Mapping[str, Size] | str | None
    lastword_space_target: float | str | None
    lastword_survivorship_alpha: float | str | None
    lastword_decompression_max_bytes: Size | None
    lastword_commit_linger_ms: Duration | None
    lastword_commit_bytes: Size | None
    lastword_tail_bytes: Size | None
    lastword_objects_retention_ms: Duration | None
    offsets_retention_minutes: int | str | None
    offsets_retention_check_interval_ms: Duration | None
    group_consumer_session_timeout_ms: Duration | None
    group_consumer_heartbeat_interval_ms: Duration | None
    broker_session_timeout_ms: Duration | None
    broker_heartbeat_interval_ms: Duration | None
    max_connections: int | str | None
    connections_max_idle_ms: Duration | None
    socket_request_max_bytes: Size | None
    queued_max_request_bytes: Size | None
    lastword_decompression_bytes: Size | None
    lastword_newest_bytes: Size | None
