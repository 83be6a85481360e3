"""Clean random logs by our cleaner with each strategy, by the cleaner on lists, and by Kafka's cleaner.

    python -m tests.differential.compare --logs 5000

Asserted for every log:

- our cleaner keeps the newest value of every key, among committed records and among all; so does Kafka,
  except in transactional logs that it cleans in several passes: there a deleted key may return;
- the records that our cleaner keeps are unchanged, at their offsets and in order;
- strategy `kafka` keeps exactly the records that the cleaner on lists keeps, in both cleanings; the other
  strategies keep no superseded or aborted record below the same limit;
- the model of Kafka's rule keeps exactly the records that Kafka kept. In logs that began with magic 0 or 1
  it may keep a tombstone longer; in transactions Kafka may keep garbage that it considers the newest.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lastword.clock import ManualClock
from lastword.config.tables import STRATEGIES
from lastword.demo.kafka_model import KafkaCleaner as ModelCleaner
from lastword.demo.kafka_model import read_model
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.open import open_log
from lastword.partition.reads import record_of_largest_time
from lastword.partition.transactions import control_of
from lastword.partition.view import PartitionView
from lastword.records.formats import read_records
from lastword.records.record import RawRecord
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.differential.kafka_cleaner import OLD_EMPTY_BATCH, Cleaned, KafkaCleaner, Refused
from tests.differential.logs import TOPIC, RandomLog, random_log
from tests.naive import cleaner as naive
from tests.support.cleaning import by_hash, clean
from tests.support.jars import KafkaJars

SALT = b"differential"


@dataclass
class Read:
    """A partition read by plain Python: segments for the cleaner on lists, and the visibility of records."""

    segments: list[naive.NaiveSegment]
    hidden: set[int]  # offsets of records of aborted and undecided transactions
    undecided: set[int]
    transactional: dict[int, int]  # offset to producer id

    @property
    def records(self) -> list[RawRecord]:
        return [record for segment in self.segments for record in naive.survivors(segment.batches)]

    def newest(self, *, committed: bool) -> dict[bytes, bytes]:
        view: dict[bytes, bytes | None] = {}
        for record in self.records:
            if record.key is not None and not (committed and record.offset in self.hidden):
                view[record.key] = record.value
        return {key: value for key, value in view.items() if value is not None}


def read(directory: Path) -> Read:
    view = PartitionView.load(DirectorySegments(UNSYNCED, str(directory)))
    batches: list[list[naive.NaiveBatch]] = []
    open_: dict[int, list[tuple[int, int]]] = {}
    aborted: set[tuple[int, int]] = set()
    transactional: dict[int, int] = {}
    times = [-1]  # of all records, also of markers
    for number, segment in enumerate(view.segments):
        batches.append([])
        for header in segment.headers():
            data = segment.read_batch(header)
            if header.control:
                times.append(header.max_timestamp)
                marker = control_of(data, header, segment.file, position=0)
                places = open_.pop(header.producer_id, []) if marker is not None else []
                if marker is not None and marker.type == "abort":
                    aborted.update(places)
                continue
            if header.transactional:
                open_.setdefault(header.producer_id, []).append((number, len(batches[-1])))
            records = tuple(read_records(data, header, segment.file, position=0))
            times += [record.timestamp for record in records]
            if header.transactional:
                transactional.update((record.offset, header.producer_id) for record in records)
            batches[-1].append(naive.NaiveBatch(records, header.delete_horizon_ms, False, header.magic))
    newest = record_of_largest_time(view)
    assert (-1 if newest is None else newest.timestamp) == max(times), f"{directory}: another largest time"
    undecided = {place for places in open_.values() for place in places}
    ends = [segment.base_offset for segment in view.segments[1:]] + [view.log_end]
    segments = [
        naive.NaiveSegment(
            segment.base_offset,
            end,
            tuple(replace(batch, aborted=(number, n) in aborted) for n, batch in enumerate(batches[number])),
            segment.mtime_ms,
            segment.size,
        )
        for number, (segment, end) in enumerate(zip(view.segments, ends, strict=True))
    ]

    def offsets(places: set[tuple[int, int]]) -> set[int]:
        return {r.offset for number, n in places for r in batches[number][n].records}

    return Read(segments, offsets(aborted | undecided), offsets(undecided), transactional)


@dataclass
class Story:
    """A log as read before and after each of its cleanings."""

    before: list[Read] = field(default_factory=list)
    after: list[Read] = field(default_factory=list)
    dirty: list[int] = field(default_factory=list)  # first dirty offset after each cleaning, or 0


def add_part(log: RandomLog, directory: Path, part: int, now_ms: int | None = None) -> None:
    for base, _ in log.parts[part]:  # an active segment may have this base offset
        for extension in (names.INDEX, names.TIME_INDEX, names.TXN_INDEX):
            with contextlib.suppress(FileNotFoundError):
                (directory / names.segment_file(base, extension)).unlink()
    log.write(directory, part, now_ms)
    # A broker that copies such batches, with gaps, from its leader also writes this file.
    checkpoint = directory.parent / names.HIGH_WATERMARKS
    if not checkpoint.exists():
        checkpoint.write_text("0\n0\n")


def clean_ours(log: RandomLog, directory: Path, strategy: str) -> Story:
    story = Story()
    dirty: int | None = None
    for part, now_ms in enumerate(log.now_ms):
        add_part(log, directory, part)
        opened, _ = open_log(
            UNSYNCED, str(directory), log.config, ManualClock(now_ms), clean=False, recovery_point=0
        )
        with contextlib.closing(opened), by_hash(log.seed % 2 == 1):
            story.before.append(read(directory))
            recorded: list[int] = []
            clean(
                opened,
                log.config,
                first_dirty=dirty,
                record_first_dirty=recorded.append,
                strategy=strategy,
                map_bytes=log.map_bytes,
                salt=SALT,
            )
        dirty = recorded[-1] if recorded else dirty
        story.dirty.append(dirty or 0)
        story.after.append(read(directory))
    return story


def check_ours(log: RandomLog, strategy: str, story: Story) -> None:
    whole: dict[int, RawRecord] = {}
    start = 0
    for round_, (before, after) in enumerate(zip(story.before, story.after, strict=True)):
        name = f"log {log.seed}, {strategy}, round {round_ + 1}"
        whole |= {record.offset: record for record in before.records}
        expected = before.newest(committed=True)
        assert after.newest(committed=True) == expected, f"{name}: another committed view"
        left = after.records
        offsets = [record.offset for record in left]
        assert offsets == sorted(set(offsets)), f"{name}: another order"
        changed = [record.offset for record in left if whole.get(record.offset) != record]
        assert not changed, f"{name}: changed records at {changed[:5]}"
        limit = story.dirty[round_]
        reference = naive.clean_log(
            before.segments,
            start=start,
            limit=limit,
            now_ms=log.now_ms[round_],
            delete_retention_ms=log.config.delete_retention_ms,
        )
        wanted = [r.offset for segment in reference for r in naive.survivors(segment.batches)]
        if strategy == "kafka":
            assert offsets == wanted, f"{name}: kept {set(offsets) ^ set(wanted)} or not"
        else:
            tombstones = {r.offset for r in before.records if r.value is None}
            assert not (set(wanted) - tombstones) - set(offsets), f"{name}: live records are gone"
        start = limit


def check_garbage(log: RandomLog, strategy: str, story: Story, limits: Sequence[int]) -> None:
    """Check that no superseded or aborted record is left below the limit of each round."""
    for round_, (before, after, limit) in enumerate(zip(story.before, story.after, limits, strict=True)):
        below = [
            batch for segment in before.segments if segment.base_offset < limit for batch in segment.batches
        ]
        last = naive.newest(below)
        left = [r for r in after.records if r.offset < limit and r.key is not None]
        garbage = [r.offset for r in left if last.get(r.key) != r.offset or r.offset in before.hidden]
        assert not garbage, f"log {log.seed}, {strategy}, round {round_ + 1}: garbage at {garbage[:5]}"


def clean_by_kafka(kafka: KafkaCleaner, log: RandomLog, directory: Path) -> tuple[Cleaned, Cleaned] | str:
    """Run both cleanings by Kafka's cleaner; return its error text if it gave up."""
    done: list[Cleaned] = []
    try:
        for part, now_ms in enumerate(log.now_ms):
            add_part(log, directory, part)
            first_dirty = done[-1].first_dirty if done else 0
            done.append(
                kafka.clean(directory, log.config, slots=log.slots, now_ms=now_ms, first_dirty=first_dirty)
            )
    except Refused as refused:
        return str(refused)
    return done[0], done[1]


