"""`Settings`: every value with its source; one error lists all mistakes.

    argument or option  >  LASTWORD_... variable  >  the topic's file, else [topics.NAME]
    >  cluster, for the topic  >  [defaults]  >  cluster, for all topics  >  top level  >  built in

lastword.toml has the settings of the process (`LogConfig`) and the defaults of a few topic settings at its
top level, and settings of topics in tables. Beside it, `lastword.topic-NAME.toml` has the settings of one
topic: a change of them is one atomic write, and a deletion one unlink. So a topic waits for no other topic,
and the cost of a change does not depend on the number of topics. The file is read when the topic is used. A
table of the topic counts only if there is no file; the next change moves its values to the file.

If a topic's file is damaged, all settings of the topic are unknown, and nothing of it is removed. Other
topics are not affected.
"""

from __future__ import annotations

import copy
import functools
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lastword.config.setting import Setting
from lastword.config.tables import INSTANCE_SETTINGS, TOPIC_SETTINGS, LogConfig, TopicConfig, Unread
from lastword.errors import (
    FileVanishedError,
    InvalidSettingError,
    LastwordError,
    NotPermittedError,
    OfflineError,
    StorageError,
    UnknownSettingError,
    UsageError,
    hint,
    nearest,
    unknown_setting,
)
from lastword.files import DEFAULT, FileFacts, Files, overlapped

if TYPE_CHECKING:
    from lastword.config.toml_file import Change, TomlEntry

MOST_KEPT_CONFIGS = 1 << 16
FILE_NAME = "lastword.toml"
TOPIC_FILE = "lastword.topic-"
"""Prefix of the file of one topic's settings. No directory: a broker does not start if it finds one."""
TOML = ".toml"
_LONGEST_NAME = 255 - len(".tmp")


def topic_file(path: str, topic: str) -> str:
    """Return the path of the file of a topic's settings, beside the lastword.toml at `path`.

    A name that would be too long for a file, with the ending of a temporary file, is cut and gets its hash.
    """
    if len(topic) > _LONGEST_NAME - len(TOPIC_FILE) - len(TOML):
        import hashlib

        digest = hashlib.sha256(topic.encode()).hexdigest()[:32]
        topic = f"{topic[: _LONGEST_NAME - len(TOPIC_FILE) - len(TOML) - 33]}~{digest}"
    return os.path.join(os.path.dirname(path), f"{TOPIC_FILE}{topic}{TOML}")


def is_topic_file(name: str) -> bool:
    """Return whether a file of the root has the settings of one topic."""
    return name.startswith(TOPIC_FILE) and name.endswith(TOML)


def text_of(files: Files, file: str) -> str | None:
    """Return the text of a settings file; None: there is none. InvalidSettingError: it is not UTF-8."""
    try:
        return files.read_bytes(file).decode("utf-8")
    except FileVanishedError:
        return None
    except UnicodeDecodeError as error:
        raise InvalidSettingError(
            f"{file}: not UTF-8 at byte {error.start}",
            remedy="save the file as UTF-8",
            file=file,
            position=error.start,
        ) from None


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

    def defaults(self) -> Layer:
        """Return the settings of all topics."""


