r"""Read and write the small files that identify a log directory, a topic and a moved partition.

```
meta.properties          version=1, cluster.id, node.id, directory.id (Java properties text)
partition.metadata       version: 0\ntopic_id: <22 characters>, no newline at the end
.kafka_cleanshutdown     {"version":0,"brokerEpoch":-1}; only its existence counts
lastword/moved-from      in a partition: the directory it was copied from, log end and leases then (framed)
lastword.producer-ids    the first producer id that is not reserved yet (framed JSON)
lastword.transaction     the producer of transactions of this process that may be open (framed JSON)
```

An id is 16 random bytes as URL-safe base64 without padding. A broker sets a partition aside (`-stray`) if its
topic id is missing or differs from the cluster's; nothing here requires either file. In a move note `log_end`
is -1 while the copy is not complete. The note names the source directory by its id, so that the directory is
recognized when it is mounted elsewhere, or by its path if it has no id (`log_dir_set.move`).
"""

from __future__ import annotations

import base64
import os
import random
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache

from lastword.errors import (
    ClusterDiffersError,
    CorruptFileError,
    FileVanishedError,
    InconsistentTopicIdError,
    LastwordError,
    StorageError,
    nearest,
)
from lastword.files import Files, real_path
from lastword.files.framed import Framed
from lastword.segment import names
from lastword.values import Value

CLEAN_SHUTDOWN_TEXT = b'{"version":0,"brokerEpoch":-1}'
PRODUCER_IDS = Framed(
    "producer-ids", 1, "bad-producer-ids", "remove the file: new ids begin at another random number"
)
TRANSACTION = Framed(
    "transaction",
    1,
    "bad-transaction-note",
    "remove the file, and end by hand what `lastword transactions DIR` shows",
)
"""`lastword.transaction`: the producer whose transactions may be open after a crash (api.transaction)."""
_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_KNOWN = ["cluster.id", "node.id", "directory.id"]
_META = ("version", "cluster.id", "node.id", "broker.id", "directory.id")


def new_id(rng: random.Random) -> str:
    """Return a new id, as Kafka makes ids: never one that begins with a dash."""
    while True:
        identifier = base64.urlsafe_b64encode(rng.randbytes(16)).decode().rstrip("=")
        if not identifier.startswith("-") and identifier != "A" * 22:
            return identifier


_MADE_HERE = "#\nversion=1\n"
"""The beginning of a meta.properties that lastword writes. Kafka writes the date in the second line."""


def write_meta_properties(
    files: Files, root: str, rng: random.Random, beside: Mapping[str, str] | None = None
) -> None:
    """Write meta.properties of a directory that was just made. An existing file is never changed.

    `beside`: the properties of a directory that is opened together with this one.
    """
    cluster_id, node_id = (beside or {}).get("cluster.id") or new_id(rng), (beside or {}).get("node.id", "1")
    ids = f"cluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={new_id(rng)}\n"
    files.write_atomic(os.path.join(root, names.META_PROPERTIES), (_MADE_HERE + ids).encode("latin-1"))


def read_directory_id(files: Files, root: str) -> str | None:
    """Return `directory.id` of meta.properties; None in a directory that has none (before Kafka 3.7)."""
    return read_ids(files, root).get("directory.id")


def read_ids(files: Files, root: str) -> dict[str, str]:
    """Return the properties of a directory's meta.properties as far as they can be read."""
    return dict(re.findall(r"^\s*([^\s=:]+)\s*[=:]\s*(\S+)\s*$", _meta_text(files, root), re.MULTILINE))


def made_by_broker(files: Files, root: str) -> bool:
    """Return whether a directory is a broker's: it has a meta.properties that lastword did not write."""
    text = _meta_text(files, root)
    return bool(text) and not text.startswith(_MADE_HERE)


def _meta_text(files: Files, root: str) -> str:
    path = os.path.join(root, names.META_PROPERTIES)
    try:
        return files.read_bytes(path).decode("latin-1") if files.exists(path) else ""
    except FileVanishedError:
        return ""


