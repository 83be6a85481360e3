"""`Settings`: every value with its source; one error lists all mistakes.

    argument or option  >  LASTWORD_... variable  >  [topics.NAME]  >  cluster, for the topic
    >  [defaults]  >  cluster, for all topics  >  top level  >  built in

The top level holds the settings of the process (`LogConfig`) and the defaults of a few topic settings.

The parser of the standard library reports no line numbers. A TOML statement can be parsed alone, so a valid
lastword.toml is cut into the shortest runs of lines that parse, and each run is parsed for its keys.

`write_topic_settings` and `remove_topic_settings` change the file: comments and order stay, and the file is
replaced atomically. A table of a topic is changed and read alone, so that the time for a change hardly
depends on the number of topics.
"""

from __future__ import annotations

import copy
import functools
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple, Protocol

from lastword.config.setting import Setting
from lastword.config.tables import INSTANCE_SETTINGS, TOPIC_SETTINGS, LogConfig, TopicConfig, Unread
from lastword.errors import (
    FileVanishedError,
    InvalidSettingError,
    LastwordError,
    StorageError,
    UnknownSettingError,
    UsageError,
    nearest,
    unknown_setting,
)
from lastword.files import Files

MOST_KEPT_CONFIGS = 1 << 16


class TomlEntry(NamedTuple):
    """One value of the file.

    Attributes:
        table: "" at the top level, "defaults", "topics", or an unknown table.
        topic: The topic in table "topics"; None elsewhere.
        name: The dotted name of the setting.
        value: The value as TOML gives it.
        line: Line number, from 1.
    """

    table: str
    topic: str | None
    name: str
    value: Any
    line: int

    @property
    def where(self) -> str:
        """The table as it is written in the file; empty at the top level."""
        if self.topic is not None:
            return f"[topics.{self.topic}]"
        return f"[{self.table}]" if self.table else ""


def read_entries(text: str, shown_name: str) -> tuple[TomlEntry, ...]:
    """Read all values of a lastword.toml. `shown_name` names the file in errors."""
    return _read_text(text, shown_name)[0]


class _Header(NamedTuple):
    """The header of a table: its line, from 1, its path, and whether it begins an array's element."""

    line: int
    path: tuple[str, ...]
    is_array: bool


@functools.lru_cache(maxsize=8)
def _read_text(text: str, shown_name: str) -> tuple[tuple[TomlEntry, ...], tuple[_Header, ...]]:
    """Return all values of a lastword.toml, and the headers of its tables.

    A process that opens a directory reads an unchanged text several times; the last texts are kept.
    """
    if not text:
        return (), ()
    import tomllib  # takes 2 ms to load, and only a file with settings needs it

    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r" \(at line (\d+), column (\d+)\)", str(error))
        line = int(at[1]) if at else max(1, len(text.splitlines()))
        why = str(error).partition(" (at ")[0]
        raise InvalidSettingError(
            f"{shown_name}:{line}: not TOML: {why}", remedy="correct that line", file=shown_name
        ) from None
    entries: list[TomlEntry] = []
    headers: list[_Header] = []
    base: tuple[str, ...] = ()
    for line, first, content in _statements(text):
        if first.startswith("["):
            base = _only_path(content)
            headers.append(_Header(line, base, first.startswith("[[")))
        else:
            entries += [_entry(base + path, value, line) for path, value in _flatten(content)]
    return tuple(entries), tuple(headers)


_PLAIN_LINE = re.compile(r'([\w-]+(?:\.[\w-]+)*) = (?:"([\w.,-]*)"|(-?[0-9]+)|true|(false))', re.ASCII)
_PLAIN_HEADER = re.compile(r'\[topics\.(?:"([\w.-]+)"|([\w-]+))\]', re.ASCII)


