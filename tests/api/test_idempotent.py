"""Calls of a named producer: a repeated call appends only the missing records, after any failure."""

from __future__ import annotations

import importlib
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest

import lastword
from lastword import metrics
from lastword.api import batches, producers
from lastword.errors import DataError, DiskFullError, LastwordError, RecordTooLargeError, UsageError
from lastword.files import DEFAULT
from lastword.partition.producer_state import FIRST_NAMED_ID
from lastword.partition.snapshots import Snapshots
from lastword.testing.unsynced import UNSYNCED, UnsyncedFiles
from tests.crash.memory import ROOT, MemoryFiles
from tests.fakes import ForgetfulFiles, RecordingFiles
from tests.fakes.recording import Call
from tests.support.exhaustive import stride
from tests.support.threads import together

PARTITIONS = 3

# A stopped process leaves its background threads, which die at their next call, perhaps in a later test.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def make(path: Path, **kwargs: Any) -> lastword.LogDir:
    logs = lastword.open(path, "a", **{"files": UNSYNCED, **kwargs})
    if "users" not in [topic.name for topic in logs.topics()]:
        logs.create_topic("users", partitions=PARTITIONS, segment_bytes=2000)
    return logs


def topic_of(logs: lastword.LogDir) -> lastword.Topic[Any, Any]:
    return logs.topic("users")


def call(number: int, size: int = 12) -> list[tuple[bytes | None, bytes]]:
    """Return the records of a call: some with keys, some without, all different."""
    return [
        (None if i % 4 == 3 else b"k%d" % (i * 7 % 5), b"%d/%d %s" % (number, i, b"." * 40))
        for i in range(size)
    ]


def values(topic: lastword.Topic[Any, Any]) -> dict[int, list[bytes]]:
    return {n: [r.value for r in topic.read(partition=n)] for n in range(PARTITIONS)}


def check_whole(topic: lastword.Topic[Any, Any], calls: int) -> None:
    """Check that each record of the calls is there once, and each partition in the order of the calls."""
    by_partition = values(topic)
    expected = [value for number in range(calls) for _, value in call(number)]
    assert Counter(v for part in by_partition.values() for v in part) == Counter(expected)
    place = {value: at for at, value in enumerate(expected)}
    for part in by_partition.values():
        assert [place[v] for v in part] == sorted(place[v] for v in part)


def go_on(topic: lastword.Topic[Any, Any], calls: int, **kwargs: Any) -> None:
    """Repeat and continue the calls as a loader does after a crash."""
    last = topic.last_sequence("loader")
    for number in range(0 if last is None else last + 1, calls):
        topic.extend(call(number), producer="loader", sequence=number, **kwargs)


def test_a_call_is_made_once(tmp_path: Path) -> None:
    with make(tmp_path / "d") as logs:
        topic = topic_of(logs)
        assert topic.last_sequence("loader") is None
        first = topic.append(b"k", b"1", producer="loader", sequence=7)
        assert topic.append(b"k", b"1", producer="loader", sequence=7) == first
        assert topic.append(b"k", b"other", producer="loader", sequence=6).offset == -1
        assert topic.extend(call(1), producer="loader", sequence=9) == 12
        assert topic.extend(call(1), producer="loader", sequence=9) == 0
        assert topic.extend(call(2), producer="loader", sequence=8) == 0
        assert topic.append(b"k", b"1", producer="other", sequence=7).offset == first.offset + 1 + sum(
            v.startswith(b"1/") for v in values(topic)[first.partition]
        )
        gone = topic.delete(b"k", producer="loader", sequence=10, ack="disk")
        assert topic.delete(b"k", producer="loader", sequence=10) == gone
        assert (topic.last_sequence("loader"), topic.last_sequence("other")) == (10, 7)
        assert topic_of(logs).last_sequence("loader") == 10
        assert sum(map(len, values(topic).values())) == 15
    for mode in ("a", "r"):
        with lastword.open(tmp_path / "d", mode) as logs:  # type: ignore[arg-type]
            assert topic_of(logs).last_sequence("loader") == 10
            assert topic_of(logs).last_sequence("nobody") is None


