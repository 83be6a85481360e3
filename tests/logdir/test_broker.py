"""Settings of topics from the metadata of a KRaft cluster: which apply, which do not, and damage."""

from __future__ import annotations

import base64
import logging
import pickle
import re
import struct

import pytest

import lastword
from lastword.api.cleaner import work_of
from lastword.background.states import States
from lastword.errors import ClusterDiffersError, NoPolicyError, UsageError
from lastword.files import DEFAULT
from lastword.logdir import LogDirectory
from lastword.logdir.broker import TOPIC, read_cluster_metadata
from lastword.records.batch import BatchBuilder
from lastword.spark.cleaning import _chosen
from tests.fakes import RecordingFiles
from tests.golden.loader import case

ID, OTHER_ID = "irRpZm22Q6ahEBC1ZzWOyA", "8NF3-egPS7iQnuFlNIOLlg"


def _text(text: str) -> bytes:
    data = text.encode()
    assert len(data) < 127
    return bytes([len(data) + 1]) + data


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
        if source != "default" and value != "unknown" and not name.startswith("lastword.")
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
    (root / "lastword.topic-users.toml").unlink(missing_ok=True)  # it would count in place of the table
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
    assert "ConfigRecord has no version 9" in caplog.text


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
        config_record("remote.log.msg", "true"),
        config_record("compression.type", "brotli"),
        config_record("segment.bytes", "1048576"),
    )
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert settings(root) == {"segment.bytes": ("1MiB", SOURCE)}
    assert caplog.text.count("compression.type=brotli is not used") == 3  # once for each opening


def test_opening_reads_no_metadata_until_a_setting_is_asked_for(root, monkeypatch):
    write_log(root, topic_record("users"), config_record("cleanup.policy", "compact"))
    files = RecordingFiles(DEFAULT)
    monkeypatch.setattr(files, "dir_version", lambda path: None)  # the root has just been changed
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
            config_record("retention.ms", "9000"),
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
    for file in (tmp_path / "other").glob("lastword.to*"):
        file.unlink()
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


# ---------------------------------------------------------------- what cannot be read removes nothing


def fill(logs, topic: str = "users") -> None:
    """Append old records of one key in several segments, so that every policy would remove some."""
    for number in range(40):
        logs.topic(topic).append(b"k", b"%d" % number * 50, timestamp=1)


def removes(root, topic: str | None = None, **arguments) -> tuple[bool, bool]:
    """Return whether `clean` and `expire` remove records of a filled copy of a directory."""
    with lastword.open(root, "a", log_cleaner_enable=False, segment_bytes=512, **arguments) as logs:
        fill(logs)
        cleaned, expired = [], []
        for results, verb in ((cleaned, logs.clean), (expired, logs.expire)):
            try:
                results += verb(topic)
            except NoPolicyError:
                assert topic is not None
    return any(round.records_read > round.records_kept for round in cleaned), bool(expired)


def as_of_a_broker(root) -> None:
    """Write the ids as a broker does, and remove what lastword saved for its own topics."""
    ids = [line for line in (root / "meta.properties").read_text().splitlines() if "=" in line]
    (root / "meta.properties").write_text("\n".join(["#", "#Sat Nov 28 11:00:00 UTC 2026", *ids]) + "\n")
    for file in root.glob("lastword.to*"):
        file.unlink()


@pytest.mark.parametrize(
    ("name", "text", "removed"),
    [
        ("cleanup.policy", "", (False, False)),
        ("cleanup.policy", " ", (False, False)),
        ("cleanup.policy", "shred", (False, False)),
        ("cleanup.policy", " compact ,\tdelete", (True, True)),
        ("retention.bytes", "-7", (True, False)),
        ("retention.bytes", "1e3", (False, False)),
        ("retention.ms", "-1 ", (True, True)),
        ("retention.ms", "7d", (False, False)),
        ("delete.retention.ms", "1h", (False, False)),
        ("min.compaction.lag.ms", "9223372036854775807", (False, True)),
        ("min.compaction.lag.ms", "9223372036854775808", (False, False)),
        ("remote.storage.enable", "true", (False, False)),
        ("min.cleanable.dirty.ratio", ".5f", (True, True)),
        ("compression.type", " gzip", (True, False)),  # cleaned, it is small enough
    ],
)
def test_a_value_of_a_topic_is_kafkas_or_nothing_is_removed(root, name, text, removed):
    """Under defaults that remove everything. Kafka: an empty policy and a negative size remove nothing."""
    own = [
        ("cleanup.policy", "compact,delete"),
        ("retention.ms", "-1"),
        ("retention.bytes", "100"),
        (name, text),
    ]
    write_log(
        root,
        topic_record("users"),
        config_record("log.cleanup.policy", "compact,delete", "", 4),
        config_record("log.retention.ms", "1", "", 4),
        config_record("log.retention.bytes", "1", "", 4),
        *(config_record(*each) for each in own),
    )
    as_of_a_broker(root)
    (root / "lastword.toml").write_text('[defaults]\ncleanup.policy = "compact,delete"\nretention.ms = 1\n')
    assert removes(root) == removed


