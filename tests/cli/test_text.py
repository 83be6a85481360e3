"""Text of one record: nothing that is not null may look like null, and nothing may reach the terminal raw."""

from hypothesis import given
from hypothesis import strategies as st

from lastword.api.json_form import field_bytes, field_json
from lastword.cli.text import cut, escape, key_text, table, value_text


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
    assert escape("\u202e\u0085") == "\\u202e\\x85"
    assert escape(b"\xed\xa0\x80") == "\\xed\\xa0\\x80"


@given(st.binary())
def test_one_printable_line(data):
    text = value_text(data)
    assert text.isprintable() and text not in ("<tombstone>", "<no key>")
    text.encode()


@given(st.none() | st.binary(), st.sampled_from([None, "bytes", "str", "json", "int32", "int64", "float64"]))
def test_what_json_prints_is_what_append_takes(data, serializer):
    assert field_bytes(field_json(data, serializer), serializer, "value") == data


def test_json_values_stand_as_themselves():
    assert field_json(b'{"a":1}', "json") == {"a": 1}
    assert field_json(b"null", "json") == {"base64": "bnVsbA=="}  # a null would be a tombstone
    assert field_json(b'{ "a": 1 }', "json") == {"base64": "eyAiYSI6IDEgfQ=="}  # blanks would get lost
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
