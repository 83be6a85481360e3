"""`Settings`: every value with its source; one error lists all mistakes.

    argument or option  >  LASTWORD_... variable  >  [topics.NAME]  >  cluster, for the topic
    >  [defaults]  >  cluster, for all topics  >  top level  >  built in

The top level holds the settings of the process (`LogConfig`) and the defaults of a few topic settings.

The parser of the standard library reports no line numbers. A TOML statement can be parsed alone, so a valid
lastword.toml is cut into the shortest runs of lines that parse, and each run is parsed for its keys.

`write_topic_settings` and `remove_topic_settings` change the file: comments and order stay, and the file is
replaced atomically.
"""

from __future__ import annotations

import copy
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

from lastword.config.setting import Setting
from lastword.config.tables import INSTANCE_SETTINGS, TOPIC_SETTINGS, LogConfig, TopicConfig
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


@functools.lru_cache(maxsize=8)
def _read_text(text: str, shown_name: str) -> tuple[tuple[TomlEntry, ...], frozenset[str]]:
    """Return all values of a lastword.toml, and the topics that have a table, also an empty one.

    A process that opens a directory reads an unchanged text several times; the last texts are kept.
    """
    if not text:
        return (), frozenset()
    import tomllib  # takes 2 ms to load, and only a file with settings needs it

    try:
        topics = tomllib.loads(text).get("topics")
    except tomllib.TOMLDecodeError as error:
        at = re.search(r" \(at line (\d+), column (\d+)\)", str(error))
        line = int(at[1]) if at else max(1, len(text.splitlines()))
        why = str(error).partition(" (at ")[0]
        raise InvalidSettingError(
            f"{shown_name}:{line}: not TOML: {why}", remedy="correct that line", file=shown_name
        ) from None
    entries = []
    base: tuple[str, ...] = ()
    for line, lines, content in _statements(text):
        if lines[0].lstrip().startswith("["):
            base = _only_path(content)
        else:
            entries += [_entry(base + path, value, line) for path, value in _flatten(content)]
    return tuple(entries), frozenset(topics if isinstance(topics, dict) else ())


def _statements(text: str) -> Iterator[tuple[int, list[str], dict[str, Any]]]:
    """Yield (line number from 1, lines, content) for each header and assignment of a valid file."""
    import tomllib

    lines = text.splitlines()
    start = 0
    while start < len(lines):
        end = start + 1
        while True:
            try:
                content = tomllib.loads("\n".join(lines[start:end]))
                break
            except tomllib.TOMLDecodeError:
                end += 1
                if end > len(lines):
                    return
        if content:
            yield start + 1, lines[start:end], content
        start = end


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


