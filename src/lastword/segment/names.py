"""Make and parse every file and directory name of a log directory. No other module does.

```
<root>/.lock                                     held by the writer (POSIX record lock)
<root>/meta.properties  .kafka_cleanshutdown     Kafka's
<root>/*-checkpoint                              text checkpoints (logdir.checkpoints)
<root>/lastword.toml  lastword.partitions        ours
<root>/lastword.topic-<topic>.toml               ours: the settings of one topic (config.settings)
<root>/lastword.staged-*  lastword.inbox-*  lastword.applying-*  lastword.committed-*  lastword.refused-*
       lastword.writers                          ours (ingest.staging)
<root>/lastword.producer-ids                     ours (logdir.transaction_state)
<root>/lastword.transaction                      ours (api.transaction)
<root>/lastword.begun                            ours (partition.staged_batches)
<root>/<topic>-<partition>/                      one partition; the number follows the *last* dash
<root>/<topic>-<partition>.<32 hex>-delete       being deleted; also -future (moving) and -stray (not served)
    <20 digits>.log .index .timeindex .txnindex  one segment; the number is its base offset
    <20 digits>.snapshot                         producer state of everything below that offset
    <file of a segment>.cleaned .swap .deleted   a rewrite that is being published (partition.swap)
    leader-epoch-checkpoint  partition.metadata  Kafka's
    lastword/                                    ours: staging, quarantine, leases, notes, how far synced
```

Kafka's suffixes are used for nothing else: a non-numeric `x.cleaned` or a directory of ours in the root
stops a broker from starting.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from lastword.errors import InvalidTopicError
from lastword.wire import INT32_MAX, INT64_MAX

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
SEGMENT_EXTENSIONS = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
"""The files of one segment, in the order in which they are renamed."""

CLEANED = ".cleaned"
SWAP = ".swap"
DELETED = ".deleted"
SUFFIXES = (CLEANED, SWAP, DELETED)

LOCK = ".lock"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
FIRST_DIRTY = "cleaner-offset-checkpoint"
SETTINGS = "lastword.toml"
PARTITION_LIST = "lastword.partitions"
OURS = "lastword."
"""All of our files in the root have this prefix."""
STAGED = "lastword.staged-"
"""`lastword.staged-<commit>-<order>-<copy>`: staged batches of many partitions (ingest.staging)."""
BEGUN = "lastword.begun"
"""The log ends at which the commit that is being ingested began (partition.staged_batches)."""
INBOX = "lastword.inbox-"
"""`lastword.inbox-<number>-<commit>`: a commit that waits to be ingested (ingest.staging)."""
APPLYING = "lastword.applying-"
COMMITTED = "lastword.committed-"
REFUSED = "lastword.refused-"
WRITERS = "lastword.writers"
PRODUCER_IDS = "lastword.producer-ids"
"""The producer ids that were given (logdir.transaction_state)."""
TRANSACTION = "lastword.transaction"
"""The producer of `LogDir.transaction` whose transactions may be open after a crash (api.transaction)."""
ROOT_FILES = (
    META_PROPERTIES,
    CLEAN_SHUTDOWN,
    RECOVERY_POINTS,
    LOG_STARTS,
    HIGH_WATERMARKS,
    FIRST_DIRTY,
    SETTINGS,
)
"""Names that only the root of a log directory has, besides the lock."""

METADATA_DIR = "__cluster_metadata-0"
SERVER_PROPERTIES = "server.properties"
"""The log of a KRaft cluster's metadata: not a topic, but its batches are those of every log."""
BOOTSTRAP = "bootstrap.checkpoint"
QUORUM_STATE = "quorum-state"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
PRIVATE = "lastword"
"""Our only directory in a partition; brokers serve and clean a partition that has it."""
REWRITE_PREFIX = "rewrite-"
"""Prefix of the private directories that hold unpublished outputs; no other directory is removed."""
SHARDS_PREFIX = "rewrite-shards-"
"""Prefix of the private directories that hold the scratch file of a scan."""
JOB_PREFIX = "sharded-"
"""Prefix of the private directories that hold the files of a divided cleaning."""
PLAN_PREFIX = "planned-"
"""Prefix of those of a divided plan."""
SYNCED = "synced"
PRODUCERS = "producers"
QUARANTINE = "quarantine"
ACCOUNTS = "accounts"
KEYS = "keys"
KEY_RUN = "keys-"
"""The manifest of the key index, and the prefix of its runs (lastword.keys)."""
SURVIVORSHIP = "survivorship"
SUMMARY = "garbage-summary"
"""In a bucket: what a plan reads of the garbage index. Small, so it is in the manifest or a page."""
LEASE = "lease-"
DROPPED_TOMBSTONES = "dropped-tombstones"
LOG_START_NOTE = "log-start"
MOVED_FROM = "moved-from"
MOVING = "moving"
"""In a partition that is moved away: its leases were copied, and none is taken any more. Empty."""
COPIED = "copied"
COPY = "copy"
"""Private directory with the files of a copy that are not in place yet (logdir.copies)."""

MAX_FILE_BYTES = INT32_MAX
MAX_RELATIVE_OFFSET = INT32_MAX
"""Offsets in a segment are at most this far above its base: indexes hold them in four bytes."""

MOST_TOPIC_CHARACTERS = 249
_TOPIC = re.compile(rf"[a-zA-Z0-9._-]{{1,{MOST_TOPIC_CHARACTERS}}}")
_SEGMENT_FILE = re.compile(
    r"(\d{20,})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(\.cleaned|\.swap|\.deleted)?"
)
_TAILS = {
    extension + suffix: (extension, suffix)
    for extension in (*SEGMENT_EXTENSIONS, SNAPSHOT)
    for suffix in ("", *SUFFIXES)
}
_METADATA_SNAPSHOT = re.compile(r"(\d{20,})-(\d{10,})\.checkpoint")
_MARKED = re.compile(r"(.+)-(\d+)\.([0-9a-f]{32})-(delete|future|stray)")
_PLAIN = re.compile(r"(.+)-(\d+)")


