"""A saved index that is not of its log is not used. Without a check the answer would be wrong."""

import shutil
from dataclasses import replace

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.keys import index, manifest
from lastword.partition.removal_log import EVERYTHING, RemovalLog

CONFIG = {"cleanup_policy": "compact", "segment_bytes": 1000, "delete_retention_ms": 0}


@pytest.fixture(autouse=True)
def every_get_saves(monkeypatch):
    monkeypatch.setattr(index, "OVERLAY_ENTRIES", 1)


@pytest.fixture
def place(tmp_path):
    """A log of a, b and k, whose index is saved and kept aside; the process has ended."""
    with opened(tmp_path / "data") as logs:
        topic = logs.create_topic("t", **CONFIG)
        for key in (b"a", b"k", b"b"):
            topic.append(key, b"old")
        assert topic.get(b"k") == b"old"
    private = tmp_path / "data" / "t-0" / "lastword"
    shutil.copytree(private, tmp_path / "kept")
    return tmp_path


def opened(path, mode="a"):
    return lastword.open(path, mode, clock=ManualClock(), log_cleaner_enable=False)


def put_back(place, *, notes):
    """Put the index of then back; with `notes` beside the notes of now, else beside those of then."""
    private = place / "data" / "t-0" / "lastword"
    for file in private.iterdir() if not notes else private.glob("keys*"):
        file.unlink()
    for file in (place / "kept").glob("keys*"):
        shutil.copy(file, private)
    assert (private / "keys").exists()


def cut_and_append(logs, epoch=None):
    """Put k in the place of b: the index of then has k at offset 1."""
    logs.dirs.log_dir("t", 0).truncate("t", 0, 2)
    log = logs.dirs.log("t", 0)
    if epoch is not None:
        log.epochs.assign(epoch, 2)
    for key in (b"k", b"z"):
        logs.topic("t").append(key, b"new")


def answers(place):
    """Return what a new reader and a new writer find for k."""
    with opened(place / "data", "r") as logs:
        seen = logs.topic("t").get(b"k")
    with opened(place / "data") as logs:
        return seen, logs.topic("t").get(b"k")


def no_notes(monkeypatch):
    monkeypatch.setattr(RemovalLog, "cut_since", lambda *_: EVERYTHING)


def no_witness(monkeypatch):
    monkeypatch.setattr(manifest.Witness, "testifies", lambda *_: True)


def no_incarnation(monkeypatch):
    monkeypatch.setattr(manifest.Manifest, "fits", lambda self, view: self.end <= view.log_end)


@pytest.mark.parametrize(
    "planted, is_found",
    [
        ((), True),
        ((no_notes,), True),  # the witness is enough
        ((no_witness,), True),  # the notes are enough
        ((no_notes, no_witness), False),
    ],
)
def test_a_cut_by_us(place, monkeypatch, planted, is_found):
    with opened(place / "data") as logs:
        cut_and_append(logs)
    put_back(place, notes=True)
    for fault in planted:
        fault(monkeypatch)
    assert answers(place) == ((b"new", b"new") if is_found else (b"old", b"old"))


@pytest.mark.parametrize("planted, is_found", [((), True), ((no_witness,), False)])
def test_a_cut_by_a_broker(place, monkeypatch, planted, is_found):
    with opened(place / "data") as logs:
        cut_and_append(logs, epoch=1)
    put_back(place, notes=False)
    for fault in planted:
        fault(monkeypatch)
    assert answers(place) == ((b"new", b"new") if is_found else (b"old", b"old"))


@pytest.mark.parametrize("epoch", [1, None])
@pytest.mark.parametrize("planted, is_found", [((), True), ((no_witness,), False)])
def test_another_file_in_place_of_the_witness(place, monkeypatch, planted, is_found, epoch):
    """A broker cut the log and cleaned it; or `rsync` put a copy back: the leader epoch is the same."""
    with opened(place / "data") as logs:
        cut_and_append(logs, epoch=epoch)
        logs.dirs.log("t", 0).roll()
        logs.topic("t").append(b"z", b"")
        logs.topic("t").append(b"b", b"")
        logs.dirs.log("t", 0).roll()
        logs.topic("t").append(b"z", b"")
        log = place / "data" / "t-0" / f"{0:020d}.log"
        before = log.stat().st_ino
    shutil.copy(log, log.with_suffix(".new"))  # as a cleaning does
    log.with_suffix(".new").rename(log)
    assert log.stat().st_ino != before
    put_back(place, notes=False)
    for fault in planted:
        fault(monkeypatch)
    assert answers(place) == ((b"new", b"new") if is_found else (b"old", b"old"))