def test_on_disk_it_is_a_producer_of_kafkas(tmp_path: Path) -> None:
    with make(tmp_path / "d") as logs:
        topic = topic_of(logs)
        for number in range(3):
            topic.extend(call(number), producer="loader", sequence=100 + number)
        for number in range(PARTITIONS):
            log = logs.dirs.log("users", number)
            expected = 0
            for _, header, _ in log.batches(0):
                assert header.producer_id >= FIRST_NAMED_ID and header.producer_epoch == 0
                assert header.base_sequence == expected
                expected += header.count
            (producer,) = log.producers
            assert producer.last_sequence == expected - 1 == log.log_end - 1


@pytest.mark.parametrize(
    "asked",
    [
        {"producer": "p"},
        {"sequence": 1},
        {"producer": "", "sequence": 1},
        {"producer": 5, "sequence": 1},
        {"producer": "p", "sequence": -1},
        {"producer": "p", "sequence": True},
        {"producer": "p", "sequence": 2**63},
        {"producer": "p", "sequence": "1"},
    ],
)
def test_half_a_producer_is_refused(tmp_path: Path, asked: dict[str, Any]) -> None:
    with make(tmp_path / "d") as logs:
        for wrong in (
            lambda: topic_of(logs).append(b"k", b"v", **asked),
            lambda: topic_of(logs).extend([(b"k", b"v")], **asked),
        ):
            with pytest.raises(UsageError):
                wrong()
        assert values(topic_of(logs)) == {0: [], 1: [], 2: []}
        assert not (tmp_path / "d" / "users-0" / "lastword" / "producers").exists()


@pytest.mark.slow
@pytest.mark.parametrize("ack", ["os", "disk"])
def test_a_kill_or_a_power_cut_at_any_moment(tmp_path: Path, ack: str) -> None:
    """Also between two partitions of one call. Continuing from `last_sequence` gives every record once."""
    (tmp_path / "work").mkdir()
    files = ForgetfulFiles(tmp_path / "work")
    with make(tmp_path / "work" / "d", files=files) as logs:
        files.mark("made")
        topic = topic_of(logs)
        for number in range(4):
            go_on(topic, number + 1, ack=ack)
            files.mark(f"acked {number}")
    checked = 0
    moments = range(0, len(files.journal) + 1, stride(6))
    kills = [*files.kills(moments)]
    for image in [*islice(files.images(moments, seeds=range(1)), 0, None, stride(10)), *kills]:
        if not image.marks:
            continue
        target, left = f"{ROOT}/d", MemoryFiles(image.tree, image.mtimes)
        with lastword.open(target, "a", files=left) as logs:
            topic = topic_of(logs)
            last = topic.last_sequence("loader")
            if ack == "disk" or image in kills:
                assert (-1 if last is None else last) >= len(image.marks) - 2
            go_on(topic, 5)
            check_whole(topic, 5)
        with lastword.open(target, files=left) as logs:
            assert topic_of(logs).last_sequence("loader") == 4
        checked += 1
    assert checked > 20


@pytest.mark.parametrize("at", range(1, 7))
def test_a_call_that_failed_in_the_middle_is_repeated(tmp_path: Path, at: int) -> None:
    files, writes = RecordingFiles(UNSYNCED), count(1)

    def full_once(call: Call) -> LastwordError | None:
        is_write = call.name == "append" and call.path.endswith(".log")
        return DiskFullError("no room", file=call.path) if is_write and next(writes) == at else None

    with make(tmp_path / "d", files=files) as logs:
        topic = topic_of(logs)
        go_on(topic, 1)
        files.fail = full_once
        try:
            assert topic.extend(call(1), producer="loader", sequence=1) == 12
        except DiskFullError:
            assert topic.last_sequence("loader") == 0
            assert topic.extend(call(1), producer="loader", sequence=1) == 12
        files.fail = None
        check_whole(topic, 2)
        go_on(topic, 4)
        check_whole(topic, 4)


def half_a_call(logs: lastword.LogDir, number: int) -> None:
    """Append the records for partitions 0 and 1 of a call, and fail before those for 2."""
    topic = topic_of(logs)
    real = producers.Share.append

    def refusing(share: producers.Share, *given: Any) -> Any:
        if share.log.partition == 2:
            raise RecordTooLargeError("not today")
        return real(share, *given)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RecordTooLargeError):
        patch.setattr(producers.Share, "append", refusing)
        topic.extend(call(number), producer="loader", sequence=number)


