"""`lastword demo`: clean one history of updates by Kafka's rule and by ours.

The history has two keys with the same MD5 (a pair of texts published by Marc Stevens). Kafka's rule is the
model `kafka_model`, which keeps exactly the records that Kafka's own cleaner keeps. Ours is a real log
directory for each strategy. Each rule cleans after every quarter of the updates.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from lastword.cli.command import Session, command, option
from lastword.units import format_bytes
from lastword.values import Value

if TYPE_CHECKING:
    from lastword.demo.kafka_model import ModelSegment


COMPACTED_TEXT: Any = {"key_serializer": "str", "value_serializer": "str", "cleanup_policy": "compact"}
"""Arguments of `create_topic` for the logs of the demonstration."""

TOPIC = "accounts"
SEGMENT_BYTES = 1 << 20
UPDATES = 200_000
QUARTERS = 4
TWINS = tuple(
    f"TEXTCOLLBYfGiJUETHQ4h{letter}cKSMd5zYpgqf1YRDhkmxHkhPWptrkoyz28wnI9V0aHeAuaKnak" for letter in "AE"
)
KAFKA = "kafka's rule"

Row = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Lost(Value):
    """A key whose newest value was lost; `twin` is the key with the same MD5."""

    key: str
    value: str
    offset: int
    md5: str
    twin: str | None


@dataclass(frozen=True, slots=True)
class Cleaned(Value):
    """Totals of one rule over all cleanings: bytes read and written, records kept, values lost."""

    rule: str
    rounds: int
    read_bytes: int
    written_bytes: int
    kept: int
    lost: int

    def cells(self) -> dict[str, str]:
        """Return the cells of a table's row, by column."""
        return {
            "RULE": self.rule,
            "ROUNDS": str(self.rounds),
            "READ": format_bytes(self.read_bytes),
            "WRITTEN": format_bytes(self.written_bytes),
            "KEPT": f"{self.kept:,}",
            "LOST": f"{self.lost:,}",
        }