class Settings:
    """All values with their sources. Immutable: load again to see a changed file."""

    def __init__(self, over: Layer, file: _FileLayers) -> None:
        """Merge the values of arguments and environment, which override all others, with those of a file."""
        self._cluster: ClusterSettings | None = None
        self._over = over
        self._file = file
        self._topic_files: TopicFiles | None = None
        self._topic_configs: dict[str, tuple[list[Layer], TopicConfig]] = {}
        self._whole_configs: dict[str, TopicConfig] = {}  # of topics whose values can all be read
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
            paths: Log directories. The lastword.toml of one of them is read, and the files of topics there,
                else in the first, unless `config_file` names another file.
            config_file: A settings file, which has the settings of topics, too.
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
        files = files or DEFAULT
        file = _file_of([os.fspath(path) for path in paths], config_file, files)
        text, shown, path = "", "", ""
        if file is not None:
            shown, path = (os.path.basename(file) if config_file is None else file), file
            text = _read(file, files if config_file is None else DEFAULT)
        settings = cls._checked(given, environment, text, shown, path, problems)
        if config_file is None and paths:
            beside = path or os.path.join(os.fspath(paths[0]), FILE_NAME)
            settings._topic_files = TopicFiles(files, beside)
        return settings

    @classmethod
    def from_text(cls, text: str, shown_name: str = FILE_NAME) -> Settings:
        """Read the settings of one file's text only. `shown_name` names the file in sources and errors."""
        return cls._checked({}, {}, text, shown_name, shown_name, Problems())

    @classmethod
    def _checked(
        cls, given: Layer, environment: Layer, text: str, shown: str, path: str, problems: Problems
    ) -> Settings:
        """Read one file's text. `shown` names the file in sources, `path` in errors."""
        layers, found = _layers_of(text, shown, path)
        for line in found.lines:
            problems.add(line, unknown=found.unknown)
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
        settings._cluster, settings._topic_files = self._cluster, self._topic_files
        settings._check_together()
        return settings

    def with_cluster(self, cluster: ClusterSettings) -> Settings:
        """Return these settings; they override the settings that a cluster holds for its topics."""
        settings = copy.copy(self)
        settings._cluster, settings._topic_configs, settings._whole_configs = cluster, {}, {}
        return settings

    def take_over(self, before: Settings, changed: Iterable[str] | None) -> Iterable[str] | None:
        """Take over what an earlier state of the same files has read and built.

        Changes in a cluster are not considered.

        Args:
            before: The earlier state.
            changed: The topics whose files were changed since; None: each file may have changed.

        Returns:
            The topics whose values may differ; None: those of any topic.
        """
        mine, theirs = self._topic_files, before._topic_files
        if mine is None or theirs is None or (mine.files, mine.path) != (theirs.files, theirs.path):
            return None
        self._topic_files, self._topic_configs = theirs, before._topic_configs
        theirs.forget(changed)
        return changed if self._file is before._file and self._over == before._over else None

    def is_current(self, topic: str) -> bool:
        """Return whether the file of a topic is as it was when it was read; also True if it was not read."""
        return self._topic_files is None or self._topic_files.is_current(topic)

    def topic(self, name: str, *, saved: bool = False) -> TopicConfig:
        """Return the settings of a topic, also if no file names it.

        As long as no value changes, it is the same object. If the topic's file is damaged, nothing of the
        topic may be removed (`TopicConfig.unread`), nor may records be added (`TopicConfig.damaged`).

        Args:
            name: The topic.
            saved: Leave out arguments and environment, which apply to this process only.
        """
        if not saved and (whole := self._whole_configs.get(name)) is not None:
            return whole
        own, damaged = self._own(name)
        layers = self._layers(name, own, saved=saved)
        known, config = self._topic_configs.get(name, ([], None))
        if config is None or known != layers:
            config = self._merged(name, layers, own, damaged)
            if len(self._topic_configs) >= MOST_KEPT_CONFIGS:  # clients name topics that do not exist
                self._topic_configs.clear()
                self._whole_configs.clear()
            self._topic_configs[name] = layers, config
        if not (saved or config.unread or config.damaged):  # else the next call reads them again
            self._whole_configs[name] = config
        return config

    def _merged(
        self, name: str, layers: list[Layer], own: Layer, damaged: LastwordError | None
    ) -> TopicConfig:
        config: TopicConfig = self._build(TopicConfig, TOPIC_SETTINGS, layers)
        if damaged is not None:
            return config.replace(damaged=damaged)
        if own:
            try:
                self._check_config(name, config)
            except InvalidSettingError as error:
                return config.replace(damaged=error, unread=Unread(error.message, str(error.remedy)))
        return config

    def check_topic(self, name: str, own: Layer) -> None:
        """Raise InvalidSettingError if values of a topic contradict each other, or those of all topics."""
        layers = self._layers(name, own, saved=True)
        self._check_config(name, self._build(TopicConfig, TOPIC_SETTINGS, layers))

    def _layers(self, name: str, own: Layer, *, saved: bool) -> list[Layer]:
        shared: Layer = {name: value for name, value in self._file.top.items() if name in TOPIC_SETTINGS}
        layers = [{} if saved else self._over, own, self._file.defaults, shared]
        if self._cluster is not None:
            of_topic = self._cluster.topic(name)
            if MADE_HERE in own:
                of_topic = {name: given for name, given in of_topic.items() if given.source != UNKNOWN}
            layers[2:3] = [of_topic, self._file.defaults, self._cluster.defaults()]
        return layers

    def _own(self, name: str) -> tuple[Layer, LastwordError | None]:
        """Return the values of a topic's file, else of its table, and the error that makes them unknown.

        The error is None if the drive of the file has failed: topics on other drives still take records.
        """
        files, layer = self._topic_files, None
        try:
            layer = None if files is None else files.layer(name)
        except LastwordError as error:
            is_drive = isinstance(error, StorageError) and not isinstance(error, NotPermittedError)
            unknown = unread(error.message, str(error.remedy), TOPIC_SETTINGS)
            return unknown, None if is_drive and files is not None and "://" not in files.path else error
        return self._file.topics.get(name, {}) if layer is None else layer, None

    @staticmethod
    def _check_config(name: str, config: TopicConfig) -> None:
        problems = Problems()
        for setting, sentence in config.contradictions():
            problems.add(f"{config.source(setting)}: {f'topic {name}: ' if name else ''}{sentence}")
        problems.raise_any()

    def forget(self, topics: Iterable[str]) -> None:
        """Drop what is kept for topics that were deleted."""
        for name in topics:
            self._topic_configs.pop(name, None)
            self._whole_configs.pop(name, None)

    def rows(self, topic: str | None = None, *, saved: bool = False) -> list[tuple[str, str, str]]:
        """Return (name, value as text, source) of every setting of the process, or of a topic.

        `saved`: of a topic, without arguments and environment.

        Raises:
            InvalidSettingError, StorageError: The topic's file is damaged, or cannot be read.
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
        if self._topic_files is not None:
            self._topic_files.layer(topic)
        config = self.topic(topic, saved=saved)
        if config.damaged is not None:
            raise config.damaged
        return config, TOPIC_SETTINGS

    def is_set(self, name: str, topic: str | None, *, own: bool = False) -> bool:
        """Return whether the file sets a value.

        Args:
            name: Dotted name or keyword.
            topic: The topic; None: the values for all topics.
            own: Also look in arguments and environment.
        """
        setting = ALL_SETTINGS.get(name) or _BY_KEYWORD.get(name)
        dotted = name if setting is None else setting.name
        file = self._file
        layers = [file.defaults, file.top] if topic is None else [self._own(topic)[0]]
        return any(dotted in layer for layer in ([*layers, self._over] if own else layers))

    def __repr__(self) -> str:
        """Return the values that differ from the defaults, with their sources."""
        values = [f"{name}={value} ({source})" for name, value, source in self.rows() if source != "default"]
        return f"Settings({', '.join(values) or 'all defaults'})"

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
        """Raise InvalidSettingError if values of the file contradict each other.

        A file that was checked with the same arguments and environment is not checked again.
        """
        file = self._file
        if self._over in file.checked and self._cluster is None:
            return
        problems = Problems()
        for name in ["", *sorted(file.topics)]:
            layers = self._layers(name, file.topics.get(name, {}), saved=False)
            try:
                self._check_config(name, self._build(TopicConfig, TOPIC_SETTINGS, layers))
            except InvalidSettingError as error:
                problems.lines += [line for line in error.problems if line not in problems.lines]
        problems.raise_any()
        if self._cluster is None:
            file.checked = [*file.checked[1 - MOST_CHECKED :], self._over]


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

    def raise_any(self, file: str | None = None) -> None:
        """Raise UnknownSettingError or InvalidSettingError if there is a mistake, in a `file`."""
        if not self.lines:
            return
        kind = UnknownSettingError if self.unknown else InvalidSettingError
        lists = "`lastword config DIR` lists all settings"
        remedy = lists if self.unknown else f"correct the value; {lists}"
        raise kind("\n".join(self.lines), problems=self.lines, remedy=remedy, file=file)


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


def check_arguments(given: Iterable[str], call: Callable[..., Any], *others: str) -> None:
    """Raise UnknownSettingError for a name that is no setting and resembles a parameter of `call`.

    `others`: parameters that `call` takes among its settings.
    """
    known = {*ALL_SETTINGS, *_BY_KEYWORD, *others}
    unknown = [name for name in given if name not in known]
    if not unknown:
        return
    import inspect  # loads only for a message

    parameters = [p.name for p in inspect.signature(call).parameters.values() if p.kind != p.VAR_KEYWORD]
    parameters += others
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
    for variable in env:  # not by items: `os.environ` decodes each value
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
            layer[setting.name] = SourcedValue(setting.read(env[variable]), "environment")
        except ValueError as error:
            problems.add(f"environment: {variable}: {error}")
    return layer


def _file_of(paths: list[str], config_file: str | os.PathLike[str] | None, files: Files) -> str | None:
    if config_file is not None:
        return os.fspath(config_file)
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


def _read(file: str, files: Files) -> str:
    if files.is_dir(file):
        raise UsageError(f"{file} is a directory", remedy="name the settings file itself", file=file)
    text = text_of(files, file)
    if text is None:
        raise UsageError(
            f"there is no settings file {file}", remedy="check the path, or omit config", file=file
        )
    return text


def _valid(
    entries: Iterable[TomlEntry],
    path: str,
    problems: Problems,
    of_file: Mapping[str, Setting] = INSTANCE_SETTINGS,
) -> tuple[TomlEntry, ...]:
    """Return the entries that are settings, with checked values, and add mistakes to `problems`.

    Args:
        entries: Entries of a text.
        path: The file, for errors.
        problems: The mistakes.
        of_file: The settings that it has outside of tables.
    """
    valid = []
    for entry in entries:
        where = f" in {entry.where}" if entry.where else ""
        line = f"{path}:{entry.line}"
        known = TOPIC_SETTINGS if entry.table else of_file
        setting = known.get(entry.name)
        if setting is None:
            problems.add(f"{line}: unknown setting {entry.name!r}{where}{_near(entry, known)}", unknown=True)
            continue
        try:
            valid.append(entry._replace(value=setting.read(entry.value)))
        except ValueError as error:
            problems.add(f"{line}: {entry.name}{where}: {error}")
    return tuple(valid)


def _layer(entries: Iterable[TomlEntry], shown: str) -> Layer:
    """Return the values of checked entries of one table. `shown` names the file."""
    layer: Layer = {}
    for entry in entries:
        value, source = entry.value, f"{shown}:{entry.line} {entry.where}".rstrip()
        if entry.name == "drives" and "drives" in layer:
            value, source = {**layer["drives"].value, **value}, layer["drives"].source
        layer[entry.name] = SourcedValue(value, source)
    return layer


class _FileLayers:
    """The checked values of one file's text with tables, which are not changed.

    Attributes:
        defaults: The values of [defaults].
        top: The values of the top level.
        topics: The values of the table of each topic.
        checked: Arguments and environment with which no values contradict each other; the newest last.
    """

    def __init__(self, shown: str, entries: Iterable[TomlEntry]) -> None:
        by_table: dict[tuple[str, str | None], list[TomlEntry]] = {}
        for entry in entries:
            by_table.setdefault((entry.table, entry.topic), []).append(entry)
        self.top = _layer(by_table.pop(("", None), ()), shown)
        self.defaults = _layer(by_table.pop(("defaults", None), ()), shown)
        self.topics = {str(topic): _layer(given, shown) for (_, topic), given in by_table.items()}
        self.checked: list[Layer] = []


MOST_CHECKED = 4
"""The sets of arguments and environment of which a file keeps that they were checked."""


@functools.lru_cache(maxsize=8)  # a process loads the last texts again and again
def _layers_of(text: str, shown: str, path: str) -> tuple[_FileLayers, Problems]:
    """Return the values of a file's text, and its mistakes."""
    problems = Problems()
    entries: Iterable[TomlEntry] = ()
    if text:
        from lastword.config.toml_file import read_entries  # loads only for a file with settings

        entries = read_entries(text, path)
    return _FileLayers(shown, _valid(entries, path, problems)), problems