def _statements(text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield (line number from 1, first line, content) for each header and assignment of a valid file."""
    import tomllib

    lines = text.replace("\r\n", "\n").split("\n")
    start = 0
    while start < len(lines):
        end = start + 1
        content = _plain_statement(lines[start])
        while content is None:
            try:
                content = tomllib.loads("\n".join(lines[start:end]))
            except tomllib.TOMLDecodeError:
                end += 1
                if end > len(lines):
                    return
        if content:
            yield start + 1, lines[start].lstrip(), content
        start = end


def _plain_statement(line: str) -> dict[str, Any] | None:
    """Return the content of a line as most files have them; None: the line needs a parser."""
    if not line:
        return {}
    header = _PLAIN_HEADER.fullmatch(line)
    if header is not None:
        return {"topics": {header[1] or header[2]: {}}}
    plain = _PLAIN_LINE.fullmatch(line)
    if plain is None:
        return None
    name, text, number, false = plain.groups()
    content: Any = text if text is not None else int(number) if number is not None else false is None
    for key in reversed(name.split(".")):
        content = {key: content}
    assert isinstance(content, dict)
    return content


def _only_path(content: dict[str, Any]) -> tuple[str, ...]:
    """Return the path of a table header parsed alone: a chain of single keys, also for an array of tables."""
    path: tuple[str, ...] = ()
    node: Any = content
    while isinstance(node, (dict, list)) and node:
        if isinstance(node, list):
            node = node[0]
            continue
        ((key, node),) = node.items()
        path += (key,)
    return path


def _flatten(content: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            for path, leaf in _flatten(value):
                yield (key, *path), leaf
        else:
            yield (key,), value


def _entry(path: tuple[str, ...], value: Any, line: int) -> TomlEntry:
    if path[0] == "topics" and len(path) > 2:
        return TomlEntry("topics", path[1], ".".join(path[2:]), value, line)
    if path[0] == "defaults" and len(path) > 1:
        return TomlEntry("defaults", None, ".".join(path[1:]), value, line)
    if path[0] == "drives" and len(path) > 1:
        return TomlEntry("", None, "drives", {"/".join(path[1:]): value}, line)
    return TomlEntry("", None, ".".join(path), value, line)


FILE_NAME = "lastword.toml"
PREFIX = "LASTWORD_"
ALL_SETTINGS: dict[str, Setting] = {**INSTANCE_SETTINGS, **TOPIC_SETTINGS}
_BY_KEYWORD = {setting.keyword: setting for setting in ALL_SETTINGS.values()}
_BY_VARIABLE = {setting.variable: setting for setting in ALL_SETTINGS.values()}


class SourcedValue(NamedTuple):
    """A value and its source, as `config` shows it."""

    value: Any
    source: str


Layer = dict[str, SourcedValue]


MADE_HERE = "lastword.partitioner"
"""A setting that is saved for every topic that lastword creates; no cluster decides about such a topic."""
UNKNOWN = "unknown"
"""The source of a value that a cluster may have set, if its settings are not known; or its beginning."""


def unread(why: str, remedy: str, names: Iterable[str]) -> Layer:
    """Return a layer in which settings have values that cannot be read."""
    return dict.fromkeys(names, SourcedValue(Unread(why, remedy), UNKNOWN))


class ClusterSettings(Protocol):
    """The settings that a Kafka cluster holds for its topics; see `logdir.broker`.

    A value may be `Unread`.
    """

    def topic(self, name: str) -> Layer:
        """Return the settings of one topic."""
        ...

    def defaults(self) -> Layer:
        """Return the settings of all topics."""
        ...


class Settings:
    """All values with their sources. Immutable: load again to see a changed file."""

    def __init__(self, over: Layer, file: _FileLayers) -> None:
        """Merge the values of arguments and environment, which override all others, with those of a file."""
        self._cluster: ClusterSettings | None = None
        self._over = over
        self._file = file
        self._topic_configs: dict[str, tuple[list[Layer], TopicConfig]] = {}
        self.instance: LogConfig = self._build(LogConfig, INSTANCE_SETTINGS, [over, file.top])

    @classmethod
    def load(
        cls,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
        config_file: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        files: Files | None = None,
    ) -> Settings:
        """Read and check all settings.

        Args:
            paths: Log directories. Their lastword.toml is read unless `config_file` names another file.
            config_file: A settings file.
            env: Environment variables. None: the environment of the process.
            arguments: Values by keyword or dotted name.
            files: The storage of the log directories. A `config_file` is always a file of the system.

        Raises:
            UnknownSettingError: A name is unknown; `problems` lists every mistake in any source.
            InvalidSettingError: A value is not allowed; `problems` lists every mistake in any source.
        """
        if isinstance(paths, str | os.PathLike):
            paths = [paths]
        problems = Problems()
        given = _arguments(arguments or {}, problems)
        environment = _environment(os.environ if env is None else env, problems)
        file = _file_of([os.fspath(path) for path in paths], config_file, files)
        text, shown, path = "", "", ""
        if file is not None:
            shown, path = (os.path.basename(file) if config_file is None else file), file
            text = _read(file, files if config_file is None else None)
        return cls._checked(given, environment, text, shown, path, problems)

    @classmethod
    def from_text(cls, text: str, shown_name: str = FILE_NAME) -> Settings:
        """Read the settings of one file's text only. `shown_name` names the file in sources and errors."""
        return cls._checked({}, {}, text, shown_name, shown_name, Problems())

    @classmethod
    def _checked(
        cls, given: Layer, environment: Layer, text: str, shown: str, path: str, problems: Problems
    ) -> Settings:
        """Read one file's text. `shown` names the file in sources, `path` in errors."""
        layers = _layers_of(text, shown, path, problems)
        problems.raise_any()
        settings = cls({**environment, **given}, layers)
        settings._check_together()
        return settings

    def changed(self, arguments: Mapping[str, Any]) -> Settings:
        """Return these settings with arguments that override all of them. For simulations.

        Args:
            arguments: Values by keyword or dotted name.
        """
        problems = Problems()
        given = _arguments(arguments, problems)
        problems.raise_any()
        settings = Settings({**self._over, **given}, self._file)
        settings._cluster = self._cluster
        settings._check_together()
        return settings

    def with_cluster(self, cluster: ClusterSettings) -> Settings:
        """Return these settings; they override the settings that a cluster holds for its topics."""
        settings = copy.copy(self)
        settings._cluster, settings._topic_configs = cluster, {}
        return settings

    def changed_topics(self, before: Settings) -> list[str] | None:
        """Return the topics whose values may differ from `before`, an earlier state of the same file.

        The cost does not depend on the number of topics, if this process changed the file table by table.
        Objects that `topic` has built are taken over. Changes in a cluster are not considered.

        Returns:
            The topics; None: those of any topic may differ.
        """
        self._topic_configs = before._topic_configs
        return self._file.changed_since(before._file) if self._over == before._over else None

    def topic(self, name: str, *, saved: bool = False) -> TopicConfig:
        """Return the settings of a topic, also if the file does not name it.

        As long as no value changes, it is the same object.

        Args:
            name: The topic.
            saved: Leave out arguments and environment, which apply to this process only.
        """
        shared: Layer = {name: value for name, value in self._file.top.items() if name in TOPIC_SETTINGS}
        layers = [{} if saved else self._over, self._file.topic(name), self._file.defaults, shared]
        if self._cluster is not None:
            of_topic = self._cluster.topic(name)
            if MADE_HERE in layers[1]:
                of_topic = {name: given for name, given in of_topic.items() if given.source != UNKNOWN}
            layers[2:3] = [of_topic, self._file.defaults, self._cluster.defaults()]
        before = self._topic_configs.get(name)
        if before is not None and before[0] == layers:
            return before[1]
        config: TopicConfig = self._build(TopicConfig, TOPIC_SETTINGS, layers)
        if len(self._topic_configs) >= MOST_KEPT_CONFIGS:  # clients name topics that do not exist
            self._topic_configs.clear()
        self._topic_configs[name] = layers, config
        return config

    def forget(self, topics: Iterable[str]) -> None:
        """Drop what is kept for topics that were deleted."""
        for name in topics:
            self._topic_configs.pop(name, None)

    def rows(self, topic: str | None = None, *, saved: bool = False) -> list[tuple[str, str, str]]:
        """Return (name, value as text, source) of every setting of the process, or of a topic.

        `saved`: of a topic, without arguments and environment.
        """
        config, known = self._config_of(topic, saved)
        return [
            (name, setting.show(getattr(config, setting.keyword)), config.source(name))
            if not config.source(name).startswith(UNKNOWN)
            else (name, UNKNOWN, config.source(name).removeprefix(f"{UNKNOWN}: "))
            for name, setting in known.items()
        ]

    def values(self, topic: str | None = None) -> dict[str, Any]:
        """Return the value of every setting in its own type: of the process, or of a topic."""
        config, known = self._config_of(topic)
        return {
            name: None if config.source(name).startswith(UNKNOWN) else getattr(config, setting.keyword)
            for name, setting in known.items()
        }

    def _config_of(
        self, topic: str | None, saved: bool = False
    ) -> tuple[LogConfig | TopicConfig, dict[str, Setting]]:
        if topic is None:
            return self.instance, INSTANCE_SETTINGS
        return self.topic(topic, saved=saved), TOPIC_SETTINGS

    def is_set(self, name: str, topic: str | None, *, own: bool = False) -> bool:
        """Return whether the file sets a value.

        Args:
            name: Dotted name or keyword.
            topic: The topic; None: the values for all topics.
            own: Also look in arguments and environment.
        """
        setting = next(
            (setting for setting in ALL_SETTINGS.values() if name in (setting.name, setting.keyword)), None
        )
        dotted = name if setting is None else setting.name
        file = self._file
        layers = [file.defaults, file.top] if topic is None else [file.topic(topic)]
        return any(dotted in layer for layer in ([*layers, self._over] if own else layers))

    def __repr__(self) -> str:
        """Return the values that differ from the defaults, with their sources."""
        values = [f"{name}={value} ({source})" for name, value, source in self.rows() if source != "default"]
        return f"Settings({', '.join(values) or 'all defaults'})"

    @property
    def topic_names(self) -> list[str]:
        """Topics that have values in lastword.toml."""
        return sorted(topic for topic, table in self._file.tables.items() if table.entries)

    @staticmethod
    def _build(kind: type[Any], known: Mapping[str, Setting], layers: list[Layer]) -> Any:
        """Return the values of the first layers that have them. Those that cannot be read are left out."""
        values, sources, missing = {}, {}, {}
        for name, setting in known.items():
            for layer in layers:
                if name in layer:
                    value, sources[name] = layer[name]
                    if isinstance(value, Unread):
                        missing[name] = value
                    else:
                        values[setting.keyword] = value
                    break
        config = kind(**values, sources=sources)
        for name in config.deciding if missing else ():
            if name in missing:
                return config.replace(unread=missing[name])
        return config

    def _check_together(self) -> None:
        """Raise InvalidSettingError if values of a topic contradict each other.

        Topics that were checked with the same arguments and environment are not checked again.
        """
        file = self._file
        names: Iterable[str] = file.tables
        at = None if self._cluster is not None else file.checked_at(self._over)
        if at is not None:
            names = file.changes[at : file.at]
            if not names:
                return
        problems = Problems()
        sound: set[tuple[tuple[str, Any], ...]] = set()  # most topics have the values of another one
        for name in [None, *sorted(set(names))]:
            layer = {} if name is None else file.topic(name)
            values = tuple((setting, given.value) for setting, given in layer.items())
            if self._cluster is None and values in sound:
                continue
            config = self.topic(name if name is not None else "")
            contradictions = list(config.contradictions())
            if not contradictions:
                sound.add(values)
            for setting, sentence in contradictions:
                where = "" if name is None else f"topic {name}: "
                problems.add(f"{config.source(setting)}: {where}{sentence}")
        problems.raise_any()
        if self._cluster is None:
            file.note_checked(self._over)


class Problems:
    """Collects mistakes and raises one error with all of them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.unknown = False

    def add(self, line: str, *, unknown: bool = False) -> None:
        """Add a sentence. `unknown`: the mistake is an unknown name."""
        if line not in self.lines:
            self.lines.append(line)
        self.unknown |= unknown

    def raise_any(self) -> None:
        """Raise UnknownSettingError or InvalidSettingError if there is a mistake."""
        if not self.lines:
            return
        kind = UnknownSettingError if self.unknown else InvalidSettingError
        lists = "`lastword config DIR` lists all settings"
        remedy = lists if self.unknown else f"correct the value; {lists}"
        raise kind("\n".join(self.lines), problems=self.lines, remedy=remedy)


def parse_topic_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Check topic settings and return their values by dotted name. None stays None: it resets a setting.

    Args:
        values: Values by keyword or dotted name.

    Raises:
        UnknownSettingError: A name is unknown; `problems` lists every mistake.
        InvalidSettingError: A value is not allowed; `problems` lists every mistake.
    """
    problems = Problems()
    parsed = parse_named(values, TOPIC_SETTINGS, problems)
    problems.raise_any()
    config = TopicConfig(**{TOPIC_SETTINGS[n].keyword: v for n, v in parsed.items() if v is not None})
    for _, sentence in config.contradictions():
        problems.add(sentence)
    problems.raise_any()
    return parsed


def keyword_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rename settings to their Python keywords; values are not checked.

    Raises:
        UnknownSettingError: A name is unknown; `problems` lists all unknown names.
    """
    problems = Problems()
    renamed = {}
    for given, value in values.items():
        setting = ALL_SETTINGS.get(given)
        if setting is None and given not in _BY_KEYWORD:
            problems.add(unknown_setting(given, ALL_SETTINGS), unknown=True)
        renamed[setting.keyword if setting else given] = value
    problems.raise_any()
    return renamed


def check_arguments(given: Iterable[str], call: Callable[..., Any]) -> None:
    """Raise UnknownSettingError for a name that is no setting and resembles a parameter of `call`."""
    unknown = [name for name in given if name not in ALL_SETTINGS and name not in _BY_KEYWORD]
    if not unknown:
        return
    import inspect  # loads only for a message

    parameters = [p.name for p in inspect.signature(call).parameters.values() if p.kind != p.VAR_KEYWORD]
    for name in unknown:
        near = nearest(name, [*parameters, *_BY_KEYWORD])
        if near in parameters:
            raise UnknownSettingError(
                f"unknown argument {name!r}; nearest: {near}", remedy=f"give the value as {near}="
            )


def parse_named(
    values: Mapping[str, Any], known: Mapping[str, Setting], problems: Problems
) -> dict[str, Any]:
    """Check values by keyword or dotted name, add mistakes to `problems`, and return valid values."""
    parsed: dict[str, Any] = {}
    for given, value in values.items():
        setting = known.get(given) or _BY_KEYWORD.get(given)
        if setting is None or setting.name not in known:
            keywords = [setting.keyword for setting in known.values()]
            spelled: Iterable[str] = known if "." in given else [*keywords, *known]
            problems.add(_unknown(given, known, spelled), unknown=True)
        elif value is None:
            parsed[setting.name] = None
        else:
            try:
                parsed[setting.name] = setting.read(value)
            except ValueError as error:
                problems.add(f"{given}: {error}")
    return parsed


def _unknown(given: str, known: Mapping[str, Setting], spelled: Iterable[str]) -> str:
    dotted = given if "." in given else given.replace("_", ".")
    if known is TOPIC_SETTINGS and dotted in INSTANCE_SETTINGS:
        return f"{given} applies to the whole directory, not to one topic: omit the topic"
    return unknown_setting(given, spelled)


def _arguments(values: Mapping[str, Any], problems: Problems) -> Layer:
    parsed = parse_named(values, ALL_SETTINGS, problems)
    return {name: SourcedValue(value, "argument") for name, value in parsed.items() if value is not None}


def _environment(env: Mapping[str, str], problems: Problems) -> Layer:
    layer: Layer = {}
    for variable, text in env.items():
        if not variable.startswith(PREFIX):
            continue
        setting = _BY_VARIABLE.get(variable)
        if setting is None:
            # Other programs may use the prefix, so only a variable that resembles a setting is refused.
            short = {known.removeprefix(PREFIX): known for known in _BY_VARIABLE}
            near = nearest(variable.removeprefix(PREFIX), short, cutoff=0.75)
            if near:
                problems.add(
                    f"environment: unknown setting {variable!r}; nearest: {short[near]}", unknown=True
                )
            continue
        try:
            layer[setting.name] = SourcedValue(setting.read(text), "environment")
        except ValueError as error:
            problems.add(f"environment: {variable}: {error}")
    return layer


def _file_of(paths: list[str], config_file: str | os.PathLike[str] | None, files: Files | None) -> str | None:
    if config_file is not None:
        return os.fspath(config_file)
    files = files or _default_files()
    candidates = []
    for path in (os.path.join(p, FILE_NAME) for p in paths):
        try:
            if files.exists(path):
                candidates.append(path)
        except StorageError:
            if len(paths) == 1:  # with several directories, a failed directory is offline, others still work
                raise
    if len(candidates) > 1:
        raise InvalidSettingError(
            f"{' and '.join(candidates)} both contain settings",
            remedy="keep one of them, or name one with config=",
        )
    return candidates[0] if candidates else None


def _default_files() -> Files:
    from lastword.files import DEFAULT

    return DEFAULT


def _read(file: str, files: Files | None) -> str:
    files = files or _default_files()
    if files.is_dir(file):
        raise UsageError(f"{file} is a directory", remedy="name the settings file itself", file=file)
    try:
        return files.read_bytes(file).decode("utf-8")
    except FileVanishedError:
        raise UsageError(
            f"there is no settings file {file}", remedy="check the path, or omit config", file=file
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidSettingError(
            f"{file}: not UTF-8 at byte {error.start}",
            remedy="save the file as UTF-8",
            file=file,
            position=error.start,
        ) from None


def _sound(
    entries: Iterable[TomlEntry], path: str, problems: Problems, *, first_line: int = 1
) -> tuple[TomlEntry, ...]:
    """Return the entries that are settings, with checked values, and add mistakes to `problems`.

    Args:
        entries: Entries of a text.
        path: The file, for errors.
        problems: The mistakes.
        first_line: The line of the file where the text begins.
    """
    sound = []
    for entry in entries:
        where = f" in {entry.where}" if entry.where else ""
        line = f"{path}:{entry.line + first_line - 1}"
        known = TOPIC_SETTINGS if entry.table else INSTANCE_SETTINGS
        setting = known.get(entry.name)
        if setting is None:
            problems.add(f"{line}: unknown setting {entry.name!r}{where}{_hint(entry, known)}", unknown=True)
            continue
        try:
            sound.append(entry._replace(value=setting.read(entry.value)))
        except ValueError as error:
            problems.add(f"{line}: {entry.name}{where}: {error}")
    return tuple(sound)


def _layer(entries: Iterable[TomlEntry], shown: str, *, first_line: int = 1) -> Layer:
    """Return the values of checked entries of one table. `shown` names the file."""
    layer: Layer = {}
    for entry in entries:
        value, source = entry.value, f"{shown}:{entry.line + first_line - 1} {entry.where}".rstrip()
        if entry.name == "drives" and "drives" in layer:
            value, source = {**layer["drives"].value, **value}, layer["drives"].source
        layer[entry.name] = SourcedValue(value, source)
    return layer


class _Table:
    """The table of one topic in a file.

    Attributes:
        text: Its lines, with those in front of the next table.
        line: Number of its first line in the file, from 1.
        entries: Its checked values. Their lines are counted from its first line.
    """

    __slots__ = ("_layer", "entries", "line", "text")

    def __init__(self, text: str, line: int, entries: Sequence[TomlEntry]) -> None:
        self.text = text
        self.line = line
        self.entries = entries
        self._layer: Layer | None = None

    def layer(self, shown: str) -> Layer:
        """Return its values. `shown` names the file."""
        if self._layer is None:
            self._layer = _layer(self.entries, shown, first_line=self.line)
        return self._layer


class _FileLayers:
    """The checked values of one file's text, which are not changed.

    Attributes:
        shown: The name of the file in sources.
        head: The text before the topics' tables. None: the values of a topic are not all in one table, or
            the topics' tables are not all next to each other; then no table is changed alone.
        tables: The tables of topics, in the order of the text.
        tail: The text behind the topics' tables.
        others: The checked values of `head` and `tail`.
        text: The text.
        defaults: The values of [defaults].
        top: The values of the top level.
        changes: The topics whose tables were changed, in turn, in this text, in the texts that it comes
            from, and in the texts that come from it.
        at: The number of those changes up to this text.
        checked: Arguments and environment with which the values were checked for contradictions, and the
            number of changes up to the text that was checked; the newest check first.
    """

    def __init__(
        self,
        shown: str,
        text: str,
        head: str | None,
        tables: dict[str, _Table],
        tail: str,
        others: Sequence[TomlEntry],
    ) -> None:
        self.shown = shown
        self.text = text
        self.head = head
        self.tables = tables
        self.tail = tail
        self.others = others
        self.defaults = _layer((entry for entry in others if entry.table), shown)
        self.top = _layer((entry for entry in others if not entry.table), shown)
        self.changes: list[str] = []
        self.at = 0
        self.checked: list[tuple[Layer, int]] = []

    def topic(self, name: str) -> Layer:
        """Return the values of a topic's table; none if it has no table."""
        table = self.tables.get(name)
        return {} if table is None else table.layer(self.shown)

    def checked_at(self, over: Layer) -> int | None:
        """Return the number of changes up to the text that was checked last with these values above it.

        None: there was none. A process loads a file with and without its arguments in turn.
        """
        return next((at for known, at in self.checked if known == over), None)

    def note_checked(self, over: Layer) -> None:
        """Note that the values contradict each other nowhere, with these values above them."""
        others = [(known, at) for known, at in self.checked if known != over]
        self.checked = [(over, self.at), *others[: MOST_CHECKED - 1]]

    def changed_since(self, before: _FileLayers) -> list[str] | None:
        """Return the topics whose tables differ from those of an earlier text; None: any value may differ."""
        if self.changes is not before.changes or self.at < before.at:
            return None
        return list(dict.fromkeys(self.changes[before.at : self.at]))

    def with_tables(self, texts: Mapping[str, str], path: str, problems: Problems) -> _FileLayers | None:
        """Return the values of the file with new or other tables of topics. `head` is not None.

        The tables of other topics are not read again.

        Args:
            texts: The table of each topic.
            path: The file, for errors.
            problems: The mistakes.

        Returns:
            None if a text is not one table of its topic.
        """
        head, tables, tail = self.head, dict(self.tables), self.tail
        assert head is not None
        last = next(reversed(tables), None)
        before = 1 + head.count("\n") if last is None else _end_of(tables[last])
        shift = 0
        for topic, text in texts.items():
            entries, headers = _read_text(text, path)
            if [(header.path, header.is_array) for header in headers] != [(("topics", topic), False)]:
                return None
            old, last = tables.get(topic), next(reversed(tables), None)
            if old is not None:
                line, added = old.line, text.count("\n") - old.text.count("\n")
            else:
                if last is None:
                    head = _closed(head)
                    line = 1 + head.count("\n")
                else:
                    above = tables[last]
                    tables[last] = _Table(_closed(above.text), above.line, above.entries)
                    line = _end_of(tables[last])
                text = _closed(text) if tail else text
                added = line + text.count("\n") - before - shift
            tables[topic] = _Table(text, line, _sound(entries, path, problems, first_line=line))
            shift += added
            if added and old is not None:
                for name, table in tables.items():
                    if table.line > line:
                        tables[name] = _Table(table.text, table.line + added, table.entries)
        return self._changed(list(texts), head, tables, before, shift)

    def without(self, topics: Iterable[str]) -> _FileLayers:
        """Return the values of the file without the tables of these topics. `head` is not None."""
        head, tables = self.head, dict(self.tables)
        assert head is not None
        removed = [topic for topic in topics if tables.pop(topic, None) is not None]
        line = 1 + head.count("\n")
        for topic, table in tables.items():
            if table.line != line:
                tables[topic] = _Table(table.text, line, table.entries)
            line += table.text.count("\n")
        shift = -sum(self.tables[topic].text.count("\n") for topic in removed)
        return self._changed(removed, head, tables, line - shift, shift)

    def _changed(
        self, topics: Sequence[str], head: str, tables: dict[str, _Table], end: int, shift: int
    ) -> _FileLayers:
        """Return the values with other tables of `topics`; line `end`, the first of the tail, was shifted."""
        others = self.others
        if shift and self.tail:
            others = [e._replace(line=e.line + shift) if e.line >= end else e for e in others]
        written = "".join([head, *(table.text for table in tables.values()), self.tail])
        layers = _FileLayers(self.shown, written, head, tables, self.tail, others)
        if self.at == len(self.changes) <= 2 * len(tables) + MOST_CHANGES:
            self.changes += topics
            layers.changes, layers.checked = self.changes, self.checked
            layers.at = self.at + len(topics)
        return layers


def _end_of(table: _Table) -> int:
    """Return the line of the file that follows a table."""
    return table.line + table.text.count("\n")


MOST_CHECKED = 4
"""The sets of arguments and environment of which a file keeps what was checked."""
MOST_CHANGES = 1 << 10
"""The changes that are kept, besides two for each table."""
_MOST_FILES = 8
_known_layers: dict[tuple[str, str], _FileLayers] = {}
"""The last sound text of each file, by the names of `_layers_of`."""


def _keep(layers: _FileLayers, path: str) -> None:
    if len(_known_layers) >= _MOST_FILES:
        _known_layers.clear()
    _known_layers[layers.shown, path] = layers


def _layers_of(text: str, shown: str, path: str, problems: Problems) -> _FileLayers:
    """Return the values of a file's text, and add mistakes to `problems`."""
    known = _known_layers.get((shown, path))
    if known is not None and known.text == text:
        return known
    entries, headers = _read_text(text, path)
    by_topic: dict[str | None, list[TomlEntry]] = {}
    for entry in _sound(entries, path, problems):
        by_topic.setdefault(entry.topic, []).append(entry)
    others = by_topic.pop(None, [])
    tables: dict[str, _Table] = {}
    ranges = _ranges_of_tables(entries, headers)
    if ranges is None:
        tables = {str(topic): _Table("", 1, values) for topic, values in by_topic.items()}
        layers = _FileLayers(shown, text, None, tables, "", others)
    else:
        lines = [f"{line}\n" for line in text.split("\n")]
        lines[-1] = lines[-1][:-1]
        first = last = len(lines)
        for topic, (begin, end) in ranges.items():
            first, last = min(first, begin), len(lines) if end is None else end
            values = [entry._replace(line=entry.line - begin) for entry in by_topic.get(topic, ())]
            tables[topic] = _Table("".join(lines[begin:end]), begin + 1, values)
        layers = _FileLayers(shown, text, "".join(lines[:first]), tables, "".join(lines[last:]), others)
    if not problems.lines:
        _keep(layers, path)
    return layers


def _ranges_of_tables(
    entries: Iterable[TomlEntry], headers: Sequence[_Header]
) -> dict[str, tuple[int, int | None]] | None:
    """Return where the table of each topic begins and ends: indexes of lines; None: at the end of the file.

    None if the values of a topic are not all in one table, or other tables are between those of topics.
    """
    named = [number for number, header in enumerate(headers) if header.path[0] == "topics"]
    ends = [header.line - 1 for header in headers[1:]] + [None]
    ranges = {
        headers[number].path[1]: (headers[number].line - 1, ends[number])
        for number in named
        if len(headers[number].path) == 2 and not headers[number].is_array
    }
    if len(ranges) < len(named) or (named and named[-1] - named[0] >= len(named)):
        return None
    is_whole = all(entry.topic is None or entry.topic in ranges for entry in entries)
    return ranges if is_whole else None


def _closed(text: str) -> str:
    """Return a text with a blank line at its end, if it has an end of line and no blank line."""
    return text if not text or text.endswith("\n\n") else f"{text}\n"


def _hint(entry: TomlEntry, known: Mapping[str, Setting]) -> str:
    if entry.table and entry.name in INSTANCE_SETTINGS:
        return "; it applies to the whole directory: put it above all tables"
    if not entry.table and entry.name in TOPIC_SETTINGS:
        return "; it is a topic setting: put it under [defaults] or [topics.NAME]"
    near = nearest(entry.name, known)
    return f"; nearest: {near}" if near else ""


# ---------------------------------------------------------------- changes of the file


Change = tuple[tuple[str, ...], Any]
"""A path of keys and the value to set there; None removes the value."""
_changing = threading.Lock()
"""Held from the read of a file to its replacement: threads change the settings of one directory."""


def write_topic_settings(
    files: Files,
    path: str | os.PathLike[str],
    topic: str | None,
    values: Mapping[str, Any],
    *,
    only_checks: bool = False,
) -> Settings:
    """Set and unset values in [topics.TOPIC] of a lastword.toml, which is made if absent.

    Values are written as they were given ("7d" stays "7d"). Everything is checked first: nothing is written
    if the new file would not be valid.

    Args:
        files: The storage.
        path: Path of the file.
        topic: The topic. None: settings of the directory are set at the top level, topic settings in
            [defaults].
        values: Values by keyword or dotted name; None unsets.
        only_checks: Write nothing.

    Returns:
        The settings of the new file, without arguments and environment.
    """
    changes = _changes(values, topic)
    with _changing:
        return _write(files, os.fspath(path), {topic: changes}, only_checks=only_checks)


def write_settings_of_topics(
    files: Files, path: str | os.PathLike[str], settings: Mapping[str, Mapping[str, Any]]
) -> Settings:
    """Set the values of several topics with one write, as `write_topic_settings` does for one."""
    changes = {topic: _changes(given, topic) for topic, given in settings.items()}
    with _changing:
        return _write(files, os.fspath(path), changes)


def _changes(given: Mapping[str, Any], topic: str | None) -> list[Change]:
    """Return the changes of the file that set the given values; a value of None unsets."""
    known = TOPIC_SETTINGS if topic is not None else {**TOPIC_SETTINGS, **INSTANCE_SETTINGS}
    given = {name: list(value) if isinstance(value, Iterator) else value for name, value in given.items()}
    problems = Problems()
    parse_named(given, known, problems)
    problems.raise_any()
    # A setting may be given as keyword and as dotted name: the last value counts.
    return list(dict(_change(name, value, topic) for name, value in given.items()).items())


def _write(
    files: Files, path: str, changes: Mapping[Any, list[Change]], *, only_checks: bool = False
) -> Settings:
    """Make the changes of each topic, or (None) of no topic."""
    problems = Problems()
    shown = os.path.basename(path)
    old = files.read_bytes(path).decode("utf-8") if files.exists(path) else ""
    before = Settings._checked({}, {}, old, shown, path, problems)._file  # an invalid file is not edited
    after = None
    if None not in changes and before.head is not None:
        tables = before.tables
        texts = {
            topic: _edit(tables[topic].text if topic in tables else "", each)
            for topic, each in changes.items()
        }
        emptied = [topic for topic, text in texts.items() if not text]
        after = before.without(emptied) if emptied else before
        after = after.with_tables({topic: text for topic, text in texts.items() if text}, path, problems)
    if after is None:
        after = _layers_of(_edit_others(before, list(chain(*changes.values()))), shown, path, problems)
    problems.raise_any()
    settings = Settings({}, after)
    settings._check_together()
    if not only_checks:
        files.write_atomic(path, after.text.encode("utf-8"))
        _keep(after, path)
    return settings


def remove_topic_settings(
    files: Files, path: str | os.PathLike[str], *topics: str
) -> dict[str, dict[str, Any]]:
    """Remove [topics.TOPIC] of each topic, as when topics are deleted. The file is written once.

    A file without such a table is not written.

    Returns:
        The values of each removed table, for `restore_topic_settings`.
    """
    with _changing:
        return _remove(files, os.fspath(path), topics)


def restore_topic_settings(
    files: Files,
    path: str | os.PathLike[str],
    removed: Mapping[str, Mapping[str, Any]],
    topics: Iterable[str],
) -> None:
    """Write removed values of topics again, without their comments: the topics could not be deleted.

    A second failure is ignored: the caller reports the first.
    """
    for topic in topics:
        if topic in removed:
            with suppress(LastwordError):
                write_topic_settings(files, path, topic, removed[topic])


def _remove(files: Files, path: str, topics: Sequence[str]) -> dict[str, dict[str, Any]]:
    if not files.exists(path):
        return {}
    problems = Problems()  # of a file that was edited by hand: a topic is deleted with them
    old = files.read_bytes(path).decode("utf-8")
    before = _layers_of(old, os.path.basename(path), path, problems)
    removed = {
        topic: {entry.name: entry.value for entry in before.tables[topic].entries}
        for topic in topics
        if topic in before.tables
    }
    if before.head is None:
        text = _edit(old, [(("topics", topic), None) for topic in topics])
        if text != old:
            files.write_atomic(path, text.encode("utf-8"))
    elif removed:
        after = before.without(topics)
        files.write_atomic(path, after.text.encode("utf-8"))
        if not problems.lines:
            _keep(after, path)
    return removed


def _change(given: str, value: Any, topic: str | None) -> Change:
    name = given if "." in given or given == "drives" else given.replace("_", ".")
    if value is not None and name != "drives" and not isinstance(value, str | int | float):
        setting = ALL_SETTINGS[name]  # a list, a set or a timedelta: TOML has text for it
        value = setting.show(setting.read(value))
    if topic is not None:
        return ("topics", topic, *name.split(".")), value
    if name in INSTANCE_SETTINGS:
        return tuple(name.split(".")), value
    return ("defaults", *name.split(".")), value


def _edit_others(file: _FileLayers, changes: list[Change]) -> str:
    """Return the text of a file with changes, which are not those of one topic's table."""
    if file.head is None or any(path[0] == "topics" for path, _ in changes):
        return _edit(file.text, changes)
    import tomllib

    head, tail = file.head, file.tail
    tables = "".join(table.text for table in file.tables.values())
    for change in changes:
        name = change[0][0]
        if name in tomllib.loads(tail):
            tail = _edit(tail, [change])
        elif name == "defaults" and tables and name not in tomllib.loads(head):
            tail = _edit(tail, [change])  # a new table is added at the end
            tables = _closed(tables) if tail else tables
        else:
            head = _edit(head, [change])
            head = _closed(head) if tables else head
    return head + tables + tail


def _edit(text: str, changes: list[Change]) -> str:
    """Return a text with changes, as tomlkit makes them; of a file, or of one table of a file."""
    table = None if text else _new_table(changes)
    if table is not None:
        return table
    import tomllib

    import tomlkit  # takes 10 ms to load, and only a change of an existing table needs it

    document = tomlkit.parse(text)
    expected = tomllib.loads(text)
    for path, value in changes:
        if value is None:
            _take_out(document, path)
            _take_out(expected, path)
        else:
            _put(document, path, value)
            _put_plain(expected, path, value)
    new = tomlkit.dumps(document)
    if _without_empty(tomllib.loads(new)) != _without_empty(expected):
        raise LastwordError("these settings cannot be edited in place", remedy="edit lastword.toml by hand")
    return new


_PLAIN = re.compile(r"[\w.-]+", re.ASCII)
_PLAIN_TEXT = re.compile(r"[\w.,-]+", re.ASCII)


def _new_table(changes: list[Change]) -> str | None:
    """Return the new table [topics.NAME], as tomlkit writes it; None if a value needs tomlkit."""
    lines: list[str] = []
    for path, value in changes:
        if path[0] != "topics" or not all(map(_PLAIN.fullmatch, path)):
            return None
        if isinstance(value, bool):
            shown = str(value).lower()
        elif isinstance(value, int):
            shown = str(value)
        elif isinstance(value, str) and _PLAIN_TEXT.fullmatch(value):
            shown = f'"{value}"'
        else:
            return None
        if not lines:
            topic = f'"{path[1]}"' if "." in path[1] else path[1]
            lines.append(f"[topics.{topic}]\n")
        lines.append(f"{'.'.join(path[2:])} = {shown}\n")
    return "".join(lines) or None


def _put(document: Any, path: tuple[str, ...], value: Any) -> None:
    import tomlkit

    node, tables = document, 0
    if path[0] in ("topics", "defaults"):
        # Each table gets its own header; inside, the name of the setting stays dotted.
        tables = 2 if path[0] == "topics" else 1
        for depth in range(tables):
            key = path[depth]
            if key not in node:
                node.add(key, tomlkit.table(is_super_table=path[0] == "topics" and depth == 0))
            node = node[key]
    rest, table = path[tables:], node
    for depth, key in enumerate(rest[:-1]):
        if key not in node:
            if hasattr(node, "append"):
                node.append(tomlkit.key(list(rest[depth:])), value)
            else:  # dotted names with a common prefix: one table for tomlkit, separate lines in the file
                table.append(tomlkit.key(list(rest)), value)
            return
        node = node[key]
    node[rest[-1]] = value


def _put_plain(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _take_out(tree: Any, path: tuple[str, ...]) -> None:
    for key in path[:-1]:
        if key not in tree:
            return
        tree = tree[key]
    if path[-1] in tree:
        del tree[path[-1]]


def _without_empty(tree: dict[str, Any]) -> dict[str, Any]:
    """Remove empty tables: a table that was emptied may or may not keep its header."""
    pruned = {k: _without_empty(v) if isinstance(v, dict) else v for k, v in tree.items()}
    return {k: v for k, v in pruned.items() if v != {}}
