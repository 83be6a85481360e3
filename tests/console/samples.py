"""A log directory with one of everything that the page shows."""

from __future__ import annotations

from pathlib import Path

import lastword
from lastword.api.logs import LogDir
from lastword.cleaner.policy import quarantine
from lastword.errors import CorruptBatchError
from lastword.protocol import encode_stored
from lastword.protocol.messages import OffsetCommitKey, OffsetCommitValue
from lastword.records.batch import BatchBuilder

HOSTILE = {
    "<script>alert(1)</script>": "<img src=x onerror=alert(2)>",
    "\x00\x1b[31m\u202e\u2066end": "\r\n\t\x07",
    "k" * (1 << 20): "a key of 1 MiB",
    "large": "<b>" + "v" * (20 << 20),
    "]]>&quot;'\"": "${alert(3)} {{7*7}}",
}
GROUPS, ORDERS, USERS, EVENTS, BROKEN, EMPTY = (
    "__consumer_offsets",
    "orders",
    "users",
    "events",
    "payments",
    "profiles",
)


def make(path: Path, *, large: bool = True) -> None:
    """Write the directory; `large`: also the hostile records of 1 and 20 MiB."""
    with lastword.open(path, "a", log_cleaner_enable=False) as logs:
        text = {"key_serializer": "str", "value_serializer": "str"}
        typed = {**text, "value_serializer": "json"}
        users = logs.create_topic(USERS, 2, cleanup_policy="compact", segment_bytes="16KiB", **typed)
        for turn in range(40):
            users.extend(
                (f"user-{i:03d}", {"turn": turn, "city": "London" if i % 3 else "Turin", "note": "x" * 60})
                for i in range(turn % 5, 90, 1 + turn % 3)
            )
            users.extend(
                (f"guest-{turn}-{i}", {"turn": turn, "city": "Oslo", "note": "x" * 60}) for i in range(7)
            )
            if turn == 22:
                logs.clean(USERS)  # saves a garbage index
        for i in range(0, 90, 9):
            users.delete(f"user-{i:03d}")
        users.lease("replica-2", position={0: 900, 1: 1000})
        orders = logs.create_topic(ORDERS, cleanup_policy="compact", segment_bytes="64KiB", **text)
        orders.extend((f"order-{i % 40}", "x" * 200) for i in range(1200))
        logs.create_topic(EVENTS, 3, cleanup_policy="delete", retention_ms="7d", **text).extend(
            (f"e{i}", "clicked") for i in range(300)
        )
        broken = logs.create_topic(BROKEN, cleanup_policy="compact", **text)
        broken.extend((f"p{i}", "paid") for i in range(50))
        logs.create_topic(EMPTY, cleanup_policy="compact", **text)
        hostile = logs.create_topic("hostile", cleanup_policy="compact", max_message_bytes="64MiB", **text)
        hostile.extend(
            (key, value) for key, value in HOSTILE.items() if large or len(key) + len(value) < 1000
        )
        begin(logs, ORDERS, producer_id=4100)
        commit(logs, {("billing", USERS, 0): 990, ("billing", USERS, 1): 420, ("audit", ORDERS, 0): 1200})
        view = logs.dirs.view(BROKEN, 0)
        error = CorruptBatchError("batch at 0 has a wrong checksum", file=view.segments[0].file)
        quarantine.put(view.files, view.directory, error, logs.dirs.clock.now_ms())


def begin(logs: LogDir, topic: str, producer_id: int) -> None:
    """Append a batch of a transaction that stays open."""
    builder = BatchBuilder(producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
    builder.append(logs.dirs.clock.now_ms(), b"order-1", b"undecided")
    logs.dirs.log(topic, 0).append_batch(builder.build())


def commit(logs: LogDir, positions: dict[tuple[str, str, int], int]) -> None:
    """Append committed offsets of groups, as a broker does."""
    if GROUPS not in logs:
        from lastword.api.copying import make_topic
        from lastword.pulling.positions import SETTINGS

        make_topic(logs.dirs, GROUPS, [0], None, SETTINGS)
    builder = BatchBuilder()
    for (group, topic, partition), offset in positions.items():
        now_ms = logs.dirs.clock.now_ms()
        key = OffsetCommitKey(group=group, topic=topic, partition=partition)
        value = OffsetCommitValue(offset=offset, leader_epoch=-1, metadata="", commit_timestamp=now_ms)
        builder.append(now_ms, encode_stored(key), encode_stored(value, 3))
    logs.dirs.log(GROUPS, 0).append_batch(builder.build())
