"""Planted faults: each is caught before the swap, the partition is quarantined, the sources stay."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastword import kernels
from lastword.cleaner.engine import output, rewrite
from lastword.cleaner.engine.cleaning import CleanContext, clean
from lastword.cleaner.engine.liveness import FullScan
from lastword.cleaner.engine.partition import prepare
from lastword.cleaner.engine.sinks import Collector, Publisher
from lastword.cleaner.policy import quarantine
from lastword.cleaner.policy.plan import CleanRequest
from lastword.errors import (
    BusyError,
    CertificateError,
    CorruptBatchError,
    CorruptFileError,
    DataError,
    DiskFullError,
)
from lastword.files import OsFiles
from lastword.files.real import OsHandle
from lastword.kernels import table as fields
from lastword.kernels.repack import JOINED, MIXED
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchBuilder, read_header
from lastword.wire import ATTRIBUTES_AT, CONTROL_BIT, CRC_AT
from tests.build import LogBuilder
from tests.cleaner.support import full_drive
from tests.fakes.recording import RecordingFiles
from tests.support.damage import flip


@pytest.fixture
def users(tmp_path: Path) -> LogBuilder:
    log = LogBuilder(tmp_path / "data").topic("users")
    log.batch([("a", "old-a"), ("b", "old-b"), ("c", "only-c")]).batch(
        [("a", "mid-a"), ("d", "only-d")]
    ).roll()
    log.batch([("a", "new-a"), ("e", "only-e")]).put("b", "new-b")
    return log


@pytest.fixture(params=["kafka", "accounts", "accounts, copies counted"])
def each(users: LogBuilder, request: pytest.FixtureRequest) -> LogBuilder:
    """Return the log with the settings of each kind of round.

    Rounds resolve the log, or use the running map of garbage accounts. The map counts copies of keys once
    there is a tombstone.
    """
    if request.param != "kafka":
        users.strategy = "generational"
    if request.param.endswith("counted"):
        users.put("gone", None)
    return users


def sources(log: LogBuilder) -> dict[str, bytes]:
    return {name: data for name, data in log.tree().items() if name.endswith(".log")}


def refused(log: LogBuilder, error: type[DataError] = CertificateError) -> DataError:
    """Run a round that must fail, and check that it changes only the quarantine."""
    log.roll()
    before = sources(log)
    with pytest.raises(error) as caught:
        log.clean()
    assert sources(log) == before, "sources are untouched"
    assert not [
        name for name in log.tree() if "rewrite-" in name or name.endswith((".cleaned", ".swap", ".deleted"))
    ]
    assert log.first_dirty is None
    assert "users-0 is quarantined" in str(caught.value)
    record = quarantine.load(log.files, log.directory)
    assert record is not None and record.error == error.__name__ and record.reason in str(caught.value)
    kept = log.plan()
    assert (kept.action, kept.reasons[0].code) == ("keep", "quarantined")
    assert log.clean() is None
    log.reopen()
    assert log.clean() is None, "the quarantine survives a restart"
    return caught.value


def named(kernel: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return the arguments of a kernel by their names."""
    return dict(zip(inspect.signature(kernel.function).parameters, args, strict=True))


