"""Settings of topics from the metadata of a KRaft cluster: which apply, which do not, and damage."""

from __future__ import annotations

import base64
import logging
import pickle
import struct

import pytest

import lastword
from lastword.files import DEFAULT
from lastword.logdir.broker import TOPIC, read_cluster_metadata
from lastword.records.batch import BatchBuilder
from tests.fakes import RecordingFiles
from tests.golden.loader import case

ID, OTHER_ID = "irRpZm22Q6ahEBC1ZzWOyA", "8NF3-egPS7iQnuFlNIOLlg"


def _text(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


def _uuid(topic_id: str) -> bytes:
    return base64.urlsafe_b64decode(topic_id + "==")


def topic_record(name: str, topic_id: str = ID) -> bytes:
    return b"\x01\x02\x00" + _text(name) + _uuid(topic_id) + b"\0"


def remove_topic(topic_id: str = ID) -> bytes:
    return b"\x01\x09\x00" + _uuid(topic_id) + b"\0"


def config_record(name: str, value: str | None, resource: str = "users", kind: int = TOPIC) -> bytes:
    shown = b"\0" if value is None else _text(value)
    return b"\x01\x04\x00" + struct.pack("b", kind) + _text(resource) + _text(name) + shown + b"\0"


BEGIN = b"\x01\x17\x00\x00"  # without its name, a tagged field
END, ABORT = b"\x01\x18\x00\x00", b"\x01\x19\x00\x00"


@pytest.fixture
def root(tmp_path):
    """Return a directory with the topic users, whose id is ID, and an empty metadata partition beside it."""
    with lastword.open(tmp_path / "data", "a") as logs:
        logs.create_topic("users")
    metadata = tmp_path / "data" / "users-0" / "partition.metadata"
    metadata.write_text(f"version: 0\ntopic_id: {ID}")
    (tmp_path / "data" / "__cluster_metadata-0").mkdir()
    return tmp_path / "data"


def write(path, base_offset: int, *values: bytes) -> None:
    builder = BatchBuilder()
    for value in values:
        builder.append(0, None, value)
    path.write_bytes(builder.build(base_offset))


def write_log(root, *values: bytes, base_offset: int = 0) -> None:
    write(root / "__cluster_metadata-0" / f"{base_offset:020d}.log", base_offset, *values)


def write_snapshot(root, end: int, *values: bytes) -> None:
    write(root / "__cluster_metadata-0" / f"{end:020d}-{1:010d}.checkpoint", 0, *values)


def settings(root, topic: str = "users", **arguments):
    with lastword.open(root, **arguments) as logs:
        rows = logs.settings.rows(topic)
    return {
        name: (value, source)
        for name, value, source in rows
        if source != "default" and not name.startswith("lastword.")
    }


SOURCE = "__cluster_metadata topic users"


def test_settings_of_a_topic_apply_with_their_source(root):
    write_log(root, topic_record("users"), config_record("cleanup.policy", "compact"))
    assert settings(root) == {"cleanup.policy": ("compact", SOURCE)}
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        topic = logs.topic("users")
        for number in range(3):
            topic.append(b"k", b"%d" % number)
        assert logs.clean("users")[0].records_kept == 1


def test_settings_are_pickled_with_those_of_the_cluster(root):
    write_log(root, topic_record("users"), config_record("cleanup.policy", "compact"))
    (root / "lastword.toml").write_text('[defaults]\n"retention.ms" = "5s"\n')
    with lastword.open(root, segment_bytes=2048) as logs:
        settings, rows = logs.settings, logs.settings.rows("users")
        again = pickle.loads(pickle.dumps(settings))
    assert again.rows("users") == rows and again.rows() == settings.rows()
    assert again.topic("other") == settings.topic("other")


def test_without_metadata_nothing_is_known(root):
    assert settings(root) == {}
    (root / "__cluster_metadata-0").rmdir()
    assert settings(root) == {}


def test_what_is_said_here_wins(root):
    write_log(
        root,
        topic_record("users"),
        config_record("cleanup.policy", "compact"),
        config_record("segment.bytes", "1048576"),
        config_record("retention.ms", "1000"),
    )
    (root / "lastword.toml").write_text(
        '[topics.users]\n"cleanup.policy" = "delete"\n[defaults]\n"retention.ms" = "5s"\n'
    )
    effective = settings(root, segment_bytes=2048)
    assert effective["cleanup.policy"] == ("delete", "lastword.toml:2 [topics.users]")
    assert effective["segment.bytes"] == ("2KiB", "argument")
    assert effective["retention.ms"] == (
        "1s",
        SOURCE,
    )  # the topic's own setting, above a default of all topics


def test_a_topic_with_another_id_gets_nothing(root):
    """The topic was deleted and created again here, or the metadata is of another cluster."""
    write_log(root, topic_record("users", OTHER_ID), config_record("cleanup.policy", "compact"))
    assert settings(root) == {}
    (root / "users-0" / "partition.metadata").unlink()
    assert settings(root) == {}


def test_the_last_word_on_a_setting_counts(root):
    write_log(
        root,
        topic_record("users"),
        config_record("cleanup.policy", "compact"),
        config_record("segment.bytes", "1048576"),
        config_record("segment.bytes", None),
        config_record("cleanup.policy", "delete"),
    )
    assert settings(root) == {"cleanup.policy": ("delete", SOURCE)}


def test_a_topic_that_was_removed_has_no_settings(root):
    removed = [topic_record("users"), config_record("cleanup.policy", "delete"), remove_topic()]
    write_log(root, *removed)
    assert settings(root) == {}
    write_log(root, *removed, topic_record("users"), config_record("segment.bytes", "1048576"))
    assert settings(root) == {"segment.bytes": ("1MiB", SOURCE)}


def test_a_transaction_of_the_controller_counts_when_it_ended(root):
    change = [BEGIN, config_record("cleanup.policy", "compact")]
    write_log(root, topic_record("users"), *change)
    assert settings(root) == {}
    write_log(root, topic_record("users"), *change, ABORT, config_record("segment.bytes", "1048576"))
    assert settings(root) == {"segment.bytes": ("1MiB", SOURCE)}
    write_log(root, topic_record("users"), *change, END)
    assert settings(root) == {"cleanup.policy": ("compact", SOURCE)}


def test_the_newest_snapshot_and_the_log_behind_it(root):
    write_snapshot(root, 10, topic_record("users"), config_record("cleanup.policy", "delete"))
    write_snapshot(root, 20, topic_record("users"), config_record("cleanup.policy", "compact"))
    write_log(
        root, config_record("segment.bytes", "1024"), config_record("retention.ms", "9000"), base_offset=19
    )
    assert settings(root) == {"cleanup.policy": ("compact", SOURCE), "retention.ms": ("9s", SOURCE)}


def test_defaults_that_were_changed_while_brokers_ran(root):
    node = next(line for line in (root / "meta.properties").read_text().splitlines() if "node.id" in line)
    write_log(
        root,
        topic_record("users"),
        config_record("log.retention.ms", "7000", "", 4),
        config_record("log.retention.bytes", "1024", "", 4),
        config_record("log.retention.ms", "8000", node.partition("=")[2], 4),
        config_record("log.retention.ms", "1", "77", 4),
        config_record("log.cleaner.threads", "9", "", 4),
    )
    effective = settings(root)
    assert {name: value for name, (value, _) in effective.items()} == {
        "retention.ms": "8s",
        "retention.bytes": "1KiB",
    }
    assert effective["retention.ms"][1].startswith("__cluster_metadata broker")


def test_records_of_a_newer_kafka(root, caplog):
    """A new record type is skipped; a new version of a known type may change a policy."""
    known = [topic_record("users"), config_record("cleanup.policy", "compact")]
    write_log(root, *known, b"\x01\x7f\x00\x00")
    assert settings(root) == {"cleanup.policy": ("compact", SOURCE)}
    newer = bytearray(config_record("cleanup.policy", "delete"))
    newer[2] = 9
    write_log(root, *known, bytes(newer))
    with caplog.at_level(logging.WARNING):
        assert settings(root) == {}
    assert "ConfigRecord of unknown version 9" in caplog.text


@pytest.mark.parametrize("damage", ["crc", "snapshot", "gap"])
def test_damaged_metadata_gives_no_policy_and_says_so(root, damage, caplog):
    write_log(root, topic_record("users"), config_record("cleanup.policy", "compact"), base_offset=5)
    write_snapshot(root, 5, topic_record("users"))
    assert settings(root)
    (log,) = (root / "__cluster_metadata-0").glob("*.log")
    (snapshot,) = (root / "__cluster_metadata-0").glob("*.checkpoint")
    if damage == "gap":
        snapshot.unlink()
    else:
        path = log if damage == "crc" else snapshot
        data = bytearray(path.read_bytes())
        data[70] ^= 1
        # A sound batch behind it: a damaged last batch of a log is a torn tail, which a broker writes again.
        path.write_bytes(bytes(data) + (log.read_bytes() if damage == "crc" else b""))
    with caplog.at_level(logging.WARNING):
        assert settings(root) == {}
    assert "cannot be read" in caplog.text and "__cluster_metadata-0" in caplog.text


def test_values_that_do_not_exist_here_are_passed_over(root, caplog):
    write_log(
        root,
        topic_record("users"),
        config_record("remote.storage.enable", "true"),
        config_record("cleanup.policy", "shred"),
        config_record("segment.bytes", "1048576"),
    )
    with caplog.at_level(logging.WARNING):
        assert settings(root) == {"segment.bytes": ("1MiB", SOURCE)}
    assert "cleanup.policy=shred is not used" in caplog.text


def test_opening_reads_no_metadata_until_a_setting_is_asked_for(root):
    write_log(root, topic_record("users"), config_record("cleanup.policy", "compact"))
    files = RecordingFiles(DEFAULT)
    with lastword.open(root, files=files) as logs:
        assert not [call for call in files.calls if "__cluster_metadata" in call.path]
        topic = logs.topic("users")
        first = [call for call in files.calls if "__cluster_metadata" in call.path]
        assert first and topic.config.cleanup_policy == {"compact"}
        for _ in range(5):
            logs.topic("users")
        assert [call for call in files.calls if "__cluster_metadata" in call.path] == first


def test_changed_metadata_is_read_when_settings_are_read_again(root):
    write_log(root, topic_record("users"), config_record("cleanup.policy", "compact"))
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        assert logs.topic("users").config.cleanup_policy == {"compact"}
        write_log(
            root,
            topic_record("users"),
            config_record("cleanup.policy", "delete"),
            topic_record("x", OTHER_ID),
        )
        logs.set_config("users", segment_bytes="1MiB")
        assert logs.topic("users").config.cleanup_policy == {"delete"}


def test_metadata_in_one_directory_counts_for_the_others(root, tmp_path):
    write_log(
        root,
        topic_record("users"),
        topic_record("orders", OTHER_ID),
        config_record("cleanup.policy", "compact", "orders"),
    )
    with lastword.open(tmp_path / "other", "a") as logs:
        logs.create_topic("orders")
    (tmp_path / "other" / "lastword.toml").unlink()
    (tmp_path / "other" / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {OTHER_ID}")
    with lastword.open([tmp_path / "other", root]) as logs:
        assert logs.topic("orders").config.cleanup_policy == {"compact"}


def test_a_real_cluster(tmp_path):
    root = case("dir-clean").unpack(tmp_path) / "data"
    metadata = read_cluster_metadata(DEFAULT, str(root / "__cluster_metadata-0"))
    assert metadata.configs[TOPIC, "users"]["cleanup.policy"] == "compact"
    with lastword.open(root) as logs:
        policies = {topic.name: topic.config.cleanup_policy for topic in logs.topics()}
    compacted = {name for name, policy in policies.items() if policy == {"compact"}}
    assert compacted == {"users", "__consumer_offsets", "__transaction_state"}
    assert policies["orders"] is None  # never set: the broker's default is in server.properties
