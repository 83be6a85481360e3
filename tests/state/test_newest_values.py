"""A mapping filled with whole columns: with newest values only, or with a mostly clean log in order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lastword
from lastword import errors
from lastword.records.batch import BatchBuilder
from lastword.state import newest
from lastword.state.newest import Pairs, ValueBuffer
from tests.transactions import end_transaction

KEYS = st.binary(max_size=3)
SMALL = {"segment_bytes": 2048, "cleanup_policy": "compact"}
PARTS = st.lists(st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=5)), max_size=6), max_size=6)


@given(PARTS, st.lists(st.booleans(), min_size=6, max_size=6))
def test_it_is_a_dict_that_is_changed_one_by_one(parts, settled):
    filling, model = ValueBuffer(), {}
    for pairs, recount in zip(parts, settled, strict=False):
        filling.put(Pairs.of([key for key, _ in pairs], [value for _, value in pairs]))
        for key, value in pairs:
            model.pop(key, None) if value is None else model.update({key: value})
        true = sum(len(key) + len(value) for key, value in model.items())
        assert filling.data == model and filling.size_bytes >= true
        assert not recount or filling.recount() == filling.size_bytes == true


def loaded(logs, monkeypatch, *, dirty_part: int) -> dict[bytes, bytes]:
    """Return the state, loaded by kernels.

    `dirty_part`: the largest dirty part of a log that is loaded in order.
    """
    monkeypatch.setattr(newest.scan, "PLAIN_BYTES", -1)
    monkeypatch.setattr(newest.scan, "PLAIN_BYTES_LOADED", -1)
    monkeypatch.setattr(newest, "_MOSTLY_CLEAN", dirty_part)
    taken = []
    inner = newest._every_pair
    monkeypatch.setattr(newest, "_every_pair", lambda *given: taken.append(given) or inner(*given))
    with lastword.open(logs.paths[0]) as beside:
        state = beside.state("users", key_serializer="bytes", value_serializer="bytes")
        assert bool(taken) is (dirty_part == 0)
        assert sum(entry.bytes for entry in state.restored) == sum(len(k) + len(v) for k, v in state.items())
        assert sum(entry.keys for entry in state.restored) == len(state)
        return dict(state)


def test_newest_values_from_an_offset_in_the_middle_of_a_batch(logs, monkeypatch):
    """Also of a log that was cleaned: its first batch there may end below the offset."""
    monkeypatch.setattr(newest.scan, "PLAIN_BYTES", -1)
    monkeypatch.setattr(newest.scan, "PLAIN_BYTES_LOADED", -1)
    topic = logs.create_topic("t", 1, **SMALL)
    for turn in range(3):
        topic.extend((b"key %d" % n, b"%d" % turn) for n in range(100))
    for _ in range(2):
        every = [(record.key, record.offset) for record in topic.read()]
        for start in range(0, 300, 7):
            expected = {key: offset for key, offset in every if offset >= start}
            records = topic.read(start, view="newest")
            assert {record.key: record.offset for record in records} == expected
            assert topic.read(start, view="newest").arrow().read_all().num_rows == len(expected)
        logs.clean("t")


def test_a_mostly_clean_log_is_taken_in_order(logs, monkeypatch):
    """The log has records without a key, and transactions, one of them aborted.

    Keys are replaced and deleted above the clean part, within one chunk and over segments.
    """
    logs.create_topic("users", 1, key_serializer="str", value_serializer="json", **SMALL)
    users = logs.state("users")
    users.update({f"key {n}": {"n": n} for n in range(200)})
    logs.clean("users")
    log = logs.dirs.log("users", 0)
    for producer, word, commit in ((1, b"kept", True), (2, b"never", False)):
        builder = BatchBuilder(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
        for number in range(30, 40):
            builder.append(0, b"key %d" % number, word)
        log.append_batch(builder.build(0))
        end_transaction(log, producer, 0, commit=commit)
    bare = BatchBuilder()
    bare.append(0, None, b"no key")
    log.append_batch(bare.build(0))
    for number in range(0, 60, 2):
        del users[f"key {number}"]
    users["key 0"] = users["key 2"] = {"n": "back"}
    users["key 2"] = {"n": "and again"}
    resolved = loaded(logs, monkeypatch, dirty_part=1 << 60)
    assert loaded(logs, monkeypatch, dirty_part=0) == resolved
    assert (
        len(resolved) == 172 and resolved[b"key 31"] == b"kept" and resolved[b"key 2"] == b'{"n":"and again"}'
    )


def test_what_was_replaced_does_not_count_against_the_limit(logs, monkeypatch):
    monkeypatch.setattr(newest.scan, "PLAIN_BYTES_LOADED", -1)
    users = logs.state("users", key_serializer="bytes", value_serializer="bytes")
    users.update({b"%03d" % n: b"v" * 97 for n in range(100)})
    logs.clean("users")
    for _ in range(20):
        users.update({b"%03d" % n: b"w" * 97 for n in range(20)})
    monkeypatch.setattr(newest, "_MOSTLY_CLEAN", 0)
    users.close()
    del users
    assert logs.state("users", memory=10_000)[b"000"] == b"w" * 97
    with pytest.raises(errors.StateTooLargeError):
        logs.state("users", memory=9_999)
