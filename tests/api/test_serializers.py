"""Serializers: Kafka's byte forms in both directions, and the values that each refuses."""

import json
import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lastword
from lastword.api.serializers import SERIALIZERS, field_json, field_writer, json_text, serializer_of
from lastword.errors import InvalidSettingError, SerializerError, UsageError


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [
        ("bytes", b"\x00\xff", b"\x00\xff"),
        ("str", "Zürich", b"Z\xc3\xbcrich"),
        ("json", {"b": 1, "a": [None, True, "é"]}, '{"a":[null,true,"é"],"b":1}'.encode()),
        ("json", None, b"null"),
        ("int32", -2, b"\xff\xff\xff\xfe"),
        ("int64", 258, b"\0\0\0\0\0\0\x01\x02"),
        ("float64", 1.5, b"\x3f\xf8\0\0\0\0\0\0"),
        ("float64", 3, b"\x40\x08\0\0\0\0\0\0"),
        ("float64", Decimal("1.5"), b"\x3f\xf8\0\0\0\0\0\0"),
    ],
)
def test_byte_forms(name, value, data):
    serializer = serializer_of(name)
    assert serializer.encode(value, "value") == data
    assert serializer.decode(data, "value") == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bytes", "text"),
        ("str", b"bytes"),
        ("str", "\ud800"),
        ("json", {1, 2}),
        ("json", math.nan),
        ("int32", 1 << 31),
        ("int32", True),
        ("int64", 1.0),
        ("int64", "258"),
        ("float64", "1.5"),
        ("float64", b"1.5"),
        ("float64", True),
        ("float64", 10**400),
    ],
)
def test_encode_refuses_without_showing_the_data(name, value):
    with pytest.raises(SerializerError) as caught:
        serializer_of(name).encode(value, "key")
    assert name in caught.value.message and "key" in caught.value.message
    assert repr(value) not in str(caught.value)


def test_a_refusal_of_json_names_its_reason_but_no_data():
    circle = ["secret"]
    circle.append(circle)
    reasons = {
        "keys must be str, int, float, bool or None, not tuple": {("secret", 1): 2},
        "Circular reference detected": circle,
        "Object of type bytes is not JSON serializable": [b"secret"],
        "JSON has finite numbers only": ["secret", math.inf],
    }
    for reason, value in reasons.items():
        with pytest.raises(SerializerError, match=reason) as caught:
            serializer_of("json").encode(value, "value")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data"),
    [("str", b"secret\xff"), ("json", b"{secret"), ("int32", b"12345"), ("int64", b""), ("float64", b"1")],
)
def test_decode_refuses_without_showing_the_data(name, data):
    with pytest.raises(SerializerError) as caught:
        serializer_of(name).decode(data, "value")
    assert "secret" not in str(caught.value)


def test_pairs_and_objects():
    pair = serializer_of((lambda value: value.encode("utf-16"), lambda data: data.decode("utf-16")))
    assert pair.name is None
    assert pair.decode(pair.encode("x", "key"), "key") == "x"

    class Loud:
        def dumps(self, value):
            return json.dumps(value).upper().encode()

        def loads(self, data):
            return json.loads(data.lower())

    assert serializer_of(Loud()).encode("a", "key") == b'"A"'
    with pytest.raises(SerializerError, match="not bytes"):
        serializer_of((str, str)).encode(1, "key")


@pytest.mark.parametrize("given_", ["jsn", "pickle", 3, (1, 2), object()])
def test_unknown_serializers_are_refused(given_):
    with pytest.raises(UsageError) as caught:
        serializer_of(given_)
    assert "json" in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: "\\ud" not in json.dumps(value))


@given(JSON)
def test_json_is_canonical(value):
    json_ = SERIALIZERS["json"]
    data = json_.encode(value, "key")
    assert json_.encode(json_.decode(data, "key"), "key") == data
    if isinstance(value, dict):
        assert json_.encode(dict(reversed(value.items())), "key") == data


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"null",
        b"NaN",
        b"-Infinity",
        b"1e400",
        b"1.0",
        b"1.50",
        b" 1",
        b"\xff",
        b"\xef\xbb\xbf1",
        b'"\\ud800"',
        '"\u00e9\U0001f600"'.encode(),
        b'"\\u00e9"',
        b'{"a":1,"a":2}',
        b'{"b":1,"a":2}',
        b'{"a":[true,null],"b":{"base64":"YQ=="}}',
        b'{"base64":"YQ=="}',
        b"9" * 5000,
        b"[" * 100_000,
    ],
)
def test_a_line_has_the_text_of_json_that_is_canonical_and_else_base64(data):
    text = field_writer("json")(data)
    assert text == json_text(field_json(data, "json"))
    assert "base64" in text or text.encode() == (b"null" if data is None else data)


def test_both_serializers_are_one_argument_or_two(tmp_path):
    users = lastword.serializers("str", (str.encode, bytes.decode))
    with lastword.open(tmp_path / "data", "a") as logs:
        logs.create_topic("users", serializers=users).append("ada", "Turin")
        assert [record.value for record in logs.topic("users", serializers=users).read()] == ["Turin"]
        assert logs.topic("users").schema.saved == ("str", None)
        assert logs.state("totals", serializers=lastword.serializers("int64", "str")).topic.schema.saved == (
            "int64",
            "str",
        )
        with pytest.raises(InvalidSettingError, match="its keys are str"):
            logs.topic("users", serializers=lastword.serializers("int64", "str"))
        for call in (logs.topic, logs.create_topic, logs.state):
            with pytest.raises(UsageError, match="serializers= and key_serializer="):
                call("users", serializers=users, value_serializer="str")
            with pytest.raises(UsageError, match=r"serializers is a tuple.*\n.*lastword\.serializers"):
                call("users", serializers=("str", "json"))
    with pytest.raises(UsageError, match="unknown serializer 'jsn'; nearest: json"):
        lastword.serializers("str", "jsn")
