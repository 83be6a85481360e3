"""Delivered state compared with the log, key by key."""

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lastword
from lastword import errors
from tests.api.conftest import clock, logs  # noqa: F401
from tests.support.exhaustive import few


@pytest.fixture
def users(logs):  # noqa: F811
    topic = logs.create_topic("users", 2, key_serializer="str", cleanup_policy="compact")
    for key, value in (("ada", b"1"), ("bob", b"2"), ("ada", b"3"), ("cyd", b"4"), ("cyd", None)):
        topic.append(key, value, partition=0 if key == "ada" else 1)
    return topic  # ada: newest 1 of partition 0; bob: 0, cyd: 2 (a deletion) of partition 1


def named(audit):
    return [(row.kind, row.key, row.logged_offset, row.delivered_offset) for row in audit.rows]


def test_every_kind(logs, users):  # noqa: F811
    right = logs.audit("users", delivered={"ada": 1, "bob": 0})
    assert right.ok and right.counts == {"right": 3, "missing": 0, "stale": 0, "phantom": 0, "gone": 0}
    wrong = logs.audit("users", delivered={"ada": 0, "cyd": 1, "eve": 9})
    assert not wrong.ok and sorted(named(wrong)) == [
        ("missing", b"bob", 0, None),
        ("phantom", b"eve", None, 9),
        ("stale", b"ada", 1, 0),
        ("stale", b"cyd", 2, 1),
    ]
    assert named(logs.audit("users", delivered={"ada": 2, "bob": 0})) == [("phantom", b"ada", 1, 2)]


def test_a_key_whose_tombstone_expired_is_no_fault(logs, users, clock):  # noqa: F811
    users.append("bob", b"5", partition=1)  # the newest record of a partition stays, also a tombstone
    table = {"ada": 1, "bob": 3, "cyd": 2}
    assert logs.audit("users", delivered=table).ok
    logs.clean("users")
    clock.advance(25 * 3_600_000)
    logs.clean("users")
    logs.clean("users")
    assert [r.key for r in users.read()] == ["ada", "bob"]
    audit = logs.audit("users", delivered=table)
    assert audit.ok and named(audit) == [("gone", b"cyd", None, 2)]
    assert named(logs.audit("users", delivered={**table, "eve": 9})) == [
        ("gone", b"cyd", None, 2),
        ("phantom", b"eve", None, 9),
    ]


def test_tables_files_and_logs(logs, users, tmp_path):  # noqa: F811
    table = pa.table({"key": ["ada", "bob"], "offset": [1, 0], "partition": [0, 1]})
    assert logs.audit("users", delivered=table).ok
    assert logs.audit("users", delivered=table.drop_columns("partition")).ok
    logs.restore("users", to=tmp_path / "users.arrow")
    assert logs.audit("users", delivered=tmp_path / "users.arrow").ok
    assert logs.audit("users", delivered=logs).ok and logs.audit("users", delivered=users).ok
    (tmp_path / "users.jsonl").write_text('{"key": "ada", "offset": 0}\n{"key": "ada", "offset": 1}\n')
    assert named(logs.audit("users", delivered=tmp_path / "users.jsonl")) == [("missing", b"bob", 0, None)]


def test_a_key_in_two_partitions_counts_in_each_where_another_offset_was_delivered(logs, users):  # noqa: F811
    """As on Spark: the partition that is checked first does not take the key from the other."""
    users.append("ada", b"5", partition=1)
    assert named(logs.audit("users", delivered={"ada": 3, "bob": 0})) == [("phantom", b"ada", 1, 3)]


def test_a_key_delivered_with_and_without_its_partition_counts_by_the_newest(logs, users):  # noqa: F811
    table = pa.table({"key": ["ada", "ada", "bob"], "offset": [1, 0, 0], "partition": [0, None, 1]})
    assert logs.audit("users", delivered=table).ok
    newer = pa.table({"key": ["ada", "ada", "bob"], "offset": [0, 1, 0], "partition": [0, None, 1]})
    assert logs.audit("users", delivered=newer).ok


def test_one_partition_of_a_delivered_side_that_has_all(logs, users, tmp_path):  # noqa: F811
    """Rows of other partitions are not compared, and are no phantoms."""
    logs.restore("users", to=tmp_path / "users.arrow")
    for number in users.bounds():
        for delivered in (tmp_path / "users.arrow", logs, users):
            assert logs.audit("users", number, delivered=delivered).ok


def test_what_is_no_table_is_refused(logs, users, tmp_path):  # noqa: F811
    for given_, words in (
        (3, "delivered is a int"),
        (pa.table({"key": ["ada"]}), "no column 'offset'"),
        (pa.table({"key": ["ada", None], "offset": [0, 1]}), "a row without a key: row 2, offset 1"),
        ({"ada": "one"}, "has the offset"),
        (tmp_path / "none.parquet", "no file"),
        (tmp_path / "none.csv", "ends with"),
    ):
        with pytest.raises(errors.UsageError, match=words):
            logs.audit("users", delivered=given_)
    (tmp_path / "a.jsonl").write_text('{"key": "ada", "offset": 0}\n{"key": "ada"}\n')
    with pytest.raises(errors.UsageError, match="without 'offset': row 2"):
        logs.audit("users", delivered=tmp_path / "a.jsonl")