def by_the_model(log: RandomLog, directory: Path, limits: Iterable[int]) -> set[int]:
    """Return the offsets that the model of Kafka's rule keeps, from the same two parts."""
    cleaner = ModelCleaner(log.slots * 24)
    for part in (0, 1):
        log.write(directory / f"{TOPIC}-0", part)
    whole = read_model(PartitionView.load(DirectorySegments(UNSYNCED, str(directory / f"{TOPIC}-0"))))
    second = log.parts[1][0][0]
    segments = tuple(segment for segment in whole if segment.base_offset < second)
    later = tuple(segment for segment in whole if segment.base_offset >= second)
    dirty = 0
    for now_ms, limit, added in zip(log.now_ms, limits, ((), later), strict=True):
        segments, rounds = cleaner.clean(
            (*segments, *added),
            limit,
            first_dirty=dirty,
            now_ms=now_ms,
            delete_retention_ms=log.config.delete_retention_ms,
        )
        dirty = rounds[-1].next_dirty if rounds else dirty
    return {record.offset for segment in segments for record in segment.records}


@dataclass
class Totals:
    logs: int = 0
    records: int = 0
    kept: int = 0
    refused: int = 0  # logs that Kafka's cleaner gave up
    modelled: int = 0
    mistaken: int = 0  # logs with garbage, because Kafka took committed batches for aborted ones
    wrong: int = 0  # transactional logs whose newest values Kafka's cleaner changed
    kafka_rounds: int = 0

    def __str__(self) -> str:
        return (
            f"{self.logs} logs, {self.records} records, {self.kept} left by strategy kafka; Kafka's cleaner "
            f"took {self.kafka_rounds} rounds and gave up {self.refused} logs of old formats; "
            f"the model agreed with it on {self.modelled}; of transactional logs it left garbage by mistake "
            f"in {self.mistaken}, and changed newest values in {self.wrong}"
        )


