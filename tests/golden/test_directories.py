"""Whole log directories of real brokers, opened as users open them.

Every file means the same as for Kafka's own classes. Recovery of a killed or torn directory gives the result
of Kafka's recovery.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.tools.dump import CheckpointEntry, IndexEntry, ProducerEntry
from lastword.tools.findings import Problem
from tests.golden import loader

LOOKED_AT = [
    ("dir-clean", "data"),
    ("dir-clean-kafka28", "data"),
    ("dir-killed", "killed"),
    ("dir-killed", "recovered"),
    ("dir-torn", "died"),
    ("dir-torn", "recovered"),
]
WITH_PRODUCERS = [
    (name, stage)
    for name in (*loader.names("tx-*"), "compact-idempotent-dr0")
    for stage in loader.case(name).stages
]
STOPPED = [("dir-clean", "data"), ("dir-clean-kafka28", "data"), ("dir-killed", "recovered")]
STOPPED += [("dir-torn", "recovered")]
BROKEN_OFF = [("dir-killed", "killed"), ("dir-torn", "died")]
CLOCK = ManualClock(1_700_000_000_000)  # the records' own time: no producer is old enough to expire
ROOT_CHECKPOINTS = ("recovery-point-offset", "replication-offset", "log-start-offset", "cleaner-offset")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    roots: dict[str, Path] = {}

    def stage(name: str, stage: str) -> Path:
        if name not in roots:
            roots[name] = loader.case(name).unpack(tmp_path_factory.mktemp(name))
        return roots[name] / stage

    return stage


@pytest.fixture
def opened(unpacked: Callable[[str, str], Path], tmp_path: Path) -> Callable[[str, str], lastword.LogDir]:
    """Return a function that opens a copy to append, with the settings of its broker."""

    def open_copy(name: str, stage: str) -> lastword.LogDir:
        shutil.copytree(unpacked(name, stage), tmp_path / "logs")
        logs = lastword.open(tmp_path / "logs", "a", clock=CLOCK)
        logs.set_config(index_interval_bytes=512)
        for topic in ("__consumer_offsets", "__transaction_state"):
            if any(there.name == topic for there in logs.topics()):
                logs.set_config(topic, index_interval_bytes=4096)
        return logs

    return open_copy


# ---------------------------------------------------------------- results of Kafka's classes


def listed(lines: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group the lines by file, without the metadata log of KRaft, which is no log of records."""
    lines_by_file: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        if line["partition"] != "__cluster_metadata-0":
            lines_by_file[f"{line['partition']}/{line['file']}"].append(line)
    return lines_by_file


def log_starts(directory: Path) -> dict[str, int]:
    lines = (directory / "log-start-offset-checkpoint").read_text().splitlines()[2:]
    return {f"{topic}-{number}": int(offset) for topic, number, offset in map(str.split, lines)}


def checkpoint(directory: Path, name: str) -> set[str]:
    return set((directory / f"{name}-checkpoint").read_text().splitlines()[2:])


def served(name: str, stage: str, directory: Path, *, committed: bool) -> dict[str, list[tuple[Any, ...]]]:
    """Return the records that a reader gets of each partition.

    It gets none below the log start and no control records. A committed read gets no aborted transaction and
    nothing from the first open transaction on.
    """
    starts = log_starts(directory)
    partitions: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in loader.case(name).expected(stage):
        partitions[line["partition"]].append(line)
    records_by_partition = {}
    for partition, lines in partitions.items():
        if partition == "__cluster_metadata-0":
            continue
        aborted, end = transactions(lines)
        records_by_partition[partition] = [
            (line["offset"], line["timestamp"], line["key"], listed_value(line), line["headers"])
            for line in lines
            if line["offset"] >= starts.get(partition, 0) and not line["isControl"]
            if not committed or (line["offset"] < end and line["offset"] not in aborted)
        ]
    return records_by_partition


def listed_value(line: dict[str, Any]) -> Any:
    return line["value_sha256"] if "value_sha256" in line else line["value"]


def shown(value: bytes | None) -> Any:
    """Return a value as the lists have it; of a value over 4 KiB the digest."""
    return value if value is None or len(value) <= 4096 else hashlib.sha256(value).hexdigest()