def test_two_keys_taken_for_one(each: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault of a map that trusts a hash: the map stores the key d as e."""
    from lastword.kernels import offset_map as loops

    real = loops.insert_keys

    # The kernel compares key bytes, so the fault is planted in the stored key: after the first segment
    # the arena's copy of `d` becomes `e`, with the tag of the slot.
    def plant(*args: Any) -> Any:
        status = real(*args)
        given = named(real, args)
        arena, slots, state, _words = given["key_map"]
        if given["segment"] == 0:
            used = arena[: int(state[loops.ARENA_END])]
            for place in np.flatnonzero(used == ord("d")).tolist():
                if used[place - 1] == 1:
                    used[place] = ord("e")
            slots[:] = 0
            assert loops.rebuild_slots(given["key_map"], given["batch"].homes) == kernels.OK
        return status

    monkeypatch.setattr(loops, "insert_keys", plant)
    error = refused(each)
    assert "other keys or offsets" in error.message


@pytest.mark.parametrize("offset", [2, 0])
def test_a_wrong_bit(each: LogBuilder, monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    """A bit is set that must not be (offset 2), or a bit is not set that must be (offset 0)."""
    flip_bits(monkeypatch, offset)
    assert "records instead of" in refused(each).message


def test_two_wrong_bits_that_even_out(each: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest record of a key is marked instead of the oldest: the number of records is right."""
    flip_bits(monkeypatch, 0, 5)
    error = refused(each)
    assert "other keys or offsets" in error.message and "records instead of" not in error.message


def flip_bits(monkeypatch: pytest.MonkeyPatch, *offsets: int) -> None:
    from lastword.resolve.resolver import Resolver
    from lastword.resolve.running import RunningResolution

    def flipping(real: Callable[..., Any]) -> Callable[..., Any]:
        flipped = []

        def wrong(*args: Any, **more: Any) -> Any:
            resolution = real(*args, **more)
            for offset in () if flipped else offsets:
                slot = resolution.dead.page_slots[offset >> 12]
                resolution.dead.page_bits[slot, (offset >> 6) & 63] ^= np.uint64(1) << np.uint64(offset & 63)
                flipped.append(offset)
            return resolution

        return wrong

    monkeypatch.setattr(Resolver, "run", flipping(Resolver.run))
    monkeypatch.setattr(RunningResolution, "resolution", flipping(RunningResolution.resolution))


def change_written(monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes]) -> None:
    """Apply `change` to every batch that the rewrite cuts or joins, and give it a right checksum."""
    real = output.Writer.flush

    def flush(self: Any) -> None:
        for row in range(self._row):
            if self._classes[row] in (MIXED, JOINED):
                start, size = int(self._table[row, fields.POSITION]), int(self._table[row, fields.SIZE])
                changed = change(self._out[start : start + size].tobytes())
                assert len(changed) == size
                self._out[start : start + size] = np.frombuffer(changed, np.uint8)
        real(self)

    monkeypatch.setattr(output.Writer, "flush", flush)


def sealed(data: bytes) -> bytes:
    from google_crc32c import value

    crc = value(data[ATTRIBUTES_AT:]).to_bytes(4, "big")
    return data[:CRC_AT] + crc + data[ATTRIBUTES_AT:]


def test_a_changed_value(each: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    change_written(monkeypatch, lambda data: sealed(data.replace(b"only-c", b"only-x")))
    error = refused(each)
    assert "other contents" in error.message and "other keys" not in error.message


def test_a_changed_timestamp(each: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    def later(data: bytes) -> bytes:
        header = read_header(data, 0, len(data), "memory")
        return sealed(data[:27] + (header.base_timestamp + 1).to_bytes(8, "big") + data[35:])

    change_written(monkeypatch, later)
    assert "other contents" in refused(each).message


def field_set(data: bytes, position: int, size: int, change: Callable[[int], int]) -> bytes:
    value = int.from_bytes(data[position : position + size], "big", signed=True)
    return sealed(
        data[:position] + change(value).to_bytes(size, "big", signed=True) + data[position + size :]
    )


HEADER_FIELDS: dict[str, tuple[int, int, Callable[[int], int]]] = {
    "leader epoch": (12, 4, lambda value: value + 1),
    "timestamp type": (21, 2, lambda value: value ^ 0x08),
    "transactional": (21, 2, lambda value: value ^ 0x10),
    "control": (21, 2, lambda value: value ^ 0x20),
    "horizon": (21, 2, lambda value: value ^ 0x40),
    "unused flag": (21, 2, lambda value: value ^ 0x80),
    "last offset delta": (23, 4, lambda value: value - 1),
    "largest timestamp": (35, 8, lambda value: value + 1),
    "producer id": (43, 8, lambda value: value + 1),
    "producer epoch": (51, 2, lambda value: value + 1),
    "base sequence": (53, 4, lambda value: value + 1),
}


@pytest.mark.parametrize("producer_id", [-1, 7])
@pytest.mark.parametrize("field", HEADER_FIELDS)
@pytest.mark.parametrize("joins", [False, True])
def test_a_changed_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, producer_id: int, joins: bool
) -> None:
    """One field of one batch differs from its right value, under a right checksum."""
    if not joins:
        monkeypatch.setattr(output, "BATCH_BYTES", 0)
    log = LogBuilder(tmp_path / "data").topic("users")
    for number in range(3):
        log.batch([(f"k{number}", 1), ("a", 1), ("a", 2)], producer_id=producer_id, sequence=3 * number)
    log.put("end", 1).roll().put("a", 3).roll()
    changed = []

    def change(data: bytes) -> bytes:
        if changed:
            return data
        changed.append(data)
        return field_set(data, *HEADER_FIELDS[field])

    change_written(monkeypatch, change)
    refused(log)
    assert changed


@pytest.mark.parametrize("position", [12, 35, 51, 53, 80])
def test_a_changed_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int) -> None:
    """A marker gets another leader epoch, time, producer epoch or sequence, or another type."""
    from tests.cleaner.transactional import Producer

    log = LogBuilder(tmp_path / "data").topic("users")
    Producer(log).put(("a", 1), ("b", 1)).commit().put(("c", 1)).abort()
    log.put("a", 2).roll().put("end", 1).roll()
    real = output.Writer.flush

    def flush(self: Any) -> None:
        for row in range(self._row):
            start, size = int(self._table[row, fields.POSITION]), int(self._table[row, fields.SIZE])
            if self._table[row, fields.ATTRIBUTES] & CONTROL_BIT:
                data = bytearray(self._out[start : start + size].tobytes())
                data[position if position < 61 else size - 9] ^= 1
                self._out[start : start + size] = np.frombuffer(sealed(bytes(data)), np.uint8)
        real(self)

    monkeypatch.setattr(output.Writer, "flush", flush)
    assert "other transaction markers" in refused(log).message


