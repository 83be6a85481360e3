"""Clean one log by our cleaner and by Kafka's in turn, like a broker and this library that share it.

    python -m tests.differential.relay --lives 500

Parts of a random log are appended one after the other. After each part, one of the cleaners in `WHO` cleans
the result of the others: Kafka's cleaner, from the existing checkpoint; or our cleaner, by each strategy over
the whole log, over some runs of segments, or over the due part. Between turns, indexes are lost or damaged,
and files of an unfinished swap are left. The same parts are also appended to a log that is never cleaned.

Asserted after each turn: the remaining records are unchanged, at their offsets, in order. Their visibility
(committed, aborted, undecided) equals that in the other log, by the markers and by the transaction indexes.
The newest committed value of each key is that of the other log, and deleted keys have none. After our
cleaning of the whole log no garbage is left. `verify` finds no problem.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import lastword
from lastword.cleaner.inspection import DrivePartition
from lastword.cleaner.policy.generational import Columns
from lastword.clock import ManualClock
from lastword.config.tables import STRATEGIES
from lastword.logdir import TopicPartition
from lastword.segment.indexes import AbortedTransaction, decode_aborted
from tests.differential.compare import Read, Story, add_part, check_garbage, read
from tests.differential.kafka_cleaner import OLD_EMPTY_BATCH, KafkaCleaner, Refused
from tests.differential.logs import TOPIC, RandomLog, random_log
from tests.support.drives import inspected, rewritten
from tests.support.jars import KafkaJars

KAFKA, RUNS, DUE = "Kafka's cleaner", "some runs", "what is due"
WHO = (KAFKA, RUNS, DUE, *STRATEGIES)
PARTS = 6
SLOTS = 20_000  # with few slots, Kafka cleans in several passes and takes committed batches for aborted ones


def live(seed: int, root: Path, kafka: KafkaCleaner) -> Counter[str]:
    """Clean one log in turn, below `root`; return the number of turns of each cleaner."""
    rng = random.Random(f"relay {seed}")
    log = random_log(seed, PARTS)
    cleaned, whole = root / "cleaned", root / "whole" / f"{TOPIC}-0"
    directory, turns, now_ms, label = cleaned / f"{TOPIC}-0", Counter[str](), log.now_ms[0], f"life {seed}"
    for part in range(PARTS):
        now_ms += rng.choice((0, 2_000, 5_000, 60_000, 7_200_000))
        for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
            (cleaned / name).unlink(missing_ok=True)  # so that opening checks every file
        for partition_dir in (directory, whole):
            add_part(log, partition_dir, part, now_ms)
        _harm(rng, directory)
        who = rng.choice(WHO)
        label += f", {who}"
        before = read(directory)
        if who == KAFKA:
            try:
                _by_kafka(log, cleaned, kafka, now_ms)
            except Refused as refused:
                assert log.old_formats and OLD_EMPTY_BATCH in str(refused), f"{label}: {refused}"
                break
        else:
            turns["runs"] += _by_ours(log, cleaned, who, rng, now_ms, label)
        turns[who] += 1
        after = read(directory)
        _check(label, directory, after, read(whole))
        if who in STRATEGIES:
            story = Story([before], [after])
            check_garbage(log, label, story, [_limit(before)])
    shutil.rmtree(root)
    return turns


def _harm(rng: random.Random, directory: Path) -> None:
    """Damage or remove indexes, and add files of an unfinished swap, which opening must repair or remove."""
    indexes = [path for path in directory.iterdir() if path.suffix in (".index", ".timeindex", ".txnindex")]
    if indexes and rng.random() < 0.3:
        path = rng.choice(sorted(indexes))
        if path.suffix == ".txnindex" or rng.random() < 0.4:
            path.unlink()
        else:
            path.write_bytes(rng.choice((bytes(48), rng.randbytes(24), rng.randbytes(3))))
    if rng.random() < 0.2:
        path = rng.choice(sorted(directory.glob("*.log")))
        suffix, size = rng.choice(((".cleaned", 50), (".cleaned", None), (".deleted", None)))
        path.with_name(path.name + suffix).write_bytes(path.read_bytes()[:size])


def _checkpoint(root: Path) -> Path:
    return root / "cleaner-offset-checkpoint"


def _by_kafka(log: RandomLog, root: Path, kafka: KafkaCleaner, now_ms: int) -> None:
    path, first_dirty = _checkpoint(root), 0
    if path.exists():
        rows = (line.split() for line in path.read_text().splitlines()[2:])
        first_dirty = next((int(row[2]) for row in rows if row[0] == TOPIC), 0)
    done = kafka.clean(root / f"{TOPIC}-0", log.config, slots=SLOTS, now_ms=now_ms, first_dirty=first_dirty)
    path.write_text(f"0\n1\n{TOPIC} 0 {done.first_dirty}\n")


def _by_ours(log: RandomLog, root: Path, who: str, rng: random.Random, now_ms: int, label: str) -> int:
    """Clean by our cleaner; return the number of chosen runs that were rewritten."""
    with lastword.open(root, "a", clock=ManualClock(now_ms)) as logs:
        logs.topic(TOPIC).set_config(
            cleanup_policy="compact",
            segment_bytes=log.config.segment_bytes,
            segment_ms=log.config.segment_ms,
            index_interval_bytes=log.config.index_interval_bytes,
            delete_retention_ms=log.config.delete_retention_ms,
            file_delete_delay_ms=0,
        )
        rewritten = 0
        if who == RUNS:
            rewritten = sum(_some_run(logs, rng, now_ms) for _ in range(rng.randint(1, 3)))
        else:
            logs.clean(due=who == DUE, strategy=who if who in STRATEGIES else None)
        problems = logs.verify().problems
        assert not problems, f"{label}: {problems[0]}"
        return rewritten


def _some_run(logs: Any, rng: random.Random, now_ms: int) -> bool:
    place = DrivePartition.of(TopicPartition(TOPIC, 0), logs.dirs.log_dir(TOPIC, 0))
    seen = inspected(place, now_ms)
    account = seen.partitions[0]
    if not account.segments:
        return False
    first = rng.randrange(len(account.segments))
    last = min(first + rng.randrange(4), len(account.segments) - 1)
    clean_round = rewritten(place, Columns.of(account, seen.write_clock, 0.0).run(account, first, last, 0.0))
    return clean_round is not None and clean_round.certificate is not None


def _limit(before: Read) -> int:
    """Return the offset up to which a round over the whole log may clean."""
    segments = before.segments
    undecided = min(before.undecided, default=segments[-1].next_offset)
    return max((segment.next_offset for segment in segments if segment.next_offset <= undecided), default=0)


def _check(label: str, directory: Path, after: Read, whole: Read) -> None:
    appended = {record.offset: record for record in whole.records}
    offsets = [record.offset for record in after.records]
    assert offsets == sorted(set(offsets)), f"{label}: another order"
    for record in after.records:
        was = appended[record.offset]  # Kafka may convert magic 0 to 2, which changes the timestamp type
        same = (record.key, record.value, record.timestamp, record.headers)
        assert same == (was.key, was.value, was.timestamp, was.headers), f"{label}: {record} was {was}"
    assert after.hidden == whole.hidden & set(offsets), f"{label}: others are visible"
    assert after.newest(committed=True) == whole.newest(committed=True), f"{label}: another committed view"
    entries = _aborted(directory)
    for offset, producer_id in after.transactional.items():
        named = any(
            e.producer_id == producer_id and e.first_offset <= offset <= e.last_offset for e in entries
        )
        aborted = offset in whole.hidden - whole.undecided
        assert named == aborted, f"{label}: {offset} in the transaction index: {named}, aborted: {aborted}"


def _aborted(directory: Path) -> list[AbortedTransaction]:
    paths = sorted(directory.glob("*.txnindex"))
    return [entry for path in paths for entry in decode_aborted(path.read_bytes(), str(path))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lives", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first life")
    given = parser.parse_args()
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    turns = Counter[str]()
    with (
        tempfile.TemporaryDirectory(prefix="lastword-relay-", dir=place) as root,
        KafkaCleaner(KafkaJars.find_or_fetch()) as kafka,
    ):
        for seed in range(given.first, given.first + given.lives):
            turns += live(seed, Path(root) / str(seed), kafka)
    print(f"{given.lives} lives: {dict(turns)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