def transactions(lines: Iterable[dict[str, Any]]) -> tuple[set[int], float]:
    """Return the offsets of aborted records, and the start of the oldest open transaction."""
    undecided: dict[int, list[int]] = {}
    aborted: set[int] = set()
    for line in lines:
        if not line["isTransactional"]:
            continue
        if not line["isControl"]:
            undecided.setdefault(line["producerId"], []).append(line["offset"])
        else:
            decided = undecided.pop(line["producerId"], [])
            if line["controlType"] == "ABORT":
                aborted.update(decided)
    return aborted, min((offsets[0] for offsets in undecided.values()), default=float("inf"))


# ---------------------------------------------------------------- results of lastword


def partition_directories(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.iterdir()) if path.is_dir() and path.name[:9] != "__cluster"]


def read(logs: lastword.LogDir, isolation: str) -> dict[str, list[tuple[Any, ...]]]:
    records_by_partition = {}
    for topic in logs.topics():
        plain = logs.topic(topic.name, key_serializer="bytes", value_serializer="bytes")
        for number in plain.bounds():
            records = [
                (r.offset, r.timestamp, r.key, shown(r.value), tuple(r.headers))
                for r in plain.read(partition=number, isolation=isolation)
            ]
            if records:
                records_by_partition[f"{topic.name}-{number}"] = records
    return records_by_partition


def dumped(directory: Path, suffix: str) -> dict[str, list[Any]]:
    """Return the entries of every file of one kind, by file; none is damaged."""
    entries_by_file: dict[str, list[Any]] = {}
    for path in (p for d in partition_directories(directory) for p in sorted(d.glob(f"*{suffix}"))):
        entries_by_file[f"{path.parent.name}/{path.name}"] = list(lastword.dump(path))
    return entries_by_file


def producer_facts(entry: ProducerEntry) -> tuple[Any, ...]:
    who = entry.producer_id, entry.producer_epoch, entry.coordinator_epoch, entry.timestamp
    if entry.last_offset < 0:
        return who, entry.first_open_offset, None
    newest = entry.last_sequence, entry.last_offset - entry.offset_delta, entry.last_offset
    return who, entry.first_open_offset, newest


def listed_producer(line: dict[str, Any]) -> tuple[Any, ...]:
    who = tuple(line[k] for k in ("producerId", "producerEpoch", "coordinatorEpoch", "lastTimestamp"))
    start, newest = line["currentTxnFirstOffset"], None
    if line["batches"]:
        newest = tuple(line["batches"][-1][k] for k in ("lastSeq", "firstOffset", "lastOffset"))
    return who, -1 if start is None else start, newest