class ClusterSettings(Protocol):
    """The settings that a Kafka cluster holds for its topics; see `logdir.broker`."""

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

        The cost does not depend on the number of topics, if tables were only added to the file. Objects that
        `topic` has built are taken over. Changes in a cluster are not considered.

        Returns:
            The topics; None: those of any topic may differ.
        """
        self._topic_configs = before._topic_configs
        if self._file.origin is not before._file.origin or self._over != before._over:
            return None
        return list(islice(self._file.topics, len(before._file.topics), None))

    def topic(self, name: str, *, saved: bool = False) -> TopicConfig:
        """Return the settings of a topic, also if the file does not name it.

        As long as no value changes, it is the same object.

        Args:
            name: The topic.
            saved: Leave out arguments and environment, which apply to this process only.
        """
        shared: Layer = {name: value for name, value in self._file.top.items() if name in TOPIC_SETTINGS}
        layers = [{} if saved else self._over, self._file.topics.get(name, {}), self._file.defaults, shared]
        if self._cluster is not None:
            layers[2:3] = [self._cluster.topic(name), self._file.defaults, self._cluster.defaults()]
        before = self._topic_configs.get(name)
        if before is not None and before[0] == layers:
            return before[1]
        config: TopicConfig = self._build(TopicConfig, TOPIC_SETTINGS, layers)
        if len(self._topic_configs) >= MOST_KEPT_CONFIGS:  # clients name topics that do not exist
            self._topic_configs.clear()
        self._topic_configs[name] = layers, config
        return config

    def rows(self, topic: str | None = None) -> list[tuple[str, str, str]]:
        """Return (name, value as text, source) of every setting of the process, or of a topic."""
        config, known = self._config_of(topic)
        return [
            (name, setting.show(getattr(config, setting.keyword)), config.source(name))
            for name, setting in known.items()
        ]

    def values(self, topic: str | None = None) -> dict[str, Any]:
        """Return the value of every setting in its own type: of the process, or of a topic."""
        config, known = self._config_of(topic)
        return {name: getattr(config, setting.keyword) for name, setting in known.items()}

    def _config_of(self, topic: str | None) -> tuple[LogConfig | TopicConfig, dict[str, Setting]]:
        if topic is None:
            return self.instance, INSTANCE_SETTINGS
        return self.topic(topic), TOPIC_SETTINGS

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
        layers = [file.defaults, file.top] if topic is None else [file.topics.get(topic, {})]
        return any(dotted in layer for layer in ([*layers, self._over] if own else layers))

    def __repr__(self) -> str:
        """Return the values that differ from the defaults, with their sources."""
        values = [f"{name}={value} ({source})" for name, value, source in self.rows() if source != "default"]
        return f"Settings({', '.join(values) or 'all defaults'})"

    @property
    def topic_names(self) -> list[str]:
        """Topics that have a table in lastword.toml."""
        return sorted(self._file.topics)

    @staticmethod
    def _build(kind: type[Any], known: Mapping[str, Setting], layers: list[Layer]) -> Any:
        values, sources = {}, {}
        for name, setting in known.items():
            for layer in layers:
                if name in layer:
                    values[setting.keyword], sources[name] = layer[name]
                    break
        return kind(**values, sources=sources)

    def _check_together(self) -> None:
        """Raise InvalidSettingError if values of a topic contradict each other.

        Topics that were checked with the same arguments and environment are not checked again.
        """
        file, checked = self._file, 0
        if self._cluster is None and file.checked is not None and file.checked[0] == self._over:
            checked = file.checked[1]
            if checked == len(file.topics):
                return
        problems = Problems()
        sound: set[tuple[tuple[str, Any], ...]] = set()  # most topics have the values of another one
        for name in [None, *sorted(islice(file.topics, checked, None))]:
            layer = {} if name is None else file.topics[name]
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
            file.checked = self._over, len(file.topics)


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


def _place(
    entry: TomlEntry,
    shown: str,
    path: str,
    topics: dict[str, Layer],
    defaults: Layer,
    top: Layer,
    problems: Problems,
) -> None:
    """Check an entry of the file and add it to its layer."""
    where = f" in {entry.where}" if entry.where else ""
    line = f"{path}:{entry.line}"
    known = TOPIC_SETTINGS if entry.table else INSTANCE_SETTINGS
    setting = known.get(entry.name)
    if setting is None:
        problems.add(f"{line}: unknown setting {entry.name!r}{where}{_hint(entry, known)}", unknown=True)
        return
    try:
        value = setting.read(entry.value)
    except ValueError as error:
        problems.add(f"{line}: {entry.name}{where}: {error}")
        return
    source = f"{shown}:{entry.line} {entry.where}".rstrip()
    if entry.topic is not None:
        topics.setdefault(entry.topic, {})[entry.name] = SourcedValue(value, source)
    elif entry.table:
        defaults[entry.name] = SourcedValue(value, source)
    elif entry.name == "drives" and "drives" in top:
        top["drives"] = SourcedValue({**top["drives"].value, **value}, top["drives"].source)
    else:
        top[entry.name] = SourcedValue(value, source)


class _FileLayers:
    """The checked values of one file's text, which are not changed.

    Attributes:
        text: The text.
        lines: Number of its lines.
        topics: The values of each topic, in the order of the text.
        defaults: The values of [defaults].
        top: The values of the top level.
        tables: The topics that have a table, also an empty one, if a table may be written behind the text:
            it ends with tables of topics, the last one of plain lines. None: it may not.
        origin: The same object for all texts that come from one text by adding tables.
        checked: Arguments and environment with which the values were checked for contradictions, and the
            number of topics that were checked.
    """

    __slots__ = ("checked", "defaults", "lines", "origin", "tables", "text", "top", "topics")

    def __init__(
        self,
        text: str,
        topics: dict[str, Layer],
        defaults: Layer,
        top: Layer,
        tables: frozenset[str] | None,
    ) -> None:
        self.text = text
        self.lines = len(text.splitlines())
        self.topics = topics
        self.defaults = defaults
        self.top = top
        self.tables = tables
        self.origin = object()
        self.checked: tuple[Layer, int] | None = None

    def with_table(self, text: str, topics: dict[str, Layer], topic: str) -> _FileLayers:
        """Return the values of a text that has one more table at its end."""
        assert self.tables is not None
        layers = copy.copy(self)
        layers.text, layers.topics, layers.tables = text, topics, self.tables | {topic}
        layers.lines += len(text[len(self.text) :].splitlines())
        return layers


_MOST_FILES = 8
_known_layers: dict[tuple[str, str], _FileLayers] = {}
"""The last sound text of each file, by the names of `_layers_of`."""

_NAME = r'(?:"[\w.-]+"|[\w-]+)'
_LINE = r'[\w.-]+ = (?:"[\w.,-]*"|-?[0-9]+|true|false)\n'
_TABLE = re.compile(rf"\n?\[topics\.({_NAME})\]\n(?:{_LINE})+", re.ASCII)
_FIRST_TABLE = re.compile(r"""^[ \t]*\[\s*["']?topics\b""", re.MULTILINE)
_OTHER_TABLE = re.compile(r"^(?:[ \t]+\[|\[(?!topics\.))", re.MULTILINE)


def _layers_of(text: str, shown: str, path: str, problems: Problems) -> _FileLayers:
    """Return the values of a file's text, and add mistakes to `problems`.

    `create_topic` adds one table at the end. Then only that table is read, so that the time for a topic does
    not depend on the number of topics.
    """
    before = _known_layers.get((shown, path))
    if before is not None and before.text == text:
        return before
    added = None if before is None else _added_table(before, text)
    if before is None or added is None:
        topics: dict[str, Layer] = {}
        defaults: Layer = {}
        top: Layer = {}
        entries, tables = _read_text(text, path)
        for entry in entries:
            _place(entry, shown, path, topics, defaults, top, problems)
        layers = _FileLayers(text, topics, defaults, top, tables if _ends_with_a_table(text) else None)
    else:
        topics = dict(before.topics)
        for entry in read_entries(text[len(before.text) :], path):
            entry = entry._replace(line=entry.line + before.lines)
            _place(entry, shown, path, topics, before.defaults, before.top, problems)
        layers = before.with_table(text, topics, added)
    if not problems.lines:
        if len(_known_layers) >= _MOST_FILES:
            _known_layers.clear()
        _known_layers[shown, path] = layers
    return layers


def _added_table(before: _FileLayers, text: str) -> str | None:
    """Return the topic of a table of plain lines that a text has behind the text before.

    None: the text is another one.
    """
    if before.tables is None or not text.startswith(before.text):
        return None
    table = _TABLE.fullmatch(text, len(before.text))
    if table is None or text[len(before.text)] != "\n":
        return None
    topic = table[1].strip('"')
    return None if topic in before.tables else topic


def _ends_with_a_table(text: str) -> bool:
    """Return whether a sound text ends with tables of topics, the last one of plain lines."""
    first, last = _FIRST_TABLE.search(text), max(text.rfind("\n[topics."), 0)
    return (
        first is not None
        and _OTHER_TABLE.search(text, first.start()) is None
        and _TABLE.fullmatch(text, last) is not None
    )


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


def write_topic_settings(
    files: Files,
    path: str | os.PathLike[str],
    topic: str | None,
    set: Mapping[str, Any] | None = None,
    unset: Iterable[str] = (),
) -> Settings:
    """Set and unset values in [topics.TOPIC] of a lastword.toml, which is made if absent.

    Values are written as they were given ("7d" stays "7d"). Everything is checked first: nothing is written
    if the new file would not be valid.

    Args:
        files: The storage.
        path: Path of the file.
        topic: The topic. None: settings of the directory are set at the top level, topic settings in
            [defaults].
        set: Values by keyword or dotted name; a value of None unsets.
        unset: Names to unset.

    Returns:
        The settings of the new file, without arguments and environment.
    """
    path = os.fspath(path)
    known = TOPIC_SETTINGS if topic is not None else {**TOPIC_SETTINGS, **INSTANCE_SETTINGS}
    given = {**dict.fromkeys(unset), **(set or {})}
    problems = Problems()
    parse_named(given, known, problems)
    problems.raise_any()
    changes = [_change(name, value, topic) for name, value in given.items()]
    old = files.read_bytes(path).decode("utf-8") if files.exists(path) else ""
    before = Settings.from_text(old, path)  # a file that is not valid is not edited
    new = _edit(old, changes, before._file.tables)
    settings = Settings.from_text(new, path)
    files.write_atomic(path, new.encode("utf-8"))
    return settings


def remove_topic_settings(files: Files, path: str | os.PathLike[str], topic: str) -> None:
    """Remove [topics.TOPIC], as when the topic is deleted. A file without the table is not written."""
    path = os.fspath(path)
    if not files.exists(path):
        return
    import tomllib

    old = files.read_bytes(path).decode("utf-8")
    if topic in tomllib.loads(old).get("topics", {}):
        files.write_atomic(path, _edit(old, [(("topics", topic), None)], None).encode("utf-8"))


def _change(given: str, value: Any, topic: str | None) -> Change:
    name = given if "." in given or given == "drives" else given.replace("_", ".")
    if isinstance(value, frozenset | tuple | list):
        value = ",".join(sorted(value))
    if topic is not None:
        return ("topics", topic, *name.split(".")), value
    if name in INSTANCE_SETTINGS:
        return tuple(name.split(".")), value
    return ("defaults", *name.split(".")), value


def _edit(text: str, changes: list[Change], tables: frozenset[str] | None) -> str:
    """Return the text with changes. `tables`: as in `_FileLayers`."""
    table = _new_table(changes)
    if table is not None:
        if not text:
            return table
        if tables is not None and changes[0][0][1] not in tables:
            return f"{text}\n{table}"
    import tomllib

    import tomlkit  # takes 10 ms to load, and only a change of an existing file needs it

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
