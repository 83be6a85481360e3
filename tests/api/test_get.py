"""`Topic.get`, `get_record`, `get_many`, `get_records`, `in`: what they return, and their errors."""

import logging

import pytest

import lastword
from lastword.cli import main
from lastword.errors import KeyRequiredError, SerializerError, UsageError
from lastword.keys import bulk, index
from lastword.metrics import KEY_INDEX_DROPS
from lastword.partition import scan


@pytest.fixture
def users(logs):
    return logs.create_topic("users", key_serializer="str", value_serializer="json", cleanup_policy="compact")


def test_the_newest_value_and_record_and_a_default(users):
    """A deleted key has no value, and may come back."""
    users.append("ada", {"city": "London"})
    assert users.get("ada") == {"city": "London"}
    for delete in (users.delete, lambda key: users.append(key, None)):
        delete("ada")
        assert users.get("ada", "gone") == "gone" and "ada" not in users
    users.append("ada", [], headers={"by": b"me"}, timestamp=5)
    assert users.get("ada") == [] and "ada" in users
    record = users.get_record("ada")
    assert (record.offset, record.timestamp, record.key, record.value) == (3, 5, "ada", [])
    assert record.headers == (("by", b"me"),)
    assert users.get("bob") is users.get_record("bob") is None and users.get("bob", 7) == 7


def test_many_keys_without_the_missing_ones(users):
    users.extend([("a", 1), ("b", 2), ("c", 3), ("b", None)])
    assert users.get_many(["a", "b", "c", "d", "a"]) == {"a": 1, "c": 3}
    assert {key: record.offset for key, record in users.get_records(iter(["c", "a"])).items()} == {
        "a": 0,
        "c": 2,
    }
    assert users.get_many([]) == {}


def test_the_errors_of_a_key_are_those_of_append(users):
    for call in (users.get, users.get_record, users.__contains__, lambda key: users.get_many([key])):
        with pytest.raises(SerializerError) as refused:
            call(7)
        with pytest.raises(SerializerError) as append_refused:
            users.append(7, 1)
        assert str(refused.value) == str(append_refused.value)
        with pytest.raises(KeyRequiredError):
            call(None)


def test_a_topic_without_serializers_takes_bytes(logs):
    topic = logs.create_topic("raw", cleanup_policy="compact")
    topic.append(b"", b"empty")
    assert topic.get(b"") == b"empty"
    with pytest.raises(SerializerError):
        topic.get("text")


def test_a_topic_that_is_not_compacted_is_read(logs, tmp_path):
    topic = logs.create_topic("events", cleanup_policy="delete", key_serializer="str", value_serializer="str")
    topic.extend([("a", "1"), (None, "no key"), ("b", "2"), ("a", "3")])
    assert topic.get_many(["a", "b"]) == {"a": "3", "b": "2"}
    topic.trim(3)
    assert topic.get_many(["a", "b"]) == {"a": "3"}
    assert not (tmp_path / "data" / "events-0" / "lastword" / "keys").exists()


def test_the_setting_keeps_the_index_out(logs, tmp_path, monkeypatch):
    monkeypatch.setattr(index, "OVERLAY_ENTRIES", 1)
    topic = logs.create_topic("t", cleanup_policy="compact", lastword_key_index=False)
    topic.append(b"a", b"1")
    assert topic.get(b"a") == b"1"
    keys = tmp_path / "data" / "t-0" / "lastword" / "keys"
    assert not keys.exists()
    topic.set_config(lastword_key_index=True)
    assert topic.get(b"a") == b"1"
    assert keys.exists()


def test_a_key_of_another_partition_is_found(logs):
    topic = logs.create_topic("t", 3, cleanup_policy="compact")
    home = topic._partition_of(b"a")
    first, second = sorted(n for n in range(3) if n != home)
    topic.append(b"a", b"1", partition=first)
    assert topic.get(b"a") == b"1"
    topic.append(b"a", b"2", partition=second)
    assert topic.get_record(b"a").partition == second  # the highest number
    topic.append(b"a", b"3")
    assert topic.get(b"a") == b"3"  # that of the partitioner
    topic.delete(b"a")
    assert topic.get_many([b"a", b"x"]) == {b"a": b"2"}
    assert topic.get(b"a", partition=home) is None
    assert topic.get(b"a", partition=first) == b"1"
    assert {record.value for record in topic.newest([b"a"])} == {b"1", b"2"}


