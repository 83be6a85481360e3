"""What a scan by hashes keeps for the rewrite: the same files as without, and nothing changed unnoticed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastword.accounts.ledger import Ledger
from lastword.cleaner.policy import quarantine
from lastword.errors import CertificateError, CorruptBatchError, StorageError
from lastword.files import OsFiles
from lastword.kernels import table as fields
from lastword.resolve import hash_map
from lastword.resolve.survivors import KeptChunk, Survivors
from tests.build import HOUR, LogBuilder
from tests.cleaner.support import broken_drive, change_scratch, failing_scratch, full_drive, is_scratch
from tests.cleaner.test_by_hash import ledger_of
from tests.fakes.recording import RecordingFiles
from tests.support.cleaning import by_hash
from tests.support.damage import flip

CONFIG: dict[str, Any] = {"segment_bytes": 60_000, "delete_retention_ms": HOUR, "index_interval_bytes": 500}
MIB = 1 << 20


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(hash_map, "PART_BYTES", 3000)
    few_dead(monkeypatch, 0)
    with by_hash():
        yield


def few_dead(patch: pytest.MonkeyPatch, share: float) -> None:
    """Let the survivors of chunks be kept from this share of dead records on."""
    for name in ("_FEWEST_DEAD", "_FEWEST_DEAD_CODED"):
        patch.setattr(hash_map, name, share)


def written(root: Path, files: Any = None, codec: int = 0, seed: int = 1) -> LogBuilder:
    """Write batches of every kind over few keys, some of them with only dead or only live records."""
    rng = random.Random(seed)
    log = LogBuilder(root, files=files, **CONFIG).codec_of(codec)
    sequences = [0, 0, 0]
    for number in range(400):
        kind = rng.choice(["few keys", "few keys", "new keys", "deletes", "producer", "no key"])
        keys = [f"k{rng.randrange(60)}" for _ in range(rng.randrange(1, 12))]
        if kind == "new keys":
            keys = [f"n{number}-{n}" for n in range(len(keys))]
        value = None if kind == "deletes" else rng.randbytes(rng.randrange(200)).hex()
        pairs = [(None if kind == "no key" and n == 1 else key, value) for n, key in enumerate(keys)]
        if kind == "producer":
            producer_id = rng.randrange(3)
            log.batch([(key, "p") for key in keys], producer_id=producer_id, sequence=sequences[producer_id])
            sequences[producer_id] += len(keys)
        else:
            log.batch(pairs)
    return log.roll()


def logs(log: LogBuilder) -> dict[str, bytes]:
    return {name: data for name, data in log.tree().items() if name.endswith(("log", "index"))}


def copied(source: LogBuilder, target: Path, files: Any = None) -> LogBuilder:
    shutil.copytree(source.root, target)
    return LogBuilder(target, files=files, clock=source.clock, **CONFIG).codec_of(source.codec)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[tuple[KeptChunk, bool]]:
    """Return the list that gets each chunk that a rewrite takes, and whether it was in the file."""
    taken: list[tuple[KeptChunk, bool]] = []
    real = Survivors.take

    def take(self: Survivors, segment: int) -> Iterator[KeptChunk]:
        in_file = {chunk.start for chunk in self._chunks.get(segment, []) if chunk.in_file is not None}
        for chunk in real(self, segment):
            taken.append((chunk, chunk.start in in_file))
            yield chunk

    monkeypatch.setattr(Survivors, "take", take)
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("codec", [0, 1, 3, 4])
@pytest.mark.parametrize("place", ["memory", "file", "both", "two threads"])
def test_the_files_are_those_of_two_readings(
    tmp_path: Path,
    codec: int,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    kept: list[tuple[KeptChunk, bool]],
) -> None:
    """Of the map without hashes, too; the second cleaning has tombstones that are due."""
    log = written(tmp_path / "log", codec=codec).close()
    plain, exact = copied(log, tmp_path / "plain"), copied(log, tmp_path / "exact")
    more: dict[str, Any] = {"map_bytes": 8 * MIB}
    if place == "file":
        monkeypatch.setattr(Survivors, "_next_block", in_file)
    elif place == "both":
        more["map_bytes"] = MIB
        monkeypatch.setattr("lastword.resolve.survivors._BLOCK_BYTES", 30_000)
    elif place == "two threads":
        more["threads"] = 2
        monkeypatch.setattr("lastword.cleaner.engine.build.LARGE_BYTES", 0)
    for _ in range(2):
        planned = log.plan(**more)
        kept.clear()
        done = log.clean(**more)
        assert kept and planned.write_bytes == done.written_bytes, "also the plan is the same"
        not_again = sum(chunk.end - chunk.start for chunk, _ in kept)
        assert done.read_bytes == planned.read_bytes - not_again
        where = {in_file for _, in_file in kept}
        assert where == {True} if place == "file" else False in where
        with monkeypatch.context() as patch:
            few_dead(patch, 2)
            kept.clear()
            plain.clean(**more)
            assert not kept
        with by_hash(False):
            exact.clean(**more)
        assert logs(log) == logs(plain) == logs(exact)
        assert not [name for name in log.tree() if name.endswith(".data")]
        for each in (log, plain, exact):
            each.delete("n1-0").batch([(f"k{n}", "newest") for n in range(20)]).roll()
        log.wait(2 * HOUR)


def known(log: LogBuilder, ledger: Ledger) -> dict[str, Any]:
    """Return what a garbage index holds."""
    offset_map = ledger.tracking.running._scan.map
    assert offset_map is not None
    keys = {record.key for record in log.records() if record.key is not None}
    where = {"topic": "users", "partition": 0, "drive": "", "total_bytes": 0, "log_start": 0}
    return {
        "facts": [
            replace(facts, last_of_producers=tuple(sorted(facts.last_of_producers)))
            for facts in ledger.facts()
        ],
        "account": ledger.account(log.config, **where),
        "dead": ledger.resolution().dead.offsets().tolist(),
        "newest": {key: (offset_map.newest(key), offset_map.copies(key)) for key in keys},
        "tombstones": [column.tolist() for column in astuple(ledger.tracking.running.tombstones())],
        "clocks": [column.tolist() for column in ledger.deletes.running()],
        "checkpoint": ledger.first_dirty_for_kafka(),
        "largest": ledger.tracking.running.largest_bytes,
    }


@pytest.mark.parametrize("codec", [0, 3, 4])
def test_the_garbage_index_is_that_of_the_exact_map(
    tmp_path: Path, codec: int, kept: list[tuple[KeptChunk, bool]]
) -> None:
    """The first whole cleaning by accounts reads once; later cleanings go on with what it has saved."""
    log = written(tmp_path / "log", codec=codec).close()
    exact = copied(log, tmp_path / "exact")
    for number in range(3):
        indexes = []
        for each, wanted in ((log, True), (exact, False)):
            ledger = ledger_of(each, 8 * MIB)
            with by_hash(wanted):
                done = each.clean(strategy="generational", ledger=ledger, map_bytes=8 * MIB)
            indexes.append(known(each, ledger))
            assert done.complete and ledger.save()
        assert indexes[0] == indexes[1] and logs(log) == logs(exact)
        assert bool(kept) == (number == 0), "accounts decide the later ones"
        kept.clear()
        for each in (log, exact):
            each.delete("n1-0").batch([(f"k{n}", "newest") for n in range(20)]).roll().close()
        log.wait(2 * HOUR)


def in_file(self: Survivors, least: int, memory_bytes: int) -> bool:
    if not self._use_file():
        return False
    self._block, self._used = np.empty(least, np.uint8), 0
    return True


def flipped(chunk: KeptChunk, data: np.ndarray) -> None:
    """Change the last byte of the last record that is kept."""
    row = int(np.flatnonzero(chunk.table[:, fields.COUNT])[-1])
    data[int(chunk.table[row, fields.RECORDS_END]) - 2] ^= 1


def without_a_record(chunk: KeptChunk, data: np.ndarray) -> None:
    row = int(np.flatnonzero(chunk.table[:, fields.COUNT])[-1])
    chunk.table[row, fields.COUNT] = 0
    chunk.table[row, fields.RECORDS_END] = chunk.table[row, fields.RECORDS_POSITION]


def another_header(chunk: KeptChunk, data: np.ndarray) -> None:
    row = int(np.flatnonzero(chunk.table[:, fields.COUNT])[-1])
    chunk.table[row, fields.LEADER_EPOCH] += 1


@pytest.mark.parametrize("fault", [flipped, without_a_record, another_header])
@pytest.mark.parametrize("codec", [0, 4])
def test_a_change_in_memory_is_refused(
    tmp_path: Path,
    fault: Callable[[KeptChunk, np.ndarray], None],
    codec: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = written(tmp_path, codec=codec)
    before = logs(log)
    real = Survivors.take

    def take(self: Survivors, segment: int) -> Iterator[KeptChunk]:
        for chunk in real(self, segment):
            if segment == 0 and chunk.table[:, fields.COUNT].any():
                fault(chunk, chunk.data)
            yield chunk

    monkeypatch.setattr(Survivors, "take", take)
    with pytest.raises(CertificateError):
        log.clean(map_bytes=8 * MIB)
    assert logs(log) == before and quarantine.load(log.files, log.directory) is not None


def test_a_dead_record_that_is_kept_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = written(tmp_path)
    before = logs(log)
    real = Survivors.keep

    def keep(self: Survivors, segment: int, chunk: Any, batch: Any, filled: int, memory_bytes: int) -> None:
        dead = np.flatnonzero(batch.spans[3, :filled] & (1 << 42))
        batch.spans[3, dead[0]] &= ~(1 << 42)
        real(self, segment, chunk, batch, filled, memory_bytes)

    monkeypatch.setattr(Survivors, "keep", keep)
    with pytest.raises(CertificateError):
        log.clean(map_bytes=8 * MIB)
    assert logs(log) == before


def test_a_damaged_file_is_no_damage_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be read is read again from the segments."""
    log = written(tmp_path / "log").close()
    plain = copied(log, tmp_path / "plain")
    plain.clean()
    monkeypatch.setattr(Survivors, "_next_block", in_file)

    def flipped_or_short(count: int, buffer: Any, position: int) -> int:
        if position % 2:
            buffer[count // 2] ^= 1
        return count if position % 3 else 0

    change_scratch(monkeypatch, flipped_or_short)
    log.clean(map_bytes=MIB)
    assert logs(log) == logs(plain) and quarantine.load(log.files, log.directory) is None


@pytest.mark.parametrize("why", ["no room", "the drive fills up"])
def test_without_room_the_log_is_read_again(
    tmp_path: Path, why: str, monkeypatch: pytest.MonkeyPatch, kept: list[tuple[KeptChunk, bool]]
) -> None:
    files = RecordingFiles(OsFiles())
    log = written(tmp_path / "log", files).close()
    plain = copied(log, tmp_path / "plain")
    plain.clean(map_bytes=MIB)
    kept.clear()
    monkeypatch.setattr(Survivors, "_next_block", in_file)
    if why == "no room":
        monkeypatch.setattr(Survivors, "_use_file", lambda self: False)
    else:
        files.fail = failing_scratch(full_drive, after=2)
    done = log.clean(map_bytes=MIB)
    assert done.complete and logs(log) == logs(plain)
    assert len(kept) == (0 if why == "no room" else 2)
    assert sum(is_scratch(call) for call in files.calls) <= 3, "the file is given up at its first error"


def test_an_error_of_the_drive_is_raised_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RecordingFiles(OsFiles())
    log = written(tmp_path, files)
    before = log.tree()
    monkeypatch.setattr(Survivors, "_next_block", in_file)
    files.fail = failing_scratch(broken_drive)
    with pytest.raises(StorageError, match="cannot write"):
        log.clean(map_bytes=MIB)
    assert {name: data for name, data in log.tree().items() if not name.startswith("lastword")} == {
        name: data for name, data in before.items() if not name.startswith("lastword")
    }
    assert not [name for name in log.tree() if name.endswith(".data")]


def test_a_map_that_grows_takes_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = written(tmp_path / "log").close()
    plain = copied(log, tmp_path / "plain")
    plain.clean(map_bytes=MIB)
    monkeypatch.setattr(hash_map, "_LEAST_SLOTS", 2)
    monkeypatch.setattr(hash_map, "_RECORDS_OF_A_KEY", 1 << 20)
    released: list[int] = []
    real = Survivors.release

    def release(self: Survivors) -> None:
        released.append(self.memory_bytes)
        real(self)

    monkeypatch.setattr(Survivors, "release", release)
    monkeypatch.setattr("lastword.resolve.hash_map.HashResolver._most_slots", 5000)
    log.clean(map_bytes=MIB)
    assert any(released) and logs(log) == logs(plain)


@pytest.mark.parametrize("index", ["lost", "cut", "wrong", "of another file"])
def test_an_index_is_not_trusted(tmp_path: Path, index: str, caplog: pytest.LogCaptureFixture) -> None:
    """A lost one gives larger parts; a wrong one is found, and the log is read oldest first."""
    log = written(tmp_path / "log").close()
    plain = copied(log, tmp_path / "plain")
    plain.clean(map_bytes=MIB)
    first = Path(log.directory) / f"{0:020d}.index"
    data = bytearray(first.read_bytes())
    if index == "lost":
        first.unlink()
    elif index == "cut":
        first.write_bytes(data[: len(data) // 16 * 8])
    elif index == "wrong":
        data[8 * 20 + 7] ^= 1
        first.write_bytes(data)
    else:
        first.write_bytes(sorted(Path(log.directory).glob("*.index"))[1].read_bytes())
    with caplog.at_level("INFO", "lastword.resolve"):
        done = log.clean(map_bytes=MIB)
    assert done.complete and logs(log) == logs(plain)


@pytest.mark.parametrize("where", [0, 1, -1])
def test_damage_is_reported_as_by_the_exact_map(tmp_path: Path, where: int) -> None:
    """The oldest damage first, with the file and the position."""
    log = written(tmp_path / "log").close()
    for segment in {where, -1}:
        path = sorted(Path(log.directory).glob("*.log"))[:-1][segment]
        flip(path, path.stat().st_size // 2)
    exact = copied(log, tmp_path / "exact")
    texts = []
    for each, wanted in ((log, True), (exact, False)):
        with by_hash(wanted), pytest.raises(CorruptBatchError) as error:
            each.clean(map_bytes=MIB)
        texts.append(str(error.value).replace(each.root, ""))
    assert texts[0] == texts[1]
