"""Options as text: each is parsed, all mistakes are reported together, with the nearest names."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from lastword.errors import SparkOptionError
from lastword.spark.options import EARLIEST, LATEST, parse_read, parse_write
from lastword.value_formats.registry import ConfluentFormat


def read(**options: str):
    return parse_read({"path": "/data", "subscribe": "users", **{k.lower(): v for k, v in options.items()}})


def refused(**options: str) -> str:
    with pytest.raises(SparkOptionError) as caught:
        read(**options)
    return caught.value.message


def test_defaults() -> None:
    options = read()
    assert options.path == "/data"
    assert options.selection.topics == ("users",)
    assert (options.start.everywhere, options.end.everywhere) == (EARLIEST, LATEST)
    assert options.view == "log"
    assert options.fail_on_data_loss and not options.include_headers
    assert options.max_partition_bytes == 128 << 20
    assert options.isolation == "read_committed"


def test_names_are_compared_without_case() -> None:
    assert parse_read({"PATH": "/data", "SubscribePattern": "u.*"}).selection.pattern == "u.*"


def test_offsets_json() -> None:
    options = read(startingOffsets='{"users":{"0":23,"1":-2}}', endingOffsets='{"users":{"0":-1,"1":99}}')
    assert options.start.offsets == {"users": {0: 23, 1: EARLIEST}}
    assert options.end.offsets == {"users": {0: LATEST, 1: 99}}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("startingOffsets", "latest", "nothing to read"),
        ("startingOffsets", '{"users":{"0":-1}}', "nothing to read"),
        ("endingOffsets", "earliest", "nothing to read"),
        ("endingOffsets", '{"users":{"0":-2}}', "nothing to read"),
        ("startingOffsets", '{"users":[1]}', "JSON like"),
        ("startingOffsets", '{"users":{"0":1.5}}', "JSON like"),
        ("startingOffsets", '{"users":{"0":true}}', "JSON like"),
        ("startingTimestamp", "yesterday", "milliseconds"),
        ("includeHeaders", "yes", "true or false"),
        ("view", "newst", "nearest: newest"),
        ("minPartitions", "0", "above 0"),
        ("maxBytesPerPartition", "many", "128MiB"),
        ("keys", '["a", 1]', "JSON like"),
        ("subscribe", " , ", "names no topic"),
        ("path", "hdfs://host/log", "not a URL"),
    ],
)
def test_a_bad_value_is_told_with_its_option(name: str, value: str, said: str) -> None:
    message = refused(**{name: value})
    assert name in message and said in message and value in message


def test_all_problems_at_once() -> None:
    message = refused(endingOffset="1", view="new", includeHeaders="maybe")
    assert "unknown option 'endingoffset'; nearest: endingOffsets" in message
    assert "view" in message and "includeHeaders" in message


def test_client_options_give_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        read(**{"kafka.group.id": "g", "groupIdPrefix": "p", "maxOffsetsPerTrigger": "5"})
    assert len(caplog.records) == 1
    assert "groupidprefix, kafka.group.id, maxoffsetspertrigger" in caplog.text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kafka.bootstrap.servers", "'path'"),
        ("kafka.auto.offset.reset", "startingOffsets"),
        ("kafka.enable.auto.commit", "checkpoint"),
        ("kafka.value.deserializer", "cast the column value"),
        ("kafka.interceptor.classes", "rows"),
    ],
)
def test_what_kafkas_source_refuses_is_refused_with_what_to_use(name: str, said: str) -> None:
    message = refused(**{name: "localhost:9092"})
    assert f"option '{name}' has no meaning here" in message and said in message


def test_the_password_of_a_registry_has_a_name_that_spark_hides(tmp_path: Path) -> None:
    """Spark showed it in the plan of a stream and in the page of a temporary view."""
    given = {"value_format": "confluent", "schema.registry.url": str(tmp_path)}
    message = refused(**given, **{"basic.auth.user.info": "ada:hush"})
    assert "name it 'secret.basic.auth.user.info'" in message and "hush" not in message
    options = read(**given, **{"secret.basic.auth.user.info": "ada:hush"})
    assert isinstance(options.formats.value, ConfluentFormat)
    assert options.formats.value.registry.user == "ada:hush" and "hush" not in repr(options)


def test_the_isolation_level_of_kafkas_client_counts(caplog: pytest.LogCaptureFixture) -> None:
    assert read(**{"kafka.isolation.level": "read_uncommitted"}).isolation == "read_uncommitted"
    assert not caplog.records
    both = {"kafka.isolation.level": "read_uncommitted", "isolationLevel": "read_committed"}
    assert "isolationLevel' is given twice" in refused(**both)


def test_a_table_of_the_catalog_is_refused_naming_a_view() -> None:
    named = {"location": "/x", "provider": "lastword", "owner": "me", "option.subscribe": "t"}
    for parse, options in ((parse_read, named), (parse_read, {}), (parse_write, {})):  # create, read, write
        with pytest.raises(SparkOptionError, match=r"table of its catalog .* CREATE TEMPORARY VIEW"):
            parse(options)


def test_a_view_for_both_directions_has_the_options_of_both() -> None:
    both = {"path": "/data", "subscribe": "t", "topic": "u", "view": "newest", "partitions": "3"}
    both |= {
        "endingOffsets": "latest",
        "cleanup.policy": "compact",
        "value_format": "json",
        "value_schema": "a int",
    }
    options = parse_read(both)
    assert options.selection.topics == ("t",) and options.view == "newest"
    written = parse_write(both)
    assert (written.topic, written.partitions, written.settings) == ("u", 3, {"cleanup.policy": "compact"})
    with pytest.raises(SparkOptionError, match="unknown option 'partition'"):
        parse_read({**both, "partition": "3"})
    stream = {name: both[name] for name in ("path", "subscribe", "topic", "endingOffsets")}
    with pytest.raises(SparkOptionError, match="'endingOffsets' is not for a stream, which has no end"):
        parse_read(stream, stream=True)


def test_a_delay_as_spark_writes_it() -> None:
    options = {"path": "/data", "subscribe": "t", "maxtriggerdelay": "15min"}
    assert parse_read(options, stream=True).limits.max_delay_ms == 15 * 60_000


def test_exactly_one_choice_of_topics() -> None:
    assert "both" in refused(assign='{"users":[0]}')
    with pytest.raises(SparkOptionError, match="no topic is chosen"):
        parse_read({"path": "/data"})
    with pytest.raises(SparkOptionError, match="no log directory"):
        parse_read({"subscribe": "users"})


def test_keys_may_be_any_bytes() -> None:
    assert read(keys='["ada", {"base64": "/wA="}]').keys == (b"ada", b"\xff\x00")


def test_a_relative_path_and_a_file_uri() -> None:
    assert parse_read({"path": "file:///srv/x", "subscribe": "t"}).path == "/srv/x"
    assert parse_read({"path": "x", "subscribe": "t"}).path.endswith("/x")


@pytest.mark.parametrize("path", ["hdfs://host/x", "hdfs:/x", "dbfs:/x", ""])
def test_a_path_that_no_task_can_open(path: str) -> None:
    with pytest.raises(SparkOptionError, match=r"'path' is (a directory that all tasks can see|empty)"):
        parse_read({"path": path, "subscribe": "t"})


def test_write_options() -> None:
    options = parse_write({"path": "/data", "topic": "users", "partitions": "4", "cleanup.policy": "compact"})
    assert (options.topic, options.partitions, options.ack, options.null_value) == (
        "users",
        4,
        "disk",
        "delete",
    )
    assert options.settings == {"cleanup.policy": "compact"}


def test_options_of_the_other_direction_are_told() -> None:
    assert "'partitions' is not for reading" in refused(partitions="3")
    with pytest.raises(SparkOptionError, match="'subscribe' is not for writing"):
        parse_write({"path": "/data", "subscribe": "users"})


def test_an_unknown_topic_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(SparkOptionError, match=r"'cleanup.polcy'; nearest: cleanup.policy"):
        parse_write({"path": "/data", "topic": "users", "cleanup.polcy": "compact"})