@dataclass(slots=True)
class History:
    """The updates, in quarters, and the newest value of each key after them.

    First, each of `updates` / 5 keys is written once. The later updates change a tenth of these keys; one in
    a hundred is a delete. One twin is written in the first quarter, the other in the second.
    """

    updates: int
    quarters: list[list[Row]] = field(default_factory=list)
    newest: dict[str, str] = field(default_factory=dict)
    deleted: int = 0

    def __post_init__(self) -> None:
        rows = list(self._rows())
        size = -(-len(rows) // QUARTERS)
        self.quarters = [rows[start : start + size] for start in range(0, len(rows), size)]
        for key, value in rows:
            if value is None:
                self.newest.pop(key, None)
            else:
                self.newest[key] = value
        self.deleted = len({key for key, _ in rows}) - len(self.newest)

    def _rows(self) -> Iterator[Row]:
        keys = max(self.updates // 5, 20)
        for number in range(self.updates):
            if number in (self.updates // 10, 3 * self.updates // 10):
                twin = TWINS[number > self.updates // 5]
                yield twin, f"the only value of this key, update {number}"
                continue
            key = number if number < keys else number * 7919 % (keys // 10) * 10
            delete = number >= keys and number % 100 == 99
            yield f"account-{key:08d}", None if delete else f"update {number:08d} " + "." * 60


@command("demo", usage="")
def demo(
    out: Session, keep: Annotated[str | None, option("DIR", "keep the logs in this directory")] = None
) -> None:
    """Clean one history by Kafka's rule and by ours.

    Writes 200,000 updates, including two keys with the same MD5, and shows what each rule read, wrote, kept
    and lost. Takes about ten seconds; the first run on a machine takes longer, because it
    compiles the kernels.

    Examples:
        lastword demo
        lastword demo --keep demo-logs
    """
    from lastword.errors import UsageError
    from lastword.files import DEFAULT

    if keep is None:
        with tempfile.TemporaryDirectory(prefix="lastword-demo-") as path:
            run_demo(out, path)
        return
    if DEFAULT.exists(keep) and not (DEFAULT.is_dir(keep) and not DEFAULT.listdir(keep)):
        raise UsageError(f"{keep} exists and is not an empty directory", remedy="name a new one")
    if not DEFAULT.exists(keep):
        DEFAULT.mkdir(keep)
    run_demo(out, keep)
    out.say(f"to inspect the logs: lastword ls {keep}/original; lastword verify {keep}/original --md5")


def run_demo(out: Session, path: str, updates: int = UPDATES) -> None:
    """Run the demonstration below `path`: a log directory `original` and one per strategy."""
    from lastword.config.tables import STRATEGIES

    history = History(updates)
    live, deleted = len(history.newest), history.deleted
    out.say(
        f"{updates:,} updates: {live:,} keys have a value, {deleted:,} were deleted; two have the same MD5"
    )
    ends = _write_history(f"{path}/original", history)
    out.say("cleaning by a model of Kafka's rule")
    kafka, gone = _clean_as_kafka(f"{path}/original", ends)
    rules, lost = [kafka], {KAFKA: gone}
    for strategy in STRATEGIES:
        out.say(f"cleaning with strategy {strategy}")
        ours, missing = _clean_as_lastword(f"{path}/{strategy}", history, strategy)
        rules.append(ours)
        lost[ours.rule] = missing
    for rule in rules:
        out.row("rule", rule.to_dict())
    out.rows([rule.cells() for rule in rules], ("RULE",))
    out.say(f"to keep: {live:,} values, and {deleted:,} tombstones until delete.retention.ms has passed")
    for name, values in lost.items():
        for value in values:
            out.row("lost", {"rule": name, **value.to_dict()})
            out.line(f"lost by {name}: {value.value!r} at offset {value.offset}")
            if value.twin is not None:
                out.line(f"  its key      {value.key}")
                out.line(f"  taken for    {value.twin}")
                out.line(f"  MD5 of both  {value.md5}")
    out.summary(rules=len(rules), updates=updates, keys=len(history.newest))


def _write_history(path: str, history: History) -> list[int]:
    """Write the history without cleaning; return the log end after each quarter."""
    import lastword

    ends = []
    with lastword.open(path, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic(TOPIC, segment_bytes=SEGMENT_BYTES, **COMPACTED_TEXT)
        for quarter in history.quarters:
            topic.extend(quarter)
            logs.dirs.log(TOPIC, 0).roll()
            ends.append(topic.bounds()[0][1])
    return ends


def _clean_as_kafka(path: str, ends: Sequence[int]) -> tuple[Cleaned, list[Lost]]:
    import lastword
    from lastword.clock import SystemClock
    from lastword.demo.kafka_model import KafkaCleaner, lost, read_model

    with lastword.open(path) as logs:
        original = read_model(logs.dirs.view(TOPIC, 0))
        retention_ms = logs.topic(TOPIC).config.delete_retention_ms
    cleaner = KafkaCleaner()
    log: tuple[ModelSegment, ...] = ()
    results = []
    begin = 0
    for end in ends:
        log += tuple(segment for segment in original if begin <= segment.base_offset < end)
        log, done = cleaner.clean(
            log, end, first_dirty=begin, now_ms=SystemClock().now_ms(), delete_retention_ms=retention_ms
        )
        results += done
        begin = end
    gone = [
        _lost((record.key or b"").decode(), (record.value or b"").decode(), record.offset)
        for record in lost(original, log)
    ]
    read = sum(result.read_bytes for result in results)
    written = sum(result.written_bytes for result in results)
    return Cleaned(KAFKA, len(results), read, written, results[-1].kept, len(gone)), gone


def _clean_as_lastword(path: str, history: History, strategy: str) -> tuple[Cleaned, list[Lost]]:
    import lastword

    with lastword.open(path, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic(
            TOPIC, segment_bytes=SEGMENT_BYTES, lastword_strategy=strategy, **COMPACTED_TEXT
        )
        results = []
        for quarter in history.quarters:
            topic.extend(quarter)
            results += logs.clean(TOPIC, strategy=strategy)
        kept = sum(1 for _ in topic.read())
        state = dict(logs.state(TOPIC))
    gone = [_lost(key, value, -1) for key, value in history.newest.items() if state.get(key) != value]
    read = sum(result.read_bytes for result in results)
    written = sum(result.written_bytes for result in results)
    return Cleaned(f"lastword, {strategy}", len(results), read, written, kept, len(gone)), gone


def _lost(key: str, value: str, offset: int) -> Lost:
    from lastword.demo.kafka_model import md5

    twin = next((twin for twin in TWINS if key in TWINS and twin != key), None)
    return Lost(key, value, offset, md5(key.encode()).hex(), twin)
