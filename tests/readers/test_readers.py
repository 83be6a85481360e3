"""Run readers of every kind beside a writer and cleaners: 1,200 interleavings, threads, another process."""

from __future__ import annotations

import collections
import random
import time
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.errors import ReadOvertakenError
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.moment import Range
from lastword.partition.view import PartitionView
from tests.crash.memory import ROOT
from tests.readers import process, shared
from tests.readers.history import TOPIC, TTL, make
from tests.readers.judge import Violation, Window
from tests.readers.readers import KINDS, LOOKUPS, interleavings
from tests.readers.run import Tally, judge_history
from tests.readers.travel import TravellingFiles
from tests.support.exhaustive import stride

BY_KEY = "append to an expected record", "expire values"
HISTORIES, TOGETHER, EACH = 20 // stride(2), 4, 500 // stride(5)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, HISTORIES, TOGETHER))
def test_interleavings(first: int) -> None:
    tally = Tally()
    for seed in range(first, first + TOGETHER):
        tally.add(judge_history(seed, EACH))
    assert not tally.violations, "\n".join(text for _, _, text in tally.violations[:3])
    assert tally.judged == TOGETHER * EACH
    assert tally.different >= TOGETHER * EACH * 0.98
    assert set(tally.kinds) == set(KINDS)
    lookups = {note for kind, note in tally.notes if kind == "get"}
    assert lookups >= set(LOOKUPS) and any(note.endswith(": none") for note in lookups)


@pytest.mark.parametrize("kind", ["follow", "log", "arrow"])
def test_a_reader_beside_a_topic_that_is_deleted_and_made_again(kind: str) -> None:
    """It ends, or raises: it never goes on in the next topic of the name."""
    assert make(39).deletes
    tally = judge_history(39, 100, [kind])
    assert not tally.violations, "\n".join(text for _, _, text in tally.violations[:3])