class SegmentFile(NamedTuple):
    """A parsed file name: `00000000000000000042.index.swap` is (42, ".index", ".swap")."""

    base_offset: int
    extension: str
    suffix: str

    @property
    def name(self) -> str:
        """The file name."""
        return segment_file(self.base_offset, self.extension, self.suffix)


class PartitionDir(NamedTuple):
    """A parsed partition directory name; `marker` is "", "delete", "future" or "stray"."""

    topic: str
    partition: int
    marker: str = ""


def segment_file(base_offset: int, extension: str, suffix: str = "") -> str:
    """Return the name of one file of the segment at `base_offset`."""
    return f"{base_offset:020d}{extension}{suffix}"


@lru_cache(maxsize=65536)  # four names for each segment, which several steps of an opening parse
def parse_segment_file(name: str) -> SegmentFile | None:
    """Return the parts of a segment's or snapshot's file name, or None for any other file."""
    digits, tail = name[:20], _TAILS.get(name[20:])
    if tail is None or not digits.isdecimal():  # also a name with more digits
        match = _SEGMENT_FILE.fullmatch(name) if digits.isdecimal() else None
        if match is None:
            return None
        digits, tail = match[1], (match[2], match[3] or "")
    base_offset = int(digits)
    return None if base_offset > INT64_MAX else SegmentFile(base_offset, *tail)


def snapshot_offsets(listing: Iterable[str]) -> list[int]:
    """Return the offsets of the producer snapshots among a directory's names, ascending."""
    return _offsets(listing, SNAPSHOT)


def log_bases(listing: Iterable[str]) -> list[int]:
    """Return the base offsets of the segments among a directory's names, ascending."""
    return _offsets(listing, LOG)


def _offsets(listing: Iterable[str], extension: str) -> list[int]:
    parsed = map(parse_segment_file, listing)
    return sorted([file.base_offset for file in parsed if file is not None and file[1:] == (extension, "")])


def partition_dir(topic: str, partition: int) -> str:
    """Return the name of a partition's directory; checks topic and partition."""
    return f"{check_topic(topic)}-{check_partition(partition)}"


def marked_partition_dir(topic: str, partition: int, marker: str, token: str) -> str:
    """Return `<topic>-<partition>.<token>-<marker>`, at most 255 characters: a long topic is cut.

    `token`: 32 hex digits that make the name unique.
    """
    tail = f"-{partition}.{token}-{marker}"
    return topic[: 255 - len(tail)] + tail


@lru_cache(maxsize=16384)
def parse_partition_dir(name: str) -> PartitionDir | None:
    """Return the parts of a partition directory's name, or None for any other name."""
    match = _MARKED.fullmatch(name)
    marker = match[4] if match is not None else ""
    if match is None:
        match = _PLAIN.fullmatch(name)
    if match is None or not is_topic(match[1]):
        return None
    partition = int(match[2])
    if partition > INT32_MAX or (not marker and match[2] != str(partition)):
        return None  # "t-01" would be a second directory of t-1
    return PartitionDir(match[1], partition, marker)


@lru_cache(maxsize=1024)  # an opening needs it several times
def root_and_name(directory: str) -> tuple[str, str]:
    """Return the root above a partition's directory, and the directory's name."""
    root, name = os.path.split(os.path.normpath(directory))
    return root or os.curdir, name


def topic_partition(directory: str) -> tuple[str, int]:
    """Return topic and partition of a partition directory's path; ("", 0) for another name."""
    parsed = parse_partition_dir(root_and_name(directory)[1])
    return ("", 0) if parsed is None else (parsed.topic, parsed.partition)


def is_lease(name: str) -> bool:
    """Return whether a lease may have this name: that of a topic, but shorter, to fit a file name."""
    return isinstance(name, str) and is_topic(name) and len(name) <= 200


@lru_cache(maxsize=1024)
def is_topic(name: str) -> bool:
    """Return whether a topic may have this name."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def check_topic(name: str) -> str:
    """Return the name if Kafka accepts it; else raise InvalidTopicError."""
    if name == "__cluster_metadata":
        raise InvalidTopicError(
            f"{name!r} is the metadata of a Kafka cluster, not a topic",
            remedy=f"lastword dump DIR/{METADATA_DIR}/*.log shows its records; a topic needs another name",
        )
    if not isinstance(name, str) or not is_topic(name):
        raise InvalidTopicError(
            f"{name!r} is no topic name",
            remedy=f"use 1 to {MOST_TOPIC_CHARACTERS} of the characters "
            "a-z A-Z 0-9 . _ - (and not . or .. alone)",
        )
    return name


def check_partition(partition: int) -> int:
    """Return the number if a partition can have it; else raise InvalidTopicError."""
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition <= INT32_MAX:
        raise InvalidTopicError(f"{partition!r} is no partition number", remedy="partitions count from 0")
    return partition


def is_metadata_snapshot(name: str) -> bool:
    """Return whether a file of this name is a snapshot of the metadata log."""
    return name == BOOTSTRAP or metadata_snapshot(name) is not None


def metadata_snapshot(name: str) -> tuple[int, int] | None:
    """Return (end offset, epoch) of a snapshot in the metadata log's directory, or None for another name."""
    match = _METADATA_SNAPSHOT.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))
