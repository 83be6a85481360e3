"""The log of a Delta table: snapshots, checks, and the commit.

    _delta_log/VERSION.json                 the actions of a commit, one JSON object on each line
    _delta_log/VERSION.checkpoint.parquet   all actions that count at a version, maybe in parts

A snapshot is the newest checkpoint and the commits after it. deltalake reads such tables, too, but gives no
descriptors of vectors, which the next commit must repeat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from lastword.arrow import pa, pq
from lastword.errors import (
    CorruptFileError,
    ObjectTakenError,
    ObjectVanishedError,
    TableRefusedError,
    UncertainCommitError,
    UncertainRequestError,
)
from lastword.lake.vectors import Vector
from lastword.objects.interface import URL, ObjectStore

LOG = "_delta_log"
FEATURES = frozenset({"deletionVectors", "appendOnly", "invariants"})
"""The features of a table that an export keeps. The last two change nothing without a setting of theirs."""
TOPIC = "lastword.topic"
LAYOUT = "lastword.layout"
VALUE_FORMAT = "lastword.value-format"
OWN = "lastword/"
"""Application ids of ours begin so."""
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_COLUMNS = ("protocol", "metaData", "txn", "add")


def commit_key(version: int) -> str:
    """Return the name of a commit."""
    return f"{LOG}/{version:020}.json"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a snapshot: its `add` action, and the rows that it leaves out."""

    path: str
    size: int
    vector: Vector | None
    action: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, action: Mapping[str, Any]) -> DataFile:
        """Return the file of an `add` action."""
        return cls(action["path"], action["size"], Vector.of(action.get("deletionVector")), action)

    @property
    def key(self) -> tuple[str, str | None]:
        """The path and the vector, which tell the files of a table apart."""
        return self.path, None if self.vector is None else self.vector.unique_id

    @property
    def object(self) -> str:
        """The name in the store."""
        return unquote(self.path)

    def removed(self, now_ms: int) -> dict[str, Any]:
        """Return the action that removes the file."""
        vector = {} if self.vector is None else {"deletionVector": self.vector.to_action()}
        return {
            "remove": {
                "path": self.path,
                "deletionTimestamp": now_ms,
                "dataChange": True,
                "extendedFileMetadata": True,
                "partitionValues": {},
                "size": self.size,
                **vector,
            }
        }

    def added_with(self, vector: Vector, rows: int) -> dict[str, Any]:
        """Return the action that adds the file again, with a vector. `rows` counts all rows of the file."""
        stats = json.loads(self.action.get("stats") or "{}") | {"numRecords": rows, "tightBounds": False}
        return {
            "add": {
                "path": self.path,
                "partitionValues": {},
                "size": self.size,
                "modificationTime": self.action["modificationTime"],
                "dataChange": True,
                "stats": json.dumps(stats),
                "deletionVector": vector.to_action(),
            }
        }


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at a version; -1: there is no table."""

    version: int
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict)
    """The version of each application id."""
    files: Mapping[tuple[str, str | None], DataFile] = field(default_factory=dict)

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings of the table."""
        return dict(self.metadata.get("configuration") or {})


