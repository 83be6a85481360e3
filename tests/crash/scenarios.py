"""Define what processes do to a directory while power may fail.

A `Process` is one life on the directory: it calls what a user would call, and records in the `History`
each attempt and each acknowledgement. A scenario is a function of a process. `run` gives the process a
journal; `from_seed` makes random scenarios.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lastword.clock import ManualClock
from lastword.config import Settings
from lastword.files import Files
from lastword.logdir import LogDirectory
from lastword.partition import PartitionLog
from lastword.records.batch import BatchBuilder
from tests.crash.history import Attempt, History
from tests.crash.invariants import MAP_BYTES, NOW, loader
from tests.crash.memory import ROOT, MemoryFiles
from tests.crash.power import PowerCut
from tests.fakes.forgetful import ForgetfulFiles
from tests.retention.support import expire_partition, raise_log_start
from tests.support.cleaning import by_hash, clean
from tests.transactions import end_transaction

HOUR = 3_600_000
SALT = b"0123456789abcdef"
Pairs = Sequence[tuple[bytes | None, bytes | None]]


def one_batch(
    base_offset: int, pairs: Pairs, *, timestamp: int = NOW, codec: int = 0, headers: bool = False
) -> bytes:
    builder = BatchBuilder(codec)
    for number, (key, value) in enumerate(pairs):
        builder.append(timestamp + number, key, value, _headers(base_offset + number) if headers else ())
    return builder.build(0)


def _headers(offset: int) -> tuple[tuple[str, bytes | None], ...]:
    return (("from", b"%d" % offset), ("empty", None)) if offset % 3 == 0 else ()


def settings_of(**topic: object) -> Settings:
    """Return settings: small segments, an index entry every few batches, compaction; plus keywords."""
    given: dict[str, object] = {
        "cleanup_policy": "compact",
        "segment_bytes": 700,
        "index_interval_bytes": 150,
        "delete_retention_ms": HOUR,
    } | topic
    lines = [f'"{name.replace("_", ".")}" = {value!r}' for name, value in given.items()]
    return Settings.from_text("[defaults]\n" + "\n".join(lines).replace("'", '"') + "\n")


class Process:
    """One life on the directory. `name`: the partition of verbs that are called without a partition."""

    def __init__(
        self,
        files: Files,
        history: History,
        settings: Settings | None,
        clock: ManualClock,
        *,
        root: str = ROOT,
        name: str = "users-0",
    ) -> None:
        self.files = files
        self.history = history
        self.settings = settings
        self.clock = clock
        self.root = root
        self.name = name
        self.logs: LogDirectory | None = None
        self.rng = random.Random(5)
        self._ended: dict[int, int] = {}  # producer id -> offset of its last marker

    # ---- opening

    def open(self) -> Process:
        settings = loader(self.settings, self.files, self.root)
        self.logs = LogDirectory.open(self.root, "a", self.files, self.clock, settings, rng=self.rng)
        for tp in self.logs.topic_partitions():
            name = str(tp)
            log = self.logs.log(tp.topic, tp.partition)
            self.history.note("opened", name, log.log_end)
            self._watch(log)
        return self

    def create(self, topic: str = "users", partitions: int = 1, **settings: int) -> Process:
        assert self.logs
        if settings:
            self.history.note("new settings", topic, settings)
        names = [f"{topic}-{number}" for number in range(partitions)]
        for name in names:
            self.history.note("attempt", name, ())
        self.logs.create_topic(topic, partitions, settings)
        for name in names:
            self.history.note("made", name)
            self._watch(self.log(name))
        return self

    def set_config(self, topic: str, **settings: int) -> Process:
        assert self.logs
        before = self.history.settings_at(self.history.moment())[topic][-1]
        self.history.note("setting", topic, before | settings)
        self.logs.set_config(topic, settings)
        self.history.note("set", topic)
        self.logs.reload_settings([topic])
        return self

    def as_before(self, topic: str) -> Process:
        """Put the settings of a topic into a table, as in directories of earlier versions."""
        assert self.logs
        toml, file = f"{self.root}/lastword.toml", f"{self.root}/lastword.topic-{topic}.toml"
        table = f"[topics.{topic}]  # mine\n".encode() + self.files.read_bytes(file)
        self.files.write_atomic(toml, self.files.read_bytes(toml) + table)
        self.files.unlink(file)
        self.files.fsync_dir(self.root)
        self.logs.reload_settings()
        return self

    def drop(self, topic: str = "users") -> Process:
        assert self.logs
        for number in self.logs.partitions(topic):
            self.history.note("drop", f"{topic}-{number}")
        self.logs.delete_topic(topic)
        return self

    def log(self, name: str | None = None) -> PartitionLog:
        assert self.logs
        topic, _, number = (name or self.name).rpartition("-")
        return self.logs.log(topic, int(number))

    def _watch(self, log: PartitionLog) -> None:
        """Record the records that each swap removes."""
        real = log.replace

        def replace(old, output):  # type: ignore[no-untyped-def]
            before = {o for s in old for o in _offsets(s)}
            after = set(_offsets(output))
            self.history.note("removed", log.name, frozenset(before - after))
            return real(old, output)

        log.replace = replace  # type: ignore[method-assign]

    # ---- appending

    def put(self, pairs: Pairs, **how: Any) -> Process:
        """Append a batch, as `put_many` does."""
        return self.put_many([pairs], **how)

    def put_many(
        self,
        batches: Sequence[Pairs],
        *,
        ack: str = "os",
        name: str | None = None,
        codec: int = 0,
        headers: bool = True,
        timestamp: int | None = None,
    ) -> Process:
        """Append batches in one call. At `disk` the call returns after the sync.

        A single record without headers and codec takes the short way, as in `Topic.append`.
        """
        log = self.log(name)
        self.clock.advance(1000)
        now = self.clock.now_ms() if timestamp is None else timestamp
        offset, encoded_batches = log.log_end, []
        for pairs in batches:
            encoded_batches.append(one_batch(offset, pairs, timestamp=now, codec=codec, headers=headers))
            self.history.note(
                "attempt",
                log.name,
                [
                    Attempt(offset + n, now + n, key, value, _headers(offset + n) if headers else ())
                    for n, (key, value) in enumerate(pairs)
                ],
            )
            offset += len(pairs)
        single = len(batches) == len(batches[0]) == 1 and not headers and not codec
        if not single or log.append_single(*batches[0][0], now, log.config.max_message_bytes) is None:
            log.append_batches(encoded_batches)
        if ack == "disk":
            log.sync()
            self.history.note("disk", log.name, offset)
        self.history.note("os", log.name, offset)
        return self

    def sync(self) -> Process:
        log = self.log()
        end = log.log_end
        log.sync()
        self.history.note("disk", log.name, end)
        return self

    def checkpoint(self) -> Process:
        """Call `LogDir.sync`: it syncs all partitions with their indexes, and writes the checkpoints."""
        assert self.logs
        ends = {str(tp): self.log(str(tp)).log_end for tp in self.logs.topic_partitions()}
        self.logs.sync()
        for name, end in ends.items():
            self.history.note("disk", name, end)
        return self

    def roll(self) -> Process:
        self.log().roll()
        return self

    def wait(self, ms: int) -> Process:
        self.clock.advance(ms)
        return self

    def transact(self, producer_id: int, pairs: Pairs) -> Process:
        """Append a batch of a transaction, with the producer's next sequence in the log."""
        log = self.log()
        self.clock.advance(1000)
        now, offset = self.clock.now_ms(), log.log_end
        known = log.producer(producer_id)
        sequence = 0 if known is None or known.last_sequence < 0 else known.last_sequence + 1
        builder = BatchBuilder(
            producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        for number, (key, content) in enumerate(pairs):
            builder.append(now + number, key, content)
        attempts = [
            Attempt(offset + n, now + n, key, content, (), producer_id)
            for n, (key, content) in enumerate(pairs)
        ]
        self.history.note("attempt", log.name, attempts)
        log.append_batch(builder.build(0))
        self.history.note("os", log.name, log.log_end)
        return self

    def end(self, producer_id: int, *, commit: bool, ack: str = "os") -> Process:
        log = self.log()
        if not commit:
            self.history.note("aborted", log.name, self._in_transaction(producer_id))
        self.history.note("marker", log.name, log.log_end)
        self._ended[producer_id] = log.log_end
        end_transaction(log, producer_id, 0, commit)
        if ack == "disk":
            self.sync()
        return self

    def _in_transaction(self, producer_id: int) -> set[int]:
        """Return the offsets of the producer's records since its last marker."""
        return {
            record.offset
            for event in self.history.events
            if event.kind == "attempt"
            for record in event.value
            if record.producer_id == producer_id and record.offset > self._ended.get(producer_id, -1)
        }

    # ---- deleting, truncating

    def trim(self, offset: int) -> Process:
        assert self.logs
        log = self.log()
        self.history.note("start", log.name, offset)
        raise_log_start(self.logs, log.topic, log.partition, offset)
        self.history.note("started", log.name, offset)
        log.remove_prefix()
        return self

    def expire(self) -> Process:
        from lastword.retention import outlook

        assert self.logs
        log = self.log()
        deletion = outlook(log.view(), log.config, self.clock.now_ms())
        self.history.note("start", log.name, deletion.log_start)
        expire_partition(self.logs, log.topic, log.partition)
        self.history.note("started", log.name, deletion.log_start)
        return self

    def truncate(self, offset: int, *, fully: bool = False) -> Process:
        assert self.logs
        log = self.log()
        self.history.note("start" if fully else "truncate", log.name, offset)
        if fully:
            self.history.note("truncate", log.name, 0)
        self.logs.truncate(log.topic, log.partition, offset, fully=fully)
        self.history.note("opened", log.name, 0 if fully else offset)
        return self

    # ---- cleaning, closing

    def clean(self, strategy: str = "kafka", map_bytes: int = MAP_BYTES, **more: Any) -> Process:
        assert self.logs
        log = self.log()
        self.history.note("round", log.name, (self.clock.now_ms(), log.log_end))
        tp = (log.topic, log.partition)
        clean(
            log,
            log.config,
            first_dirty=self.logs.first_dirty(*tp),
            record_first_dirty=lambda offset: self.logs.set_first_dirty(*tp, offset),
            salt=SALT,
            map_bytes=map_bytes,
            strategy=strategy,
            **more,
        )
        return self

    def close(self) -> Process:
        assert self.logs
        ends = {str(tp): self.log(str(tp)).log_end for tp in self.logs.topic_partitions()}
        self.logs.close()
        for name, end in ends.items():
            self.history.note("disk", name, end)
        self.logs = None
        return self

    def abandon(self) -> Process:
        """End the process as a kill does: the system closes the handles."""
        if self.logs is not None:
            self.logs.abandon()
            self.logs = None
        return self


def _offsets(segment) -> set[int]:  # type: ignore[no-untyped-def]
    from lastword.records.batch import read_records

    offsets: set[int] = set()
    for header in segment.headers():
        data = segment.read_batch(header)
        offsets |= {r.offset for r in read_records(data, header, segment.file, position=0)}
    return offsets


# ---------------------------------------------------------------- the scenarios


def value(number: int, size: int = 20) -> bytes:
    return (b"value-%05d." % number) + b"." * size


def keyed(number: int, keys: int = 5, size: int = 20) -> tuple[bytes, bytes]:
    return b"k%d" % (number % keys), value(number, size)


def append(p: Process) -> None:
    p.open().create()
    for number in range(14):
        p.put([keyed(number)], ack="disk" if number % 4 == 3 else "os")


def append_singly(p: Process) -> None:
    """Append the same records without headers, which take the short way, with a transaction and a roll."""
    p.open().create()
    for number in range(18):
        p.put([keyed(number)], ack="disk" if number % 5 == 3 else "os", headers=False)
        if number == 6:
            p.roll()
        if number == 10:
            p.transact(7, [keyed(number)]).put([keyed(number)], headers=False).end(7, commit=True)


def many_at_once(p: Process) -> None:
    """Append several batches in a call, across the end of a segment; some batches have several pages."""
    p.open().create()
    p.put_many([[keyed(n), keyed(n + 1)] for n in range(6)], ack="disk")
    p.put_many([[keyed(n)] for n in range(12)])
    p.put_many([[keyed(n, size=40)] for n in range(8)], ack="disk")


def large(p: Process) -> None:
    p.open().create()
    for number in range(4):
        p.put([keyed(number, size=9000)], ack="disk" if number == 2 else "os")
    p.put([keyed(5, size=100)])


def rolls(p: Process) -> None:
    p.open().create()
    for number in range(9):
        p.put([keyed(number)])
        if number % 2:
            p.roll()
        if number == 5:
            p.sync()


def indexes_grow(p: Process) -> None:
    """Write an index entry per batch, timestamps that go back, and full indexes that close the segment."""
    p.open().create()
    for number in range(16):
        back = (number % 3) * 5000
        p.put([keyed(number)], ack="disk" if number % 5 == 4 else "os", timestamp=NOW + number * 1000 - back)


def checkpoints(p: Process) -> None:
    p.open().create("users", 2)
    for number in range(8):
        p.put([keyed(number)], name=f"users-{number % 2}")
        if number % 3 == 2:
            p.checkpoint()


def closes(p: Process) -> None:
    """Stop cleanly: the marker, the checkpoints and the snapshot are written at the end."""
    _lives(p, p.close, synced=2)


def killed_between(p: Process) -> None:
    _lives(p, p.abandon, synced=3)
    p.open()


def _lives(p: Process, stop: Callable[[], object], *, synced: int) -> None:
    p.open().create()
    for life in range(3):
        if p.logs is None:
            p.open()
        for number in range(5):
            p.put([keyed(number + life)], ack="disk" if number == synced else "os")
        stop()


def topics(p: Process) -> None:
    p.open().create("users", 2).create("orders", 1)
    p.put([keyed(1)], ack="disk").put([keyed(2)], name="orders-0", ack="disk")
    p.drop("orders")
    p.put([keyed(3)], ack="disk")


def _garbage(p: Process) -> None:
    p.put([(b"a", b"1"), (b"c", b"only"), (b"b", b"1")], ack="disk")
    p.put([(b"a", b"2")]).put([(b"gone", b"1")]).put([(b"a", b"3")], ack="disk")
    p.put([(b"gone", None)]).put([(b"d", b"only"), (b"a", b"4")]).put([(b"b", b"2")])


def cleans(p: Process) -> None:
    p.open().create()
    _garbage(p)
    p.clean()
    p.put([(b"e", b"1")], ack="disk").put([(b"a", b"5")])


def cleans_small(p: Process) -> None:
    """Clean many small segments into few: groups of several sources."""
    p.open().create()
    for number in range(10):
        p.put([keyed(number, keys=3)])
        if number % 3 == 2:
            p.roll()
    p.sync().clean()
    p.put([keyed(11)], ack="disk")


def cleans_acked_before_unacked(p: Process) -> None:
    """Clean after `a` at disk and its newer record only at os, in another segment: one of them remains."""
    p.open().create()
    p.put([(b"a", value(1, 120))]).put([(b"b", value(2, 120))], ack="disk")
    p.roll().put([(b"a", value(3, 120))]).put([(b"c", value(4, 120))])
    p.clean()


def cleans_twice(p: Process) -> None:
    """Clean tombstones: the first cleaning keeps them, a later one removes them after their horizon.

    A map of hashes resolves the log, as it does a large one.
    """
    p.open().create()
    _garbage(p)
    with by_hash():
        p.clean(map_bytes=1 << 20)
        p.put([(b"c", None)], ack="disk").put([(b"a", b"6")])
        p.wait(HOUR // 2).clean(map_bytes=1 << 20)
        p.wait(2 * HOUR).put([(b"b", b"7")]).clean(map_bytes=1 << 20)
    p.checkpoint()


def cleans_by_accounts(p: Process) -> None:
    """Clean by garbage accounts, which are saved after a cleaning and loaded by the next one.

    A map of hashes makes the first ones, as for a large log.
    """
    p.open().create()
    _garbage(p)
    with by_hash():
        p.put([(b"c", None)], ack="disk").clean("generational", map_bytes=1 << 20)
    p.wait(2 * HOUR).put([(b"a", b"6")]).clean("generational")


def cleans_divided(p: Process) -> None:
    """Clean keys that do not fit the map: a scratch file is written beside the log, and removed."""
    p.open().create()
    for number in range(60):
        p.put([keyed(number, keys=40, size=120)])
    p.sync().clean(map_bytes=1024, divide_from=0)
    p.put([keyed(61, keys=40)], ack="disk")


def cleans_compressed(p: Process) -> None:
    p.open().create()
    for number in range(8):
        p.put([keyed(number), keyed(number + 1), keyed(number + 2)], codec=(0, 3, 4, 1)[number % 4])
    p.clean()
    p.put([keyed(3)], ack="disk").clean()


def cleans_and_closes(p: Process) -> None:
    p.open().create()
    _garbage(p)
    p.clean().close()
    p.open().put([(b"a", b"7")], ack="disk").clean().close()


def trims(p: Process) -> None:
    p.open().create()
    for number in range(8):
        p.put([keyed(number)])
    p.trim(3).put([keyed(8)], ack="disk").trim(7)
    p.wait(2 * HOUR).put([keyed(9)]).log().remove_deferred()
    p.checkpoint().close()


def expires(p: Process) -> None:
    p.open().create()
    for number in range(8):
        p.put([keyed(number)], ack="disk" if number == 5 else "os")
    p.wait(HOUR // 2).put([keyed(8)]).wait(HOUR // 2 + 5000).put([keyed(9)])
    p.expire().wait(2 * HOUR).expire()
    p.put([keyed(10)], ack="disk")


def truncates(p: Process) -> None:
    p.open().create()
    for number in range(9):
        p.put([keyed(number)], ack="disk" if number == 6 else "os")
    p.checkpoint().truncate(7).put([keyed(20)]).put([keyed(21)], ack="disk")
    p.truncate(2).put([keyed(22)], ack="disk").put([keyed(23)])


def transacts(p: Process) -> None:
    """Run a producer that commits and one that aborts, over several segments; leave a transaction open."""
    p.open().create()
    p.transact(7, [(b"a", b"1"), (b"b", b"1")]).put([(b"c", b"1")]).transact(8, [(b"d", b"1")])
    p.end(7, commit=True, ack="disk").transact(8, [(b"d", b"2")]).end(8, commit=False)
    p.transact(7, [(b"a", b"2")]).sync().transact(8, [(b"e", b"1")])
    p.end(7, commit=False).put([(b"c", b"2")], ack="disk")
    p.checkpoint().end(8, commit=True).transact(7, [(b"f", b"1")]).put([(b"g", b"1")]).close()


def cleans_transactions(p: Process) -> None:
    """Clean committed and aborted transactions; markers go after their horizon; one transaction is open."""
    p.open().create()
    p.transact(7, [(b"a", b"1"), (b"b", b"1")]).put([(b"c", b"1")]).transact(8, [(b"a", b"no"), (b"d", b"1")])
    p.end(7, commit=True, ack="disk").end(8, commit=False).put([(b"a", b"2")]).roll().clean()
    p.wait(2 * HOUR).transact(7, [(b"b", b"2")]).put([(b"c", None)]).end(7, commit=True).roll().clean()
    p.transact(8, [(b"c", b"open")]).put([(b"d", b"2")], ack="disk").wait(2 * HOUR).clean()


def settings(p: Process) -> None:
    """Change the settings of topics that have a file, a table, both in turn, and of none any more."""
    p.open().create("users", 2, retention_ms=10, segment_bytes=1 << 20, flush_ms=7)
    p.set_config("users", retention_ms=20, segment_bytes=2 << 20)
    p.create("orders", retention_ms=10, segment_bytes=1 << 20, flush_ms=7).as_before("orders")
    p.create("events", retention_ms=11, segment_bytes=3 << 20).as_before("events")
    p.set_config("orders", retention_ms=20, segment_bytes=2 << 20)
    p.drop("events").drop("users")
    p.create("users", retention_ms=30, segment_bytes=3 << 20)
    p.set_config("users", retention_ms=40, segment_bytes=4 << 20).close()


@dataclass(frozen=True)
class Scenario:
    """`settings`: of all topics; None: each topic has those that are saved for it."""

    name: str
    work: Callable[[Process], None]
    settings: Mapping[str, object] | None = ()  # type: ignore[assignment]
    retention_ms: int = HOUR

    def make_settings(self) -> Settings | None:
        if self.settings is None:
            return None
        return settings_of(**dict(self.settings) | {"delete_retention_ms": self.retention_ms})


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("append", append),
        Scenario("append_singly", append_singly, {"segment_bytes": 900, "index_interval_bytes": 150}),
        Scenario("many_at_once", many_at_once),
        Scenario("large", large, {"segment_bytes": 20_000}),
        Scenario("rolls", rolls),
        Scenario("indexes_grow", indexes_grow, {"index_interval_bytes": 0, "segment_index_bytes": 60}),
        Scenario("checkpoints", checkpoints, {"segment_bytes": 400}),
        Scenario("closes", closes, {"segment_bytes": 400}),
        Scenario("killed_between", killed_between, {"segment_bytes": 400}),
        Scenario("topics", topics),
        Scenario("settings", settings, None),
        Scenario("trims", trims, {"segment_bytes": 300}),
        Scenario(
            "expires", expires, {"segment_bytes": 300, "cleanup_policy": "delete", "retention_ms": HOUR}
        ),
        Scenario("truncates", truncates, {"segment_bytes": 300}),
        Scenario("transacts", transacts, {"segment_bytes": 400}),
        Scenario("cleans_transactions", cleans_transactions, {"segment_bytes": 400}),
        Scenario("cleans", cleans, {"segment_bytes": 300}),
        Scenario("cleans_small", cleans_small),
        Scenario("cleans_acked_before_unacked", cleans_acked_before_unacked, {"segment_bytes": 500}),
        Scenario("cleans_twice", cleans_twice, {"segment_bytes": 300}),
        Scenario("cleans_by_accounts", cleans_by_accounts, {"segment_bytes": 300}),
        Scenario("cleans_divided", cleans_divided, {"segment_bytes": 5000}),
        Scenario("cleans_compressed", cleans_compressed, {"segment_bytes": 400}),
        Scenario("cleans_and_closes", cleans_and_closes, {"segment_bytes": 300}),
    )
}


@dataclass
class Run:
    """A run of a scenario, with its journal and the acknowledgements by moment."""

    scenario: Scenario
    files: ForgetfulFiles
    history: History
    clock: ManualClock
    settings: Settings | None


def run(scenario: Scenario, start: PowerCut | None = None, past: History | None = None) -> Run:
    """Run the scenario to its end on a journal; on the image `start` of a power cut, if given."""
    inner = MemoryFiles(start.tree, start.mtimes) if start is not None else MemoryFiles()
    files = ForgetfulFiles(ROOT, inner)
    history = past.fold() if past is not None else History(scenario.retention_ms)
    history.moment = lambda: len(files.journal)
    clock = ManualClock(NOW)
    settings = scenario.make_settings()
    process = Process(files, history, settings, clock)
    scenario.work(process)
    process.abandon()
    return Run(scenario, files, history, clock, settings)


# ---------------------------------------------------------------- from a seed


def from_seed(seed: int) -> Scenario:
    """Run a random life: appends at both levels, rolls, checkpoints, cleanings, waits, stops, new starts."""
    rng = random.Random(seed)
    config = {
        "segment_bytes": rng.choice((250, 400, 900)),
        "index_interval_bytes": rng.choice((0, 100, 300)),
    }

    def work(p: Process) -> None:
        life(p, random.Random(seed + 1), 14)

    return Scenario(f"seed {seed}", work, config, retention_ms=rng.choice((0, HOUR)))


def life(p: Process, rng: random.Random, steps: int) -> None:
    p.open()
    assert p.logs
    if not p.logs.topics():
        p.create()
    for number in range(steps):
        if p.logs is None:
            p.open()
        operation = rng.choices(
            ("put", "many", "sync", "checkpoint", "roll", "clean", "wait", "close", "kill"),
            (10, 3, 2, 2, 2, 3, 1, 1, 1),
        )[0]
        if operation == "put":
            pairs = [
                (b"k%d" % rng.randrange(4), None if rng.random() < 0.2 else value(number, rng.randrange(40)))
                for _ in range(rng.randrange(1, 4))
            ]
            ack, codec = rng.choice(("os", "os", "disk")), rng.choice((0, 0, 3, 4))
            p.put(pairs, ack=ack, codec=codec, headers=len(pairs) > 1)
        elif operation == "many":
            p.put_many([[keyed(number + n)] for n in range(rng.randrange(2, 6))])
        elif operation == "wait":
            p.wait(rng.choice((1, HOUR, 3 * HOUR)))
        elif operation == "kill":
            p.abandon()
        else:
            getattr(p, operation)()


def second_life(p: Process) -> None:
    """Continue after a crash: recover, append, stop cleanly."""
    if _is_there(p):
        p.put([(b"a", b"again")]).put([(b"k1", b"again")], ack="disk")
        p.put([(b"b", b"again")]).close()


def second_life_cleaning(p: Process) -> None:
    if _is_there(p):
        p.put([(b"a", b"again")]).clean()


def _is_there(p: Process) -> bool:
    """Open the directory; return whether the crash has left the partition."""
    logs = p.open().logs
    assert logs
    return "users-0" in map(str, logs.topic_partitions())
