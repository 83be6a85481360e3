"""The manifest of a key index, `<partition>/lastword/keys`, and the proof that the index is of this log.

```
<partition>/lastword/keys             framed JSON, version 2
    topic, partition, inode, topic_file   the directory that it describes: its name, its inode, inode and time
                                          of partition.metadata
    salt, end                             of the digests; the index has the records below `end`
    cuts                                  notes of cuts in the removal log when the index was saved
    witness                               the last batch below `end`: base offset and inode of its segment,
                                          position, its header
    runs                                  the files, the newest first: name and numbers of the footer
    placed                                in a bucket: numbers of the segments for which positions hold
<partition>/lastword/keys-<16 hex>    a run (`run.py`)
```

A save writes the run and syncs it, syncs its name, replaces the manifest, and then removes the runs that no
manifest names. A crash in between leaves the old index with a file more, which the next save removes.

**Why an index that passes `fits` is right.** Offsets are permanent: an entry stays right for as long as its
record is the newest of its key below `end`, and only two things change that: records from some offset on
leave the log (a cut), or the directory is another one. A cleaning, ours or a broker's, takes away superseded
records and old tombstones, never the newest value of a key, so it changes no entry. Neither does a trim,
because a lookup compares each entry with the log start. So it is enough to prove that the log was not cut
below `end` since the save:

- A cut by us is noted twice in the removal log, and removes the manifest durably before its first change
  (`cut.forget_accounts`). So does the end that an unclean stop left, before the first append behind it. A log
  that ends below `end` is refused here, and at each opening to write (`cut.forget_keys_above`).
- A broker notes nothing of ours. But a cut takes the batch below `end`, the witness, in whose place are then
  other bytes, or none. If the segment of the witness is the same file, the header (offsets, size, leader
  epoch, CRC, times, producer) at its position decides.
- If the segment of the witness is another file, nothing shows whether it was cleaned, cut, or exchanged for
  one of a copy (a backup that is put back with `rsync`): the index is refused. A writer that has the index
  open saves it again at its end, with a witness of then, so its own cleanings do not end an index.

In a bucket the segment of the witness decides alone, without a read: its number is that of its bytes, and a
stored segment never grows. There a cleaning saves the index in its own commit (`KeyIndex.grow`), so that a
version has an index of its segments. Two commits that both saved one leave none (`bucket.merge`).

One change is not noticed: a program writes another log into the same file, with a batch of the same header at
the same position, and our notes stay.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING, Any

from lastword.errors import CorruptFileError, FileVanishedError, LastwordError
from lastword.files import Files
from lastword.keys.run import SALT_BYTES, Run, RunFacts, digest_function
from lastword.partition import cut, removal_log
from lastword.segment import names
from lastword.wire import HEADER_BYTES

if TYPE_CHECKING:
    from lastword.partition.view import PartitionView

FORM = cut.KEYS_FORM


@dataclass(frozen=True, slots=True)
class Witness:
    """The last batch below the end of an index.

    Attributes:
        base_offset: Base offset of its segment.
        inode: Inode of the segment.
        position: Its position there; in a bucket the size of the segment.
        header: Its header, as hexadecimal digits; in a bucket "".
    """

    base_offset: int
    inode: int
    position: int
    header: str

    @classmethod
    def of(cls, view: PartitionView, end: int) -> Witness | None:
        """Return the witness for an index of the log below `end`; None: there is no batch."""
        for segment in reversed(view.segment_set.below(end)):
            if view.files.file_cost_bytes:
                if segment.size:
                    return cls(segment.base_offset, segment.id.number, segment.size, "")
                continue
            for start in (segment.position_of(end - 1), 0):
                last = None
                for header in segment.headers(start):
                    if header.base_offset >= end:
                        break
                    last = header
                if last is not None:
                    data = segment.handle.pread(HEADER_BYTES, last.position)
                    return cls(segment.base_offset, segment.id.number, last.position, data.hex())
        return None

    def testifies(self, view: PartitionView) -> bool:
        """Return whether the batch is in its place, so that the log was not cut below its end."""
        at = view.segment_set.index_of(self.base_offset)
        if at >= 0 and view.segments[at].id.number == self.inode:
            if not self.header:
                return view.segments[at].size == self.position
            data = view.segments[at].handle.pread(HEADER_BYTES, self.position)
            return data.hex() == self.header
        return False


@dataclass(frozen=True, slots=True)
class Manifest:
    """The fields of the file."""

    topic: str
    partition: int
    inode: int
    topic_file: tuple[int, int] | None
    salt: bytes
    end: int
    cuts: int
    witness: Witness
    runs: tuple[tuple[str, RunFacts], ...]
    placed: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, view: PartitionView, cuts: int, salt: bytes, runs: Sequence[Run], placed: tuple[int, ...] = ()
    ) -> Manifest | None:
        """Return the manifest of an index of this log; None: the log has no batch below its end.

        None also for a topic without an id in a bucket, where a directory has no inode: one of its name that
        is made later would be taken for it.
        """
        end = runs[0].end
        witness, (inode, topic_file) = Witness.of(view, end), incarnation(view)
        if witness is None or (topic_file is None and view.files.file_cost_bytes):
            return None
        named = tuple((os.path.basename(run.name), run.facts) for run in runs)
        return cls(view.topic, view.partition, inode, topic_file, salt, end, cuts, witness, named, placed)

    def fits(self, view: PartitionView) -> bool:
        """Return whether the index is of this log, as the module explains."""
        return (
            (self.topic, self.partition) == (view.topic, view.partition)
            and (self.inode, self.topic_file) == incarnation(view)
            and self.end <= min(view.stable_offset, view.log_end)
            and removal_log.load(view.files, view.directory).cut_since(self.cuts) >= self.end
            and self.witness.testifies(view)
        )


def incarnation(view: PartitionView) -> tuple[int, tuple[int, int] | None]:
    """Return the inode of a partition's directory, and the facts of the file with its topic's id."""
    facts, topic = view.files.stat(view.directory), view.topic_facts
    return -1 if facts is None else facts.inode, None if topic is None else (topic.inode, topic.mtime_ms)


def path_of(directory: str, name: str = names.KEYS) -> str:
    """Return the path of a file of the index of a partition."""
    return os.path.join(directory, names.PRIVATE, name)


def load(files: Files, directory: str) -> Manifest | None:
    """Read the manifest; None if there is none. CorruptFileError if it is damaged."""
    path = path_of(directory)
    fields = FORM.load(files, path)
    return None if fields is None else parse(fields, path)


def indexed_to(view: PartitionView) -> int | None:
    """Return the offset up to which a saved index has the records; None: none is there that fits."""
    with suppress(CorruptFileError):
        manifest = load(view.files, view.directory)
        if manifest is not None and manifest.fits(view):
            return manifest.end
    return None


def look_up(view: PartitionView, keys: Iterable[bytes]) -> tuple[int, dict[int, bytes]] | None:
    """Look up keys in the saved index; None: none is there that fits, or a writer replaces it now.

    Returns:
        Its end, and the keys that have a value below by the offset of their newest record there. Who reads
        such a record compares its key.
    """
    with suppress(CorruptFileError, FileVanishedError):
        manifest = load(view.files, view.directory)
        if manifest is None or not manifest.fits(view):
            return None
        runs, digest = open_runs(view.files, view.directory, manifest), digest_function(manifest.salt)
        found: dict[int, bytes] = {}
        for key in keys:
            of_key = digest(key)
            word = next((word for run in runs if (word := run.find(of_key)) is not None), None)
            if word is not None and not word & 1:
                found[word >> 1] = key
        return manifest.end, found
    return None


def parse(fields: dict[str, Any], path: str) -> Manifest:
    """Return the manifest with these fields. CorruptFileError if they are invalid."""
    whole = removal_log.whole
    with FORM.reading(path):
        salt, topic_file = bytes.fromhex(fields["salt"]), fields["topic_file"]
        base, inode, position, header = fields["witness"]
        runs = tuple((str(name), RunFacts(*map(int, facts))) for name, *facts in fields["runs"])
        if len(salt) != SALT_BYTES or not runs or not all(is_run(name) for name, _ in runs):
            raise ValueError("salt or runs")
        return Manifest(
            str(fields["topic"]),
            whole(fields["partition"]),
            int(fields["inode"]),
            None if topic_file is None else (int(topic_file[0]), int(topic_file[1])),
            salt,
            whole(fields["end"]),
            whole(fields["cuts"]),
            Witness(whole(base), whole(inode), whole(position), str(header)),
            runs,
            tuple(whole(number) for number in fields["placed"]),
        )


def is_run(name: str) -> bool:
    """Return whether this is the name of a run's file."""
    return name.startswith(names.KEY_RUN) and "/" not in name