def test_another_call_in_the_place_of_one_that_failed_is_refused(tmp_path: Path) -> None:
    """Otherwise its first records would be taken for those that are in the log."""
    with make(tmp_path / "d") as logs:
        topic = topic_of(logs)
        go_on(topic, 1)
        half_a_call(logs, 1)
        before = values(topic)
        for other in (call(2), [(b"k1", b"x")] * 30):
            with pytest.raises(UsageError, match="differs from the record of the call"):
                topic.extend(other, partition=1, producer="loader", sequence=2)
        assert values(topic) == before
        go_on(topic, 3)
        check_whole(topic, 3)


@pytest.mark.parametrize("way", ["pairs", "arrow"])
def test_what_is_missing_is_found_however_the_call_is_packed(tmp_path: Path, way: str) -> None:
    with make(tmp_path / "d") as logs:
        go_on(topic_of(logs), 1)
        half_a_call(logs, 1)
    with make(tmp_path / "d") as logs:
        topic = topic_of(logs)
        keys, record_values = zip(*call(1), strict=True)
        given: Any = call(1)
        if way == "arrow":
            given = pa.table(
                {"key": pa.array(keys, pa.binary()), "value": pa.array(record_values, pa.binary())}
            )
        assert topic.extend(given, producer="loader", sequence=1) == 12
        check_whole(topic, 2)


def test_records_without_a_key_go_where_they_went_before(tmp_path: Path) -> None:
    """The partition does not depend on the type of the call, or a repeated call would write records again."""
    many = [(None, b"%06d" % n) for n in range(3000)]
    places = []
    for way in ("few", "columns", "arrow"):
        with make(tmp_path / way) as logs:
            topic = topic_of(logs)
            if way == "few":
                given: Any = (
                    lastword.Record("users", 0, -1, -1, "create", k, v, has_key=False) for k, v in many
                )
            elif way == "columns":
                importlib.import_module("lastword.kernels")
                given = many
            else:
                given = pa.table(
                    {"key": pa.nulls(3000, pa.binary()), "value": pa.array([v for _, v in many], pa.binary())}
                )
            assert topic.extend(given, producer="loader", sequence=4) == 3000
            places.append(values(topic))
    assert places[0] == places[1] == places[2]
    assert len([part for part in places[0].values() if part]) == PARTITIONS


def test_cleaning_between_a_call_and_its_repetition(tmp_path: Path) -> None:
    with lastword.open(tmp_path / "d", "a", files=UNSYNCED) as logs:
        topic = logs.create_topic(
            "users", partitions=PARTITIONS, cleanup_policy="compact", segment_bytes=2000
        )
        keyed = [[(b"k%d" % (i % 5), b"%d/%d" % (n, i)) for i in range(40)] for n in range(3)]
        topic.extend(keyed[0], producer="loader", sequence=0)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(producers.Producers, "finish", lambda *given, **named: 1 / 0)
            topic.extend(keyed[1], producer="loader", sequence=1)
        for number in range(PARTITIONS):
            logs.dirs.log("users", number).roll()
        assert sum(r.freed_bytes for r in logs.clean("users")) > 0
        ends = topic.bounds()
        assert topic.extend(keyed[1], producer="loader", sequence=1) == 40
        assert topic.bounds() == ends
        assert topic.extend(keyed[2], producer="loader", sequence=2) == 40
        newest = {r.key: r.value for r in topic.read(view="newest")}
        assert newest == {b"k%d" % i: b"2/%d" % (35 + i) for i in range(5)}


def test_a_digest_depends_on_the_records_only() -> None:
    """Not on their form, nor on how they are divided."""
    keys = [b"a", None, b"", b"bcd", None, b"e" * 300, b"f"]
    record_values = [None, b"1", b"", b"22", b"3", None, b"4"]

    def digest(*parts: tuple[Any, Any]) -> str:
        digest = producers.RecordsDigest()
        for part in parts:
            digest.add(*part)
        return digest.text()

    whole = digest((keys, record_values))
    arrays = pa.array(keys, pa.binary()), pa.array(record_values, pa.binary())
    assert digest(arrays) == whole
    for at in range(len(keys) + 1):
        lists = (keys[:at], record_values[:at]), (keys[at:], record_values[at:])
        first, second = [array[:at] for array in arrays], [array[at:] for array in arrays]
        assert digest(*lists) == digest((first[0], first[1]), (second[0], second[1])) == whole
    assert digest(([b"ab", b"c"], [b"1", b"2"])) != digest(([b"a", b"bc"], [b"1", b"2"]))
    assert digest(([b"", b"a"], [b"1", b"2"])) != digest(([None, b"a"], [b"1", b"2"]))


