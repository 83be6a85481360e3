"""A `Plan`: what a cleaning will do with a partition, or why there is none.

A dry run prints a plan, a cleaning carries it out, Spark sends it to tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from lastword.partition.producer_state import PRODUCER_EXPIRATION_MS
from lastword.units import format_bytes, format_freed
from lastword.values import Value, plural

if TYPE_CHECKING:
    from lastword.logdir.checkpoints import TopicPartition
    from lastword.logdir.log_dir import LogDirectory

DEFAULT_MAP_BYTES = 128 << 20

Action = Literal["clean", "delete", "keep"]

# Codes of reasons, as `--json` prints them.
NEWEST = "newest"
ACTIVE_SEGMENT = "active-segment"
COMPACTION_LAG = "compaction-lag"
BELOW_RATIO = "below-ratio"
NOT_WORTH_IT = "not-worth-it"
UNDECIDED_TRANSACTION = "undecided-transaction"
UNFINISHED_COMMIT = "unfinished-commit"
LOG_START = "log-start"
TOMBSTONE_HORIZON = "tombstone-horizon"
LEASE = "lease"
QUARANTINED = "quarantined"
NO_POLICY = "no-policy"
OUTGROWN = "active-segment-outgrown"
KEYS_IN_SHARDS = "keys-in-shards"
KEYS_IN_PASSES = "keys-in-passes"
KEYS_DO_NOT_FIT = (KEYS_IN_SHARDS, KEYS_IN_PASSES)


@dataclass(frozen=True, slots=True)
class CleanRequest:
    """A request to the cleaner, for one partition.

    Attributes:
        first_dirty: The cleaner's checkpoint; None: there is none.
        due: Only what the settings make due; False: all garbage, now.
        strategy: Which segments are rewritten.
        map_bytes: Memory for the key map.
        closed_only: Do not close the active segment first: its new files need room.
    """

    first_dirty: int | None = None
    due: bool = False
    strategy: str = "kafka"
    map_bytes: int = DEFAULT_MAP_BYTES
    closed_only: bool = False

    @classmethod
    def of(
        cls, log_dir: LogDirectory, tp: TopicPartition, strategy: str | None = None, *, due: bool = True
    ) -> CleanRequest:
        """Return a request with the checkpoint of a partition, and the memory that the settings allow.

        `strategy`: None: that of the topic.
        """
        chosen = strategy or log_dir.topic_config(tp.topic).lastword_strategy
        return cls(log_dir.first_dirty(*tp), due, chosen, log_dir.settings.instance.map_bytes)


@dataclass(frozen=True, slots=True)
class Reason(Value):
    """Why records stay or go: a code as `--json` prints it, and a text."""

    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.code}, {self.text}"


@dataclass(frozen=True, slots=True)
class Plan(Value):
    """What a cleaning would do with one partition, or why there is none.

    A plan holds everything that a cleaning needs.

    Attributes:
        action: "clean", "delete" (retention removes segments), or "keep".
        due: Whether the settings make it due: the scheduler would do it now. None: the plan ignores them
            (`plan()` without `due=True`).
        segments: How many segments are rewritten (all below `limit` while not `exact`).
        read_bytes: Bytes that the cleaning reads: scans and rewrite. By strategy `kafka` it may read fewer,
            because a scan keeps what the rewrite needs of some chunks. 0 for a partition that is kept,
            although `clean` scans the segments that its garbage index does not have yet.
        write_bytes: As in the report of the cleaning.
        free_bytes: As in the report of the cleaning.
        exact: Records were read: the figures are those of the cleaning, to the byte. False for several runs
            that a drive's space makes due: a cleaning chooses each run after the one before it. False also
            beside accounts in memory that are not saved: a cleaning in this process uses those.
        reasons: Why records stay. The first reason of a kept partition is why it is kept.
        start: The first dirty offset.
        limit: The cleaning ends before it: a segment's base offset or the log end.
        total_segments: All segments of the partition.
        total_bytes: Their bytes.
        dirty_bytes: Bytes below `limit` that are not clean.
        dirty_ratio: Their share of all bytes below `limit`, 0 to 1.
        rolls_active: The active segment is closed first.
        now_ms: The time to which lags and horizons are compared, in milliseconds since 1970.
        scratch_bytes: Estimated size of a scratch file beside the log while it is scanned, because its keys
            do not fit the key map.

    The fields from `map_bytes` to `producer_expiration_ms` are the settings with which the cleaning works.
    """

    topic: str
    partition: int
    action: Action
    due: bool | None
    strategy: str
    segments: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    free_bytes: int = 0
    exact: bool = False
    reasons: tuple[Reason, ...] = ()
    log_start: int = 0
    start: int = 0
    limit: int = 0
    total_segments: int = 0
    total_bytes: int = 0
    dirty_bytes: int = 0
    dirty_ratio: float = 0.0
    rolls_active: bool = False
    now_ms: int = 0
    map_bytes: int = 0
    delete_retention_ms: int = 0
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1 << 20
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS
    scratch_bytes: int = 0

    def __str__(self) -> str:
        name = f"{self.topic}-{self.partition}"
        if self.action == "keep":
            return f"{name}: keep: {self.reasons[0] if self.reasons else 'nothing to do'}"
        if self.action == "delete":
            extent = f"{self.segments} of {self.total_segments} segments, {format_bytes(self.free_bytes)}"
            return f"{name}: delete: {extent}: {self.reasons[0].text}"
        about = "" if self.exact else "~"
        return (
            f"{name}: clean: {self.segments} of {self.total_segments} segments, "
            f"read {about}{format_bytes(self.read_bytes)}, write {about}{format_bytes(self.write_bytes)}, "
            f"{format_freed('free', self.free_bytes, about)}"
        )

    text_columns = ("PARTITION", "WHY")

    def cells(self) -> dict[str, str]:
        """Return a row of the table of a dry run."""
        about = "" if self.exact else "~ "
        cleans = self.action == "clean"
        frees = self.action != "keep" and self.free_bytes >= 0
        return {
            "PARTITION": f"{self.topic}-{self.partition}",
            "SIZE": format_bytes(self.total_bytes),
            "READ": about + format_bytes(self.read_bytes) if cleans else "-",
            "WRITE": about + format_bytes(self.write_bytes) if cleans else "-",
            "FREES": about + format_bytes(self.free_bytes) if frees else "-",
            "WHY": f"{self.action}: {self._why()}",
        }

    def _why(self) -> str:
        if self.action == "clean":
            share = f"frees {100 * self.free_bytes // max(1, self.total_bytes)} %"
            if self.free_bytes < 0:
                share = format_freed("frees", self.free_bytes)
            return f"{share}; rewrites {self.segments} of {plural(self.total_segments, 'segment')}"
        if self.lacks_policy:
            return "no-policy, cleanup.policy is not set"
        first = self.reasons[0] if self.reasons else Reason("", "nothing to do")
        if first.text.startswith("nothing may be removed"):
            return "no-policy, its settings are unknown"
        if self.action == "delete" or first.code in ("", NO_POLICY):
            return first.text
        return "; ".join(map(str, self.reasons))

    @property
    def lacks_policy(self) -> bool:
        """Whether the topic is kept because no source sets its cleanup.policy."""
        return bool(self.reasons) and self.reasons[0].text.startswith("cleanup.policy is not set")

    @classmethod
    def totals(cls, values: Sequence[Plan]) -> str:
        """Return what all the plans together would read, write and free."""
        read, write, free = (
            sum(getattr(plan, f"{verb}_bytes") for plan in values if plan.action != "keep")
            for verb in ("read", "write", "free")
        )
        about = "" if all(plan.exact for plan in values if plan.action == "clean") else "~ "
        return (
            f"would read {about}{format_bytes(read)}, write {about}{format_bytes(write)}, "
            f"{format_freed('free', free, about)}"
        )

    def kept(self, code: str, text: str) -> Plan:
        """Return the plan that keeps the partition, for one more reason, which is the first."""
        return replace(
            self,
            action="keep",
            due=None if self.due is None else False,
            segments=0,
            read_bytes=0,
            write_bytes=0,
            free_bytes=0,
            scratch_bytes=0,
            reasons=(Reason(code, text), *self.reasons),
        )

    def only_newest(self, tombstones: int, held: Reason | None, held_count: int = 0) -> Plan:
        """Return the plan that keeps the partition because nothing in it is dead.

        Args:
            tombstones: Live tombstones.
            held: The lease that some of them wait for.
            held_count: How many wait only for that lease.
        """
        if held is not None and held_count >= tombstones:
            return self.kept(held.code, held.text)
        plan = self if held is None else replace(self, reasons=(held, *self.reasons))
        if tombstones:
            waiting = "1 tombstone waits" if tombstones == 1 else f"{tombstones} tombstones wait"
            return plan.kept(TOMBSTONE_HORIZON, f"{waiting}; every other record is its key's newest")
        return plan.kept(NEWEST, "every record is the newest of its key")