def test_an_interleaving_is_repeated_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The history is made twice, and each interleaving is identified by its number."""
    runs = []
    for _ in range(2):
        drawn = random.Random(7)  # the names of deleted directories, in whose order they are listed
        monkeypatch.setattr(random, "_urandom", drawn.randbytes)
        history = make(7)
        outcomes = [(outcome.label, outcome.notes) for outcome in interleavings(history, 30)]
        runs.append(([label.split(" ")[0] for label in history.files.labels], outcomes))
    assert runs[0] == runs[1]


def test_histories_have_what_readers_meet() -> None:
    """Swaps, removed tombstones, trims, truncations, aborts, deletes, and reused inode numbers."""
    met: collections.Counter[str] = collections.Counter()
    for seed in range(16):
        history = make(seed)
        for partition in history.partitions.values():
            records = {n: line.records for n, line in enumerate(partition.lineages)}
            gone = [
                records[r.lineage][o]
                for r in partition.removals
                for o in r.offsets
                if o in records[r.lineage]
            ]
            met["swaps"] += len(partition.removals)
            met["tombstones removed"] += sum(record.value is None for record in gone)
            met["log start raised"] += len({ends.log_start for ends in partition.ends}) - 1
            met["lines"] += len(partition.lineages) - 1
            met["values with a time to live"] += sum(
                name == TTL for line in records.values() for r in line.values() for name, _ in r.headers
            )
            met["aborted"] += sum(len(line.aborted) for line in partition.lineages)
        for _, label in history.calls:
            met[label.split(" ")[0].rstrip(",")] += 1
            met[label] += label in ("clean, sharded", "kill", "delete the topic", "expire", *BY_KEY)
        versions = history.files.labels
        met["renames to .swap"] += sum(label.endswith(".swap") for label in versions)
        met["inodes used again"] += history.files.reuse
    wanted = {
        "swaps",
        "tombstones removed",
        "log start raised",
        "lines",
        "aborted",
        "clean, sharded",
        "kill",
        "roll",
    }
    wanted |= {"delete the topic", "expire", "truncate", "trim", "commit", "abort", "renames to .swap"}
    wanted |= {*BY_KEY, "values with a time to live"}
    assert {name for name in wanted if not met[name]} == set()
    assert met["inodes used again"] >= 2


def test_the_files_that_a_reader_sees_are_the_writers() -> None:
    """At the last version the files equal the directory; at an earlier version, its earlier content."""
    history = make(3)
    files = TravellingFiles(history)
    files.start(history.last, lambda n: 0, files._rng)
    tree = history.files.tree()
    for path, data in tree.items():
        full = f"/in-memory/{path}"
        assert files.is_dir(full) if data is None else files.read_bytes(full) == data
    log = next(path for path in tree if path.endswith(".log"))
    assert files.exists(f"/in-memory/{log}")
    files.start(3, lambda n: 0, files._rng)
    assert not files.exists(f"/in-memory/{log}")


@pytest.mark.slow
@pytest.mark.parametrize("block", range(4)[:: stride(4)])
def test_readers_that_share_the_writers_memory(block: int) -> None:
    reads = 0
    for seed in range(14 * block, 14 * block + 14):
        run = shared.run(seed)
        reads += len(run.reads)
        wrong = [
            f"seed {seed}: {kind}, versions {first} to {last}: {violation}"
            for kind, first, last, violation in run.reads
            if violation is not None
        ]
        assert not wrong, "\n".join(wrong[:3])
    assert reads > 100


@pytest.mark.parametrize("seed", [7, 39])
def test_readers_in_memory_beside_a_topic_that_is_deleted_and_made_again(seed: int) -> None:
    run = shared.run(seed)
    assert run.history.deletes
    assert [violation for *_, violation in run.reads if violation is not None] == []


def test_watches_and_lookups_beside_a_writer_and_its_cleanings() -> None:
    """Watches hold leases, which the writer sees."""
    met: collections.Counter[str] = collections.Counter()
    for seed in range(8):
        run = shared.run(seed, ("watch", "get"))
        assert [violation for *_, violation in run.reads if violation is not None] == []
        met.update(run.notes)
    assert met["watched"] >= 5 and {note.partition(":")[0] for note in met} >= set(LOOKUPS)


def test_a_shared_run_is_repeated_exactly() -> None:
    first, second = shared.run(2), shared.run(2)
    assert first.baton.order == second.baton.order
    assert [read[:3] for read in first.reads] == [read[:3] for read in second.reads]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 5, 8][:: stride(3)])
def test_a_second_process(tmp_path: Path, seed: int) -> None:
    count, wrong = process.run(tmp_path / "data", seed, seconds=3.0)
    assert not wrong, "\n".join(wrong[:3])
    assert count > 20


@pytest.mark.slow
def test_a_state_of_a_second_process_is_judged_up_to_the_log_end(tmp_path: Path) -> None:
    """Beside an open transaction it has records above the stable offset; a read that ends there is wrong."""
    directory = tmp_path / "data"
    states: list[list[Any]] = []
    early: list[list[Any]] = []
    with process.writing(directory, 3) as (writer, work):
        while len(states) < 3:
            work(1)
            ends = writer.history.partitions[0].ends[-1]
            line = writer.history.partitions[0].lineages[-1]
            if line.newest(ends.stable) == line.newest(ends.log_end, ends.undecided):
                continue
            begin = time.monotonic_ns()
            with lastword.open(directory, **writer.settings) as logs:
                state = logs.state(TOPIC, key_serializer="bytes", value_serializer="bytes")
                shown = [[0, 0, str(key, "ascii"), str(value, "ascii")] for key, value in state.items()]
                raw = logs.topic(TOPIC, key_serializer="bytes", value_serializer="bytes")
                newest = [
                    [0, 0, str(record.key or b"", "ascii"), str(record.value or b"", "ascii")]
                    for record in raw.read(view="newest")
                ]
            states.append(["state", begin, time.monotonic_ns(), shown, None])
            early.append(["state", begin, time.monotonic_ns(), newest, None])
    assert process.judge(writer, states) == []
    wrong = process.judge(writer, early)
    assert wrong and all("no moment" in text for text in wrong)


def test_the_judge_allows_a_moment_and_nothing_else() -> None:
    """A mix of two successive states is not allowed."""
    history = make(0)
    partition = history.partitions[0]
    lineage = partition.lineages[0]
    first, last = partition.ends_at[3], partition.ends_at[8]
    window = Window(partition, first, last)
    low, high = window.lowest_end, window.calls[-1].stable
    assert low < high
    old, new = lineage.newest(low), lineage.newest(high)
    assert old != new
    for newest in (old, new):
        window.check_moment(newest, tombstones=True)
    older = lineage.newest(low - 3)
    with pytest.raises(Violation, match="no moment"):
        window.check_moment(older, tombstones=True)
    changed = [key for key in old if new[key] != old[key]]
    mixed = old | {changed[-1]: new[changed[-1]]}
    if mixed not in [lineage.newest(end) for end in range(low, high + 1)]:
        with pytest.raises(Violation, match="no moment"):
            window.check_moment(mixed, tombstones=True)


def test_a_settled_range_is_overtaken_and_not_renewed() -> None:
    """A defect found by the harness: `restore` raised FileVanishedError after its handles were closed."""
    history = make(0)
    files = TravellingFiles(history)
    files.start(history.last, lambda n: 0, files._rng)
    held = PartitionView.load(DirectorySegments(files, f"{ROOT}/{TOPIC}-0")).held(0)
    with pytest.raises(ReadOvertakenError):
        Range(held, 0, held.log_end).renew()