@pytest.mark.parametrize("same", ["sequence", "records", "neither"])
def test_records_of_an_interrupted_call_that_a_cleaning_removed(tmp_path: Path, same: str) -> None:
    """They are compared by their digest. What cannot be compared is refused, and never counts as equal."""
    first = [(b"k%d" % i, b"1/%d" % i) for i in range(20)]
    other = [(b"other-%d" % i, b"2/%d" % i) for i in range(20)]

    def interrupted() -> Any:
        yield from first[:16]
        raise RuntimeError

    def open_log() -> lastword.LogDir:
        return lastword.open(tmp_path / "d", "a", files=UNSYNCED, log_cleaner_enable=False)

    with open_log() as logs, pytest.MonkeyPatch.context() as patch:
        topic = logs.create_topic("users", cleanup_policy="compact")
        patch.setattr("lastword.api.batches.GROUP_RECORDS", 4)
        patch.setattr("lastword.api.batches.take_pairs", None)
        patch.setattr(
            batches.Packer, "_pair_groups", lambda packer, *given: packer._groups(*given[:3], given[5])
        )
        with pytest.raises(RuntimeError):
            topic.extend(interrupted(), producer="loader", sequence=1)
        topic.extend([(key, b"newer") for key, _ in first])
        logs.dirs.log("users", 0).roll()
        assert logs.clean(topic.name)[0].records_kept == 20
    with open_log() as logs:
        topic = topic_of(logs)
        ends = topic.bounds()
        rows, sequence = (first if same == "records" else other), (1 if same == "sequence" else 2)
        if same == "records":
            assert topic.extend(rows, producer="loader", sequence=sequence) == 20
            assert topic.bounds()[0][1] == ends[0][1] + 4
            assert topic.last_sequence("loader") == sequence
            return
        for size in (20, 16, 3):
            with pytest.raises(UsageError, match="a cleaning removed records of an interrupted call"):
                topic.extend(rows[:size], producer="loader", sequence=sequence)
            assert topic.bounds() == ends and topic.last_sequence("loader") is None
        assert topic.extend(rows, producer="another", sequence=sequence) == 20


def test_a_broker_that_forgot_the_producer(tmp_path: Path) -> None:
    """After a day without batches a broker drops a producer from its snapshots; the journal keeps it."""
    with make(tmp_path / "d") as logs:
        go_on(topic_of(logs), 2)
    for number in range(PARTITIONS):
        store = Snapshots(DEFAULT, str(tmp_path / "d" / f"users-{number}"))
        for offset in store.offsets():
            store.write(offset, ())
    with make(tmp_path / "d") as logs:
        topic = topic_of(logs)
        assert topic.last_sequence("loader") == 1
        assert topic.extend(call(1), producer="loader", sequence=1) == 0
        go_on(topic, 4)
        check_whole(topic, 4)


def test_a_truncated_log_takes_its_calls_again(tmp_path: Path) -> None:
    with make(tmp_path / "d") as logs:
        topic = topic_of(logs)
        go_on(topic, 1)
        ends = {n: end for n, (_, end) in topic.bounds().items()}
        go_on(topic, 3)
        for number, end in ends.items():
            logs.dirs.log("users", number).truncate_to(end)
        assert topic.last_sequence("loader") == 0
        go_on(topic, 3)
        check_whole(topic, 3)


def test_a_call_inside_of_a_call_of_its_producer_is_refused(tmp_path: Path) -> None:
    """It waited for itself."""
    with lastword.open(tmp_path / "log", "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", cleanup_policy="delete")

        def records() -> Iterator[tuple[bytes, bytes]]:
            yield b"a", b"1"
            topic.append(b"b", b"2", producer="other", sequence=1)
            topic.last_sequence("p")

        with pytest.raises(UsageError, match="has not ended"):
            topic.extend(records(), producer="p", sequence=1)
        assert topic.last_sequence("p") is None
        assert topic.extend([(b"a", b"1")], producer="p", sequence=1) == 1


