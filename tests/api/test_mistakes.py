"""Mistakes of new users: each is a UsageError that says what to do, and nothing is changed."""

import math
import os
import re
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

import lastword
from lastword.errors import RecordTooLargeError, UsageError


@pytest.fixture
def logs(tmp_path):
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as opened:
        yield opened


@pytest.fixture
def users(logs):
    return logs.create_topic("users", cleanup_policy="compact")


APPENDS = {
    "a str key of a bytes topic": ("ada", b"x", {}, "expected bytes, got str"),
    "no key": (None, b"x", {}, "refuses a record without a key"),
    "a naive time": (b"ada", b"x", {"timestamp": datetime(2026, 1, 1)}, "no time zone"),
    "headers that are a number": (b"ada", b"x", {"headers": 5}, "pairs of str and bytes"),
    "headers of str": (b"ada", b"x", {"headers": {"a": "b"}}, "pairs of str and bytes"),
    "headers without values": (b"ada", b"x", {"headers": [("a",)]}, "pairs of str and bytes"),
    "an ack of Kafka's": (b"ada", b"x", {"ack": "all"}, "unknown ack"),
    "a time as text": (b"ada", b"x", {"timestamp": "now"}, "'now' is not a"),
    "a time before 1970": (b"ada", b"x", {"timestamp": -2}, "is before 1970"),
    "a partition too many": (b"ada", b"x", {"partition": 3}, "no partition 3"),
    "a negative partition": (b"ada", b"x", {"partition": -1}, "no partition -1"),
    "a bool for a partition": (b"ada", b"x", {"partition": True}, "no partition True"),
}


@pytest.mark.parametrize(("key", "value", "more", "message"), APPENDS.values(), ids=list(APPENDS))
def test_append(users, key, value, more, message):
    with pytest.raises(UsageError, match=message) as caught:
        users.append(key, value, **more)
    assert caught.value.remedy
    assert users.bounds() == {0: (0, 0)}


READS = {
    "a negative offset": (lambda users: users.read(-1), "offset -1 is below log start 0"),
    "an offset as text": (lambda users: users.read("5"), "is not a position in a log"),
    "a naive time to read from": (lambda users: users.read(datetime(2026, 1, 1)), "no time zone"),
    "a fraction for an end": (lambda users: users.read(end=1.5), "end=1.5 is not a position in a log"),
    "no end": (lambda users: users.read(end=None), "end=None is not a position in a log"),
    "a time as text": (
        lambda users: users.read(end="2026-01-01T00:00:00"),
        r"a text of one with a zone \(2026-11-20T10:02:11Z\)",
    ),
    "a position as JSON gives it back": (lambda users: users.read({"0": 1}), "names partition '0'"),
    "a sequence of nobody": (lambda users: users.append(b"a", b"", sequence=1), "without a producer"),
    "a time above 64 bits": (
        lambda users: users.append(b"a", b"", timestamp=2**63),
        f"{2**63} is not a timestamp",
    ),
    "an age that is no time": (
        lambda users: users.lease("reader", max_age=math.nan),
        "nan is not a duration",
    ),
    "one key, not a list": (lambda users: users.read(keys=b"ada"), "keys= is a bytes"),
    "a mapping of keys": (lambda users: users.read(keys={b"ada": 1}), "keys= is a dict"),
    "a start of no partition": (lambda users: users.read({7: 0}), "names partition 7"),
    "a view that is none": (lambda users: users.read(view="newst"), "unknown view 'newst'; nearest: newest"),
    "trim before a negative offset": (lambda users: users.trim(-3), "before=-3 is not a position in a log"),
    "trim before a bool": (lambda users: users.trim(True), "before=True is not a position in a log"),
    "trim before a naive time": (lambda users: users.trim(datetime(2026, 1, 1)), "no time zone"),
    "no list of keys": (lambda users: users.read(keys=5), "keys= is a int"),
    "a text of keys to get": (lambda users: users.get_many("ada"), "keys= is a str"),
    "a mapping of keys to get": (lambda users: users.get_records({b"ada": 1}), "keys= is a dict"),
    "a get from no partition": (lambda users: users.get(b"ada", partition=3), "has no partition 3"),
    "a text of keys to erase": (lambda users: users.erase("ada"), "give a list of keys"),
    "a mapping of keys to erase": (lambda users: users.erase({b"ada": 1}), "give a list of keys"),
    "a prefix as text": (lambda users: users.erase(prefix="a"), "prefix= is a str"),
    "less than no record": (lambda users: users.read().take(-1), "most=-1 is not a number of records"),
    "records as text": (lambda users: users.read().take("5"), "most='5' is not a number of records"),
    "a list of partitions": (lambda users: users.read(partition=[0]), r"no partition \[0\]"),
    "a bool for a start": (lambda users: users.read(False), "start=False is not a position"),
    "a bool that names a partition": (
        lambda users: users.read({False: 0}),
        "start names partition False",
    ),
    "a lease of a bool": (lambda users: users.lease("reader", position={False: 0}), "no partition False"),
    "a batch that is no size": (lambda users: users.read().arrow("many"), "'many' is not a size"),
    "a file that is no path": (lambda users: lastword.dump(5), "file=5 is not a path"),
    "settings that are no path": (lambda users: lastword.open("d", config=5), "config=5 is not a path"),
    "a directory twice": (lambda users: lastword.open(["d", "./d"]), "a directory is given twice"),
    "records that are none": (lambda users: users.extend(None), "extend takes records, not NoneType"),
}