def test_a_default_that_cannot_be_read_is_not_replaced(root, caplog):
    write_log(root, topic_record("users"), config_record("log.cleanup.policy", "compact,archive", "", 4))
    with caplog.at_level(logging.WARNING):
        assert removes(root) == (False, False)
    assert caplog.text.count("nothing is removed from users: its cleanup.policy") == 2  # once for each verb
    assert "'compact,archive' is not compact" in caplog.text and "--set cleanup.policy=..." in caplog.text
    with lastword.open(root) as logs, pytest.raises(UsageError):
        logs.clean("users")
    assert removes(root, "users") == (False, False)
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        logs.set_config("users", cleanup_policy="compact")
        assert logs.clean("users")


def test_the_background_cleaner_says_it_once(root, caplog):
    write_log(root, topic_record("users"), config_record("cleanup.policy", "shred"))
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        work = work_of(logs.dirs, States(logs.dirs.clock))
        for _ in range(3):
            assert list(work.chores(set())) == []
    assert [text for text in caplog.messages if "nothing is removed from users" in text] == caplog.messages[
        :1
    ]


def test_an_empty_policy_is_a_value(root):
    write_log(root, topic_record("users"), config_record("cleanup.policy", ""))
    assert settings(root) == {"cleanup.policy": ("none", SOURCE)}
    with lastword.open(root, "a", log_cleaner_enable=False, segment_bytes=512) as logs:
        fill(logs)
        with pytest.raises(NoPolicyError, match=r"cleanup\.policy=none") as caught:
            logs.clean("users")
        assert "compact" not in str(caught.value.remedy)
        (info,) = logs.topic("users").describe()
        assert info.policy == "none"
        assert {plan.reasons[0].text for plan in logs.plan("users")} == {
            "cleanup.policy is none: nothing is compacted"
        }
        assert logs.expire() == []


# ---------------------------------------------------------------- metadata in another directory


@pytest.fixture
def elsewhere(root, tmp_path):
    """Return the directory of a broker and the directory of its metadata, which is another one."""
    write_log(
        root,
        topic_record("users"),
        config_record("cleanup.policy", "compact"),
        config_record("flush.ms", "77"),
    )
    as_of_a_broker(root)
    (tmp_path / "controller").mkdir()
    (root / "__cluster_metadata-0").rename(tmp_path / "controller" / "__cluster_metadata-0")
    (tmp_path / "controller" / "meta.properties").write_bytes((root / "meta.properties").read_bytes())
    return root, tmp_path / "controller"