def test_headers_that_say_too_much_are_no_fault_of_the_rewrite(tmp_path: Path) -> None:
    """An appended batch may have a largest timestamp that none of its records has: it is still cleaned."""
    log = LogBuilder(tmp_path / "data").topic("users").put("x", 0)
    for pairs in ([(b"a", b"1"), (b"b", b"1")], [(b"c", b"1")], [(b"a", b"2")]):
        builder = BatchBuilder()
        for key, value in pairs:
            builder.append(log.clock.now_ms(), key, value)
        log.log.append_batch(field_set(builder.build(), 35, 8, lambda value: value + 1000))
    late = [header.max_timestamp for header in log.log.segments[0].headers()]
    assert late[1:] == [log.clock.now_ms() + 1000] * 3
    log.roll()
    assert log.clean().complete
    assert log.state() == {b"x": b"0", b"a": b"2", b"b": b"1", b"c": b"1"}


def test_an_old_record_kept_in_place_of_the_new(each: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    """`c` at offset 2 becomes the old `a` of offset 0: the number of records is the same."""

    def older(data: bytes) -> bytes:
        if b"only-c" not in data:
            return data
        header = read_header(data, 0, len(data), "memory")
        builder = BatchBuilder()
        builder.append(header.base_timestamp, b"a", b"old-a.", offset_delta=0)
        return builder.build(header.base_offset, header.leader_epoch, last_offset_delta=2)

    monkeypatch.setattr(output, "BATCH_BYTES", 0)  # so that `c` is alone in its batch
    change_written(monkeypatch, older)
    assert "other keys or offsets" in refused(each).message


def test_an_append_that_loses_its_last_byte(each: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is shorter than what was appended, and no call failed."""
    real = OsHandle.append

    def lossy(handle: Any, data: Any) -> int:
        cut = "rewrite-" in handle.path and handle.path.endswith(".log")
        return real(handle, memoryview(data)[:-1] if cut else data)

    monkeypatch.setattr(OsHandle, "append", lossy)
    error = refused(each)
    assert "appended" in error.message and "other contents" not in error.message


def test_a_dropped_newest_record(each: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    real = output.loops.repack_rows

    def forgetful(*args: Any) -> Any:
        given = named(real, args)
        if (
            int(given["source"].table[0, fields.BASE_OFFSET]) == 5
        ):  # the segment with new-a loses its first batch
            given["row"] = max(given["row"], 1)
        return real(*given.values())

    monkeypatch.setattr(output.loops, "repack_rows", forgetful)
    assert "records instead of" in refused(each).message


def test_a_range_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rewrite omits the emptied last batch of a group: no record is missing, but the range ends early."""
    users = LogBuilder(tmp_path, segment_bytes=100).put("z", 1).put("z", 2).roll().put("z", 3)

    def nothing(chunk: Any, *more: Any) -> Any:
        return np.zeros(chunk.rows, np.uint8)

    monkeypatch.setattr(rewrite, "_retain", nothing)
    assert "next offset" in refused(users).message


@pytest.mark.parametrize("codec", [0, 3, 4])
def test_a_flipped_bit_in_a_batch_that_is_wholly_dead(tmp_path: Path, codec: int) -> None:
    """The rewrite does not decompress the batch, but still checks its checksum."""
    from tests.cleaner import support

    first = support.batch(0, [(0, b"a", b"x" * 90), (1, b"b", b"x" * 90)], codec=codec)
    newer = support.batch(2, [(2, b"a", b""), (3, b"b", b"")])
    segment = support.write_segment(tmp_path, 0, [first, newer])
    resolution = support.resolved([segment])
    data = bytearray(Path(segment.file).read_bytes())
    data[len(first) - 3] ^= 4
    Path(segment.file).write_bytes(data)
    again = support.write_segment(tmp_path, 0, [bytes(data)])
    (group,) = support.groups.group(resolution.segments, support.OutputLimits(1 << 30, 10 << 20, 4096))
    with pytest.raises(CorruptBatchError, match="has CRC"):
        rewrite.rewrite(group, [again], resolution, support.plan(), None, lambda _: None)


@pytest.mark.parametrize("codec", [0, 3])
def test_a_flipped_bit_in_a_source_is_never_put_under_a_new_checksum(users: LogBuilder, codec: int) -> None:
    users.codec_of(codec).batch([("f", "x" * 50), ("a", "newest-a")]).roll()
    users.close()
    path = Path(users.directory, f"{5:020d}.log")
    flip(path, -20)
    # The marker says that the stop was clean: opening does not read closed segments again.
    from lastword.partition.open import open_log

    users._log, _ = open_log(
        users.files, users.directory, users.config, users.clock, recovery_point=10, clean=True
    )
    before = sources(users)
    with pytest.raises(CorruptBatchError) as caught:
        users.clean()
    assert caught.value.file == str(path)
    assert caught.value.offset is not None and caught.value.position is not None
    assert sources(users) == before
    record = quarantine.load(users.files, users.directory)
    assert record is not None and record.position == caught.value.position
    assert users.plan().reasons[0].code == "quarantined"


def test_a_source_that_rots_between_map_and_rewrite(each: LogBuilder) -> None:
    each.roll()
    path = Path(each.directory, f"{0:020d}.log")
    chunks = []

    def rot() -> bool:
        chunks.append(1)
        if len(chunks) == 2:  # both segments are mapped
            flip(path, 70, 4)
        return False

    with pytest.raises(CorruptBatchError, match="CRC"):
        each.clean(stop=rot)
    assert quarantine.load(each.files, each.directory) is not None
    assert not [name for name in each.tree() if "rewrite-" in name]


def test_retry_leaves_quarantine(each: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        flip_bits(patch, 2)
        refused(each)
    assert quarantine.retry(each.files, each.directory)
    assert not quarantine.retry(each.files, each.directory)
    assert each.clean().complete
    assert each.state()[b"c"] == b"only-c"


def test_accounts_whose_bits_were_wrong_are_not_used_again(tmp_path: Path) -> None:
    """Neither accounts in memory nor saved accounts are used: after a retry the log itself is resolved."""
    from tests.cleaner.test_accounted import Log

    log = Log(tmp_path)
    for number in range(300):
        log.put((b"k%d" % (number % 40), b"v%d" % number))
    log.clean()
    for number in range(0, 40, 2):
        log.put((b"k%d" % number, b"w"))
    log.log.roll()
    log.ledger.fit(log.log.segments)
    log.ledger.add_segments(log.log.segments, log.log.log_end, write_clock=1, now_ms=1)
    store = log.ledger.tracking.running._scan.store
    store.page_bits[store.page_slots[0], 261 >> 6] ^= np.uint64(1) << np.uint64(261 & 63)  # a newest record
    assert log.ledger.save()
    with pytest.raises(CertificateError):
        log.clean()
    assert not Path(log.path, "lastword", "accounts").exists()
    assert quarantine.retry(log.files, str(log.path))
    done = log.clean()
    assert done.complete and done.map_passes == 1
    assert log.live() == log.newest
    log.close()


def test_an_unreadable_quarantine_file_still_counts(users: LogBuilder) -> None:
    assert users.log
    private = Path(users.directory, "lastword")
    private.mkdir(exist_ok=True)
    (private / "quarantine").write_bytes(b"{")
    assert users.plan().reasons[0].code == "quarantined"


def test_a_full_disk_is_seen_before_writing(users: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    users.roll()
    before = sources(users)
    monkeypatch.setattr(OsFiles, "free_bytes", lambda self, path: 10)
    with pytest.raises(DiskFullError) as caught:
        users.clean()
    assert caught.value.free_bytes == 10 and (caught.value.needed_bytes or 0) > 10
    assert "log unchanged" in str(caught.value)
    assert sources(users) == before
    assert quarantine.load(users.files, users.directory) is None
    monkeypatch.undo()
    assert users.clean().complete


def test_a_disk_that_fills_up_while_cleaning(tmp_path: Path) -> None:
    files = RecordingFiles(OsFiles())
    log = LogBuilder(tmp_path / "data", files=files).put("a", 1).batch([("a", 2), ("b", 1)]).roll()
    before = sources(log)
    files.fail = lambda call: (
        full_drive(call.path) if call.name == "append" and "rewrite-" in call.path else None
    )
    with pytest.raises(DiskFullError):
        log.clean()
    files.fail = None
    assert sources(log) == before
    assert not [name for name in log.tree() if "rewrite-" in name]
    assert log.clean().complete
    assert log.offsets() == [1, 2]


def test_a_round_built_elsewhere_is_published_here(users: LogBuilder) -> None:
    plan = prepare(users.log, users.config, CleanRequest())
    view = PartitionView.load(DirectorySegments(users.files, users.directory))
    given = pickle.loads(pickle.dumps(plan))
    built = clean(view, given, FullScan(), Collector(given), CleanContext(users.files, users.clock))
    assert users.offsets() == list(range(8)), "nothing is published yet"
    recorded: list[int] = []
    round_ = Publisher(users.log, plan, recorded.append).publish(pickle.loads(pickle.dumps(built)))
    assert users.offsets() == [2, 4, 5, 6, 7]
    assert recorded == [8] == [round_.end]
    assert not [name for name in users.tree() if "rewrite-" in name]


def test_an_output_that_changed_its_size_is_not_swapped(users: LogBuilder) -> None:
    plan = prepare(users.log, users.config, CleanRequest())
    before = sources(users)
    view = PartitionView.load(DirectorySegments(users.files, users.directory))
    built = clean(view, plan, FullScan(), Collector(plan), CleanContext(users.files, users.clock))
    (path,) = Path(users.directory).glob("lastword/rewrite-*/*.log")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match="that were certified"):
        Publisher(users.log, plan, lambda _: pytest.fail("must not be recorded")).publish(built)
    assert sources(users) == before


def test_a_source_that_was_replaced_meanwhile_is_not_swapped(users: LogBuilder) -> None:
    plan = prepare(users.log, users.config, CleanRequest())
    view = PartitionView.load(DirectorySegments(users.files, users.directory))
    built = clean(view, plan, FullScan(), Collector(plan), CleanContext(users.files, users.clock))
    users.wait(1).clean()
    after = users.tree()
    with pytest.raises(BusyError, match="changed while it was cleaned"):
        Publisher(users.log, plan, lambda _: pytest.fail("must not be recorded")).publish(built)
    assert sources(users) == {name: data for name, data in after.items() if name.endswith(".log")}
