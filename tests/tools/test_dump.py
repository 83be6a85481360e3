"""Every file of a log directory is decoded; damage is an entry, and the entries behind it follow."""

from pathlib import Path

import pytest

import lastword
from lastword import errors
from lastword.tools.dump import Batch, CheckpointEntry, IndexEntry, ProducerEntry, Property, dump
from lastword.tools.findings import Problem
from tests.golden.loader import case


@pytest.fixture
def partition(tmp_path):
    with lastword.open(tmp_path / "data", "a", index_interval_bytes=100) as logs:
        topic = logs.create_topic("t")
        for number in range(10):
            topic.append(b"key %d" % number, b"v" * 50, timestamp=1000 + number)
    return tmp_path / "data" / "t-0"


def log_of(partition):
    return partition / "00000000000000000000.log"


def test_a_segment(partition):
    batches = list(dump(log_of(partition)))
    assert [(b.base_offset, b.count, b.crc_ok, b.codec) for b in batches] == [
        (n, 1, True, "none") for n in range(10)
    ]
    assert batches[3].records[0].key == b"key 3" and batches[3].records[0].timestamp == 1003
    assert [b.position for b in batches] == [sum(b.size_bytes for b in batches[:n]) for n in range(10)]
    assert all(b.records == () for b in dump(log_of(partition), records=False))


def test_the_files_beside_it(partition):
    positions = {b.last_offset: b.position for b in dump(log_of(partition))}
    entries = list(dump(partition / "00000000000000000000.index"))
    assert entries and all(isinstance(e, IndexEntry) and positions[e.offset] == e.position for e in entries)
    times = list(dump(partition / "00000000000000000000.timeindex"))
    assert [e.timestamp for e in times] == [1000 + e.offset for e in times]
    names = [entry.name for entry in dump(partition / "partition.metadata")]
    assert names == ["version", "topic_id"]
    assert [e.epoch for e in dump(partition / "leader-epoch-checkpoint")] == [0]
    (entry,) = dump(partition.parent / "recovery-point-offset-checkpoint")
    assert entry == CheckpointEntry(entry.file, "t", 0, None, 10)
    synced, _ = dump(partition / "lastword" / "synced")
    assert (synced.name, synced.value) == ("synced below offset", "10")
    assert {e.name for e in dump(partition.parent / "meta.properties")} >= {"version", "directory.id"}


def test_what_kafka_wrote(tmp_path):
    """Every file of two directories of real Kafka, with transactions and idempotent producers."""
    kinds = set()
    for name in ("dir-clean", "tx-delete"):
        root = case(name).unpack(tmp_path / name)
        for path in sorted(root.rglob("*")):
            # KRaft's metadata is no log of records, and the lock is empty.
            kraft = path.parent.name == "__cluster_metadata-0" or path.name == "bootstrap.checkpoint"
            if path.is_file() and not kraft and path.name != ".lock":
                entries = list(dump(path))
                assert not [entry for entry in entries if isinstance(entry, Problem)], path
                kinds |= {(type(entry), getattr(entry, "kind", None)) for entry in entries}
    assert {entry_type for entry_type, _ in kinds} == {
        Batch,
        IndexEntry,
        CheckpointEntry,
        ProducerEntry,
        Property,
    }
    assert {kind for entry_type, kind in kinds if entry_type is IndexEntry} == {
        "offset",
        "time",
        "transaction",
    }


def test_a_flipped_bit_in_every_place_of_a_batch(partition):
    path = log_of(partition)
    sound = path.read_bytes()
    batches = list(dump(path))
    victim, before, after = batches[4], batches[:4], batches[5:]
    for position in range(victim.position, victim.position + victim.size_bytes):
        damaged = bytearray(sound)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        entries = list(dump(path))
        assert entries[:4] == before
        inside = position - victim.position
        if inside in range(8) or inside in range(
            12, 16
        ):  # base offset, leader epoch: Kafka's checksum does not cover them
            continue
        problems = [entry for entry in entries if isinstance(entry, Problem)]
        assert problems and problems[0].position == victim.position, inside
        # The batches behind follow, unless the damaged batch covers them: then they are found by a search.
        assert [entry for entry in entries if isinstance(entry, Batch)][-len(after) + 1 :] == after[1:], (
            inside
        )


def test_a_file_cut_anywhere(partition):
    path = log_of(partition)
    sound = path.read_bytes()
    batches = list(dump(path))
    for size in range(0, len(sound), 7):
        path.write_bytes(sound[:size])
        entries = list(dump(path))
        whole = [b for b in batches if b.position + b.size_bytes <= size]
        assert [e for e in entries if isinstance(e, Batch)] == whole
        torn = sound[sum(b.size_bytes for b in whole) : size].strip(b"\0") != b""  # zeros are no damage
        assert [e.code for e in entries if isinstance(e, Problem)] == ["incomplete-batch"] * torn


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
        "00000000000000000000.txnindex",
    ],
)
@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"\xff" * 100, bytes(4096), b"0\n1\nnonsense\n"],
    ids=["empty", "x", "ff", "zero", "text"],
)
def test_nonsense_never_crashes(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    list(dump(path))


@pytest.mark.parametrize(
    ("extension", "code"),
    [("index", "bad-index"), ("timeindex", "bad-time-index"), ("txnindex", "bad-txn-index")],
)
def test_damage_of_an_index_has_the_code_of_verify(partition, extension, code):
    path = partition / f"{0:020d}.{extension}"
    path.write_bytes(b"\xff" * 102)
    assert [entry.code for entry in dump(path) if isinstance(entry, Problem)] == [code]
    with lastword.open(partition.parent) as logs:
        assert [(problem.file, problem.code) for problem in logs.verify().problems] == [(str(path), code)]


def test_what_is_no_file_of_a_log(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    for path in (tmp_path, tmp_path / "notes.txt", tmp_path / "00000000000000000000.log"):
        with pytest.raises(errors.UsageError):
            dump(path)


def test_every_file_of_a_directory_is_decoded_or_named(tmp_path):
    """One private file among the arguments stopped all others: `lastword dump data/users-0/*`."""
    from tests.tools.mutants import build

    build(tmp_path / "d")
    paths = sorted(path for path in (tmp_path / "d").rglob("*") if path.is_file())
    assert len(paths) > 50
    for path in paths:
        assert not [entry for entry in dump(path) if isinstance(entry, Problem)], path
    private = tmp_path / "d" / "t-0" / "lastword"
    (private / "moving").write_bytes(b"")
    known = {"lease-replica", "synced", "log-start", "moving"}
    assert {Path(entry.file).name for entry in dump(private)} >= known
    assert "only its existence counts" in str(next(iter(dump(private / "moving"))))
    (private / "lease-replica").write_bytes(b"x")
    (problem,) = [entry for entry in dump(private) if isinstance(entry, Problem)]
    assert (problem.file, problem.code) == (str(private / "lease-replica"), "bad-lease")