@pytest.mark.parametrize("number", ['"0"', "true", "0.5", "[0]"])
def test_a_partition_that_is_no_number_is_refused(logs, users, tmp_path, number):  # noqa: F811
    (tmp_path / "a.jsonl").write_text(f'{{"key": "ada", "offset": 1, "partition": {number}}}\n')
    with pytest.raises(errors.UsageError, match="has the partition"):
        logs.audit("users", 0, delivered=tmp_path / "a.jsonl")


def test_a_partition_column_of_floats_has_numbers_and_nulls(logs, users):  # noqa: F811
    table = pa.table({"key": ["ada", "bob"], "offset": [1, 0], "partition": [0.0, None]})
    assert logs.audit("users", delivered=table).ok
    with pytest.raises(errors.UsageError, match="has the partition '0'"):
        logs.audit("users", delivered=pa.table({"key": ["ada"], "offset": [1], "partition": ["0"]}))


def test_rows_are_bounded_and_counts_are_not(logs, users):  # noqa: F811
    audit = logs.audit("users", delivered={f"k{i}": 7 for i in range(10)}, most_rows=3)
    assert len(audit.rows) == 3 and audit.counts["phantom"] == 10 and audit.left_off == 9  # 2 are missing


def test_shares_of_the_keys_find_the_same(logs, tmp_path, clock):  # noqa: F811
    topic = logs.create_topic("many", key_serializer="str", cleanup_policy="compact")
    topic.extend([(f"k{i % 700}", b"x") for i in range(2000)])
    table = {f"k{i}": 1400 + i if i < 600 else i + 700 for i in range(690)}
    whole = logs.audit("many", delivered=table)
    with lastword.open(logs.paths[0], log_cleaner_dedupe_buffer_size=65536) as small:
        shared = small.audit("many", delivered=table)
    assert shared.counts == whole.counts and sorted(named(shared)) == sorted(named(whole))


@settings(max_examples=few(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    logged=st.lists(st.tuples(st.sampled_from("abcd"), st.booleans()), max_size=12),
    delivered=st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 14)),
)
def test_against_the_table_in_words(tmp_path_factory, logged, delivered):
    newest = {key: (offset, alive) for offset, (key, alive) in enumerate(logged)}
    expected = {}
    for key in newest.keys() | delivered.keys():
        offset, alive = newest.get(key, (None, False))
        other = delivered.get(key)
        if other == offset or (other is None and not alive):
            continue
        if offset is None or (other is not None and other > offset):
            expected[key.encode()] = "phantom"
        else:
            expected[key.encode()] = "missing" if other is None else "stale"
    with lastword.open(tmp_path_factory.mktemp("a") / "data", "a", log_cleaner_enable=False) as opened:
        topic = opened.create_topic("t", key_serializer="str", cleanup_policy="compact")
        topic.extend([(key, b"v" if alive else None) for key, alive in logged])
        audit = opened.audit("t", delivered=delivered)
    assert {row.key: row.kind for row in audit.rows} == expected
    assert audit.ok == (not expected)


def test_one_partition_of_a_table_that_does_not_say_partitions(tmp_path, clock):  # noqa: F811
    """A key of another partition is no phantom; a key that was never logged is one in its own partition."""
    with lastword.open(tmp_path / "data", "a", clock=clock) as logs:  # noqa: F811
        topic = logs.create_topic("users", 2, key_serializer="str", cleanup_policy="compact")
        placed = {f"user-{n}": topic.append(f"user-{n}", b"x") for n in range(20)}
        table = {key: done.offset for key, done in placed.items()}
        assert logs.audit("users", 0, delivered=table).ok and logs.audit("users", 1, delivered=table).ok
        unknown = [logs.audit("users", n, delivered={**table, "eve": 3}).counts["phantom"] for n in (0, 1)]
        assert sorted(unknown) == [0, 1]


def test_every_topic_against_another_directory(tmp_path, clock):  # noqa: F811
    with (
        lastword.open(tmp_path / "one", "a", clock=clock) as first,
        lastword.open(tmp_path / "two", "a", clock=clock) as second,
    ):
        for logs in (first, second):
            for name in ("users", "cities"):
                logs.create_topic(name, key_serializer="str", cleanup_policy="compact").append("a", b"1")
        assert first.audit(delivered=second).ok
        first.topic("users").append("b", b"2")
        audit = first.audit(delivered=second)
        assert audit.counts["right"] == 2 and [(row.topic, row.kind) for row in audit.rows] == [
            ("users", "missing")
        ]
        second.create_topic("more")
        with pytest.raises(errors.UnknownTopicError, match=r"no topic 'more' in .*one"):
            first.audit(delivered=second)
