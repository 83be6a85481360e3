"""Logs that lastword cleaned in part go to a real broker, whose cleaner takes over; then back to lastword.

    broker     creates the topics; an idempotent producer begins; stops
    lastword   random lives: appends, deletes, rounds over runs of segments, a lease, a job's commit; closes
    broker     starts beside the private files; the producer goes on; Kafka's cleaner cleans, twice
    lastword   does not use its old accounts and key indexes; verifies, cleans, reads, looks keys up

Two more logs are equal to the byte: an old value in the first segment, its tombstone behind a run that was
cleaned. One has the checkpoint that the rounds recorded; in the other the checkpoint is too high.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.accounts.ledger import Ledger
from lastword.cleaner.inspection import DrivePartition
from lastword.cleaner.policy.generational import Columns
from lastword.clock import ManualClock
from lastword.files import DEFAULT
from lastword.ingest import apply, staging
from lastword.ingest.staging import CommitManifest
from lastword.keys import index
from lastword.logdir import TopicPartition
from lastword.partition import staged_batches
from lastword.records.batch import BatchBuilder
from tests.support.drives import inspected, rewritten
from tests.support.kafka import Broker, Consumed, KafkaRecord, Tools, complaints, errors_of

SEEDS = range(5)
LIVES = tuple(f"life{seed}" for seed in SEEDS)
TOPICS = ("known", "high", *LIVES)
KEYS = 40
MINUTE = 60_000
KAFKA = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": 0.0001,
    "delete_retention_ms": 0,
    "segment_ms": 500,
}
OURS = {
    "cleanup_policy": "compact",
    "lastword_strategy": "generational",
    "delete_retention_ms": MINUTE,
    "min_compaction_lag_ms": 0,  # with these the metadata, which is elsewhere, need not be known
}
Newest = dict[bytes, bytes | None]


def now_ms() -> int:
    return int(time.time() * 1000)


@dataclass
class Story:
    """The results of the steps. `newest`: the newest values as a dict, by topic; None for a deleted key."""

    newest: dict[str, Newest] = field(default_factory=lambda: {name: {} for name in TOPICS})
    rounds: dict[str, int] = field(default_factory=dict)
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)  # dead records left, blocked tombstones
    first_dirty: dict[str, int] = field(default_factory=dict)
    private: set[str] = field(default_factory=set)
    producers: dict[str, Any] = field(default_factory=dict)
    producers_after: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Consumed] = field(default_factory=dict)  # before the first cleaning by Kafka
    cleaned: dict[str, Consumed] = field(default_factory=dict)
    cleaned_to: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    rebuilt: dict[str, str] = field(default_factory=dict)
    problems: list[Any] = field(default_factory=list)
    back: dict[str, Newest] = field(default_factory=dict)
    looked_up: dict[str, Newest] = field(default_factory=dict)
    broker_log: str = ""
    dumped: str = ""


def first_dirty(root: Path) -> dict[str, int]:
    rows = (line.split() for line in (root / "cleaner-offset-checkpoint").read_text().split("\n")[2:])
    return {row[0]: int(row[2]) for row in rows if row}


def some_runs(
    place: DrivePartition, rng: random.Random | None, runs: int, span: tuple[int, int] | None = None
) -> int:
    """Rewrite some of the runs of segments; return how many were rewritten."""
    done = 0
    for _ in range(runs):
        seen = inspected(place, place.log_dir.clock.now_ms())
        account = seen.partitions[0]
        if not account.segments:
            break
        if span is None:
            assert rng is not None
            first = rng.randrange(len(account.segments))
            last = min(first + rng.randrange(3), len(account.segments) - 1)
        else:
            first, last = span
        result = rewritten(place, Columns.of(account, seen.write_clock, 0.0).run(account, first, last, 0.0))
        done += result is not None and result.certificate is not None
    return done


def live_on(logs: Any, name: str, newest: Newest, rng: random.Random, clock: ManualClock) -> int:
    """Run one random life; return how many runs were rewritten."""
    topic, log = logs.topic(name), logs.dirs.log(name, 0)
    place = DrivePartition.of(TopicPartition(name, 0), logs.dirs.log_dir(name, 0))
    done = 0
    for number in range(12):
        for _ in range(rng.randrange(1, 5)):
            pairs: list[tuple[bytes, bytes | None]] = []
            for _ in range(rng.randrange(1, 12)):
                key = b"k%d" % rng.randrange(KEYS)
                value = None if rng.random() < 0.25 else b"%d of %d" % (rng.randrange(999), number)
                pairs.append((key, value))
            topic.extend(pairs, partition=0)
            newest.update(pairs)
        log.roll()
        clock.advance(rng.choice((0, MINUTE // 2, 2 * MINUTE)))
        if rng.random() < 0.5:
            done += some_runs(place, rng, rng.randrange(1, 3))
    return done


def held_back(logs: Any, name: str, newest: Newest) -> None:
    """Append `gone` in the first segment and its tombstone in the third; rewrite the second and the third."""
    topic, log = logs.topic(name), logs.dirs.log(name, 0)
    parts: list[list[tuple[bytes, bytes | None]]] = [
        [(b"gone", b"old"), *((b"a%d" % n, b"v") for n in range(20))],
        [(b"b%d" % (n % 5), b"v") for n in range(50)],
        [(b"gone", None), *((b"c%d" % (n % 5), b"v") for n in range(50))],
    ]
    for pairs in parts:
        topic.extend(pairs, partition=0)
        newest.update(pairs)
        log.roll()
    seen = [segment.base_offset for segment in log.segments]
    rewritten = some_runs(
        DrivePartition.of(TopicPartition(name, 0), logs.dirs.log_dir(name, 0)),
        None,
        1,
        (len(seen) - 3, len(seen) - 2),
    )
    assert rewritten == 1


def ours(root: Path, story: Story) -> None:
    """Run lastword's part on the directory."""
    clock = ManualClock(now_ms() - 120 * MINUTE)
    with lastword.open(root, "a", clock=clock) as logs:
        for name in TOPICS:
            logs.topic(name).set_config(**OURS)
        for seed, name in zip(SEEDS, LIVES, strict=True):
            rng = random.Random(seed)
            story.rounds[name] = live_on(logs, name, story.newest[name], rng, clock)
            mine = [(b"mine", b"%d" % seed)]
            logs.topic(name).extend(mine, producer="mine", sequence=0)
            story.newest[name].update(mine)
        logs.topic("life0").lease("replica")  # the lease of a reader that begins with an empty state
        for name in ("known", "high"):
            held_back(logs, name, story.newest[name])
        for name in TOPICS:
            assert logs.topic(name).get_many([*story.newest[name]]) == alive(story.newest[name])
        for name in TOPICS:
            place = DrivePartition.of(TopicPartition(name, 0), logs.dirs.log_dir(name, 0))
            account = inspected(place, 0).partitions[0]
            story.parts[name] = (
                sum(segment.dead_records for segment in account.segments),
                sum(segment.blocked_tombstone_bytes for segment in account.segments),
            )
    job_commits(root, story)
    story.first_dirty = first_dirty(root)
    story.private = {path.name for path in root.rglob("*") if "lastword" in str(path.relative_to(root))}
    text = (root / "cleaner-offset-checkpoint").read_text()
    low = story.first_dirty["high"]
    with lastword.open(root) as logs:
        end = logs.dirs.view("high", 0).log_end
    assert low < end and f"high 0 {low}\n" in text
    (root / "cleaner-offset-checkpoint").write_text(text.replace(f"high 0 {low}\n", f"high 0 {end}\n"))