def compare(seeds: Iterable[int], root: Path, kafka: KafkaCleaner | None, totals: Totals) -> None:
    """Compare the logs of `seeds` in directories below `root`, which are removed."""
    for seed in seeds:
        log, place = random_log(seed), root / str(seed)
        stories = {}
        for strategy in STRATEGIES:
            stories[strategy] = clean_ours(log, place / strategy / f"{TOPIC}-0", strategy)
            check_ours(log, strategy, stories[strategy])
        for strategy, story in stories.items():
            check_garbage(log, strategy, story, stories["kafka"].dirty)
        totals.logs += 1
        totals.records += len({r.offset for before in stories["kafka"].before for r in before.records})
        totals.kept += len(stories["kafka"].after[-1].records)
        if kafka is not None:
            answer = clean_by_kafka(kafka, log, place / "real" / f"{TOPIC}-0")
            _against_kafka(log, place, answer, stories, totals)
        shutil.rmtree(place)


def _against_kafka(
    log: RandomLog,
    place: Path,
    answer: tuple[Cleaned, Cleaned] | str,
    stories: dict[str, Story],
    totals: Totals,
) -> None:
    if isinstance(answer, str):
        assert log.old_formats and OLD_EMPTY_BATCH in answer, f"log {log.seed}: {answer}"
        totals.refused += 1
        return
    limits = [cleaned.limit for cleaned in answer]
    totals.kafka_rounds += sum(cleaned.rounds for cleaned in answer)
    kafka = read(place / "real" / f"{TOPIC}-0")
    kept = {record.offset for record in kafka.records}
    for strategy, story in stories.items():
        name = f"log {log.seed}, {strategy}"
        for committed in (True, False):
            mine, theirs = story.after[-1].newest(committed=committed), kafka.newest(committed=committed)
            if mine != theirs and log.transactions:
                # Our view equals the view before the cleaning (`check_ours`). With a map for few keys, Kafka
                # begins a pass behind a marker, takes committed batches for aborted ones, and removes a
                # tombstone although an older record of its key stays.
                totals.wrong += 1
                return
            assert mine == theirs, f"{name}: not Kafka's {'committed' if committed else 'full'} view"
    modelled = by_the_model(log, place / "model", limits)
    if (
        log.old_formats
    ):  # the model merges no segments, and in old formats a tombstone's age is that of its segment
        records = (r for before in stories["kafka"].before for r in before.records)
        modelled -= {r.offset for r in records if r.value is None and r.offset not in kept}
    if log.transactions and modelled < kept:  # taken for aborted when mapping began behind a marker
        totals.mistaken += 1
        return
    assert modelled == kept, f"log {log.seed}: the model differs at {sorted(modelled ^ kept)[:5]}"
    totals.modelled += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--logs", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="number of the first log")
    parser.add_argument("--no-kafka", action="store_true")
    given = parser.parse_args()
    kafka = None if given.no_kafka else KafkaCleaner(KafkaJars.find_or_fetch())
    started = time.monotonic()
    totals = Totals()
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="lastword-differential-", dir=place) as root:
        for first in range(given.first, given.first + given.logs, 250):
            compare(range(first, min(first + 250, given.first + given.logs)), Path(root), kafka, totals)
            print(f"{totals}; {time.monotonic() - started:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