def check_same_cluster(files: Files, roots: Iterable[str], metadata: str | None = None) -> None:
    """Raise ClusterDiffersError if directories are not those of one node, as a broker refuses them.

    A directory that a node of its own made, by lastword, may be opened together with others.

    Args:
        files: The storage.
        roots: Log directories that are opened together.
        metadata: The directory of the cluster's metadata, which may be another node's.
    """
    compared = [(root, _KNOWN) for root in roots] + ([(metadata, ["cluster.id"])] if metadata else [])
    first: dict[tuple[str, str], tuple[str, str]] = {}  # the directory that has an id first, and the id
    for root, known in compared if len(compared) > 1 else ():
        try:
            ids, is_brokers = read_ids(files, root), made_by_broker(files, root)
        except StorageError:
            continue  # raised when the directory is opened, or it is offline
        ids.setdefault("node.id", ids.get("broker.id", ""))
        for name in known:
            value, is_copied = ids.get(name), name == "directory.id"
            if not value or not (is_brokers or is_copied):
                continue
            there, other = first.setdefault((name, value if is_copied else ""), (root, value))
            if there != root and (is_copied or other != value):
                raise ClusterDiffersError(
                    f"{there} has {name} {other}, and {root} has {'the same' if is_copied else value}",
                    remedy="one is a copy of the other: open one of them"
                    if is_copied
                    else "name directories of one broker only (log.dirs)",
                    file=os.path.join(root, names.META_PROPERTIES),
                )


