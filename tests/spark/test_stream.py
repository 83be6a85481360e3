"""The streaming source: offsets and limits, without a JVM. `test_stream_write.py` has queries on Spark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import lastword
from lastword.errors import LeaseRefusedError, OffsetOutOfRangeError, SparkOptionError, UnknownTopicError
from lastword.files import DEFAULT
from lastword.logdir.log_dir import LogDirectory
from lastword.partition import removal_log
from lastword.records.batch import BatchBuilder
from lastword.spark.options import parse_read
from lastword.spark.schema import full_schema
from lastword.spark.stream import TOPIC_IDS, LogStreamReader, share_offsets
from tests.spark.conftest import append, changed, create, numbered
from tests.transactions import end_transaction

ALL = ReadAllAvailable()


def make_reader(root: Path, clock: Any = time.monotonic, **options: str) -> LogStreamReader:
    given_ = {"path": str(root), "subscribe": "t", **{name.lower(): value for name, value in options.items()}}
    if "assign" in options or "subscribePattern" in options:
        del given_["subscribe"]
    chosen = parse_read(given_, stream=True)
    return LogStreamReader(chosen, full_schema(chosen.include_headers, chosen.view), clock)


def places(offsets: dict[str, Any]) -> dict[str, Any]:
    return {topic: numbers for topic, numbers in offsets.items() if topic != TOPIC_IDS}


def rows(reader: LogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for task in reader.partitions(start, end):
        for batch in reader.read(task):
            records += batch.to_pylist()
    return records


def leased(root: Path, topic: str = "t") -> Any:
    """Return the position of the query's lease: of each partition, or of the only one."""
    with lastword.open(root) as logs:
        return logs.topic(topic).lease("query").position


@pytest.fixture
def root(tmp_path: Path) -> Path:
    create(tmp_path, "t", 2)
    append(tmp_path, "t", 0, [numbered(0, 10, 4)])
    append(tmp_path, "t", 1, [numbered(100, 5, 3)])
    return tmp_path


def test_a_stream_starts_at_the_end_unless_it_is_told_otherwise(root: Path) -> None:
    assert places(make_reader(root).initialOffset()) == {"t": {"0": 10, "1": 5}}
    assert places(make_reader(root, startingOffsets="earliest").initialOffset()) == {"t": {"0": 0, "1": 0}}
    given_ = make_reader(root, startingOffsets='{"t":{"0":3,"1":-1}}').initialOffset()
    assert places(given_) == {"t": {"0": 3, "1": 5}}
    by_time = make_reader(
        root, startingTimestamp=str(1_700_000_000_100), startingOffsetsByTimestampStrategy="latest"
    )
    assert places(by_time.initialOffset()) == {"t": {"0": 10, "1": 0}}


def test_a_stream_from_the_end_loses_nothing_that_comes_before_its_first_batch_is_committed(
    root: Path,
) -> None:
    """Spark stores the end of the first batch, not its start: a restart requests the start again."""
    reader = make_reader(root)
    start = reader.initialOffset()
    append(root, "t", 0, [numbered(10, 3, 4)])
    assert reader.initialOffset() == start
    end = reader.latestOffset(start, ALL)
    assert rows(reader, start, end) == []
    append(root, "t", 0, [numbered(13, 3, 4)])  # then the driver dies
    again = make_reader(root)
    assert rows(again, again.initialOffset(), end) == []
    assert [row["offset"] for row in rows(again, end, again.latestOffset(end, ALL))] == list(range(10, 16))


@pytest.mark.parametrize("start", ["latest", '{"t":{"0":-1}}'])
def test_a_stream_from_the_end_sees_what_is_undecided_when_it_is_committed(
    tmp_path: Path, start: str
) -> None:
    create(tmp_path, "t")
    append(tmp_path, "t", 0, [numbered(0, 3, 3)])
    with LogDirectory.open(str(tmp_path), "a") as directory:
        builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        builder.append(1_700_000_000_000, b"key", b"undecided")
        directory.log("t", 0).append_batch(builder.build())
        reader = make_reader(tmp_path, startingOffsets=start)
        offsets = reader.initialOffset()
        assert reader.latestOffset(offsets, ALL) == offsets
        end_transaction(directory.log("t", 0), 7, 0, commit=True)
        records = rows(reader, offsets, reader.latestOffset(offsets, ALL))
    assert [row["value"] for row in records] == [b"undecided"]