def listed_entries(name: str, stage: str, suffix: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return the listed entries of one kind of index or snapshot, by file; leave out empty files."""
    facts: dict[str, Callable[[dict[str, Any]], tuple[Any, ...]]] = {
        ".index": lambda line: (line["offset"], line["position"]),
        ".timeindex": lambda line: (line["timestamp"], line["offset"]),
        ".txnindex": lambda line: tuple(
            line[k] for k in ("producerId", "firstOffset", "lastOffset", "lastStableOffset")
        ),
        ".snapshot": listed_producer,
    }
    entries_by_file = {}
    for file, lines in listed(loader.case(name).indexes(stage)).items():
        entries = [line for line in lines if "zeroTail" not in line and "entries" not in line]
        if file.endswith(suffix) and entries:
            entries_by_file[file] = sorted(facts[suffix](line) for line in entries)
    return entries_by_file


def our_entries(directory: Path, suffix: str) -> dict[str, list[tuple[Any, ...]]]:
    def facts(entry: Any) -> tuple[Any, ...]:
        if isinstance(entry, ProducerEntry):
            return producer_facts(entry)
        assert isinstance(entry, IndexEntry), entry
        if entry.kind == "offset":
            return entry.offset, entry.position
        if entry.kind == "time":
            return entry.timestamp, entry.offset
        f = entry.fields
        assert f is not None
        return f["producer_id"], f["first_offset"], entry.offset, f["last_stable_offset"]

    return {
        file: sorted(map(facts, entries)) for file, entries in dumped(directory, suffix).items() if entries
    }


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and "__cluster_metadata-0" not in path.parts
    }


LAST_TIME_ENTRY = ("dir-clean-kafka28", "new-0/00000000000000000145.timeindex")
"""Kafka 2.8 named the record with the largest timestamp; later versions, and we, its batch's last offset."""
REWRITTEN = {".kafka_cleanshutdown", "recovery-point-offset-checkpoint"}


def entries_of(time_index: bytes) -> list[tuple[int, int]]:
    return list(struct.iter_unpack(">qi", time_index))


def is_kafkas(file: str) -> bool:
    """Return whether a file is Kafka's: no settings, no lock, nothing in a `lastword/` folder."""
    return "lastword" not in file and Path(file).name != ".lock"


def stray_snapshots(files: Iterable[str]) -> set[str]:
    """Return the snapshots that Kafka's next start removes: not at a segment's base, and not the newest."""
    by_partition: dict[str, set[str]] = defaultdict(set)
    for file in files:
        by_partition[str(Path(file).parent)].add(Path(file).name)
    strays = set()
    for partition, names in by_partition.items():
        snapshots = sorted(name for name in names if name.endswith(".snapshot"))
        strays |= {f"{partition}/{n}" for n in snapshots[:-1] if n.replace(".snapshot", ".log") not in names}
    return strays


def epochs_below(path: Path, offset: int) -> list[str]:
    return [line for line in path.read_text().splitlines()[2:] if int(line.split()[1]) < offset]


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(("name", "stage"), LOOKED_AT + WITH_PRODUCERS)
def test_index_entries_and_snapshots(name: str, stage: str, unpacked: Callable[[str, str], Path]) -> None:
    for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        assert our_entries(unpacked(name, stage), suffix) == listed_entries(name, stage, suffix)


@pytest.mark.parametrize(("name", "stage"), LOOKED_AT)
def test_checkpoints(name: str, stage: str, unpacked: Callable[[str, str], Path]) -> None:
    directory = unpacked(name, stage)
    for checkpoint_name in ROOT_CHECKPOINTS:
        path = directory / f"{checkpoint_name}-checkpoint"
        entries = list(lastword.dump(path))
        assert not [entry for entry in entries if isinstance(entry, Problem)]  # nor in files that are empty
        partition_offsets = {
            f"{e.topic} {e.partition} {e.offset}" for e in entries if isinstance(e, CheckpointEntry)
        }
        assert partition_offsets == checkpoint(directory, checkpoint_name)
    for path in sorted(directory.glob("*/leader-epoch-checkpoint")):
        epochs = [f"{e.epoch} {e.offset}" for e in lastword.dump(path) if isinstance(e, CheckpointEntry)]
        assert epochs == path.read_text().splitlines()[2:], path


@pytest.mark.parametrize(("name", "stage"), LOOKED_AT)
def test_bounds(name: str, stage: str, unpacked: Callable[[str, str], Path]) -> None:
    directory = unpacked(name, stage)
    starts = log_starts(directory)
    ends: dict[str, int] = {}
    for line in loader.case(name).batches(stage):
        if "tail" not in line:
            ends[line["partition"]] = line["lastOffset"] + 1
    with lastword.open(directory) as logs:
        for topic in logs.topics():
            for number, (start, end) in topic.bounds().items():
                partition = f"{topic.name}-{number}"
                assert start == starts.get(partition, 0)
                assert end == ends.get(partition, 0)


# ---------------------------------------------------------------- opening to append, and closing


@pytest.mark.parametrize(("name", "stage"), STOPPED)
def test_after_a_clean_stop_nothing_changes(
    name: str, stage: str, opened: Callable[[str, str], lastword.LogDir], unpacked: Callable[[str, str], Path]
) -> None:
    """6T.240: A reload after a clean stop keeps the log end without recovery.

    The last entry of an active segment's time index may differ. A broker that starts again adds another
    entry at each stop; lastword replaces the last entry.
    """
    with opened(name, stage) as logs:
        records_by_partition = read(logs, "read_uncommitted")
    (recovery,) = logs.recovery
    assert recovery.clean and recovery.offline == ()
    assert all(partition.walked == 0 for partition in recovery.partitions)
    directory = unpacked(name, stage)
    expected = served(name, stage, directory, committed=False)
    assert records_by_partition == {partition: records for partition, records in expected.items() if records}
    before, after = files_below(directory), files_below(Path(logs.paths[0]))
    gone = stray_snapshots(before)
    assert gone or name != "dir-clean"
    for file in before.keys() - gone - REWRITTEN:
        if file.endswith(".timeindex"):
            ours, kafkas = (entries_of(files[file]) for files in (after, before))
            if ours != kafkas:
                active = max(f for f in before if f.endswith(".log") and Path(f).parent == Path(file).parent)
                assert file == active.replace(".log", ".timeindex")
                assert set(ours[:-1]) <= set(kafkas) and ours[-1][0] == kafkas[-1][0], file
                assert ours[-1] == kafkas[-1] or (name, file) == LAST_TIME_ENTRY
        else:
            assert after[file] == before[file], file
    assert after.keys() >= before.keys() - gone
    assert not gone & after.keys()
    for checkpoint_name in ("recovery-point-offset", "log-start-offset"):
        assert checkpoint(Path(logs.paths[0]), checkpoint_name) == checkpoint(directory, checkpoint_name)


@pytest.mark.parametrize(("name", "stage"), BROKEN_OFF)
def test_recovery_leaves_what_kafka_s_recovery_left(
    name: str, stage: str, opened: Callable[[str, str], lastword.LogDir], unpacked: Callable[[str, str], Path]
) -> None:
    """Every file is equal to that of `recovered`, byte for byte, except the traces of the broker's own start.

    Those are its new leader epoch, its high watermarks, and the order of the producers in snapshots.
    """
    with opened(name, stage) as logs:
        records_by_isolation = {
            isolation: read(logs, isolation) for isolation in ("read_committed", "read_uncommitted")
        }
        ends = {f"{t.name}-{n}": end for t in logs.topics() for n, (_, end) in t.bounds().items()}
    (recovery,) = logs.recovery
    assert not recovery.clean and recovery.offline == ()
    kafkas, ours = unpacked(name, "recovered"), Path(logs.paths[0])
    for isolation, records in records_by_isolation.items():
        expected = served(name, "recovered", kafkas, committed=isolation == "read_committed")
        assert records == {partition: lines for partition, lines in expected.items() if lines}
    for partition, end in ends.items():
        topic, _, number = partition.rpartition("-")
        assert f"{topic} {number} {end}" in checkpoint(kafkas, "recovery-point-offset")
    for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        assert our_entries(ours, suffix) == listed_entries(name, "recovered", suffix)
    before, after = files_below(kafkas), files_below(ours)
    assert {file for file in after if is_kafkas(file)} == before.keys()
    for file in before.keys() - REWRITTEN:
        if file.endswith(".snapshot"):
            assert len(after[file]) == len(before[file]), file
        elif file.endswith("leader-epoch-checkpoint"):
            end = ends[Path(file).parent.name]
            assert epochs_below(ours / file, end) == epochs_below(kafkas / file, end), file
        elif file != "replication-offset-checkpoint":
            assert after[file] == before[file], file
    for checkpoint_name in ("recovery-point-offset", "log-start-offset", "cleaner-offset"):
        assert checkpoint(ours, checkpoint_name) == checkpoint(kafkas, checkpoint_name)


@pytest.mark.parametrize(("name", "stage"), BROKEN_OFF)
def test_recovery_again_changes_nothing(
    name: str, stage: str, opened: Callable[[str, str], lastword.LogDir]
) -> None:
    with opened(name, stage) as logs:
        records_by_partition = read(logs, "read_uncommitted")
    directory = Path(logs.paths[0])
    before = files_below(directory)
    (directory / ".kafka_cleanshutdown").unlink()
    with lastword.open(directory, "a", clock=CLOCK) as again:
        assert read(again, "read_uncommitted") == records_by_partition
    assert not again.recovery[0].clean
    assert files_below(directory) == before


def test_the_torn_tail_is_told(opened: Callable[[str, str], lastword.LogDir]) -> None:
    (tail,) = [line for line in loader.case("dir-torn").batches("died") if "tail" in line]
    with opened("dir-torn", "died") as logs:
        read(logs, "read_committed")
    (cut,) = [repair for repair in logs.recovery[0].repaired if repair.code == "torn-tail"]
    assert f"{cut.topic}-{cut.partition}" == tail["partition"]
    assert cut.cut_bytes == tail["fileBytes"] - tail["validBytes"]