class Table:
    """The table below the URL of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self._last: tuple[int, list[dict[str, Any]]] | None = None  # the check reads the newest commit again

    def snapshot(self, version: int | None = None) -> Snapshot:
        """Read the table at a version; None: the newest.

        Raises:
            CorruptFileError: A commit or checkpoint is missing or damaged.
            TableRefusedError: The table has checkpoints of another form.
        """
        commits, checkpoints = self._listed()
        newest = max((*commits, *checkpoints), default=-1) if version is None else version
        if newest < 0:
            return Snapshot(-1)
        begin = max((number for number in checkpoints if number <= newest), default=-1)
        state = Snapshot(-1, files={})
        if begin >= 0:
            state = self._replayed(state, begin, self._checkpoint(checkpoints[begin]), checkpoints[begin][0])
        for number in range(begin + 1, newest + 1):
            if number not in commits:
                raise self._refused(
                    f"commit {number} is missing, and no checkpoint of one Parquet file is above it",
                    "choose another path, or restore the log of the table",
                )
            state = self._replayed(state, number, self.actions(number), commit_key(number))
        return state

    def _replayed(
        self, state: Snapshot, version: int, actions: Iterable[Mapping[str, Any]], key: str
    ) -> Snapshot:
        try:
            return _replayed(state, version, actions)
        except (KeyError, TypeError, AttributeError):
            raise self._damaged(key) from None

    def _listed(self) -> tuple[set[int], dict[int, list[str]]]:
        """Return the versions of commits, and the names of the parts of each complete checkpoint."""
        commits: set[int] = set()
        parts: dict[tuple[int, int], list[str]] = {}
        for facts in self.store.list(LOG):
            name = facts.key.rpartition("/")[2]
            if match := _COMMIT.fullmatch(name):
                commits.add(int(match[1]))
            elif match := _CHECKPOINT.fullmatch(name):
                parts.setdefault((int(match[1]), int(match[3] or 1)), []).append(facts.key)
        complete = {version: names for (version, count), names in parts.items() if len(names) == count}
        return commits, complete

    def actions(self, version: int) -> list[dict[str, Any]]:
        """Return the actions of a commit.

        Raises:
            ObjectVanishedError: There is no such commit.
        """
        if self._last is not None and self._last[0] == version:
            return self._last[1]
        key = commit_key(version)
        stored = self.store.get(key)
        assert stored is not None
        try:
            actions = [json.loads(line) for line in stored.data.splitlines() if line.strip()]
            if not all(isinstance(action, dict) for action in actions):
                raise ValueError
        except ValueError:
            raise self._damaged(key) from None
        self._last = version, actions
        return actions

    def _checkpoint(self, names: list[str]) -> Iterator[dict[str, Any]]:
        for name in names:
            stored = self.store.get(name)
            assert stored is not None
            try:
                file = pq.ParquetFile(pa.BufferReader(stored.data))
                columns = [column for column in _COLUMNS if column in file.schema_arrow.names]
                for batch in file.iter_batches(columns=columns):
                    for row in batch.to_pylist():
                        yield {name: fields for name, fields in row.items() if fields is not None}
            except pa.ArrowException:
                raise self._damaged(name) from None

    def commit(self, version: int, actions: Iterable[Mapping[str, Any]]) -> bool:
        """Write a commit, if the version has none. Return whether it is this one.

        Raises:
            UncertainCommitError: The store does not say whether the commit came in.
        """
        key = commit_key(version)
        data = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()
        try:
            self.store.create(key, data)
            return True
        except (ObjectTakenError, UncertainRequestError) as error:
            unclear = error
        try:
            stored = self.store.get(key)
        except (ObjectVanishedError, UncertainRequestError):
            raise UncertainCommitError(
                f"{self.store.url}: the answer to commit {version} was lost: {unclear.message}",
                remedy="export again: a commit that came in is not repeated",
                file=self.store.url,
            ) from unclear
        return stored is not None and stored.data == data  # a request that the store has sent itself twice

    # -------------------------------------------------------------- a table that others may have changed

    def check(
        self, snapshot: Snapshot, topic: str, layout: str, schema: Mapping[str, Any], value_format: str | None
    ) -> None:
        """Raise TableRefusedError unless an export of the topic may continue the table."""
        settings, protocol = snapshot.settings, snapshot.protocol
        if TOPIC not in settings:
            raise self._refused("another program made this table", "choose another path")
        if settings[TOPIC] != topic or settings.get(LAYOUT) != layout:
            known = f"{settings[TOPIC]!r} in layout {settings.get(LAYOUT)}"
            raise self._refused(
                f"it is the table of {known}, not of {topic!r} in layout {layout}",
                "give the topic and the layout of before, or choose another path",
            )
        listed = (protocol.get(f"{side}Features") or () for side in ("reader", "writer"))
        checks = {name for name in settings if name.startswith("delta.constraints.")}  # of older writers
        unknown = sorted({name for names in listed for name in names} - FEATURES | checks)
        newest = int(protocol.get("minReaderVersion", 0)) > 3 or int(protocol.get("minWriterVersion", 0)) > 7
        if unknown or newest:
            what = f"the feature {unknown[0]}" if unknown else "a newer protocol"
            raise self._refused(
                f"it has {what}, which this version does not write",
                "drop the feature from the table, or choose another path",
            )
        if settings.get("delta.appendOnly") == "true" or snapshot.metadata.get("partitionColumns"):
            raise self._refused(
                "it is append-only or partitioned: rows could not be removed", "choose another path"
            )
        try:
            held = json.loads(snapshot.metadata["schemaString"])
        except ValueError:
            raise self._damaged(LOG) from None
        if held != schema:
            raise self._refused(
                f"its columns are {_named(held)}, and the topic now has {_named(schema)}",
                "give the value_format and value_schema of before, or choose another path",
            )
        if settings.get(VALUE_FORMAT) != value_format:
            raise self._refused(
                f"its values have value_format={settings.get(VALUE_FORMAT)}, not {value_format}",
                "give the value_format of before, or choose another path",
            )
        for file in snapshot.files.values():
            if URL.match(file.path) or file.path.startswith("/") or (file.vector and file.vector.kind == "p"):
                raise self._refused(f"its file {file.path} is elsewhere", "choose another path")

    def check_changes(self, snapshot: Snapshot) -> None:
        """Raise TableRefusedError if another program has changed rows since our last commit.

        RESTORE does not move an application id, so the position would be wrong. A commit that only moves rows
        to other files, as OPTIMIZE, is kept, and so is a table that was brought back to our last version.
        """
        changed: tuple[int, str] | None = None
        for version in range(snapshot.version, -1, -1):
            try:
                actions = self.actions(version)
            except ObjectVanishedError:
                raise self._refused(
                    f"commit {version} is gone, and another program has written after our last commit",
                    "choose another path",
                ) from None
            if any(fields["appId"].startswith(OWN) for fields in _of_kind(actions, "txn")):
                break
            moved = [*_of_kind(actions, "add"), *_of_kind(actions, "remove")]
            if any(fields.get("dataChange", True) for fields in moved):
                infos = _of_kind(actions, "commitInfo")
                changed = version, str(infos[0].get("operation")) if infos else "a commit"
        if changed is not None and self.snapshot(version).files.keys() != snapshot.files.keys():
            raise self._refused(
                f"{changed[1]} of another program has changed its rows at version {changed[0]}",
                f"restore the table to version {version}, or choose another path",
            )

    def _refused(self, why: str, remedy: str) -> TableRefusedError:
        return TableRefusedError(f"{self.store.url}: {why}", remedy=remedy, file=self.store.url)

    def _damaged(self, key: str) -> CorruptFileError:
        path = f"{self.store.url}/{key}"
        return CorruptFileError(
            f"{path} is damaged", remedy="restore the table's log, or choose another path", file=path
        )


def _of_kind(actions: Iterable[Mapping[str, Any]], kind: str) -> list[Any]:
    return [action[kind] for action in actions if kind in action]


def _named(schema: Mapping[str, Any]) -> str:
    """Return the columns of a schema as text."""
    return ", ".join(
        f"{column['name']} {_type_text(column['type'])}{'' if column['nullable'] else ' not null'}"
        for column in schema["fields"]
    )


def _type_text(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return f"struct<{_named(kind)}>"
    inner = [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    return f"{kind['type']}<{', '.join(map(_type_text, inner))}>"


def _replayed(state: Snapshot, version: int, actions: Iterable[Mapping[str, Any]]) -> Snapshot:
    """Return the snapshot after the actions of a commit or checkpoint. The files are those of `state`."""
    files, positions = dict(state.files), dict(state.positions)
    added: dict[tuple[str, str | None], DataFile] = {}
    for action in actions:
        if "add" in action:
            file = DataFile.of(action["add"])
            added[file.key] = file
        elif "remove" in action:
            vector = Vector.of(action["remove"].get("deletionVector"))
            files.pop((action["remove"]["path"], None if vector is None else vector.unique_id), None)
        elif "txn" in action:
            positions[action["txn"]["appId"]] = action["txn"]["version"]
        elif "metaData" in action:
            state = replace(state, metadata=action["metaData"])
        elif "protocol" in action:
            state = replace(state, protocol=action["protocol"])
    return replace(state, version=version, files=files | added, positions=positions)