def test_a_trigger_opens_the_directory_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = make_reader(root, startingOffsets="earliest", failOnDataLoss="true")
    start = reader.initialOffset()
    opened: list[str] = []
    really = LogDirectory.open
    monkeypatch.setattr(LogDirectory, "open", lambda *given: (opened.append(given[0]), really(*given))[1])
    end = reader.latestOffset(start, ALL)
    assert end != start and len(opened) == 1
    reader.partitions(start, end)
    assert len(opened) == 2


def test_batches_follow_each_other_without_a_gap_or_a_record_twice(root: Path) -> None:
    reader = make_reader(root, startingOffsets="earliest", maxOffsetsPerTrigger="6")
    start = reader.initialOffset()
    seen: list[tuple[int, int]] = []
    sizes = []
    while (end := reader.latestOffset(start, ReadMaxRows(6))) != start:
        batch = rows(reader, start, end)
        sizes.append(len(batch))
        seen += [(row["partition"], row["offset"]) for row in batch]
        start = end
    assert sum(sizes) == 15 and max(sizes) <= 7 and len(sizes) >= 3
    assert sorted(seen) == [(0, n) for n in range(10)] + [(1, n) for n in range(5)]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 200)), min_size=1, max_size=6),
    st.integers(1, 300),
)
def test_shares_of_a_batch(backlogs: list[tuple[int, int]], limit: int) -> None:
    begin = {("t", n): first for n, (first, _) in enumerate(backlogs)}
    ends = {("t", n): first + size for n, (first, size) in enumerate(backlogs)}
    shared = share_offsets(begin, ends, limit)
    taken = {place: shared[place] - begin[place] for place in begin}
    assert all(0 <= taken[p] <= ends[p] - begin[p] for p in begin)
    assert sum(taken.values()) <= limit + len(backlogs)
    assert all(taken[p] >= 1 for p in begin if ends[p] > begin[p])


def test_bytes_bound_a_batch(tmp_path: Path) -> None:
    create(tmp_path, "t", index_interval_bytes="0")
    append(tmp_path, "t", 0, [[(0, b"k%d" % n, b"x" * 1000, ())] for n in range(40)])
    reader = make_reader(tmp_path, startingOffsets="earliest", maxBytesPerTrigger="10000")
    start, steps = reader.initialOffset(), []
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        steps.append(end["t"]["0"] - start["t"]["0"])
        start = end
    assert sum(steps) == 40 and max(steps) <= 10 and len(steps) >= 4


@pytest.mark.parametrize("happens", ["cleaned", "trimmed", "deleted"])
def test_what_happens_while_a_batch_is_planned(tmp_path: Path, happens: str) -> None:
    """The change happens after the directory was listed and before its files are read.

    An error is raised only for lost records.
    """
    create(tmp_path, "t", 1, segment_bytes="1KiB", index_interval_bytes=100)
    append(tmp_path, "t", 0, [numbered(n, 1, 10) for n in range(60)])
    reader = make_reader(tmp_path, startingOffsets="earliest", maxBytesPerTrigger="1KiB")
    start = reader.initialOffset()
    looked = reader._list

    def and_then() -> Any:
        look = looked()
        with lastword.open(tmp_path, "a", log_cleaner_enable=False) as logs:
            match happens:
                case "cleaned":
                    logs.clean("t", strategy="kafka")
                case "trimmed":
                    logs.topic("t").trim(40)
                case "deleted":
                    logs.delete_topic("t")
        reader._list = looked  # type: ignore[method-assign]
        return look

    reader._list = and_then  # type: ignore[method-assign]
    assert [task.end for task in reader.partitions(start, {**start, "t": {"0": 60}})][-1] == 60
    if happens != "deleted":
        reader._list = and_then  # type: ignore[method-assign]
        assert places(reader.latestOffset(start, reader.getDefaultReadLimit()))["t"]["0"] > 0