def test_in_a_bucket_an_index_stays_in_memory(monkeypatch):
    monkeypatch.setattr(index, "OVERLAY_ENTRIES", 1)
    monkeypatch.setattr(index, "WORTH_SAVING", 0)
    monkeypatch.setattr(index.KeyIndex, "_save", lambda *_: pytest.fail("saved"))
    with lastword.open("memory://get", "a") as logs:
        topic = logs.create_topic("t", 2, cleanup_policy="compact")
        topic.extend([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")])
        topic.delete(b"b")
        assert topic.get_many([b"a", b"b", b"c"]) == {b"a": b"3"}
        assert b"a" in topic
        assert b"b" not in topic


async def test_in_a_loop(tmp_path):
    async with lastword.aopen(tmp_path / "data", "a") as logs:
        topic = await logs.create_topic("t", cleanup_policy="compact")
        await topic.append(b"a", b"1")
        assert (await topic.get(b"a"), await topic.get(b"b", 0)) == (b"1", 0)
        assert (await topic.get_record(b"a")).offset == 0
        assert await topic.get_many([b"a", b"b"]) == {b"a": b"1"}
        assert (await topic.get_records([b"a"]))[b"a"].value == b"1"


# ---------------------------------------------------------------- what a lookup reads


@pytest.fixture
def reads(monkeypatch):
    """Count the records that lookups read to follow the log."""
    counted = []
    small, large = index._records, bulk.collected

    def read_small(log, range_):
        counted.append(range_.end - range_.start)
        return small(log, range_)

    def read_large(view, start, end, *rest):
        counted.append(end - start)
        return large(view, start, end, *rest)

    monkeypatch.setattr(index, "_records", read_small)
    monkeypatch.setattr(bulk, "collected", read_large)
    monkeypatch.setattr(scan, "PLAIN_BYTES_LOADED", 4096)
    monkeypatch.setattr(index, "MANY", 1000)
    return counted


def test_each_record_is_read_once_by_all_processes(tmp_path, clock, reads):
    with lastword.open(tmp_path, "a", clock=clock) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.extend((b"%d" % (n % 2000), b"v%d" % n) for n in range(5000))
        assert topic.get(b"7") == b"v4007"
        assert topic.get(b"8") == b"v4008"
        assert reads == [5000]
        topic.append(b"7", b"new")
        assert topic.get(b"7") == b"new"
        assert reads == [5000, 1]
        topic.extend((b"x%d" % n, b"") for n in range(1500))
        assert b"x3" in topic
        assert reads == [5000, 1, 1500]
    with lastword.open(tmp_path, "a", clock=clock) as logs:
        topic = logs.topic("t")
        assert topic.get(b"7") == b"new"
        logs.clean("t")
        assert topic.get(b"9") == b"v4009"
    with lastword.open(tmp_path, clock=clock) as logs:
        topic = logs.topic("t")
        assert topic.get_many([b"7", b"1999", b"x7", b"y"]) == {b"7": b"new", b"1999": b"v3999", b"x7": b""}
    assert reads == [5000, 1, 1500]


def test_a_reader_without_an_index_reads_once_and_writes_nothing(tmp_path, clock, reads):
    with lastword.open(tmp_path, "a", clock=clock) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.extend((b"%d" % (n % 2000), b"v%d" % n) for n in range(5000))
        with lastword.open(tmp_path, clock=clock) as reader:
            seen = reader.topic("t")
            assert seen.get(b"7") == b"v4007"
            assert seen.get(b"8") == b"v4008"
            topic.append(b"7", b"new")
            assert seen.get(b"7") == b"new"
            topic.delete(b"7")
            assert b"7" not in seen
            assert reads == [5000, 1, 1]
            logs.clean(
                "t"
            )  # replaces the segment with the reader's last batch: nothing shows that it was no cut
            assert seen.get(b"8") == b"v4008"
        assert reads == [5000, 1, 1, 5002]
        assert not list((tmp_path / "t-0").glob("lastword/keys*"))


def test_a_reader_takes_up_what_a_writer_saves(tmp_path, clock, reads):
    with lastword.open(tmp_path, "a", clock=clock) as logs, lastword.open(tmp_path, clock=clock) as reader:
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.extend((b"%d" % n, b"") for n in range(1500))
        assert b"7" in reader.topic("t")
        assert b"7" in topic  # saves
        del reads[:]
        topic.append(b"new", b"")
        assert b"new" in reader.topic("t")
        assert reads == [1]
        (held,) = [each for _, each in reader.dirs.key_indexes._indexes.values()]
        assert held.memory_bytes <= index.ENTRY_MEMORY


def test_too_many_keys_for_the_memory(tmp_path, clock, reads, caplog):
    with lastword.open(tmp_path, "a", clock=clock) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.extend((b"%d" % n, b"v%d" % n) for n in range(5000))
    limit = {"log_cleaner_dedupe_buffer_size": 1 << 16, "log_cleaner_threads": 1}
    with (
        lastword.open(tmp_path, clock=clock, **limit) as reader,
        caplog.at_level(logging.WARNING, "lastword.keys"),
    ):
        seen = reader.topic("t")
        assert seen.get(b"7") == b"v7"
        assert seen.get(b"8") == b"v8"
        assert seen.get(b"no") is None
        assert reads == [5000]
        (record,) = caplog.records
        assert "t-0: the keys do not fit" in record.getMessage()
        with lastword.open(tmp_path, "a", clock=clock, **limit) as logs:
            assert logs.topic("t").get(b"7") == b"v7"  # saves
        assert seen.get(b"9") == b"v9"
        (held,) = [each for _, each in reader.dirs.key_indexes._indexes.values()]
        assert held.memory_bytes == 0
    assert len(caplog.records) == 1


# ---------------------------------------------------------------- an index that is wrong


@pytest.fixture
def one(logs, monkeypatch):
    """A topic of which every key is in a run, and a function that returns its index."""
    monkeypatch.setattr(index, "OVERLAY_ENTRIES", 1)
    topic = logs.create_topic("one", cleanup_policy="compact")
    for name, value in [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]:
        topic.append(name, value)
    assert topic.get(b"a") == b"3"
    (held,) = [each for _, each in logs.dirs.key_indexes._indexes.values()]
    assert not held._overlay
    return topic, held


def planted(held, key, word):
    held._overlay[held._digest(key)] = word


@pytest.mark.parametrize(
    "word",
    [
        pytest.param(1 << 1, id="the record of another key"),
        pytest.param(9 << 1, id="an offset that is not there"),
        pytest.param(3 << 1, id="a tombstone without its bit"),
    ],
)
def test_a_wrong_entry_is_noticed_and_the_answer_right(one, word, tmp_path):
    topic, held = one
    topic.delete(b"b")
    assert b"b" not in topic
    planted(held, b"a", word)
    dropped = KEY_INDEX_DROPS.value("one")
    assert topic.get_many([b"a", b"b"]) == {b"a": b"3"}
    assert KEY_INDEX_DROPS.value("one") == dropped + 1
    assert topic.get(b"a") == b"3"
    assert KEY_INDEX_DROPS.value("one") == dropped + 1


def test_two_keys_with_one_record_are_noticed(one):
    topic, held = one
    planted(held, b"b", 2 << 1)
    assert topic.get_many([b"a", b"b"]) == {b"a": b"3", b"b": b"2"}
    assert KEY_INDEX_DROPS.value("one") >= 1


def test_a_full_drive_leaves_the_index_in_memory(logs, monkeypatch, tmp_path):
    from lastword.errors import DiskFullError

    def full(*_):
        raise DiskFullError("no room", remedy="")

    monkeypatch.setattr(index, "OVERLAY_ENTRIES", 1)
    monkeypatch.setattr(index.saved, "save", full)
    topic = logs.create_topic("t", cleanup_policy="compact")
    topic.append(b"a", b"1")
    assert topic.get(b"a") == b"1"
    topic.append(b"a", b"2")
    assert topic.get(b"a") == b"2"
    assert not (tmp_path / "data" / "t-0" / "lastword" / "keys").exists()


def test_describe_and_ls_say_up_to_where_the_index_is(tmp_path, capsys, monkeypatch):
    path = tmp_path / "data"
    with lastword.open(path, "a") as logs:
        users = logs.create_topic("users", key_serializer="str", cleanup_policy="compact")
        users.extend((f"user-{n}", b"1") for n in range(1500))
        assert users.describe()[0].indexed_to is None
        assert "user-3" in users
    with lastword.open(path, "a") as logs:
        logs["users"].append("user-3", b"2")
        assert logs["users"].describe()[0].indexed_to == 1500
    monkeypatch.setenv("COLUMNS", "200")
    assert main.run(["ls", str(path), "users"]) == 0
    title, row = capsys.readouterr().out.splitlines()[:2]
    assert dict(zip(title.split(), row.split(), strict=False))["PARTITION"] == "users-0"
    assert "INDEXED" in title and " 1500 " in row
    with lastword.open(path, "a") as logs:
        logs.dirs.directories[0].truncate("users", 0, 1000)
        assert logs["users"].describe()[0].indexed_to is None
    assert main.run(["ls", str(path), "users", "--json"]) == 0
    assert '"indexed_to":null' in capsys.readouterr().out


def test_keys_that_a_dict_cannot_tell_apart(logs):
    topic = logs.create_topic("t", key_serializer="json", cleanup_policy="compact")
    topic.extend([(1, b"one"), (True, b"true"), (["a"], b"list")])
    assert (topic.get(1), topic.get(True), topic.get(["a"])) == (b"one", b"true", b"list")
    with pytest.raises(UsageError, match="equal in Python"):
        topic.get_many([1, True])
    with pytest.raises(UsageError, match="cannot be a key"):
        topic.get_records([["a"]])