@functools.lru_cache(maxsize=1024)  # the commits to a bucket read the files of the same topics again
def layer_of_topic(text: str, path: str) -> Layer:
    """Return the values of a topic's file. InvalidSettingError lists all mistakes."""
    from lastword.config.toml_file import read_entries

    problems, entries = Problems(), read_entries(text, path)
    for entry in entries:
        if entry.table:
            problems.add(f"{path}:{entry.line}: the file of one topic has no table {entry.where}")
    valid = _valid(entries, path, problems, TOPIC_SETTINGS)
    problems.raise_any(path)
    return _layer(valid, os.path.basename(path))


# ---------------------------------------------------------------- files of topics


_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class _TopicFile(NamedTuple):
    """The file of a topic as it was read. `layer`: None if there is no file."""

    facts: FileFacts | None
    layer: Layer | None


class TopicFiles:
    """The files of topics in one directory. Each is read at its first use, and again after `forget`.

    Safe from any thread: a thread that reads an old file while another thread replaces it keeps nothing,
    because `forget` follows the change and waits for the read.

    Args:
        files: The storage. None: there are only the files of `known`.
        path: The lastword.toml beside them, which may be absent.
        known: Files that were read, by path.
    """

    def __init__(self, files: Files | None, path: str, known: Mapping[str, _TopicFile] | None = None) -> None:
        self.files = files
        self.path = path
        self._known: dict[str, _TopicFile] = dict(known or {})
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[TopicFiles], tuple[None, str, dict[str, _TopicFile]]]:
        """Pickle the values of all files: the storage belongs to this process. Raises as `layer` does."""
        root = os.path.dirname(self.path)
        if self.files is not None and self.files.is_dir(root):
            for name in filter(is_topic_file, self.files.listdir(root)):
                self._file(os.path.join(root, name))
        return TopicFiles, (None, self.path, dict(self._known))

    def layer(self, topic: str) -> Layer | None:
        """Return the values of a topic's file; None: there is no file.

        Raises:
            InvalidSettingError: The file is damaged. Nothing is kept: the next call reads it again.
            StorageError: It cannot be read.
        """
        return self._file(topic_file(self.path, topic)).layer if _TOPIC.fullmatch(topic) else None

    def _file(self, path: str) -> _TopicFile:
        known = self._known.get(path)
        if known is not None:
            return known
        if self.files is None:
            return _TopicFile(None, None)
        with self._lock:
            try:
                facts = self.files.stat(path)  # before the text, so `is_current` finds a change in between
            except NotPermittedError as error:  # the whole directory: it is offline, and others serve
                raise OfflineError.of("the settings of a topic", os.path.dirname(path), error) from error
            text = None if facts is None else text_of(self.files, path)
            known = _TopicFile(facts, None if text is None else layer_of_topic(text, path))
            if len(self._known) >= MOST_KEPT_CONFIGS:  # clients name topics that do not exist
                self._known.clear()
            self._known[path] = known
            return known

    def is_current(self, topic: str) -> bool:
        """Return whether the file of a topic is the one that was read, if it was read."""
        path = topic_file(self.path, topic)
        known = self._known.get(path)
        if known is not None and self.files is not None:
            with suppress(StorageError):  # of a drive that failed
                return self.files.stat(path) == known.facts
        return True

    def forget(self, topics: Iterable[str] | None) -> None:
        """Read the files of these topics again when they are used; None: all files."""
        with self._lock:
            if topics is None:
                self._known.clear()
            else:
                for topic in topics:
                    self._known.pop(topic_file(self.path, topic), None)