def new_name() -> str:
    """Return a name for a new run."""
    return f"{names.KEY_RUN}{os.urandom(8).hex()}"


def save(files: Files, directory: str, manifest: Manifest) -> None:
    """Replace the manifest durably. Its runs and their names are durable already."""
    FORM.save(files, path_of(directory), fields_of(manifest))


def fields_of(manifest: Manifest) -> dict[str, Any]:
    """Return the fields of the file."""
    return {
        **asdict(manifest),
        "salt": manifest.salt.hex(),
        "witness": list(astuple(manifest.witness)),
        "runs": [[name, *facts] for name, facts in manifest.runs],
    }


def open_runs(files: Files, directory: str, manifest: Manifest) -> list[Run]:
    """Open the runs of a manifest, the newest first, without a read.

    Raises:
        CorruptFileError: A run has another size, or the runs do not cover the offsets up to the end.
        FileVanishedError: A writer has replaced the index.
    """
    runs: list[Run] = []
    end = manifest.end
    for name, facts in manifest.runs:
        path = path_of(directory, name)
        handle = files.open_read(path)
        handle.will_read_pieces()
        run = Run(handle, handle.size(), manifest.salt, path, facts)
        if run.end != end:
            raise CorruptFileError(
                f"it ends at offset {run.end}, the next run begins at {end}",
                code=FORM.code,
                remedy=FORM.remedy,
                file=path,
            )
        runs.append(run)
        end = run.start
    return runs


def check(files: Files, path: str) -> Manifest:
    """Return the manifest at `path`. CorruptFileError if it is damaged, or if a run is missing or another."""
    while True:
        facts = files.stat(path)
        manifest = parse(FORM.load(files, path) or {}, path)
        try:
            for run in open_runs(files, os.path.dirname(os.path.dirname(path)), manifest):
                run.check_footer()
            return manifest
        except FileVanishedError as error:
            if files.stat(path) == facts:  # else a writer has replaced the index
                raise CorruptFileError(
                    f"{error.file} is missing", code=FORM.code, remedy=FORM.remedy, file=path
                ) from None


def remove_others(files: Files, directory: str, kept: Sequence[str]) -> None:
    """Remove the runs that are not `kept`. What cannot be removed now is removed the next time."""
    try:
        for name in files.listdir(os.path.join(directory, names.PRIVATE)):
            if is_run(name) and name not in kept:
                files.unlink(path_of(directory, name), missing_ok=True)
    except LastwordError:
        pass
