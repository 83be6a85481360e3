"""What lastword does with files of a partition from another source, compared with a real broker.

Each situation was tried after a clean stop (the marker is there) and without one.

    situation                                     a broker                   lastword
    all files of another topic                    uses them                  the same
    .log files only                               rebuilds the rest          the same
    no epochs, no snapshots, no checkpoint lines  uses it                    the same
    partition.metadata missing                    sets it aside, serves      serves it
                                                  an empty partition
    partition.metadata of another topic           the same                   serves it
    partition.metadata with two ids in one topic  sets one aside             an error, nothing is changed
    directory of a topic never created            sets it aside              serves it, removes nothing
    epochs above the topic's own                  drops the entries          keeps them
    first segment not at 0                        log start = its base       the same
    gaps, empty segments and batches, 3·10⁹       serves it                  the same
    magic 0 and 1                                 serves it, appends magic 2 the same
    high watermark missing, too low, beyond       becomes the log end        not read
    recovery point beyond the end                 accepts it                 the same
    first dirty beyond the end                    cleans from the log start  the same
    log start inside a segment                    uses it                    the same
    zeroed index of 4096 bytes, marker            reads sequentially         also finds each offset; builds
                                                                             the active segment's index again
                                 no marker        builds it again            the same
    bytes of no batch at the end, no marker       cuts them                  the same
                                 marker           appends behind them: lost  cuts and reports them
    open transaction, no snapshot, no marker      rebuilds                   the same
                                 marker           loses the transaction      rebuilds
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import InconsistentTopicIdError, OffsetOutOfRangeError
from lastword.tools.dump import Batch
from tests.golden import loader
from tests.golden.test_directories import listed_value, shown, transactions

CLOCK = ManualClock(1_700_001_000_000)
MARKER = ".kafka_cleanshutdown"
CHECKPOINTS = ("recovery-point", "replication", "log-start", "cleaner")
ISOLATIONS = ("read_committed", "read_uncommitted")
ANOTHER_ID = "version: 0\ntopic_id: 8NF3-egPS7iQnuFlNIOLlg"
GARBAGE = bytes(range(1, 88))  # 87 bytes that are no batch


@pytest.fixture(params=["marker", "no marker"])
def clean(request: pytest.FixtureRequest) -> bool:
    return request.param == "marker"


@dataclass
class Place:
    """A log directory with one topic, `t`, of one partition.

    `records` are the records that must be served, by isolation level; `end` is the log end.
    """

    root: Path
    records: dict[str, list[tuple[Any, ...]]]
    end: int
    start: int = 0

    @property
    def partition(self) -> Path:
        return self.root / "t-0"

    def files(self, suffix: str) -> list[Path]:
        return sorted(self.partition.glob(f"*{suffix}"))

    def remove(self, *suffixes: str) -> None:
        for path in [path for suffix in suffixes for path in self.files(suffix)]:
            path.unlink()

    def checkpoint(self, name: str, *lines: str) -> None:
        text = "".join(f"{line}\n" for line in ("0", str(len(lines)), *lines))
        (self.root / f"{name}-offset-checkpoint").write_text(text)

    def open(self, mode: Any = "a", **settings: Any) -> lastword.LogDir:
        return lastword.open(self.root, mode, clock=CLOCK, log_cleaner_enable=False, **settings)


def place(
    root: Path,
    case: str,
    stage: str = "data",
    partition: str | None = None,
    *,
    clean: bool,
    topic: bool = True,
) -> Place:
    """Put files of a golden case in the place of topic `t`, after a clean stop or without one."""
    if topic:
        with lastword.open(root, "a", clock=CLOCK) as logs:
            logs.create_topic("t")
    golden = loader.case(case)
    partition = partition or f"{case}-0"
    source = golden.unpack(root.parent / "golden", stage) / stage / partition
    target = root / "t-0"
    metadata = (target / "partition.metadata").read_bytes() if topic else None
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("partition.metadata"))
    if metadata is not None:
        (target / "partition.metadata").write_bytes(metadata)
    for name in CHECKPOINTS:
        (root / f"{name}-offset-checkpoint").unlink(missing_ok=True)
    (root / MARKER).unlink(missing_ok=True)
    if clean:
        (root / MARKER).write_bytes(b'{"version":0,"brokerEpoch":7}')
    lines = [line for line in golden.expected(stage) if line.get("partition", partition) == partition]
    batches = [line for line in golden.batches(stage) if line.get("partition", partition) == partition]
    aborted, stable = transactions(lines)
    everything = [line for line in lines if not line["isControl"]]
    committed = [line for line in everything if line["offset"] < stable and line["offset"] not in aborted]
    records = dict(zip(ISOLATIONS, (facts_of(committed), facts_of(everything)), strict=True))
    return Place(root, records, batches[-1]["lastOffset"] + 1)


def facts_of(lines: Iterable[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (line["offset"], line["timestamp"], line["key"], listed_value(line), line["headers"])
        for line in lines
    ]


def read(logs: lastword.LogDir, isolation: str) -> list[tuple[Any, ...]]:
    return [
        (r.offset, r.timestamp, r.key, shown(r.value), tuple(r.headers))
        for r in logs.topic("t").read(isolation=isolation)
    ]


def serves_all(there: Place, *, reported: str = "", **settings: Any) -> tuple[Any, ...]:
    """Check that readers beside a broker and writers read all records, and that an append follows them.

    Both must survive clean stops and recoveries. `reported` is the text of a problem that `verify` must find.
    Return the repairs that opening reported.
    """
    with there.open("r") as logs:
        assert {isolation: read(logs, isolation) for isolation in ISOLATIONS} == there.records
        assert logs.topic("t").bounds() == {0: (there.start, there.end)}
    with there.open(**settings) as logs:
        assert {isolation: read(logs, isolation) for isolation in ISOLATIONS} == there.records
        assert logs.topic("t").bounds() == {0: (there.start, there.end)}
        appended = logs.topic("t").append(b"more", b"value", timestamp=1_700_000_999_000)
        assert appended.offset == there.end
    (recovery,) = logs.recovery
    assert recovery.offline == ()
    is_there_with_more(there, reported, **settings)
    (there.root / MARKER).unlink()
    is_there_with_more(there, reported, **settings)
    return recovery.repaired


def is_there_with_more(there: Place, reported: str, **settings: Any) -> None:
    more = (there.end, 1_700_000_999_000, b"more", b"value", ())
    undecided = there.records["read_committed"][-1:] != there.records["read_uncommitted"][-1:]
    for mode in ("r", "a"):
        with there.open(mode, **({} if mode == "r" else settings)) as logs:
            assert read(logs, "read_uncommitted") == [*there.records["read_uncommitted"], more]
            committed = there.records["read_committed"]
            assert read(logs, "read_committed") == (committed if undecided else [*committed, more])
            if mode == "r":
                assert [p.code for p in logs.verify().problems] == [reported] * bool(reported)


# ---------------------------------------------------------------- files from elsewhere


def test_all_files_of_another_topic(clean: bool, tmp_path: Path) -> None:
    serves_all(place(tmp_path / "logs", "v2-mixed", clean=clean))


@pytest.mark.parametrize("case", ["v2-mixed", "tx-delete"])
def test_log_files_only(case: str, clean: bool, tmp_path: Path) -> None:
    there = place(tmp_path / "logs", case, clean=clean)
    before = {path.name: path.read_bytes() for path in there.partition.iterdir()}
    there.remove(".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint")
    interval = int(loader.case(case).config.get("index.interval.bytes", 4096))
    serves_all(there, index_interval_bytes=interval)
    for path in there.files(".txnindex"):
        assert path.read_bytes() == before[path.name]
    for extension in (".index", ".timeindex"):
        for path in there.files(extension)[:-1]:
            assert path.read_bytes() == before[path.name]


def test_no_epochs_no_snapshots_no_checkpoint_lines(clean: bool, tmp_path: Path) -> None:
    there = place(tmp_path / "logs", "v2-mixed", clean=clean)
    there.remove(".snapshot", "leader-epoch-checkpoint")
    # After a clean stop no batch is walked, so the epochs begin with the next append; `verify` reports it.
    serves_all(there, reported="bad-epochs" if clean else "")


@pytest.mark.parametrize("is_missing", [True, False], ids=["missing", "another id"])
def test_partition_metadata_that_is_not_the_topics(is_missing: bool, clean: bool, tmp_path: Path) -> None:
    """A broker would set the directory aside and begin an empty partition; no client gets an error."""
    there = place(tmp_path / "logs", "v2-mixed", clean=clean)
    (there.partition / "partition.metadata").unlink()
    if not is_missing:
        (there.partition / "partition.metadata").write_text(ANOTHER_ID)
    serves_all(there)
    assert not list(there.root.glob("*-stray"))


def test_partition_metadata_of_two_topics_in_one(tmp_path: Path) -> None:
    """It is not clear which id is wrong: the differing partition is refused, and nothing is changed."""
    with lastword.open(tmp_path / "logs", "a", clock=CLOCK) as logs:
        topic = logs.create_topic("t", partitions=2)
        for number in range(2):
            topic.append(b"k", b"v", partition=number)
    (tmp_path / "logs" / "t-1" / "partition.metadata").write_text(ANOTHER_ID)
    before = sorted(path for path in (tmp_path / "logs" / "t-1").iterdir())
    for mode in ("r", "a"):
        logs = lastword.open(tmp_path / "logs", mode, clock=CLOCK)
        with logs, pytest.raises(InconsistentTopicIdError):
            list(logs.topic("t").read(partition=1))
    assert sorted(path for path in (tmp_path / "logs" / "t-1").iterdir()) == before


def test_directory_of_a_topic_never_created(clean: bool, tmp_path: Path) -> None:
    there = place(tmp_path / "logs", "compact-none-dr0", "round1-before", clean=clean, topic=False)
    serves_all(there)
    with there.open() as logs:
        assert [topic.name for topic in logs.topics()] == ["t"]
        assert logs.topic("t").config.cleanup_policy is None
        assert logs.clean() == []  # no policy allows the removal of records


# ---------------------------------------------------------------- offsets and formats


def test_epochs_above_the_topic_s_own(clean: bool, tmp_path: Path) -> None:
    there = place(tmp_path / "logs", "v2-mixed", clean=clean)
    (there.partition / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n41 100\n")
    serves_all(there, reported="bad-epochs")
    lines = (there.partition / "leader-epoch-checkpoint").read_text().splitlines()
    assert lines[2:] == ["0 0", "41 100"]
    batches = [b for path in there.files(".log") for b in lastword.dump(path) if isinstance(b, Batch)]
    assert batches[-1].leader_epoch == 41


@pytest.mark.parametrize("case", ["v2-none", "tx-delete"])
def test_first_segment_not_at_0(case: str, clean: bool, tmp_path: Path) -> None:
    there = place(tmp_path / "logs", case, clean=clean)
    first, second = there.files(".log")[:2]
    for path in there.partition.glob(f"{first.stem}.*"):
        path.unlink()
    there.start = int(second.stem)
    lines = [line for line in loader.case(case).expected("data") if line["offset"] >= there.start]
    aborted, stable = transactions(lines)
    data = [line for line in lines if not line["isControl"]]
    there.records["read_uncommitted"] = facts_of(data)
    there.records["read_committed"] = facts_of(
        line for line in data if line["offset"] < stable and line["offset"] not in aborted
    )
    serves_all(there)
    with there.open("r") as logs, pytest.raises(OffsetOutOfRangeError):
        list(logs.topic("t").read(start=0))


@pytest.mark.parametrize(
    ("case", "stage", "partition"),
    [
        ("compact-none-dr0", "round3-after", None),
        ("dir-killed", "recovered", "users-0"),  # empty segments
        ("tx-rolled-by-time", "round1-after", None),  # an empty batch
        ("offset-gap", "round3-after", None),
    ],
    ids=["gaps", "empty segments", "empty batches", "3e9 apart"],
)
def test_compacted_logs(case: str, stage: str, partition: str | None, clean: bool, tmp_path: Path) -> None:
    there = place(tmp_path / "logs", case, stage, partition, clean=clean)
    serves_all(there)


@pytest.mark.parametrize("case", ["v0-none", "v0-lz4", "v1-gzip", "v1-logappend", "upgrade-one-segment"])
def test_magic_0_and_1(case: str, clean: bool, tmp_path: Path) -> None:
    there = place(tmp_path / "logs", case, clean=clean)
    old = {b.magic for path in there.files(".log") for b in lastword.dump(path) if isinstance(b, Batch)}
    assert old & {0, 1}
    serves_all(there)
    batches = [b for path in there.files(".log") for b in lastword.dump(path) if isinstance(b, Batch)]
    assert batches[-1].magic == 2


# ---------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("line", [None, "t 0 1", "t 0 1000000"], ids=["missing", "too low", "beyond"])
def test_high_watermark(line: str | None, clean: bool, tmp_path: Path) -> None:
    there = place(tmp_path / "logs", "v2-mixed", clean=clean)
    there.checkpoint("replication", *filter(None, [line]))
    before = (there.root / "replication-offset-checkpoint").read_bytes()
    serves_all(there, reported="checkpoint-out-of-range" if line == "t 0 1000000" else "")
    assert (there.root / "replication-offset-checkpoint").read_bytes() == before


def test_recovery_point_beyond_the_end(clean: bool, tmp_path: Path) -> None:
    there = place(tmp_path / "logs", "v2-mixed", clean=clean)
    there.checkpoint("recovery-point", "t 0 1000000")
    serves_all(there)
    lines = (there.root / "recovery-point-offset-checkpoint").read_text().splitlines()
    assert lines[2:] == [f"t 0 {there.end + 1}"]


def test_first_dirty_beyond_the_end(clean: bool, tmp_path: Path) -> None:
    there = place(tmp_path / "logs", "compact-none-dr0", "round1-before", clean=clean)
    there.checkpoint("cleaner", "t 0 1000000")
    with there.open() as logs:
        logs.set_config("t", cleanup_policy="compact")
        (done,) = logs.clean("t")
        assert done.records_read == len(there.records["read_uncommitted"])
        newest = {fact[2]: fact for fact in there.records["read_uncommitted"]}
        records = read(logs, "read_uncommitted")
    assert {fact[2]: fact for fact in records} == newest and len(records) == len(newest)


def test_log_start_inside_a_segment(clean: bool, tmp_path: Path) -> None:
    there = place(tmp_path / "logs", "v2-mixed", clean=clean)
    there.start = there.records["read_committed"][5][0] + 1
    there.checkpoint("log-start", f"t 0 {there.start}")
    for isolation in ISOLATIONS:
        there.records[isolation] = [fact for fact in there.records[isolation] if fact[0] >= there.start]
    serves_all(there)
    with there.open("r") as logs, pytest.raises(OffsetOutOfRangeError):
        list(logs.topic("t").read(start=there.start - 1))


# ---------------------------------------------------------------- damage with and without the marker


@pytest.mark.parametrize("number", [0, -1], ids=["closed", "active"])
def test_zeroed_index_of_4096_bytes(number: int, clean: bool, tmp_path: Path) -> None:
    there = place(tmp_path / "logs", "v2-none", clean=clean)
    index = there.files(".index")[number]
    before = index.read_bytes()
    assert before
    index.write_bytes(bytes(4096))
    interval = int(loader.case("v2-none").config.get("index.interval.bytes", 4096))
    with there.open("r") as looked, there.open(index_interval_bytes=interval) as opened:
        for logs in (looked, opened):
            for offset in range(0, there.end, 7):  # each by an index entry, not a sequential read
                wanted = [fact[0] for fact in there.records["read_uncommitted"] if fact[0] >= offset][:1]
                records = logs.topic("t").read(start=offset, end=min(offset + 9, there.end))
                assert [r.offset for r in records][:1] == wanted
    assert index.read_bytes() == (bytes(4096) if clean and number == 0 else before)
    serves_all(there, index_interval_bytes=interval)


def test_bytes_of_no_batch_at_the_end(clean: bool, tmp_path: Path) -> None:
    """A broker that relies on the marker appends behind them, and acknowledged records cannot be read."""
    there = place(tmp_path / "logs", "v2-mixed", clean=clean)
    log = there.files(".log")[-1]
    sound = log.read_bytes()
    log.write_bytes(sound + GARBAGE)
    (cut,) = [repair for repair in serves_all(there) if repair.code == "torn-tail"]
    assert cut.cut_bytes == len(GARBAGE)
    assert log.read_bytes()[: len(sound)] == sound and GARBAGE not in log.read_bytes()


def test_open_transaction_at_the_end_without_snapshot(clean: bool, tmp_path: Path) -> None:
    """A broker that relies on the marker loses the transaction, and committed reads return its records."""
    there = place(tmp_path / "logs", "tx-delete", clean=clean)
    assert len(there.records["read_committed"]) == 323 < len(there.records["read_uncommitted"])
    there.remove(".snapshot")
    serves_all(there)
    end = there.files(".snapshot")[-1]
    undecided = [e for e in lastword.dump(end) if getattr(e, "first_open_offset", -1) >= 0]
    assert len(undecided) == 2
