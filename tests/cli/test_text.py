"""Check the text of a record: only null looks like null, and no raw control character is printed."""

import json

from hypothesis import given
from hypothesis import strategies as st

from lastword.api.serializers import field_bytes, field_json
from lastword.api.text import escape, field_text, json_escaped, key_candidates, key_text, unescape, value_text
from lastword.values import cut, table


def test_nulls_and_their_spelling():
    assert value_text(None) == "<tombstone>"
    assert value_text(b"") == ""
    assert value_text(b"null") == "null"
    assert value_text(b"<tombstone>") == "\\<tombstone>"
    assert value_text(b"\\<tombstone>") == "\\\\<tombstone>"
    assert key_text(None) == "<no key>"
    assert key_text(b"<no key>") == "\\<no key>"


def test_control_characters_and_bad_bytes():
    assert escape("a\x1b[31m\n\x7f") == "a\\x1b[31m\\x0a\\x7f"
    assert escape(b"\xff\xc3\xbc") == "\\xff\u00fc"
    assert escape("\u202e\u0085") == "\\u202e\\u0085"
    assert escape(b"\xed\xa0\x80") == "\\xed\\xa0\\x80"


@given(st.binary())
def test_one_printable_line(data):
    text = value_text(data)
    assert text.isprintable() and text not in ("<tombstone>", "<no key>")
    text.encode()


def test_a_backslash_and_a_byte_are_shown_apart():
    assert escape("c\\x1bd") == "c\\\\x1bd" and escape("c\x1bd") == "c\\x1bd"
    assert escape(b"\x85") == "\\x85" and escape("\u0085") == "\\u0085"
    assert unescape("\\x00\\\\d\\d") == b"\0\\d\\d"


PIECES = [
    b"\\",
    b"x1b",
    b"\x1b",
    b"u0085",
    b"<tombstone>",
    b"\x85",
    "\u0085\u202e\U000e0001".encode(),
    b"\xed\xa0\x80",
    b'"',
]


@given(st.binary() | st.lists(st.sampled_from(PIECES)).map(b"".join))
def test_what_is_shown_can_be_typed(data):
    assert unescape(escape(data)) == unescape(key_text(data)) == unescape(value_text(data)) == data
    assert key_candidates(key_text(data), "bytes")[-1] == data


@given(st.text() | st.binary())
def test_no_two_fields_are_shown_alike(data):
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    assert unescape(escape(data)) == raw


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from(["\\", "\\x1b", "\u0085\n", "\u202e"]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON)
def test_json_is_shown_as_json_and_can_be_typed(value):
    try:
        data = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # the serializer also refuses a lone surrogate
        return
    text = field_text(data, "json", key_text)
    assert text.isprintable() and json.loads(text) == value
    assert data in key_candidates(text, "json")


def test_keys_in_the_form_of_json():
    assert key_candidates('{"base64":"//4="}', "bytes")[0] == b"\xff\xfe"
    assert key_candidates('{"base64":"//4="}', "bytes")[1] == b'{"base64":"//4="}'
    assert key_candidates('{"base64":"AAAAAAAAAAc="}', "int64") == [bytes(7) + b"\x07"]
    assert key_candidates("7", "int64") == [bytes(7) + b"\x07"]
    assert key_candidates("\\xff", "int64") == [b"\xff"]


def test_a_line_of_json_shows_nothing_raw():
    line = json.dumps({"a": "\u009b\u202e\ud800\U000e0001é"}, ensure_ascii=False)
    assert json_escaped(line).encode().decode().isprintable()
    assert json.loads(json_escaped(line)) == json.loads(line) and "é" in json_escaped(line)


@given(st.none() | st.binary(), st.sampled_from([None, "bytes", "str", "json", "int32", "int64", "float64"]))
def test_what_json_prints_is_what_append_takes(data, serializer):
    assert field_bytes(field_json(data, serializer), serializer, "value") == data


def test_json_values_stand_as_themselves():
    assert field_json(b'{"a":1}', "json") == {"a": 1}
    assert field_json(b"null", "json") == {"base64": "bnVsbA=="}  # a null would be a tombstone
    assert field_json(b'{ "a": 1 }', "json") == {"base64": "eyAiYSI6IDEgfQ=="}  # blanks would be lost
    assert field_json(b'{"base64":"AA=="}', "json") == {"base64": "eyJiYXNlNjQiOiJBQT09In0="}
    assert field_json(b"\0\0\0\x07", "int32") == 7


def test_table_and_cut():
    assert table(["A", "BB"], [["x", "1"], ["yyy", "22"]], "lr") == ["A    BB", "x     1", "yyy  22"]
    assert cut("abcdef", 4) == "abc…" and cut("abcd", 4) == "abcd"


def test_a_cut_line_counts_what_is_seen_and_ends_its_colour():
    dim = "\x1b[2mnone\x1b[0m"
    assert cut(dim, 4) == dim
    assert cut(f"a {dim} bcd", 20) == f"a {dim} bcd"
    assert cut(f"a {dim} bcd", 5) == "a \x1b[2mno…\x1b[0m"
    assert cut(f"a {dim} bcd", 8) == f"a {dim} …\x1b[0m"
    assert cut(f"abcdef {dim}", 4) == "abc…"