@pytest.mark.parametrize(("call", "message"), READS.values(), ids=list(READS))
def test_calls(users, call, message):
    with pytest.raises(UsageError, match=message) as caught:
        call(users)
    assert caught.value.remedy


CALLS = {
    "a key as partition": (lambda logs: logs.explain("users", "ada"), r"explain\(key='ada'\)"),
    "rows as text": (
        lambda logs: logs.audit("users", delivered={}, most_rows="5"),
        "most_rows='5' is not a number of rows",
    ),
    "less than no row": (
        lambda logs: logs.audit("users", delivered={}, most_rows=-1),
        "most_rows=-1 is not a number of rows",
    ),
    "a bool for a partition to clean": (
        lambda logs: logs.clean("users", partition=False),
        "no partition False",
    ),
    "a number of NumPy that is a bool": (
        lambda logs: logs.verify("users", partition=np.bool_(False)),
        r"no partition (np\.)?False",
    ),
    "a fraction for a partition": (lambda logs: logs.plan("users", partition=0.0), r"no partition 0\.0"),
    "a progress that is no function": (
        lambda logs: logs.plan("users", progress=5),
        "progress=5 is not a function",
    ),
    "the old name of a state's memory": (
        lambda logs: logs.state("users", max_bytes="1GiB"),
        "nearest: memory\n.*give the value as memory=",
    ),
    "a key of another type": (lambda logs: logs.explain("users", key="ada"), "expected bytes, got str"),
    "a port alone": (lambda logs: lastword.serve(logs, 9092), "9092 is not an address"),
    "no partitions": (lambda logs: lastword.serve(logs, ":0", partitions=0), "partitions=0 is not a number"),
    "a list as the number of partitions": (
        lambda logs: logs.create_topic("t", [0, 1]),
        r"partitions=\[0, 1\] is not a number of partitions",
    ),
    "a state without partitions": (
        lambda logs: logs.state("t", partitions=0),
        "partitions=0 is not a number",
    ),
    "no log": (lambda logs: lastword.serve(None, ":0"), "directory=None is not a path"),
    "users that are no file": (lambda logs: lastword.serve(logs, ":0", users=5), "users=5 is not a path"),
    "a certificate that is not there": (
        lambda logs: lastword.serve(logs, ":0", tls="cert.pem"),
        "cert.pem: No such file",
    ),
    "topics that are none": (lambda logs: lastword.copy(logs.paths[0], "copy", 5), "topics=5 are no topics"),
    "a target that is none": (lambda logs: lastword.copy(logs.paths[0], None), "target=None is not a path"),
    "no path to open": (lambda logs: lastword.open(None), "None is not a path"),
    "a number to open": (lambda logs: lastword.open(5), "5 is not a path"),
    "no path in a list": (lambda logs: lastword.open([None]), r"\[None\] is not a path"),
    "a path of bytes in a list": (lambda logs: lastword.open([b"data"]), r"\[b'data'\] is not a path"),
    "a settings file that is not there": (
        lambda logs: lastword.open("data", config="other.toml"),
        "there is no settings file",
    ),
    "a setting of the directory for a topic": (
        lambda logs: logs["users"].set_config(log_cleaner_threads=2),
        "applies to the whole directory",
    ),
    "a default that is no function": (lambda logs: logs.state("t", default=0), "is not a function"),
}


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=list(CALLS))
def test_other_calls(tmp_path, monkeypatch, call, message):
    monkeypatch.chdir(tmp_path)
    with lastword.open("data", "a", log_cleaner_enable=False) as logs:
        logs.create_topic("users", cleanup_policy="compact")
        with pytest.raises(UsageError, match=message) as caught:
            call(logs)
        assert caught.value.remedy
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


CLEANER = {
    "no partition": (lambda cleaner: cleaner.pause("users", None), "is not one partition"),
    "no topic": (lambda cleaner: cleaner.resume(None, None), "is not one partition"),
    "an unknown topic": (lambda cleaner: cleaner.retry("user", 0), "no topic 'user'"),
    "a topic that is a number": (lambda cleaner: cleaner.pause(5, 0), "5 is no topic name"),
    "an unknown partition": (lambda cleaner: cleaner.pause("users", "0"), "no partition '0'"),
    "a list of partitions": (lambda cleaner: cleaner.pause("users", [0]), r"no partition \[0\]"),
    "a time of words": (
        lambda cleaner: cleaner.pause("users", 0, timeout="five"),
        "timeout='five' is not a time",
    ),
    "no time": (lambda cleaner: cleaner.stop(timeout=None), "timeout=None is not a time"),
    "a resume without a pause": (lambda cleaner: cleaner.resume("users", 0), "idle cannot resume"),
    "a budget that is no size": (lambda cleaner: cleaner.set_budget("fast"), "'fast' is not a size"),
    "a budget of nothing": (lambda cleaner: cleaner.set_budget(0), "would never end"),
    "a drive that is no path": (lambda cleaner: cleaner.set_budget("1MiB", 5), "drive=5 is not a path"),
    "a drive that is none": (lambda cleaner: cleaner.set_budget("1MiB", "/none"), "no log directory is on"),
}