def job_commits(root: Path, story: Story) -> None:
    """Commit a job without the lock: a note of its name in the root; its staged file becomes a segment."""
    builder = BatchBuilder(0)
    builder.append(now_ms(), b"job", b"1")
    writer = staging.StagedWriter(DEFAULT, str(root), "life1", 0, "j", 0, 0)
    writer.write(builder.build(0), 1)
    closed = writer.close(sync=True)
    assert closed is not None
    manifest = CommitManifest("j", (closed,), sync=True, writer="nightly", sequence=1)
    before = len(list((root / "life1-0").glob("*.log")))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(staged_batches, "MIN_SIZE_RATIO", 0.0)
        apply.commit(
            str(root),
            manifest,
            DEFAULT,
            lambda: lastword.logdir.LogDirectory.open(str(root), "a", DEFAULT, ManualClock(now_ms())),
            patience_seconds=5.0,
        )
    assert len(list((root / "life1-0").glob("*.log"))) == before + 1
    story.newest["life1"][b"job"] = b"1"


def wait_until_cleaned(broker: Broker, ends: dict[str, int], seconds: float = 40) -> dict[str, int]:
    end = time.monotonic() + seconds
    while True:
        reached = first_dirty(broker.directory)
        if all(reached.get(name, -1) >= offset for name, offset in ends.items()):
            return reached
        assert time.monotonic() < end, (reached, ends)
        time.sleep(0.1)