def files_below(path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_a_broker_whose_metadata_is_elsewhere(elsewhere):
    root, metadata = elsewhere
    with lastword.open(root) as logs:
        config = logs.topic("users").config
        assert config.policy is None and "__cluster_metadata-0" in config.unread.why
        rows = {name: (value, source) for name, value, source in logs.settings.rows("users")}
        assert rows["cleanup.policy"] == rows["delete.retention.ms"] == ("unknown", "unknown")
    with (
        lastword.open(root, "a", log_cleaner_enable=False) as logs,
        pytest.raises(NoPolicyError, match=r"__cluster_metadata-0.* is not in") as caught,
    ):
        logs.clean("users")
    assert "--metadata" in caught.value.remedy
    assert removes(root) == removes(root, "users") == (False, False)
    before = files_below(metadata)
    for place in (metadata, str(metadata)):
        assert settings(root, metadata=place) == {
            "cleanup.policy": ("compact", SOURCE),
            "flush.ms": ("77ms", SOURCE),
        }
    assert removes(root, "users", metadata=metadata) == (True, False)
    assert files_below(metadata) == before


def test_spark_and_executors_know_no_more(elsewhere):
    """The driver refuses the topic, and the settings that it sends are as unknown as its own."""
    root, _ = elsewhere
    with LogDirectory.open(root) as directory:
        assert _chosen(directory, None, None) == []
        with pytest.raises(NoPolicyError, match="__cluster_metadata-0"):
            _chosen(directory, "users", None)
        again = pickle.loads(pickle.dumps(directory.settings))
        assert again.topic("users").unread == directory.topic_config("users").unread is not None


def test_a_policy_by_hand_is_not_enough(elsewhere):
    """The other settings would be our defaults: the cluster may keep tombstones longer."""
    root, _ = elsewhere
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        logs.set_config("users", cleanup_policy="compact")
    assert removes(root) == (False, False)
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        logs.set_config("users", delete_retention_ms="1d", min_compaction_lag_ms=0)
    assert removes(root) == (True, False)


def test_a_topic_that_lastword_makes_there_is_its_own(elsewhere):
    root, _ = elsewhere
    with lastword.open(root, "a", log_cleaner_enable=False, segment_bytes=512) as logs:
        logs.create_topic("ours", cleanup_policy="compact")
        logs.state("counts").incr("n")
        fill(logs, "ours")
        assert logs.clean("ours") and logs.topic("ours").config.unread is None


def test_the_settings_of_a_server_properties(elsewhere, tmp_path):
    root, metadata = elsewhere
    file = tmp_path / "server.properties"
    file.write_text(
        f"log.dirs={root}\nmetadata.log.dir={metadata}\nlog.retention.hours=9000\n"
        "log.retention.minutes = 600000\nlog.cleaner.delete.retention.ms=5000\nlog.roll.hours=2\n"
        "log.cleanup.policy=delete\n"
    )
    assert settings(root, metadata=file) == {
        "cleanup.policy": ("compact", SOURCE),
        "flush.ms": ("77ms", SOURCE),
        "retention.ms": ("10000h", "server.properties"),
        "delete.retention.ms": ("5s", "server.properties"),
        "segment.ms": ("2h", "server.properties"),
    }
    file.write_text(f"log.dirs={metadata},/none\nlog.retention.hours=-3\nlog.cleanup.policy=delete\n")
    assert settings(root, metadata=file)["retention.ms"] == ("-1", "server.properties")
    file.write_text(f"log.dir={metadata}\nlog.cleaner.delete.retention.ms=${{env:X}}\n")
    assert removes(root, metadata=file) == (False, False)
    for wrong in (tmp_path, tmp_path / "absent", root):
        with pytest.raises(UsageError):
            lastword.open(root, "a", metadata=wrong)
    (metadata / "meta.properties").write_text("version=1\ncluster.id=another\nnode.id=9\n")
    before = files_below(root)
    for mode in ("r", "a"):
        with pytest.raises(ClusterDiffersError, match=r"cluster.id \S+, and .* has another"):
            lastword.open(root, mode, metadata=metadata)
    assert files_below(root) == before


def test_retention_that_only_the_brokers_file_knows(root):
    """A broker's default of retention.ms is often longer than Kafka's, and is in its server.properties."""
    write_log(root, topic_record("users"), config_record("cleanup.policy", "delete"))
    assert removes(root) == (False, False)
    (root.parent / "server.properties").write_text(f"log.dirs={root}\n")
    assert removes(root, metadata=root.parent / "server.properties") == (False, True)


# ---------------------------------------------------------------- directories of two clusters


def two(tmp_path, first: str, second: str) -> list[str]:
    for name, text in (("a", first), ("b", second)):
        with lastword.open(tmp_path / name, "a", log_cleaner_enable=False) as logs:
            logs.create_topic(name)
        (tmp_path / name / "meta.properties").write_text(text)
    return [str(tmp_path / name) for name in "ab"]


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ("cluster.id=AAA\nnode.id=1", "cluster.id=BBB\nnode.id=1", ["AAA", "BBB"]),
        ("cluster.id=AAA\nnode.id=1", "cluster.id=AAA\nnode.id=12", ["1", "12"]),
        ("cluster.id=AAA\ndirectory.id=DDD", "cluster.id=AAA\ndirectory.id=DDD", ["DDD"]),
        ("version=0\nbroker.id=1", "version=0\nbroker.id=2", ["1", "2"]),
    ],
)
def test_directories_of_two_brokers_are_refused(tmp_path, first, second, named):
    roots = two(tmp_path, f"version=1\n{first}\n", f"version=1\n{second}\n")
    before = files_below(tmp_path)
    for mode in ("r", "a"):
        with pytest.raises(ClusterDiffersError) as caught:
            lastword.open(roots, mode)
        assert all(word in caught.value.message for word in (*roots, *named))
    assert files_below(tmp_path) == before


def test_directories_of_one_broker_and_a_new_one(tmp_path):
    ids = "version=1\ncluster.id=AAA\nnode.id=4\ndirectory.id="
    roots = two(tmp_path, f"{ids}D1\n", f"{ids}D2\n")
    (tmp_path / "b" / "lastword.toml").unlink()
    lastword.open(roots, "a").close()
    lastword.open([*roots, str(tmp_path / "c")], "a").close()
    made = (tmp_path / "c" / "meta.properties").read_text()
    assert "cluster.id=AAA\nnode.id=4\n" in made
    assert re.search(r"^directory\.id=(?!D1$|D2$)[\w-]{22}$", made, re.MULTILINE)


def test_new_directories_are_of_one_cluster(tmp_path):
    roots = [str(tmp_path / name) for name in "abc"]
    lastword.open(roots, "a").close()
    lines = [(tmp_path / name / "meta.properties").read_text().splitlines() for name in "abc"]
    assert len({(text[2], text[3]) for text in lines}) == 1 and len({text[4] for text in lines}) == 3