def test_a_call_that_is_interrupted_at_its_begin_may_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(set[str]):
        def add(self, name: str) -> None:
            super().add(name)
            if not interrupts:
                interrupts.append(name)
                raise KeyboardInterrupt

    interrupts: list[str] = []

    with lastword.open(tmp_path / "log", "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", cleanup_policy="delete")
        running = producers.producers_of(logs.dirs.log("t", 0))
        monkeypatch.setattr(running, "_running", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            topic.append(b"a", b"1", producer="p", sequence=1)
        assert topic.append(b"a", b"1", producer="p", sequence=1).offset == 0


def test_the_journal_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "COMPACT_BYTES", 700)
    path = tmp_path / "d" / "users-0" / "lastword" / "producers"
    sizes = []
    with make(tmp_path / "d") as logs:
        topic = topic_of(logs)
        for number in range(40):
            topic.extend(call(number), producer="loader", sequence=number)
            topic.append(
                b"k", b"v", producer=f"p{number % 3}", sequence=number, partition=number % PARTITIONS
            )
            sizes.append(path.stat().st_size)
        assert max(sizes) < 1100
        logs.sync()
    path.write_bytes(path.read_bytes() + b"00000000 {torn")
    with make(tmp_path / "d") as logs:
        topic = topic_of(logs)
        assert topic.last_sequence("loader") == 39
        assert [topic.last_sequence(f"p{n}") for n in range(3)] == [39, 37, 38]
        topic.extend(call(40), producer="loader", sequence=40)
    with lastword.open(tmp_path / "d") as logs:
        assert topic_of(logs).last_sequence("loader") == 40


def test_several_threads_and_producers(tmp_path: Path) -> None:
    with make(tmp_path / "d") as logs:
        topic = topic_of(logs)

        def work(name: str) -> None:
            for number in range(25):
                topic.extend(
                    [(b"k%d" % i, f"{name}/{number}/{i}".encode()) for i in range(4)],
                    producer=name,
                    sequence=number,
                    ack="disk" if number % 5 == 0 else "os",
                )

        together(*(partial(work, name) for name in ("a", "b", "b", "c")))
        counts = Counter(v for part in values(topic).values() for v in part)
        assert set(counts.values()) == {1} and len(counts) == 3 * 25 * 4


class SlowFiles(UnsyncedFiles):
    """Files of a drive whose fsync takes time and is counted."""

    def open_append(self, path: Any, *, create: bool = False, exclusive: bool = False) -> Any:
        handle = super().open_append(path, create=create, exclusive=exclusive)
        root = str(path).split("/users-")[0]

        def fsync() -> None:
            threading.Event().wait(0.004)
            metrics.FSYNC_SECONDS.observe(0.004, root)

        handle.fsync = fsync  # type: ignore[method-assign]
        return handle


def test_callers_at_the_same_time_share_one_fsync(tmp_path: Path) -> None:
    """`lastword_fsync_duration_seconds` counts less than `lastword_append_duration_seconds{ack="disk"}`."""
    root = str(tmp_path / "d")
    logs = lastword.open(root, "a", files=SlowFiles())
    topic = logs.create_topic("users")
    topic.append(b"k", b"v", ack="disk")
    acked, synced = metrics.APPEND_SECONDS.count("disk"), metrics.FSYNC_SECONDS.count(root)

    def work() -> None:
        for _ in range(12):
            topic.append(b"k", b"v", ack="disk")

    together(*[work] * 8)
    acked, synced = metrics.APPEND_SECONDS.count("disk") - acked, metrics.FSYNC_SECONDS.count(root) - synced
    assert acked == 96
    assert 12 <= synced <= acked / 3
    logs.close()


# ---------------------------------------------------------------- a damaged journal

CALLS = (("loader", 0), ("other J@", 5), ("loader", 1), ("other J@", 6), ("late", 3))


def _made_calls(logs: lastword.LogDir) -> None:
    topic = topic_of(logs)
    for number, (name, sequence) in enumerate(CALLS):
        topic.extend(call(number, 3), producer=name, sequence=sequence)