@pytest.mark.parametrize("looks_up", [False, True])
def test_a_cleaning_of_the_segment_with_the_witness(place, monkeypatch, looks_up):
    """The index is made again, unless the writer had it open: then it saved it again at its end."""
    with opened(place / "data") as logs:
        topic = logs.topic("t")
        assert not looks_up or topic.get(b"k") == b"old"
        for _ in range(30):
            topic.append(b"b", b"newer" * 10)
        logs.dirs.log("t", 0).roll()
        topic.append(b"z", b"")
        logs.clean("t")
        assert topic.bounds() == {0: (0, 34)}
    read = []
    records = index._records
    monkeypatch.setattr(index, "_records", lambda *a: read.append((a[1].start, a[1].end)) or records(*a))
    assert answers(place) == (b"old", b"old")
    assert read[0] == ((3, 34) if looks_up else (0, 34))


@pytest.mark.parametrize("planted, is_found", [((), True), ((no_incarnation,), False)])
def test_a_topic_that_was_created_again(place, monkeypatch, planted, is_found):
    with opened(place / "data") as logs:
        logs.delete_topic("t")
        topic = logs.create_topic("t", **CONFIG)
        for value in (b"x", b"x", b"new"):
            topic.append(b"k", value)
        assert topic.get(b"k") == b"new"
    put_back(place, notes=True)
    for fault in planted:
        fault(monkeypatch)
    found = answers(place)
    assert found == ((b"new", b"new") if is_found else (b"x", b"x"))


def test_the_end_above_the_log_is_removed_by_an_opening(place):
    """A broker cuts, and a writer of ours appends as many records without a lookup."""
    with opened(place / "data") as logs:
        logs.dirs.log_dir("t", 0).truncate("t", 0, 1)
    put_back(place, notes=False)
    with opened(place / "data") as logs:
        logs.dirs.log("t", 0)
        assert not (place / "data" / "t-0" / "lastword" / "keys").exists()


def test_a_cut_while_the_index_is_in_use(tmp_path):
    with opened(tmp_path) as logs, opened(tmp_path, "r") as reader:
        topic = logs.create_topic("t", **CONFIG)
        for value in (b"1", b"2", b"3"):
            topic.append(b"k", value)
        seen = reader.topic("t")
        assert (topic.get(b"k"), seen.get(b"k")) == (b"3", b"3")
        for end in (2, 1):
            logs.dirs.log_dir("t", 0).truncate("t", 0, end)
            assert (topic.get(b"k"), seen.get(b"k")) == (b"%d" % end,) * 2
        topic.append(b"j", b"")
        topic.append(b"j", b"")
        assert (topic.get(b"k"), seen.get(b"k")) == (b"1", b"1")


def test_a_log_that_was_closed_meanwhile_saves_nothing(tmp_path, monkeypatch):
    """Another object has the log, and has cut it: the old one must not vouch for the index."""
    with opened(tmp_path) as logs:
        topic = logs.create_topic("t", **CONFIG)
        for key in (b"a", b"k", b"b"):
            topic.append(key, b"old")
        monkeypatch.setattr(index, "OVERLAY_ENTRIES", 100)
        monkeypatch.setattr(index, "WORTH_SAVING", 1)
        assert topic.get(b"k") == b"old"
        logs.dirs.log_dir("t", 0).close_logs([("t", 0)])
        cut_and_append(logs)
    assert not list((tmp_path / "t-0" / "lastword").glob("keys*"))
    with opened(tmp_path) as logs:
        assert logs.topic("t").get(b"k") == b"new"


@pytest.mark.parametrize("name, step", [("keys", 19), ("keys-*", 331)])
def test_flipped_bits_of_an_index(place, name, step):
    """The answers stay right, and the writer makes the index again."""
    private = place / "data" / "t-0" / "lastword"
    right = dict.fromkeys([b"a", b"b", b"k"], b"old")
    for at in range(0, next(private.glob(name)).stat().st_size, step):
        file = next(private.glob(name))
        data = bytearray(file.read_bytes())
        data[at] ^= 1 << at % 8
        file.write_bytes(data)
        with opened(place / "data", "r") as logs:
            assert logs.topic("t").get_many([b"a", b"b", b"k", b"x"]) == right
        with opened(place / "data") as logs:
            for _ in range(2):
                assert logs.topic("t").get_many([b"a", b"b", b"k", b"x"]) == right
        size = next(private.glob(name)).stat().st_size
        if at >= size - step:
            break


def test_an_index_of_an_older_version_is_made_again(place):
    file = place / "data" / "t-0" / "lastword" / "keys"
    fields = manifest.FORM.decode(file.read_bytes(), str(file))
    older = replace(manifest.FORM, version=1)
    file.write_bytes(older.encode({**fields, "runs": [name for name, *_ in fields["runs"]]}))
    assert answers(place) == (b"old", b"old")
    assert file.read_bytes().startswith(b"lastword keys 2 ")
