"""MessagePack compared with the examples of its specification, and with itself."""

from __future__ import annotations

import contextlib
import math
import sys

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lastword
from lastword.api.serializers import msgpack_dumps as dumps
from lastword.api.serializers import msgpack_loads as loads
from lastword.errors import MissingError, SerializerError

#: Each type byte of the specification, with the limits of its range.
FORMS = [
    (None, "c0"),
    (False, "c2"),
    (True, "c3"),
    (0, "00"),
    (127, "7f"),
    (128, "cc80"),
    (255, "ccff"),
    (256, "cd0100"),
    (65535, "cdffff"),
    (65536, "ce00010000"),
    (2**32 - 1, "ceffffffff"),
    (2**32, "cf0000000100000000"),
    (2**64 - 1, "cfffffffffffffffff"),
    (-1, "ff"),
    (-32, "e0"),
    (-33, "d0df"),
    (-128, "d080"),
    (-129, "d1ff7f"),
    (-32769, "d2ffff7fff"),
    (-(2**31) - 1, "d3ffffffff7fffffff"),
    (-(2**63), "d38000000000000000"),
    (1.5, "cb3ff8000000000000"),
    ("", "a0"),
    ("a" * 31, "bf" + "61" * 31),
    ("a" * 32, "d920" + "61" * 32),
    ("a" * 256, "da0100" + "61" * 256),
    ("é", "a2c3a9"),
    (b"", "c400"),
    (b"\x01" * 256, "c50100" + "01" * 256),
    ([], "90"),
    ([1, [2]], "92019102"),
    ([0] * 16, "dc0010" + "00" * 16),
    ({}, "80"),
    ({"compact": True, "schema": 0}, "82a6736368656d6100a7636f6d70616374c3"),
    ({n: n for n in range(16)}, "de0010" + "".join(f"{n:02x}{n:02x}" for n in range(16))),
]


@pytest.mark.parametrize(("value", "form"), FORMS)
def test_the_forms_of_the_specification(value, form):
    assert dumps(value).hex() == form
    assert loads(bytes.fromhex(form)) == value


@pytest.mark.parametrize(
    ("form", "value"),
    [("ca3fc00000", 1.5), ("cd0001", 1), ("d0ff", -1), ("d90161", "a"), ("db0000000161", "a"),
     ("c60000000161", b"a"), ("dd0000000101", [1]), ("df00000001a16101", {"a": 1})],
)  # fmt: skip
def test_longer_forms_are_read(form, value):
    assert loads(bytes.fromhex(form)) == value


@pytest.mark.parametrize(
    "form",
    ["", "c1", "a2c3", "cc", "9201", "0000", "d401ff", "c70101ff", "8190c0", "91" * 600 + "00"],
)
def test_what_is_no_value_is_refused(form):
    with pytest.raises(ValueError):
        loads(bytes.fromhex(form))


@pytest.mark.parametrize(
    "form", ["d6ff00000000", "8101d7ff0000000000000000", "91c70cff" + "00" * 12], ids=[4, 8, 12]
)
def test_a_timestamp_is_refused_though_it_takes_no_hook(form):
    with pytest.raises(ValueError):
        loads(bytes.fromhex(form))


def test_what_has_no_form_is_refused():
    for value in ({1, 2}, object(), {(1, 2): 3}, 2**64, -(2**63) - 1, [msgpack.Timestamp(1)]):
        with pytest.raises((TypeError, ValueError)):
            dumps(value)


PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()
VALUES = st.recursive(
    PLAIN | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_there_and_back(value):
    assert loads(dumps(value)) == value


@given(st.dictionaries(st.text(), st.integers(0, 9)))
def test_one_spelling_for_one_map(value):
    assert dumps(dict(reversed(value.items()))) == dumps(value)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_value_or_a_valueerror(data):
    with contextlib.suppress(ValueError):
        loads(data)


def test_not_a_number_stays():
    assert math.isnan(loads(dumps(float("nan"))))


def test_without_the_package_the_error_names_it(tmp_path, monkeypatch):
    with lastword.open(tmp_path, "a") as logs:
        logs.create_topic("m", value_serializer="msgpack").append(b"k", 1)
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with lastword.open(tmp_path, "a") as logs:
        for call in (
            lambda: logs.topic("m").append(b"k", 1),
            lambda: next(iter(logs.topic("m").read())).value,
        ):
            with pytest.raises(MissingError, match="msgpack needs msgpack") as caught:
                call()
            assert caught.value.remedy == 'pip install "msgpack>=1.0.5"'


def test_as_a_serializer(tmp_path):
    with lastword.open(tmp_path, "a") as logs:
        topic = logs.create_topic("m", key_serializer="msgpack", value_serializer="msgpack")
        topic.append({"b": 1, "a": (2, b"x")}, [None, 1.5])
        topic.append({"a": [2, b"x"], "b": 1}, None)
        with pytest.raises(SerializerError):
            topic.append(b"k", {1})
    with lastword.open(tmp_path) as logs:
        record, tombstone = logs.topic("m").read()
        assert record.key == tombstone.key == {"a": [2, b"x"], "b": 1}
        assert (record.value, tombstone.value) == ([None, 1.5], None)
        assert [r.offset for r in logs.topic("m").read(keys=[{"b": 1, "a": [2, b"x"]}])] == [0, 1]


def test_as_json_if_nothing_is_lost():
    from lastword.api.serializers import field_bytes, field_json

    for value in ({"a": [1, None, 1.5]}, "text", 7, True):
        shown = field_json(dumps(value), "msgpack")
        assert shown == value and field_bytes(shown, "msgpack", "key") == dumps(value)
    for value in (b"x", {1: 2}, [b"x"], float("nan"), None):
        shown = field_json(dumps(value), "msgpack")
        assert set(shown) == {"base64"} and field_bytes(shown, "msgpack", "key") == dumps(value)