def test_no_batch_ends_within_a_gap(tmp_path: Path) -> None:
    create(tmp_path, "t", 1, segment_bytes="1KiB", index_interval_bytes=100)
    append(tmp_path, "t", 0, [numbered(n, 1, 4) for n in range(200)])
    append(tmp_path, "t", 0, [[(1, b"other", b"v", ())]])
    with lastword.open(tmp_path, "a", log_cleaner_enable=False) as logs:
        logs.clean("t")
        kept = [record.offset for record in logs.topic("t").read()]
    assert kept == [196, 197, 198, 199, 200]
    reader = make_reader(tmp_path, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    at, ends, seen = reader.initialOffset(), [], []
    while (end := reader.latestOffset(at, ReadMaxRows(2))) != at:
        ends.append(end["t"]["0"])
        seen += [row["offset"] for row in rows(reader, at, end)]
        at = end
    assert (ends, seen) == ([196, 198, 200, 201], kept)
    tasks = make_reader(tmp_path, maxRecordsPerPartition="2").partitions({}, {"t": {"0": 201}})
    assert [(task.start, task.end) for task in tasks] == [(196, 198), (198, 200), (200, 201)]


def test_too_little_waits_but_not_for_ever(root: Path) -> None:
    now = [0.0]
    reader = make_reader(
        root, lambda: now[0], startingOffsets="earliest", minOffsetsPerTrigger="20", maxTriggerDelay="1m"
    )
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(start, limit)
    assert places(first) == {"t": {"0": 10, "1": 5}}  # the first batch does not wait for the minimum
    append(root, "t", 0, [numbered(10, 3, 4)])
    now[0] = 30.0
    assert reader.latestOffset(first, limit) == first
    now[0] = 61.0
    assert places(reader.latestOffset(first, limit)) == {"t": {"0": 13, "1": 5}}
    append(root, "t", 1, [numbered(10, 30, 4)])
    assert places(reader.latestOffset(first, limit))["t"]["1"] == 35  # the minimum is reached


def test_available_now_ends_where_the_log_ended(root: Path) -> None:
    reader = make_reader(root, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    append(root, "t", 0, [numbered(10, 30, 4)])
    while (end := reader.latestOffset(start, ReadMaxRows(8))) != start:
        start = end
    assert places(start) == {"t": {"0": 10, "1": 5}}


def test_new_partitions_are_read_from_their_beginning(tmp_path: Path) -> None:
    create(tmp_path, "ta")
    append(tmp_path, "ta", 0, [numbered(0, 3, 2)])
    reader = make_reader(tmp_path, subscribePattern="t.*")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    create(tmp_path, "tb")
    append(tmp_path, "tb", 0, [numbered(0, 4, 2)])
    end = reader.latestOffset(start, ALL)
    assert places(end) == {"ta": {"0": 3}, "tb": {"0": 4}}
    assert len(rows(reader, start, end)) == 4


class TestLoss:
    def test_below_the_log_start(self, root: Path) -> None:
        reader = make_reader(root, startingOffsets="earliest")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        changed(root, lambda logs: logs.topic("t").trim(4, partition=0))
        with pytest.raises(
            OffsetOutOfRangeError, match=r"t-0: offset 0 is below log start 4.*\n.*failOnDataLoss"
        ):
            reader.partitions(start, end)
        lenient = make_reader(root, startingOffsets="earliest", failOnDataLoss="false")
        assert len(rows(lenient, start, end)) == 11

    def test_the_end_went_backwards(self, root: Path) -> None:
        reader = make_reader(root)
        start = reader.initialOffset()
        with LogDirectory.open(str(root), "a") as directory:
            directory.log("t", 0).truncate_to(6)
        with pytest.raises(OffsetOutOfRangeError, match=r"went backwards.* 10, and the log ends at 6"):
            reader.latestOffset(start, ALL)
        lenient = make_reader(root, failOnDataLoss="false")
        assert places(lenient.latestOffset(start, ALL)) == {"t": {"0": 6, "1": 5}}

    def test_a_topic_that_was_recreated(self, root: Path) -> None:
        reader = make_reader(root, startingOffsets="earliest")
        start = reader.initialOffset()
        changed(root, lambda logs: logs.delete_topic("t"))
        create(root, "t", 2)
        append(root, "t", 0, [numbered(0, 50, 4)])
        with pytest.raises(OffsetOutOfRangeError, match="deleted and recreated"):
            reader.latestOffset(start, ALL)
        lenient = make_reader(root, failOnDataLoss="false")
        assert lenient.latestOffset(start, ALL)["t"] == {"0": 50, "1": 0}

    def test_a_topic_that_was_recreated_is_read_from_its_beginning(self, root: Path) -> None:
        """The new topic may have as many records as the old one; a lost batch may be planned between them."""
        first = make_reader(root, startingOffsets="earliest")
        start = first.initialOffset()
        end = first.latestOffset(start, ALL)
        changed(root, lambda logs: logs.delete_topic("t"))
        create(root, "t", 2)
        append(root, "t", 0, [numbered(0, 10, 4)])
        append(root, "t", 1, [numbered(0, 5, 4)])
        reader = make_reader(root, failOnDataLoss="false", lease="query")
        assert rows(reader, start, end) == []
        following = reader.latestOffset(end, ALL)
        assert places(following) == places(end) and following != end
        assert len(rows(reader, end, following)) == 15
        with lastword.open(root) as logs:
            assert logs.topic("t").lease("query").position == {0: 0, 1: 0}
        assert reader.latestOffset(following, ALL) == following

    @pytest.mark.parametrize("lenient", ["true", "false"])
    def test_a_topic_that_gets_an_id_was_not_recreated(self, root: Path, lenient: str) -> None:
        """As when a broker is upgraded; the query read the topic a second time, from its log start."""
        metadata = [root / f"t-{number}" / "partition.metadata" for number in range(2)]
        saved = [path.read_bytes() for path in metadata]
        for path in metadata:
            path.unlink()
        first = make_reader(root, startingOffsets="earliest")
        end = first.latestOffset(first.initialOffset(), ALL)
        assert TOPIC_IDS not in end
        for path, data in zip(metadata, saved, strict=True):
            path.write_bytes(data)
        append(root, "t", 0, [numbered(10, 2, 4)])
        reader = make_reader(root, failOnDataLoss=lenient)
        following = reader.latestOffset(end, ALL)
        assert TOPIC_IDS in following
        assert [row["offset"] for row in rows(reader, end, following)] == [10, 11]

    def test_no_batch_goes_through_offsets_that_are_gone(self, root: Path) -> None:
        changed(root, lambda logs: logs.topic("t").trim(8, partition=0))
        reader = make_reader(root, failOnDataLoss="false", maxOffsetsPerTrigger="2")
        end = reader.latestOffset({"t": {"0": 1, "1": 5}}, ReadMaxRows(2))
        assert places(end) == {"t": {"0": 10, "1": 5}}

    def test_a_topic_that_is_gone(self, root: Path) -> None:
        reader = make_reader(root)
        start = reader.initialOffset()
        changed(root, lambda logs: logs.delete_topic("t"))
        with pytest.raises(UnknownTopicError, match="t-0 is gone"):
            reader.latestOffset(start, ALL)

    def test_gaps_are_none(self, root: Path) -> None:
        reader = make_reader(root, startingOffsets="earliest")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        changed(root, lambda logs: logs.clean("t"))
        assert len(rows(reader, start, end)) == 7  # four keys in partition 0, three in partition 1


def test_changes_are_the_newest_of_each_key_in_a_batch(root: Path) -> None:
    append(root, "t", 0, [numbered(10, 1, 4)])  # the record is a tombstone of key-2
    reader = make_reader(root, startingOffsets="earliest", view="changes")
    start = reader.initialOffset()
    changes = rows(reader, start, reader.latestOffset(start, ALL))
    assert len(changes) == 7
    assert {row["change"] for row in changes} == {"upsert", "delete"}
    assert all((row["value"] is None) == (row["change"] == "delete") for row in changes)
    newest = {row["key"]: row["offset"] for row in changes if row["partition"] == 0}
    assert newest == {b"key-0": 8, b"key-1": 9, b"key-2": 10, b"key-3": 7}


def test_a_lease_moves_with_the_commits(root: Path) -> None:
    reader = make_reader(root, startingOffsets="earliest", lease="query")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    with lastword.open(root) as logs:
        lease = logs.topic("t").lease("query")
        assert lease.position == {0: 0, 1: 0}
    reader.commit(end)
    assert leased(root) == {0: 10, 1: 5}
    with pytest.raises(SparkOptionError):
        make_reader(root, lease="")


def test_a_lease_that_was_lost_is_told_before_the_first_batch_of_a_restart(root: Path) -> None:
    """The error comes before the batch, not when the sink has rows and lacks tombstones."""
    reader = make_reader(root, startingOffsets="earliest", lease="query")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    with lastword.open(root) as logs:
        logs.topic("t").lease("query").release()
    for number in (0, 1):
        removal_log.note_dropped(DEFAULT, str(root / f"t-{number}"), 3)
    again = make_reader(root, startingOffsets="earliest", lease="query")
    with pytest.raises(LeaseRefusedError):
        again.partitions(start, end)


def test_a_new_query_holds_nothing_that_a_dropped_tombstone_could_have_ended(root: Path) -> None:
    for number in (0, 1):
        removal_log.note_dropped(DEFAULT, str(root / f"t-{number}"), 3)
    reader = make_reader(root, startingOffsets="earliest", lease="query")
    reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert leased(root) == {0: 0, 1: 0}


def test_a_lease_waits_for_a_first_batch_that_comes_again(root: Path) -> None:
    reader = make_reader(root, lease="query")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    append(root, "t", 0, [numbered(10, 3, 4)])
    again = make_reader(root, lease="query")
    again.partitions(again.initialOffset(), end)
    assert leased(root) == {0: 10, 1: 5}


def test_a_partition_that_is_new_to_a_query_is_leased_before_it_is_read(tmp_path: Path) -> None:
    create(tmp_path, "ta")
    reader = make_reader(tmp_path, subscribePattern="t.*", lease="query")
    start = reader.latestOffset(reader.initialOffset(), ALL)
    create(tmp_path, "tb")
    append(tmp_path, "tb", 0, [numbered(0, 4, 2)])
    reader.latestOffset(start, ALL)
    assert leased(tmp_path, "tb") == 0


def dropped(root: Path, partition: str, offset: int = 3) -> None:
    removal_log.note_dropped(DEFAULT, str(root / partition), offset)


def test_a_restart_takes_a_lease_in_a_topic_that_is_new_and_was_cleaned(root: Path) -> None:
    """The query has read nothing of the topic, and was refused for its lack of tombstones."""
    reader = make_reader(root, subscribePattern="t.*", startingOffsets="earliest", lease="query")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    create(root, "t-new")
    append(root, "t-new", 0, [numbered(0, 4, 2)])
    dropped(root, "t-new-0")
    again = make_reader(root, subscribePattern="t.*", startingOffsets="earliest", lease="query")
    again.partitions(start, end)
    following = again.latestOffset(end, ALL)
    assert leased(root, "t-new") == 0
    again.commit(following)
    assert leased(root, "t-new") == 4


@pytest.mark.parametrize("restarts", [False, True])
def test_a_lease_is_taken_in_a_topic_that_was_recreated_and_cleaned(root: Path, restarts: bool) -> None:
    options = {"startingOffsets": "earliest", "lease": "query", "failOnDataLoss": "false"}
    reader = make_reader(root, **options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    changed(root, lambda logs: logs.delete_topic("t"))
    create(root, "t", 2)
    append(root, "t", 0, [numbered(0, 20, 4)])
    dropped(root, "t-0")
    if restarts:
        reader = make_reader(root, **options)
        reader.partitions(start, end)
    following = reader.latestOffset(end, ALL)
    assert len(rows(reader, end, following)) == 20
    assert leased(root) == {0: 0, 1: 0}


def test_a_new_query_whose_lease_was_released_is_refused_for_what_it_may_have_missed(root: Path) -> None:
    """Only its first lease is for a query that holds nothing; the commit took the lease again."""
    reader = make_reader(root, startingOffsets="earliest", lease="query")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.commit(end)
    with lastword.open(root) as logs:
        logs.topic("t").lease("query").release()
    dropped(root, "t-0", 10)
    with pytest.raises(LeaseRefusedError):
        reader.commit(end)


def test_a_lease_of_a_query_that_passes_over_loss(root: Path) -> None:
    reader = make_reader(root, startingOffsets="earliest", lease="query", failOnDataLoss="false")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    append(root, "t", 0, [numbered(10, 5, 4)])
    changed(root, lambda logs: logs.topic("t").trim(12, partition=0))
    reader.commit(end)
    assert leased(root) == {0: 12, 1: 5}


def test_undecided_records_that_were_read_are_not_read_again(root: Path) -> None:
    """A query that read uncommitted records, and restarts with committed ones only, does not go back."""
    reader = make_reader(root, failOnDataLoss="false")
    start = reader.initialOffset()
    real = reader._list

    def undecided() -> Any:
        look = real()
        for view in look.views.values():
            view._stable_offset = 2
        return look

    reader._list = undecided  # type: ignore[method-assign]
    assert reader.latestOffset(start, ALL) == start


def test_options_of_a_stream(root: Path) -> None:
    for options, words in (
        ({"endingOffsets": "latest"}, "not for a stream, which has no end"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "is above maxOffsetsPerTrigger 3"),
        ({"view": "newest"}, "view newest is for a batch"),
        ({"maxOffsetPerTrigger": "3"}, "nearest: maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "is a duration"),
    ):
        with pytest.raises(SparkOptionError, match=words):
            make_reader(root, **options)
