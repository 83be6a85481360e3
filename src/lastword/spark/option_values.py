"""What the options of `format("lastword")` say, once they are read: values that travel to the tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

EARLIEST, LATEST = -2, -1  # as in Kafka's offset JSON

Offsets = dict[str, dict[int, int]]


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a read. The first of these that is given decides, in this order, as in Kafka's source.

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
        """The JSON that decides, if one does: it must name exactly the partitions that are read."""
        if self.timestamp_ms is not None:
            return None
        return self.timestamps if self.timestamps is not None else self.offsets


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which partitions to read: exactly one of the three is given."""

    topics: tuple[str, ...] = ()
    assigned: dict[str, tuple[int, ...]] = field(default_factory=dict)
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What one micro-batch of a stream may hold; None is no limit.

    max_offsets, max_bytes   at most about so much, shared out by what each partition has to give
    min_offsets              wait for so many, but no longer than max_delay_ms
    """

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read asks for.

    max_partition_bytes    a task reads about this many bytes of the log at most (cut at index entries)
    max_partition_records  a task covers at most so many offsets
    min_partitions         at least so many tasks, if index entries allow it
    late_start             what a start time above every record means: `error`, or `latest` (nothing to read)
    keys                   only records of these keys
    lease                  a stream holds a lease of this name, and advances it with every batch it commits
    """

    path: str
    wanted: Wanted
    start: Bound
    end: Bound
    late_start: Literal["error", "latest"]
    include_headers: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_partition_records: int | None
    max_partition_bytes: int
    view: Literal["log", "latest", "changes"]
    keys: tuple[bytes, ...] | None
    isolation: Literal["read_committed", "read_uncommitted"]
    limits: Limits = Limits()
    lease: str | None = None
    lease_max_age_ms: int = 7 * 86_400_000


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write asks for.

    settings             topic settings by their Kafka names, for a topic to be created
    commit_timeout_ms    how long a commit waits for who holds the lock and does not take it in
    producer, sequence   name a batch for ever, so that it is written once, whoever runs it again; a stream
                         does so by itself
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
