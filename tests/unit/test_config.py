from __future__ import annotations

import pickle
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from lastword.config import (
    ALL_SETTINGS,
    INSTANCE_SETTINGS,
    TOPIC_SETTINGS,
    Settings,
    TopicConfig,
    create_topic_settings,
    keyword_names,
    parse_topic_settings,
    remove_topic_settings,
    toml_file,
    topic_file,
    write_topic_settings,
)
from lastword.config.toml_file import cut_tables, read_entries
from lastword.errors import InvalidSettingError, StorageError, UncertainRequestError, UnknownSettingError
from lastword.files import DEFAULT, OsFiles
from tests.support.exhaustive import few

FILE = """\
# how this directory is kept
log.cleaner.threads = 1                        # one is enough
log.cleaner.dedupe.buffer.size = "256MiB"
drives."/srv/d2" = "20MiB"
drives."/srv/d3" = "30MiB"

[defaults]
min.cleanable.dirty.ratio = 0.4

[topics.users]
# the newest word on each user
cleanup.policy = "compact"                     # never delete
segment.bytes = "64MiB"

[topics."orders.v2"]
cleanup.policy = ["compact", "delete"]
"""


USERS = """\
# the newest word on each user
cleanup.policy = "compact"                     # never delete
segment.bytes = "64MiB"
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "lastword.toml").write_text(FILE)
    return tmp_path


class TestValues:
    def test_the_defaults_are_kafkas_but_no_policy(self) -> None:
        config = TopicConfig()
        assert config.cleanup_policy is None
        assert not config.compacts and not config.deletes
        assert config.segment_bytes == 1073741824
        assert config.segment_ms == config.retention_ms == 604800000
        assert config.segment_index_bytes == 10485760
        assert config.index_interval_bytes == 4096
        assert config.max_message_bytes == 1048588
        assert config.retention_bytes == -1
        assert config.delete_retention_ms == 86400000
        assert config.max_compaction_lag_ms == 9223372036854775807
        assert config.min_cleanable_dirty_ratio == 0.5
        assert config.file_delete_delay_ms == 60000
        assert (config.compression_type, config.message_timestamp_type) == ("producer", "CreateTime")
        assert Settings.from_text("").instance.log_cleaner_dedupe_buffer_size == 134217728

    def test_names_are_kafkas(self) -> None:
        for name, setting in ALL_SETTINGS.items():
            assert setting.name == name
            assert setting.keyword.isidentifier()
            assert setting.text.endswith("."), name
            assert setting.group in ("behaviour", "cost")

    def test_every_default_reads_back_from_its_own_text(self) -> None:
        for table, config in (
            (TOPIC_SETTINGS, TopicConfig()),
            (INSTANCE_SETTINGS, Settings.from_text("").instance),
        ):
            for setting in table.values():
                value = getattr(config, setting.keyword)
                shown = setting.show(value)
                if shown not in ("none", "not set") and value != ():
                    assert setting.read(shown) == value, setting.name

    def test_a_config_ships_to_spark(self) -> None:
        config = Settings.from_text(FILE).topic("users")
        again = pickle.loads(pickle.dumps(config))
        assert again == config
        assert again.sources == config.sources

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("segment.bytes", 13),
            ("segment.bytes", "1MB"),
            ("segment.bytes", 2**31),
            ("segment.ms", 0),
            ("retention.ms", -2),
            ("min.cleanable.dirty.ratio", 1.1),
            ("min.cleanable.dirty.ratio", "nan"),
            ("min.cleanable.dirty.ratio", True),
            ("cleanup.policy", "compact,keep"),
            ("cleanup.policy", "compact,none"),
            ("cleanup.policy", ["none"]),
            ("preallocate", "yes"),
            ("compression.type", "brotli"),
            ("message.timestamp.type", "createtime"),
            ("lastword.ack", "all"),
            ("max.message.bytes", 1.5),
            ("flush.messages", True),
        ],
    )
    def test_values_out_of_range(self, name: str, value: object) -> None:
        with pytest.raises(InvalidSettingError, match=name):
            parse_topic_settings({name: value})

    def test_keywords_and_dotted_names_are_the_same(self) -> None:
        assert parse_topic_settings({"segment_ms": "2d", "cleanup.policy": "compact, delete"}) == {
            "segment.ms": 172800000,
            "cleanup.policy": frozenset({"compact", "delete"}),
        }
        assert parse_topic_settings({"segment_ms": None}) == {"segment.ms": None}
        assert keyword_names({"segment.ms": "2d", "log_cleaner_threads": 2}) == {
            "segment_ms": "2d",
            "log_cleaner_threads": 2,
        }
        with pytest.raises(UnknownSettingError, match=r"nearest: segment\.ms"):
            keyword_names({"segment.mss": 1})

    def test_a_lag_above_the_other_is_refused(self) -> None:
        with pytest.raises(InvalidSettingError, match=r"min\.compaction\.lag\.ms 10 is above max"):
            parse_topic_settings({"min_compaction_lag_ms": 10, "max_compaction_lag_ms": 9})


class TestSources:
    def test_every_value_knows_who_said_it(self, directory: Path) -> None:
        settings = Settings.load(
            directory,
            env={"LASTWORD_SEGMENT_MS": "5d", "HOME": "/root"},
            arguments={"delete_retention_ms": "1h"},
        )
        users = settings.topic("users")
        assert users.segment_bytes == 64 << 20
        assert users.source("segment.bytes") == "lastword.toml:13 [topics.users]"
        assert users.source("cleanup_policy") == "lastword.toml:12 [topics.users]"
        assert (users.min_cleanable_dirty_ratio, users.source("min.cleanable.dirty.ratio")) == (
            0.4,
            "lastword.toml:8 [defaults]",
        )
        assert (users.segment_ms, users.source("segment.ms")) == (432000000, "environment")
        assert (users.delete_retention_ms, users.source("delete.retention.ms")) == (3600000, "argument")
        assert users.source("flush.ms") == "default"
        assert settings.instance.source("log.cleaner.threads") == "lastword.toml:2"
        assert settings.topic("orders.v2").cleanup_policy == {"compact", "delete"}
        assert settings.topic("not mentioned").cleanup_policy is None

    def test_the_order_of_precedence(self) -> None:
        text = (
            'lastword.ack = "disk"\n[defaults]\nsegment.ms = 2\nflush.ms = 2\nretention.ms = 2\n'
            "[topics.t]\nsegment.ms = 3\nflush.ms = 3\n"
        )
        layers = Settings.from_text(text)
        config = layers.topic("t")
        assert (config.segment_ms, config.flush_ms, config.retention_ms, config.lastword_ack) == (
            3,
            3,
            2,
            "disk",
        )

    def test_environment_over_file_and_argument_over_environment(self, directory: Path) -> None:
        env = {"LASTWORD_SEGMENT_BYTES": "1MiB", "LASTWORD_LOG_CLEANER_THREADS": "3", "LASTWORD_ACK": "disk"}
        settings = Settings.load(directory, env=env, arguments={"log.cleaner.threads": 4})
        assert settings.topic("users").segment_bytes == 1 << 20
        assert settings.topic("users").lastword_ack == "disk"
        assert settings.instance.log_cleaner_threads == 4

    def test_rows_show_all(self, directory: Path) -> None:
        rows = {
            name: (value, source) for name, value, source in Settings.load(directory, env={}).rows("users")
        }
        assert set(rows) == set(TOPIC_SETTINGS)
        assert rows["segment.bytes"] == ("64MiB", "lastword.toml:13 [topics.users]")
        assert rows["segment.ms"] == ("7d", "default")
        process = {name: value for name, value, _ in Settings.load(directory, env={}).rows()}
        assert process["log.cleaner.threads"] == "1"

    def test_another_file(self, directory: Path, tmp_path: Path) -> None:
        other = tmp_path / "other.toml"
        other.write_text("log.cleaner.threads = 7\n")
        settings = Settings.load(directory, config_file=other, env={})
        assert settings.instance.log_cleaner_threads == 7
        assert settings.instance.source("log.cleaner.threads") == f"{other}:1"

    def test_two_directories_with_settings_are_refused(self, directory: Path, tmp_path: Path) -> None:
        second = tmp_path / "second"
        second.mkdir()
        assert Settings.load([second, directory], env={}).instance.drives
        (second / "lastword.toml").write_text("")
        with pytest.raises(InvalidSettingError, match="both contain settings"):
            Settings.load([second, directory], env={})


class TestMistakes:
    def test_all_at_once_with_their_lines(self, tmp_path: Path) -> None:
        (tmp_path / "lastword.toml").write_text(
            "log.cleaner.thread = 2\n"
            "segment.bytes = 14\n"
            "\n"
            "[topics.users]\n"
            'segment.bytes = """\n1MB"""\n'
            "# a comment\n"
            "log.cleaner.threads = 1\n"
            'cleanup.polcy = "compact"\n'
            "[topics.late]\n"
            'min.compaction.lag.ms = "2d"\n'
        )
        with pytest.raises(UnknownSettingError) as caught:
            Settings.load(
                tmp_path,
                env={"LASTWORD_CLEANER_THREADS": "2", "LASTWORD_SEGMENT_MS": "soon", "LASTWORD_EDITION": "7"},
                arguments={"cleanup_polcy": "compact", "lastword_ack": "most"},
            )
        path = tmp_path / "lastword.toml"
        assert caught.value.problems == [
            "unknown setting 'cleanup_polcy'; nearest: cleanup_policy",
            "lastword_ack: 'most' is not one of os, disk",
            "environment: unknown setting 'LASTWORD_CLEANER_THREADS'; nearest: LASTWORD_LOG_CLEANER_THREADS",
            "environment: LASTWORD_SEGMENT_MS: 'soon' is not a duration from 1ms",
            f"{path}:1: unknown setting 'log.cleaner.thread'; nearest: log.cleaner.threads",
            f"{path}:2: unknown setting 'segment.bytes'; "
            "it is a topic setting: put it under [defaults] or [topics.NAME]",
            f"{path}:5: segment.bytes in [topics.users]: '1MB' is not a size from 14 B",
            f"{path}:8: unknown setting 'log.cleaner.threads' in [topics.users]; "
            "it applies to the whole directory: put it above all tables",
            f"{path}:9: unknown setting 'cleanup.polcy' in [topics.users]; nearest: cleanup.policy",
        ]
        assert str(caught.value).startswith("unknown setting 'cleanup_polcy'")

    def test_contradictions_are_found_with_their_source(self) -> None:
        text = '[defaults]\nmax.compaction.lag.ms = "1h"\n[topics.t]\nmin.compaction.lag.ms = "2h"\n'
        with pytest.raises(InvalidSettingError) as caught:
            Settings.from_text(text)
        assert caught.value.problems == [
            "lastword.toml:4 [topics.t]: topic t: "
            "min.compaction.lag.ms 7200000 is above max.compaction.lag.ms 3600000"
        ]

    @pytest.mark.parametrize(
        ("text", "line"), [("[topics", 1), ("\na = ", 2), ('\n\na = "x', 3), ("a = 1\na = 2\n", 2)]
    )
    def test_what_is_not_toml_is_named_with_path_and_line(self, tmp_path: Path, text: str, line: int) -> None:
        path = tmp_path / "lastword.toml"
        path.write_text(text)
        with pytest.raises(InvalidSettingError) as caught:
            Settings.load(tmp_path, env={})
        assert caught.value.message.startswith(f"{path}:{line}: not TOML: ") and caught.value.file == str(
            path
        )

    def test_what_is_not_utf8(self, tmp_path: Path) -> None:
        (tmp_path / "lastword.toml").write_bytes(b'x = "\xff"')
        with pytest.raises(InvalidSettingError, match="not UTF-8 at byte 5"):
            Settings.load(tmp_path, env={})

    @pytest.mark.parametrize(
        "text",
        [
            "topics = 1",
            "defaults = 2",
            "[topics]\nusers = 3",
            "[[topics]]\nx = 1",
            "drives = 5",
            "[topics.users.x]\ny = 1",
        ],
    )
    def test_tables_of_the_wrong_shape(self, text: str) -> None:
        with pytest.raises(InvalidSettingError, match=r"lastword\.toml:\d: "):
            Settings.from_text(text)


class TestLines:
    def test_the_lines_of_all_forms(self) -> None:
        text = (
            '# c\n\na.b = 1\n[topics."x.y"]\nc = [\n  1,\n  2,\n]\nd = """\n[topics.z]\ne = 1\n"""\n'
            "f = {g = 1, h.i = 2}\n  [ defaults ] # c\n  'j' = 3\n"
        )
        assert [tuple(entry) for entry in read_entries(text, "f")] == [
            ("", None, "a.b", 1, 3),
            ("topics", "x.y", "c", [1, 2], 5),
            ("topics", "x.y", "d", "[topics.z]\ne = 1\n", 9),
            ("topics", "x.y", "f.g", 1, 13),
            ("topics", "x.y", "f.h.i", 2, 13),
            ("defaults", None, "j", 3, 15),
        ]


class TestChanging:
    def test_comments_and_order_stay(self, directory: Path) -> None:
        path = topic_file(str(directory / "lastword.toml"), "users")
        Path(path).write_text(USERS)
        write_topic_settings(
            OsFiles(),
            directory / "lastword.toml",
            "users",
            {"segment_ms": "2d", "cleanup.policy": "compact,delete", "segment.bytes": None},
        )
        assert Path(path).read_text() == USERS.replace('"compact"  ', '"compact,delete"  ').replace(
            'segment.bytes = "64MiB"\n', 'segment.ms = "2d"\n'
        )
        assert Settings.load(directory, env={}).topic("users").segment_ms == 172800000
        assert not list(directory.glob("*.tmp")), "no scratch file is left"

    def test_a_table_is_moved_to_the_file_of_its_topic(self, directory: Path) -> None:
        path = directory / "lastword.toml"
        write_topic_settings(OsFiles(), path, "users", {"segment_ms": "2d"})
        assert path.read_text() == FILE.replace(f"[topics.users]\n{USERS}\n", "")
        settings = Settings.load(directory, env={})
        assert (directory / "lastword.topic-users.toml").read_text() == f'{USERS}segment.ms = "2d"\n'
        assert settings.topic("users").source("segment.ms") == "lastword.topic-users.toml:4"
        assert settings.topic("orders.v2").cleanup_policy == {"compact", "delete"}

    def test_names_that_begin_alike_and_stand_apart(self, tmp_path: Path) -> None:
        """The order is that of `create_topic`: lastword.*, another name, lastword.* again."""
        path = tmp_path / "lastword.toml"
        (tmp_path / "lastword.topic-a.toml").write_text(
            'lastword.key.serializer = "str"\ncleanup.policy = "compact"\n'
            'lastword.value.serializer = "json"\n'
        )
        write_topic_settings(OsFiles(), path, "a", {"lastword_ttl_ms": 0})
        topic = Settings.load(tmp_path, env={}).topic("a")
        assert (topic.lastword_ttl_ms, topic.lastword_key_serializer) == (0, "str")
        assert (topic.lastword_value_serializer, topic.cleanup_policy) == ("json", {"compact"})

    def test_without_a_topic(self, directory: Path) -> None:
        path = directory / "lastword.toml"
        write_topic_settings(OsFiles(), path, None, {"log_cleaner_threads": 3, "segment.ms": "1d"})
        settings = Settings.load(directory, env={})
        assert settings.instance.log_cleaner_threads == 3
        assert settings.topic("any").segment_ms == 86400000
        assert "# one is enough" in path.read_text()

    @pytest.mark.parametrize(
        "change",
        [
            {"cleanup.polcy": "compact"},
            {"segment.bytes": 1},
            {"log.cleaner.threads": 2},
            {"min.compaction.lag.ms": 2**63},
        ],
    )
    def test_a_wrong_change_leaves_the_file_alone(self, directory: Path, change: dict[str, object]) -> None:
        with pytest.raises(InvalidSettingError):
            write_topic_settings(OsFiles(), directory / "lastword.toml", "users", change)
        assert (directory / "lastword.toml").read_text() == FILE

    def test_a_change_that_contradicts_the_rest_leaves_the_file_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "lastword.toml"
        path.write_text("[topics.t]\nmax.compaction.lag.ms = 5\n")
        with pytest.raises(InvalidSettingError, match="is above"):
            write_topic_settings(OsFiles(), path, "t", {"min_compaction_lag_ms": 6})
        assert path.read_text() == "[topics.t]\nmax.compaction.lag.ms = 5\n"

    def test_a_deleted_topic_leaves_no_settings(self, directory: Path) -> None:
        """Neither in a file of its own nor in a table."""
        path, file = directory / "lastword.toml", directory / "lastword.topic-users.toml"
        file.write_text("flush.ms = 1\n")
        for _ in range(2):
            remove_topic_settings(OsFiles(), path, "users")
        settings = Settings.load(directory, env={})
        assert settings.topic("users") == settings.topic("absent") and not file.exists()
        assert settings.topic("orders.v2").cleanup_policy == {"compact", "delete"}
        remove_topic_settings(OsFiles(), directory / "absent.toml", "users")
        assert not (directory / "absent.toml").exists()

    @examples(max_examples=few(30))
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["a", "b.c", "-", "users"]),
                st.sampled_from(
                    ["segment.ms", "segment.bytes", "flush.ms", "cleanup.policy", "lastword.ack"]
                ),
                st.booleans(),
            ),
            max_size=12,
        )
    )
    def test_any_run_of_changes_is_what_a_dict_would_hold(
        self, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, str, bool]]
    ) -> None:
        path = tmp_path_factory.mktemp("config") / "lastword.toml"
        path.write_text(FILE)
        values = {
            "segment.ms": 5,
            "segment.bytes": "1KiB",
            "flush.ms": "1h",
            "cleanup.policy": "delete",
            "lastword.ack": "disk",
        }
        expected: dict[tuple[str, str], object] = {}
        for topic, name, setting in changes:
            if setting:
                write_topic_settings(OsFiles(), path, topic, {name: values[name]})
                expected[topic, name] = TOPIC_SETTINGS[name].read(values[name])
            else:
                write_topic_settings(OsFiles(), path, topic, {name: None})
                expected.pop((topic, name), None)
        settings = Settings.load(path.parent, env={})
        for topic in ("a", "b.c", "-"):
            config = settings.topic(topic)
            for name, setting_of in TOPIC_SETTINGS.items():
                if name in values:
                    default = getattr(TopicConfig(), setting_of.keyword)
                    assert getattr(config, setting_of.keyword) == expected.get((topic, name), default)
        users = expected.get(("users", "segment.bytes"))
        touched = any(change[:2] == ("users", "segment.bytes") for change in changes)
        assert settings.topic("users").segment_bytes == (users or (1 << 30 if touched else 64 << 20))


@pytest.mark.parametrize(
    ("topic", "settings"),
    [
        ("users", {"cleanup_policy": "compact", "lastword_key_serializer": "str", "segment_bytes": 1 << 20}),
        ("a.b", {"cleanup.policy": "delete", "retention_ms": "7d", "preallocate": True}),
        ("users", {"cleanup_policy": ["delete", "compact"], "min_cleanable_dirty_ratio": 0.25}),
        ("users", {"lastword_partitioner": 'mine "quoted"'}),
    ],
)
def test_a_new_file_is_written_as_tomlkit_writes_it(topic, settings, tmp_path, monkeypatch):
    """The file of a new topic is written without tomlkit, if its values are plain."""
    written = []
    for plain in ("plain", "other"):
        if plain == "other":
            monkeypatch.setattr(toml_file, "_new_text", lambda changes: None)
        (tmp_path / plain).mkdir()
        path = tmp_path / plain / "lastword.toml"
        write_topic_settings(DEFAULT, path, topic, settings)
        written.append(Path(topic_file(str(path), topic)).read_bytes())
    assert written[0] == written[1] != b""


@pytest.mark.parametrize(
    "text",
    [
        "[topics.users]\nretention.ms = 1\n\n[defaults]\nretention.ms = 5\n",
        "a = 1\n[ topics . users ] # c\nretention.ms = 1",
        '[topics."\\u0075sers"]\nretention.ms = 1\n\n[topics.users2]\nretention.ms = 2\n',
        "topics.users.retention.ms = 1\n[defaults]\nretention.ms = 5\n",
        "[topics]\nusers.retention.ms = 1\nother.retention.ms = 1\n",
        "[topics.users.retention]\nms = 1\n[topics.other]\nretention.ms = 1\n",
        "[topics.other]\nretention.ms = 1\n\n[topics.users.retention]\nms = 1\n",
    ],
)
def test_a_table_is_cut_in_each_form(text):
    rest, files = cut_tables(text, ["users", "absent"], "f")
    assert tomllib.loads(files["users"]) == {"retention": {"ms": 1}} and len(files) == 1
    kept = [entry[:4] for entry in read_entries(text, "f") if entry.topic != "users"]
    assert [entry[:4] for entry in read_entries(rest, "f")] == kept


def test_the_longest_names_have_files(tmp_path):
    """A name of 249 characters, `.toml` and the ending of a temporary file are more than 255."""
    path = tmp_path / "lastword.toml"
    topics = ["t" * 249, "t" * 248, "t" * 231, "t" * 232, "..t", "-"]
    for number, topic in enumerate(topics, start=1):
        write_topic_settings(DEFAULT, path, topic, {"retention_ms": number})
    assert len(list(tmp_path.glob("lastword.topic-*"))) == len(topics)
    settings = Settings.load(tmp_path, env={})
    assert [settings.topic(topic).retention_ms for topic in topics] == [1, 2, 3, 4, 5, 6]
    assert settings.topic("../lastword").retention_ms == settings.topic("t" * 250).retention_ms == 604800000


@pytest.mark.parametrize(
    "text",
    ["retention.ms = \n", "\nretention.mss = 1\n", "\nretention.ms = -5\n", "[topics.users]\nflush.ms = 1\n"],
)
def test_a_damaged_file_keeps_everything_of_its_topic_alone(tmp_path, text):
    (tmp_path / "lastword.toml").write_text('[defaults]\ncleanup.policy = "delete"\nretention.ms = 1\n')
    damaged = tmp_path / "lastword.topic-users.toml"
    damaged.write_text(text)
    settings = Settings.load(tmp_path, env={})
    config = settings.topic("users")
    assert config.policy is None and config.unread is not None
    assert settings.topic("other").policy == {"delete"} and settings.topic("other").damaged is None
    for call in (
        lambda: settings.rows("users"),
        lambda: config.check_takes_records("users-0"),
        lambda: write_topic_settings(DEFAULT, tmp_path / "lastword.toml", "users", {"flush_ms": 1}),
    ):
        with pytest.raises(InvalidSettingError) as caught:
            call()
        line = 1 if text[0] == "r" else 2
        assert caught.value.message.startswith(f"{damaged}:{line}: ") and caught.value.file == str(damaged)
        assert caught.value.remedy
    assert damaged.read_text() == text
    damaged.write_text("flush.ms = 1\n")
    assert settings.topic("users").policy == {"delete"}, "a damaged file is read again at each use"


def test_a_file_that_cannot_be_read_keeps_everything_of_its_topic(tmp_path):
    (tmp_path / "lastword.toml").write_text('[defaults]\ncleanup.policy = "delete"\n')
    (tmp_path / "lastword.topic-users.toml").mkdir()
    settings = Settings.load(tmp_path, env={})
    assert settings.topic("users").policy is None and settings.topic("other").policy == {"delete"}
    with pytest.raises(StorageError):
        settings.rows("users")


def test_values_of_a_file_that_contradict_the_defaults_keep_everything(tmp_path):
    (tmp_path / "lastword.toml").write_text(
        '[defaults]\nmax.compaction.lag.ms = 5\ncleanup.policy = "compact"\n'
    )
    (tmp_path / "lastword.topic-t.toml").write_text("min.compaction.lag.ms = 6\n")
    settings = Settings.load(tmp_path, env={})
    assert settings.topic("t").policy is None and settings.topic("u").policy == {"compact"}
    with pytest.raises(InvalidSettingError, match=r"lastword\.topic-t\.toml:1: topic t: .* is above"):
        settings.rows("t")


def test_a_change_and_an_opening_read_no_file_of_another_topic(tmp_path, monkeypatch):
    path = tmp_path / "lastword.toml"
    for number in range(30):
        create_topic_settings(DEFAULT, path, {f"t{number}": {"retention_ms": number}})
    files = OsFiles()
    read = []
    read_bytes = files.read_bytes
    monkeypatch.setattr(files, "read_bytes", lambda file: read.append(Path(file).name) or read_bytes(file))
    create_topic_settings(files, path, {"new": {"retention_ms": 1}})
    write_topic_settings(files, path, "t3", {"retention_ms": 7})
    remove_topic_settings(files, path, "t4")
    settings = Settings.load(tmp_path, env={}, files=files)
    own = {"lastword.topic-new.toml", "lastword.topic-t3.toml"}
    assert set(read) == {"lastword.toml"} | own
    for name in ("t5", "t5", "t4"):
        settings.topic(name)
    assert read.count("lastword.topic-t5.toml") == 1 and "lastword.topic-t4.toml" not in read


def test_an_earlier_topic_leaves_no_values_to_a_new_one(tmp_path):
    path = tmp_path / "lastword.toml"
    for name in ("t", "u"):
        (tmp_path / f"lastword.topic-{name}.toml").write_text("not toml")  # of a deletion that was killed
    create_topic_settings(DEFAULT, path, {"t": {"flush_ms": 1}, "u": {}})
    settings = Settings.load(tmp_path, env={})
    assert (settings.topic("t").flush_ms, settings.topic("t").damaged) == (1, None)
    assert settings.topic("u").damaged is None


def test_a_state_of_the_settings_takes_over_what_has_not_changed(tmp_path):
    path = tmp_path / "lastword.toml"
    for name in ("a", "b"):
        write_topic_settings(DEFAULT, path, name, {"retention_ms": 1})
    before = Settings.load(tmp_path, env={})
    kept = before.topic("b")
    before.topic("a")
    write_topic_settings(DEFAULT, path, "a", {"retention_ms": 2})
    after = Settings.load(tmp_path, env={})
    assert after.take_over(before, ["a"]) == ["a"]
    assert after.topic("a").retention_ms == 2 and after.topic("b") is kept
    write_topic_settings(DEFAULT, path, None, {"flush_ms": 3})
    last = Settings.load(tmp_path, env={})
    assert last.take_over(after, ["a"]) is None and last.topic("b").flush_ms == 3


def test_the_values_of_a_topic_are_merged_once(tmp_path, monkeypatch):
    before = Settings.load(tmp_path)
    assert before.topic("a").flush_ms == before.topic("a", saved=True).flush_ms
    monkeypatch.setattr(Settings, "_layers", None)
    before.topic("a")
    monkeypatch.undo()
    write_topic_settings(DEFAULT, tmp_path / "lastword.toml", "a", {"flush_ms": 5})
    after = Settings.load(tmp_path)
    after.take_over(before, ["a"])
    assert after.topic("a").flush_ms == 5
    after.forget(["a"])
    monkeypatch.setattr(Settings, "_layers", None)
    with pytest.raises(TypeError):
        after.topic("a")


def test_a_contradiction_is_found_in_a_table_that_is_added_by_hand(tmp_path):
    path = tmp_path / "lastword.toml"
    path.write_text("[topics.b]\nretention.ms = 2\n")
    Settings.load(tmp_path)
    path.write_text(f"{path.read_text()}\n[topics.c]\nmin.compaction.lag.ms = 6\nmax.compaction.lag.ms = 5\n")
    for _ in range(2):
        with pytest.raises(InvalidSettingError, match="topic c: "):
            Settings.load(tmp_path)
    path.write_text(path.read_text().replace("lag.ms = 6", "lag.ms = 4").replace("ms = 2", "ms = 3"))
    assert Settings.load(tmp_path).topic("b").retention_ms == 3


def test_a_request_without_an_answer_is_no_file_without_settings(tmp_path, monkeypatch):
    """A drive that failed does not stop the topics on others; a store that answers later stops its topic."""
    files = OsFiles()
    path = topic_file("memory://b/lastword.toml", "t")
    facts = files.stat(__file__)
    monkeypatch.setattr(files, "exists", lambda path: False)
    monkeypatch.setattr(files, "stat", lambda path: facts)
    error = UncertainRequestError.of(path, "read", "no answer", write=False)

    def read_bytes(path):
        raise error

    monkeypatch.setattr(files, "read_bytes", read_bytes)
    for root, damaged in (("memory://b", error), ("/d", None)):
        config = Settings.load(root, env={}, files=files).topic("t")
        assert config.damaged is damaged and config.unread is not None
