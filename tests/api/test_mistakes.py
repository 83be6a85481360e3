"""What somebody new gets wrong: each is a UsageError that says what to do, and nothing is changed."""

from datetime import datetime

import pytest

import lastword
from lastword.errors import UsageError


@pytest.fixture
def users(tmp_path):
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        yield logs.create_topic("users", cleanup_policy="compact")


APPENDS = {
    "a str key of a bytes topic": ("ada", b"x", {}, "expected bytes, got str"),
    "no key": (None, b"x", {}, "no record without a key"),
    "a naive time": (b"ada", b"x", {"timestamp": datetime(2026, 1, 1)}, "no time zone"),
    "headers that are a number": (b"ada", b"x", {"headers": 5}, "pairs of str and bytes"),
    "headers of str": (b"ada", b"x", {"headers": {"a": "b"}}, "pairs of str and bytes"),
    "an ack of Kafka's": (b"ada", b"x", {"ack": "all"}, "unknown ack"),
    "a partition too many": (b"ada", b"x", {"partition": 3}, "no partition 3"),
}


@pytest.mark.parametrize(("key", "value", "more", "told"), APPENDS.values(), ids=list(APPENDS))
def test_append(users, key, value, more, told):
    with pytest.raises(UsageError, match=told) as caught:
        users.append(key, value, **more)
    assert caught.value.remedy
    assert users.bounds() == {0: (0, 0)}


READS = {
    "a negative offset": (lambda users: users.read(-1), "offset -1 is below log start 0"),
    "an offset as text": (lambda users: users.read("5"), "no place in a log"),
    "one key, not a list": (lambda users: users.read(keys=b"ada"), "keys= is a bytes"),
    "a view that is none": (lambda users: users.read(view="newest"), "unknown view"),
    "trim before a negative offset": (lambda users: users.trim(-3), "before=-3 is no place"),
    "records that are none": (lambda users: users.extend(None), "extend takes records, not NoneType"),
}


@pytest.mark.parametrize(("call", "told"), READS.values(), ids=list(READS))
def test_calls(users, call, told):
    with pytest.raises(UsageError, match=told) as caught:
        call(users)
    assert caught.value.remedy


@pytest.mark.parametrize("path", [None, 5, [None]])
def test_a_path_that_is_none(path):
    with pytest.raises(UsageError, match="is no path"):
        lastword.open(path)


def test_a_file_is_no_directory_and_open_does_not_say_that_it_would_make_one(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(UsageError, match="is no directory") as caught:
        lastword.open(tmp_path / "data", "a")
    assert "open(" not in caught.value.remedy


def test_a_settings_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="there is no settings file"):
        lastword.open(tmp_path, config=tmp_path / "other.toml")


def test_a_setting_of_the_directory_is_not_one_of_a_topic(users):
    with pytest.raises(UsageError, match="holds for the whole directory"):
        users.set_config(log_cleaner_threads=2)


def test_a_default_that_is_no_function(tmp_path):
    with lastword.open(tmp_path / "data", "a") as logs, pytest.raises(UsageError, match="is no function"):
        logs.state("totals", default=0)
