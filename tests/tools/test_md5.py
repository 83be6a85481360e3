"""Keys of one MD5 are found with any memory size; keys of different MD5 are never reported."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import lastword
from lastword.config.tables import DEFAULT_MAP_BYTES
from lastword.files import DEFAULT
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from lastword.tools import md5
from tests.build import LogBuilder
from tests.cleaner.transactional import Producer
from tests.golden import loader

KEYS = sorted(
    {
        line["key"]
        for line in loader.case("md5-collision").expected("round1-before")
        if len(line["key"]) == 72 and line["key"].startswith(b"TEXTCOLL")
    }
)
DIGEST = hashlib.md5(KEYS[0]).hexdigest()


def view_of(log: LogBuilder) -> PartitionView:
    return PartitionView.load(DirectorySegments(log.files, log.directory))


def test_the_two_keys_are_what_they_should_be() -> None:
    assert len(KEYS) == 2 and KEYS[0] != KEYS[1]
    assert hashlib.md5(KEYS[1]).hexdigest() == DIGEST


@pytest.mark.parametrize("memory_bytes", [DEFAULT_MAP_BYTES, 40_000, 12_000])
def test_both_keys_are_found_among_many_in_any_memory(tmp_path: Path, memory_bytes: int) -> None:
    log = LogBuilder(tmp_path, segment_bytes=20_000)
    for number in range(30):
        log.batch([(b"key %d" % (number * 50 + n), b"v") for n in range(100)])
        if number in (3, 7, 20):
            log.put(KEYS[0], b"%d" % number)
        if number == 11:
            log.delete(KEYS[1])
    md5_check = md5.md5_collisions(view_of(log), memory_bytes=memory_bytes)
    (collision,) = md5_check.collisions
    assert (collision.md5, collision.topic, collision.partition) == (DIGEST, "users", 0)
    assert collision.keys == (KEYS[1], KEYS[0]) and collision.offsets == (1202, 2103)
    assert md5_check.keys == 1552
    assert (md5_check.passes > 3) == (memory_bytes < 50_000)
    log.close()


def test_the_same_key_again_and_again_is_no_collision(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path)
    for number in range(5):
        log.put(KEYS[0], b"%d" % number).put(None, b"no key").roll()
    md5_check = md5.md5_collisions(view_of(log))
    assert (md5_check.collisions, md5_check.keys, md5_check.passes) == ((), 1, 2)
    log.close()


def test_an_empty_log_has_none(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path)
    assert log.log.log_end == 0
    assert md5.md5_collisions(view_of(log)).collisions == ()
    log.close()


def test_a_prefix_shared_by_chance_is_no_collision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests that agree in their first 8 bytes only."""
    log = LogBuilder(tmp_path).put("a", 1).put("b", 2).put("c", 3)
    monkeypatch.setattr(md5, "_digest", lambda key: b"12345678" + hashlib.md5(key).digest()[:8])
    md5_check = md5.md5_collisions(view_of(log))
    assert md5_check.collisions == () and md5_check.passes == 3
    log.close()


def test_a_key_of_an_open_transaction_met_outside_it_is_one_key(tmp_path: Path) -> None:
    """Both records of the key are live, because the transaction is undecided."""
    log = LogBuilder(tmp_path).put("a", 1)
    Producer(log).put(("a", 2), (KEYS[0], 1))
    Producer(log, 8).put((KEYS[1], 1)).abort()
    assert md5.md5_collisions(view_of(log)).collisions == ()
    log.put(KEYS[1], 2)
    assert [collision.keys for collision in md5.md5_collisions(view_of(log)).collisions] == [
        (KEYS[0], KEYS[1])
    ]
    log.close()


def test_the_golden_case_and_a_log_of_kafka_without(tmp_path: Path) -> None:
    for name, count in (("md5-collision", 1), ("compact-none-dr0", 0)):
        stage = "round1-before"
        directory = loader.case(name).unpack(tmp_path, stage) / stage / f"{name}-0"
        md5_check = md5.md5_collisions(PartitionView.load(DirectorySegments(DEFAULT, str(directory))))
        assert len(md5_check.collisions) == count


def test_verify_tells_and_damage_does_not_stop_it(tmp_path: Path) -> None:
    heard = []
    with lastword.open(tmp_path / "d", "a", log_cleaner_enable=False) as logs:
        for name in ("t", "u"):
            topic = logs.create_topic(name, cleanup_policy="compact")
            for key in KEYS:
                topic.append(key, b"v")
        assert logs.verify().collisions == ()
        verification = logs.verify(md5=True, progress=heard.append)
        assert (
            not verification.ok
            and not verification.problems
            and verification.keys == 4
            and [collision.topic for collision in verification.collisions] == ["t", "u"]
        )
        assert verification.to_dict()["collisions"][0]["md5"] == DIGEST
        assert logs.topic("u").verify(md5=True).keys == 2
    assert {progress.verb for progress in heard} >= {"verify", "compare keys"}
    path = tmp_path / "d" / "t-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 255
    path.write_bytes(data)
    with lastword.open(tmp_path / "d") as logs:
        verification = logs.verify(md5=True)
        assert not verification.ok and [collision.topic for collision in verification.collisions] == ["u"]
        assert any("keys were not compared" in problem.text for problem in verification.problems)