@pytest.mark.parametrize(("call", "message"), CLEANER.values(), ids=list(CLEANER))
def test_cleaner(tmp_path, call, message):
    with lastword.open(tmp_path / "data", "a") as logs:
        logs.create_topic("users", cleanup_policy="compact")
        before = logs.cleaner.status()
        with pytest.raises(UsageError, match=message) as caught:
            call(logs.cleaner)
        assert caught.value.remedy
        assert logs.cleaner.status() == before


@pytest.mark.parametrize("path", [None, 5, b"data", ""])
def test_an_argument_that_is_no_path(logs, users, path):
    for call in (
        lambda: logs.move("users", 0, path),
        lambda: logs.restore("users", to=path),
        lambda: logs.state("users", snapshot=5 if path is None else path),
    ):
        with pytest.raises(UsageError, match=r" is not a path"):
            call()


@pytest.mark.parametrize("path", ["hdfs://bucket/log", "file:///srv/log"])
def test_a_url_is_no_directory_to_make(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    for mode in ("r", "a"):
        with pytest.raises(UsageError, match=r"is no object storage|unknown scheme"):
            lastword.open(path, mode)
    assert not list(tmp_path.iterdir())


def test_a_forked_child_appends_nothing(users):
    """The child does not hold the lock, and its parent would overwrite the child's records."""
    users.append(b"ada", b"1")
    child = os.fork()
    if child == 0:
        try:
            users.append(b"ada", b"2")
        except UsageError as error:
            users.dirs.close()  # as at the end of a `with`: the parent's files are not touched
            os._exit(0 if "parent of this forked process" in error.message else 2)
        except BaseException:
            os._exit(3)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert users.append(b"ada", b"3").offset == 1
    assert [record.value for record in users.read()] == [b"1", b"3"]


def test_a_file_is_no_directory_and_open_does_not_say_that_it_would_make_one(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(UsageError, match="is no directory") as caught:
        lastword.open(tmp_path / "data", "a")
    assert "open(" not in caught.value.remedy


def test_a_record_that_is_too_large_says_by_how_much_and_what_helps(tmp_path):
    with lastword.open(tmp_path / "data", "a") as logs:
        big = logs.state("big")
        with pytest.raises(RecordTooLargeError) as caught:
            big["page"] = "x" * 3_000_000
        message, remedy = str(caught.value).split("\n  fix: ")
        assert message.endswith("max.message.bytes is 1048588 bytes (1.0 MiB)")
        assert re.search(r"takes 30000\d\d bytes \(2\.9 MiB\)", message)
        assert "`lastword config DIR big --set max.message.bytes=4MiB`, in Python" in remedy
        exec(remedy.partition(", in Python ")[2], {"logs": logs})
        logs.state("big")["page"] = "x" * 3_000_000


@pytest.mark.parametrize("setting", ["segment_bytes", "max_message_bytes", "retention_bytes"])
def test_a_size_out_of_range_names_its_unit(tmp_path, setting):
    with pytest.raises(UsageError, match=r"-7 is not a size from (14 B|0|-1)\n") as caught:
        lastword.open(tmp_path / "data", "a", **{setting: -7})
    assert caught.value.remedy


def test_numbers_of_numpy_are_numbers(users):
    """Offsets and partitions of a table are such numbers."""
    assert users.append(b"ada", b"1", partition=np.int64(0), timestamp=np.int64(7)).timestamp == 7
    assert [record.partition for record in users.read(np.int64(0), np.int32(1), partition=np.int64(0))] == [0]
    assert len(users.read().take(np.int64(1))) == 1
    for given in (np.bool_(True), np.array([0]), np.float64(0)):
        with pytest.raises(UsageError):
            users.append(b"ada", b"1", partition=given)
        with pytest.raises(UsageError):
            users.read(given)


def test_a_home_directory_is_a_path(logs, users, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    logs.restore("users", to="~/users.jsonl")
    assert (tmp_path / "users.jsonl").exists()


@pytest.mark.parametrize("given", [Path("s3://bucket/log"), "gs:/bucket", ["az:/container/log"]])
@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_url_with_one_slash_is_named(given: object, mode: str) -> None:
    """`pathlib` removes a slash. A directory `s3:` must not be created."""
    with pytest.raises(UsageError, match="has one slash") as caught:
        lastword.open(given, mode)  # type: ignore[arg-type]
    assert "://" in (caught.value.remedy or "")