def read_meta_properties(files: Files, path: str) -> dict[str, str]:
    """Return the properties of a meta.properties file.

    Raises:
        CorruptFileError: A broker would refuse it, or a name looks like a damaged one. Ids have no
            checksum: a wrong id that is well formed is not noticed.
    """
    properties: dict[str, str] = {}
    for number, line in enumerate(files.read_bytes(path).decode("latin-1").splitlines(), 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        match = re.fullmatch(r"([\x21-\x7e]+?)\s*[=:]\s*([\x20-\x7e]*)", text)
        if match is None:
            raise _bad_meta(path, f"line {number} is no property")
        properties[match[1]] = match[2].strip()
    version = properties.get("version")
    number_of = {"0": "broker.id", "1": "node.id"}.get(version or "")
    if number_of is None:
        raise _bad_meta(path, f"version {version!r}, expected 0 or 1")
    lost = [name for name in _META if name not in properties]
    for name in properties:
        meant = nearest(name, lost, 0.8) if name not in _META else None
        if meant is not None:
            raise _bad_meta(path, f"property {name!r} is not known; nearest: {meant}")
    if not re.fullmatch(r"\d{1,10}", properties.get(number_of, "")):
        raise _bad_meta(path, f"{number_of} is {properties.get(number_of)!r}")
    if version == "1" and not properties.get("cluster.id"):
        raise _bad_meta(path, "there is no cluster.id")
    directory_id = properties.get("directory.id")
    if directory_id is not None and _ID.fullmatch(directory_id) is None:
        raise _bad_meta(path, f"directory.id is {directory_id!r}")
    return properties


def _bad_meta(path: str, why: str) -> CorruptFileError:
    return CorruptFileError(why, code="bad-properties", remedy="restore it from a copy", file=path)


def format_partition_metadata(topic_id: str) -> bytes:
    """Return the bytes of a partition.metadata."""
    return f"version: 0\ntopic_id: {topic_id}".encode()


def read_topic_id(files: Files, partition_directory: str) -> str | None:
    """Return the topic id of a partition; None if it has none. CorruptFileError for a damaged file."""
    path = f"{partition_directory}/{names.PARTITION_METADATA}"
    facts = files.stat(path)
    if facts is None:
        return None
    try:
        topic_id = _topic_id_in(files.read_bytes(path)) if facts.size <= 4096 else None
    except FileVanishedError:
        return None
    if topic_id is None:
        raise CorruptFileError(
            "this is no partition metadata", code="bad-properties", remedy="restore it from a copy", file=path
        )
    return topic_id


def known_topic_id(files: Files, partition_directory: str) -> str | None:
    """Return the topic id of a partition; None if it has none, or a damaged file."""
    try:
        return read_topic_id(files, partition_directory)
    except CorruptFileError:
        return None


@lru_cache(maxsize=64)  # the partitions of a topic have the same bytes
def _topic_id_in(data: bytes) -> str | None:
    """Return the topic id in the bytes of a partition.metadata; None if they are damaged."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    fields = dict(
        re.split(r":\s+", line, maxsplit=1) for line in text.splitlines() if re.search(r":\s", line)
    )
    version, topic_id = fields.get("version", ""), fields.get("topic_id", "").strip()
    if version.strip() != "0" or _ID.fullmatch(topic_id) is None or topic_id == "A" * 22:
        return None
    return topic_id


def check_topic_id(files: Files, partition_directory: str, topic_id: str | None) -> str | None:
    """Return the partition's own topic id.

    InconsistentTopicIdError if both ids are known and differ: the directory belongs to another topic of that
    name.
    """
    own = read_topic_id(files, partition_directory)
    if own is not None and topic_id is not None and own != topic_id:
        raise InconsistentTopicIdError(
            f"{partition_directory} has the topic id {own}, the topic has {topic_id}",
            remedy="it belongs to another topic of that name: move it out of the log directory",
            file=f"{partition_directory}/partition.metadata",
        )
    return own


def take_clean_shutdown(files: Files, root: str) -> bool:
    """Remove the clean-shutdown marker durably, before anything else is opened. Return whether it existed.

    A crash from here on is not a clean stop.
    """
    path = os.path.join(root, names.CLEAN_SHUTDOWN)
    if not files.exists(path):
        return False
    files.unlink(path)
    files.fsync_dir(root)
    return True


def leave_clean_shutdown(files: Files, root: str) -> None:
    """Write the clean-shutdown marker: no torn tail, valid indexes, a producer snapshot at each log end."""
    files.write_atomic(os.path.join(root, names.CLEAN_SHUTDOWN), CLEAN_SHUTDOWN_TEXT)


# ---------------------------------------------------------------- the note of a move


MOVE_NOTE = Framed(
    "moved-from",
    2,
    "bad-note",
    "if the partition is in one directory only, remove the file; if it is in two, keep the newer one",
)


def directory_name(files: Files, root: str) -> str:
    """Return the name of a log directory in move notes."""
    return read_directory_id(files, root) or real_path(root)


@dataclass(frozen=True, slots=True)
class MoveNote(Value):
    """The note of a move.

    Attributes:
        source: The name of the source directory.
        log_end: The end of the log there; -1: the copy is not complete.
        leases: The checksum of the file of each lease that was copied, by the file's name.
    """

    source: str
    log_end: int = -1
    leases: Mapping[str, str | None] = field(default_factory=dict)


def write_move_note(files: Files, directory: str, note: MoveNote) -> None:
    """Write the note of a move into a partition's copy."""
    MOVE_NOTE.save(files, _move_note_path(directory), asdict(note))


def read_move_note(files: Files, directory: str) -> MoveNote | None:
    """Return the note of a move into a directory; None if there is no readable note."""
    try:
        fields = MOVE_NOTE.load(files, _move_note_path(directory))
        if fields is None:
            return None
        return MoveNote(str(fields["source"]), int(fields["log_end"]), dict(fields["leases"]))
    except (LastwordError, ValueError, KeyError, TypeError):
        return None


def remove_move_note(files: Files, directory: str) -> None:
    """Remove the note of a move."""
    with suppress(LastwordError):  # the note stays valid as long as the source is gone
        files.unlink(_move_note_path(directory), missing_ok=True)


def _move_note_path(directory: str) -> str:
    return os.path.join(directory, names.PRIVATE, names.MOVED_FROM)