def _near(entry: TomlEntry, known: Mapping[str, Setting]) -> str:
    if known is TOPIC_SETTINGS and entry.name in INSTANCE_SETTINGS:
        above = "put it above all tables" if entry.table else f"put it into {FILE_NAME}"
        return f"; it applies to the whole directory: {above}"
    if known is INSTANCE_SETTINGS and entry.name in TOPIC_SETTINGS:
        return "; it is a topic setting: put it under [defaults] or [topics.NAME]"
    return hint(entry.name, known)


# ---------------------------------------------------------------- changes


_changing = threading.Lock()
"""Held from the read of a file to its replacement: threads change the settings of one directory."""
os.register_at_fork(after_in_child=lambda: globals().update(_changing=threading.Lock()))


def write_topic_settings(
    files: Files,
    path: str | os.PathLike[str],
    topic: str | None,
    values: Mapping[str, Any],
    *,
    only_checks: bool = False,
) -> None:
    """Set and unset values of a topic in its own file, beside a lastword.toml; the file is made if absent.

    Values are written as they were given ("7d" stays "7d"). Everything is checked first: nothing is written
    if the new file would not be valid.

    Args:
        files: The storage.
        path: Path of the lastword.toml.
        topic: The topic. None: settings of the directory are set in lastword.toml, at the top level, and
            topic settings there in [defaults].
        values: Values by keyword or dotted name; None unsets.
        only_checks: Write nothing.
    """
    path, changes = os.fspath(path), _changes(values, topic)
    with _changing:
        if topic is not None:
            _write(files, path, {topic: changes}, only_checks=only_checks)
            return
        from lastword.config.toml_file import edit

        text = text_of(files, path) or ""
        Settings.from_text(text, path)  # an invalid file is not edited
        text = edit(text, changes)
        Settings.from_text(text, path)
        if not only_checks:
            files.write_atomic(path, text.encode("utf-8"))