@pytest.fixture(scope="module")
def story(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    root = tmp_path_factory.mktemp("handback")
    cleaning = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": "200"}
    broker = Broker(tools, root / "logs", cleaning, keeps_port=True)
    story = Story()

    def send(name: str, key: bytes, value: bytes | None) -> int:
        story.newest[name][key] = value
        return broker.send(name, ("p", [KafkaRecord(key, value, now_ms())]))[-1]

    with broker:
        broker.create_topics(dict.fromkeys(TOPICS, KAFKA))
        broker.keep_producer("p", enable_idempotence="true")
        for name in TOPICS:
            for number in range(3):
                send(name, b"from kafka %d" % number, b"v")
            story.producers[name] = broker.producers(name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(index, "WORTH_SAVING", 1)
        ours(broker.directory, story)
    with broker:
        for name in TOPICS:
            story.producers_after[name] = broker.producers(name)
        story.given = broker.consume(*TOPICS)
        for number in range(2):
            ends = {name: send(name, b"then %d" % number, b"v") for name in TOPICS}
            time.sleep(0.8)  # longer than segment.ms: the next record closes the segment
            for name in TOPICS:
                send(name, b"from kafka 0", b"%d" % number)
            story.cleaned_to = wait_until_cleaned(broker, ends)
        story.cleaned = broker.consume(*TOPICS)
        story.broker_log = broker.log_text
    come_back(broker.directory, story)
    files = [path for name in TOPICS for path in sorted((broker.directory / f"{name}-0").glob("*.log"))]
    story.dumped = tools.dump_log(files)
    yield story


def come_back(root: Path, story: Story) -> None:
    with lastword.open(root) as logs:
        for name in TOPICS:
            view = logs.dirs.view(name, 0)
            ledger = Ledger.open(DEFAULT, view.directory, view.segments, map_bytes=1 << 20)
            story.rebuilt[name] = ledger.rebuilt_because
        story.problems += logs.verify().problems
        for name in TOPICS:
            story.looked_up[name] = logs.topic(name).get_many([*story.newest[name]])
    with lastword.open(root, "a", clock=ManualClock(now_ms())) as logs:
        assert all(done.certificate is None or done.complete for done in logs.clean())
        story.problems += logs.verify().problems
        for name in TOPICS:
            story.back[name] = {record.key: record.value for record in logs.topic(name).read()}


def alive(newest: Newest) -> Newest:
    return {key: value for key, value in newest.items() if value is not None}


pytestmark = [pytest.mark.kafka, pytest.mark.slow]


def test_the_logs_were_cleaned_in_parts(story: Story) -> None:
    """Otherwise the tests below prove nothing: dead records and blocked tombstones are left."""
    assert all(story.rounds[name] >= 2 for name in LIVES)
    assert all(story.parts[name][0] > 0 for name in LIVES)
    assert story.parts["known"][1] > 0 and sum(story.parts[name][1] > 0 for name in LIVES) >= 3
    assert {
        "accounts",
        "keys",
        "producers",
        "lease-replica",
        "lastword.writers",
        "lastword.toml",
    } <= story.private
    assert {"survivorship", "dropped-tombstones"} <= story.private


@pytest.mark.parametrize("name", TOPICS)
def test_a_broker_serves_them_with_our_files_lying_there(name: str, story: Story) -> None:
    seen = story.given[f"{name}-0"].newest()
    live = {key: value for key, value in story.newest[name].items() if key and not key.startswith(b"then")}
    assert {k: v for k, v in alive(seen).items() if k != b"from kafka 0"} == {  # type: ignore[arg-type]
        k: v for k, v in alive(live).items() if k != b"from kafka 0"
    }
    after = {producer["id"]: producer for producer in story.producers_after[name]}
    for producer in story.producers[name]:
        assert after[producer["id"]] == producer, "the producer's sequence goes on"


@pytest.mark.parametrize("name", [name for name in TOPICS if name != "high"])
def test_its_cleaner_brings_no_deleted_key_back(name: str, story: Story) -> None:
    seen = story.cleaned[f"{name}-0"]
    assert story.cleaned_to[name] > story.given[f"{name}-0"].end
    assert alive(seen.newest()) == alive(story.newest[name])  # type: ignore[arg-type]
    offsets = [record.offset for record in seen.records]
    assert offsets == sorted(set(offsets))
    assert len(offsets) < len(story.given[f"{name}-0"].records) + 4, "it had something to clean"


def test_the_checkpoint_is_never_above_a_killer_whose_victim_is_on_disk(story: Story) -> None:
    """If the checkpoint were the end of the cleaned part, the deleted key would be back, from equal bytes.

    Kafka's cleaner would take the tombstone for old enough and never read the value below.
    """
    tombstones = [record.offset for record in story.given["known-0"].records if record.key == b"gone"]
    assert story.first_dirty["known"] <= tombstones[-1]
    assert story.cleaned["known-0"].newest().get(b"gone") is None
    assert story.given["high-0"].newest()[b"gone"] is None
    assert story.cleaned["high-0"].newest()[b"gone"] == b"old"


@pytest.mark.parametrize("name", TOPICS)
def test_back_here_its_accounts_are_not_used(name: str, story: Story) -> None:
    assert story.rebuilt[name] != ""
    if name != "high":
        assert alive(story.back[name]) == alive(story.newest[name])


@pytest.mark.parametrize("name", [name for name in TOPICS if name != "high"])
def test_back_here_a_lookup_finds_what_the_broker_appended(name: str, story: Story) -> None:
    assert story.looked_up[name] == alive(story.newest[name])


def test_verify_dump_and_broker_report_nothing(story: Story) -> None:
    assert story.problems == []
    assert complaints(story.dumped, emptied=True) == []
    assert errors_of(story.broker_log) == []