def _repeated(tree: dict[str, bytes | None]) -> list[bytes] | LastwordError:
    """Return all values after each call was repeated and one unnamed call was made, or the refusal."""
    refused: LastwordError | None = None
    with lastword.open(ROOT, "a", files=MemoryFiles(tree), log_cleaner_enable=False) as logs:
        topic = topic_of(logs)
        for number, (name, sequence) in enumerate(CALLS):
            try:
                topic.extend(call(number, 3), producer=name, sequence=sequence)
            except LastwordError as error:
                refused = error
        topic.append(b"unnamed", b"calls go on")
        stored = sorted(value for part in values(topic).values() for value in part)
    return stored if refused is None else refused


def _journaled() -> tuple[dict[str, bytes | None], str, bytes]:
    files = MemoryFiles()
    with lastword.open(ROOT, "a", files=files, log_cleaner_enable=False) as logs:
        logs.create_topic("users", partitions=PARTITIONS)
        _made_calls(logs)
    tree = files.tree()
    path = "users-0/lastword/producers"
    data = tree[path]
    assert data is not None
    return tree, path, data


def _no_call_comes_in_twice(every: int, *, old_format: bool = False) -> int:
    """Flip each n-th bit of the journal, repeat all calls, and return how often they were refused."""
    tree, path, data = _journaled()
    if old_format:
        data = data[data.index(b"\n") + 1 :]
    whole = _repeated({**tree, path: data})
    assert isinstance(whole, list) and len(whole) == len(set(whole)) == 3 * len(CALLS) + 1
    refused = 0
    for bit in range(0, 8 * len(data), every):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        outcome = _repeated({**tree, path: bytes(changed)})
        if isinstance(outcome, LastwordError):
            refused += 1
            assert (
                isinstance(outcome, DataError) and outcome.file is not None and outcome.file.endswith(path)
            ), bit
            assert outcome.position is not None and outcome.remedy
        else:
            assert outcome == whole, bit
    return refused


@pytest.mark.quick
@pytest.mark.parametrize("old_format", [False, True])
def test_some_bits_of_the_journal(old_format: bool) -> None:
    assert _no_call_comes_in_twice(37, old_format=old_format) > 100


@pytest.mark.slow
@pytest.mark.parametrize("old_format", [False, True])
def test_every_bit_of_the_journal(old_format: bool) -> None:
    _no_call_comes_in_twice(stride(127), old_format=old_format)


@pytest.mark.parametrize("version", [2, 4])
def test_a_journal_of_another_version_is_refused(version: int) -> None:
    tree, path, data = _journaled()
    text = b'{"version": %d, "name": "", "id": -1}' % version
    line = b"%08x %s\n" % (google_crc32c.value(text), text)
    refusal = _repeated({**tree, path: line + data.partition(b"\n")[2]})
    assert isinstance(refusal, DataError) and f"version {version}, known is 3" in refusal.message


def test_a_journal_cut_at_every_length_is_torn_or_damaged() -> None:
    """A journal as a crash leaves it opens, and the log has the last sequence of each producer."""
    tree, path, data = _journaled()
    whole = _repeated(tree)
    last = data[:-1].rindex(b"\n") + 1
    for size in range(last, len(data)):
        assert _repeated({**tree, path: data[:size]}) == whole
        assert _repeated({**tree, path: data[:size] + bytes(len(data) - size)}) == whole


def test_damage_in_the_journal_is_named_by_readers_and_verify(tmp_path: Path) -> None:
    with make(tmp_path / "d") as logs:
        _made_calls(logs)
    path = tmp_path / "d" / "users-0" / "lastword" / "producers"
    data = path.read_bytes()
    second = data.index(b"\n") + 1
    path.write_bytes(data[: second + 20] + b"?" + data[second + 21 :])
    with lastword.open(tmp_path / "d") as logs:
        with pytest.raises(DataError, match="line 2 is damaged") as caught:
            logs.topic("users").last_sequence("loader")
        assert (caught.value.file, caught.value.position) == (str(path), second)
        assert [p.code for p in logs.verify().problems] == ["bad-journal"]
    with make(tmp_path / "d") as logs:
        with pytest.raises(DataError):
            topic_of(logs).append(b"k", b"v", producer="loader", sequence=9)
        topic_of(logs).append(b"k", b"v")
    path.write_bytes(data)
    with make(tmp_path / "d") as logs:
        assert topic_of(logs).last_sequence("loader") == 1