def create_topic_settings(
    files: Files, path: str | os.PathLike[str], settings: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the files of new topics with these values, and those of their tables in the lastword.toml.

    A file that is there was left by an earlier topic of that name: none of its values is kept.
    """
    path = os.fspath(path)
    changes = {topic: _changes(given, topic) for topic, given in settings.items()}
    with _changing:
        for topic in settings:
            files.unlink(topic_file(path, topic), missing_ok=True)
        _write(files, path, {topic: each for topic, each in changes.items() if each})


def remove_topic_settings(files: Files, path: str | os.PathLike[str], *topics: str) -> None:
    """Remove the tables of topics that were deleted from the lastword.toml, then their files.

    A kill in between leaves a file, which a new topic of that name does not read; it would read a table.
    """
    from lastword.config.toml_file import cut_tables

    path = os.fspath(path)
    with _changing:
        text = text_of(files, path) or ""
        with suppress(InvalidSettingError):  # a file that was damaged by hand: a topic is deleted with it
            rest, _ = cut_tables(text, topics, path)
            if rest != text:
                files.write_atomic(path, rest.encode("utf-8"))
        left = [file for file in (topic_file(path, topic) for topic in topics) if files.exists(file)]
        for file in left:
            files.unlink(file)
        if left:
            files.fsync_dir(os.path.dirname(path))


def _write(
    files: Files, path: str, changes: Mapping[str, list[Change]], *, only_checks: bool = False
) -> None:
    """Write the files of topics with changes, then the lastword.toml without the tables of these topics.

    A file overrides the table of its topic, so that a crash between both changes nothing.
    """
    from lastword.config.toml_file import cut_tables, edit

    shared = text_of(files, path) or ""
    settings = Settings.from_text(shared, path)  # an invalid file is not edited
    rest, tables = cut_tables(shared, changes, path)
    texts: dict[str, str] = {}
    for topic, each in changes.items():
        file = topic_file(path, topic)
        text = text_of(files, file)
        text = tables.get(topic, "") if text is None else text
        layer_of_topic(text, file)  # as above
        texts[file] = edit(text, each)
        settings.check_topic(topic, layer_of_topic(texts[file], file))
    if only_checks or not texts:
        return
    directory = os.path.dirname(path)
    if "://" not in directory and not files.exists(path):
        files.write_atomic(path, b"")  # marks which of several directories has the settings

    def write(file: str) -> None:
        files.write_atomic(file, texts[file].encode("utf-8"), sync_name=False)

    overlapped(write, list(texts))
    files.fsync_dir(directory)
    if rest != shared:
        files.write_atomic(path, rest.encode("utf-8"))


def _changes(given: Mapping[str, Any], topic: str | None) -> list[Change]:
    """Return the changes of a file that set the given values; a value of None unsets."""
    known = TOPIC_SETTINGS if topic is not None else {**TOPIC_SETTINGS, **INSTANCE_SETTINGS}
    given = {name: list(value) if isinstance(value, Iterator) else value for name, value in given.items()}
    problems = Problems()
    parse_named(given, known, problems)
    problems.raise_any()
    # A setting may be given as keyword and as dotted name: the last value counts.
    return list(dict(_change(name, value, topic) for name, value in given.items()).items())


def _change(given: str, value: Any, topic: str | None) -> Change:
    name = given if "." in given or given == "drives" else given.replace("_", ".")
    if value is not None and name != "drives" and not isinstance(value, str | int | float):
        setting = ALL_SETTINGS[name]  # a list, a set or a timedelta: TOML has text for it
        value = setting.show(setting.read(value))
    is_default = topic is None and name not in INSTANCE_SETTINGS
    return (("defaults",) if is_default else ()) + tuple(name.split(".")), value
