"""Decode and check private files: the files that lastword writes and Kafka does not use.

`reader_of(path)` returns the function that reads a private file: it yields names and values, and raises
CorruptFileError for damage. `dump` prints the values, `verify` reports the errors. docs/formats.md has a
section for each of these files.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from lastword.accounts import estimates, snapshot
from lastword.accounts.snapshot import VERSION as ACCOUNTS_VERSION
from lastword.cleaner import job_files
from lastword.cleaner.policy import quarantine
from lastword.config import Settings, is_topic_file
from lastword.config.settings import TOPIC_FILE, layer_of_topic, text_of
from lastword.errors import CorruptFileError, LastwordError
from lastword.files import Files, real_path
from lastword.files.framed import Framed
from lastword.ingest.staging import COMMITTED, OPEN, REFUSED_FORM, WRITERS_FORM, CommitManifest
from lastword.keys import manifest as keys
from lastword.keys.run import PLAIN, Run
from lastword.logdir.copies import COPIED
from lastword.logdir.identity import MOVE_NOTE, PRODUCER_IDS, TRANSACTION
from lastword.logdir.log_dir_set import read_partition_list
from lastword.partition import cut, leases, removal_log, staged_batches
from lastword.partition.durability import decode_mark
from lastword.partition.named import read_journal
from lastword.segment import names
from lastword.tools.findings import REMOVE_CODES, Problem

Fields = Iterator[tuple[str, str]]
Reader = Callable[[Files, str], Fields]

_DERIVED = (*REMOVE_CODES, "bad-job-file", "bad-partition-list")
"""Codes of problems in files that are written again or not needed."""


def reader_of(path: str) -> Reader | None:
    """Return the function that reads the private file at `path`; None if it is not a private file."""
    *_, above, parent, name = ["", "", *Path(real_path(path)).parts]
    if name.endswith(".tmp") and (names.PRIVATE in (above, parent) or name.startswith(names.PRIVATE)):
        return _unfinished
    reader = _ROOT_NAMES.get(name) or next(
        (read for prefix, read in _ROOT_PREFIXES.items() if name.startswith(prefix)), None
    )
    if reader is not None:
        return reader
    if parent == names.PRIVATE:
        return _NAMES.get(name) or next(
            (reader for prefix, reader in _PREFIXES.items() if name.startswith(prefix)), _other
        )
    if above == names.PRIVATE:
        return _EXTENSIONS_BELOW.get(Path(name).suffix, _other)
    return _NAMES.get(name) if name in (names.QUARANTINE, names.SYNCED) else None


def problem_of(path: str, error: LastwordError) -> Problem:
    """Convert an error about a private file to a `Problem` with a remedy for this file."""
    code = error.code if isinstance(error, CorruptFileError) else "bad-settings"
    if code == "corrupt-file":
        code = "bad-journal" if os.path.basename(path) == names.PRODUCERS else "bad-checkpoint"
    remedy = error.remedy or ""
    directory = os.path.dirname(os.path.dirname(path))
    parsed = names.parse_partition_dir(os.path.basename(real_path(directory)))
    if parsed is not None and code == "bad-lease":
        root, name = os.path.dirname(directory) or ".", os.path.basename(path).removeprefix(names.LEASE)
        command = shlex.join(["lastword", "lease", root, parsed.topic, name, "--release"])
        remedy = f"`{command}`, or let its reader take it again; until then no tombstone is removed"
    elif parsed is not None and code == "bad-quarantine":
        retrying = quarantine.retrying(directory, os.path.basename(real_path(directory)))
        remedy = f"{retrying}: verifies the partition, and removes this file if it is sound"
    elif code in REMOVE_CODES:
        remedy = ""  # `Problem` itself has the remedy to remove the file
    repairable = code in _DERIVED
    return Problem(path, error.position, error.offset, code, error.message, repairable, remedy)


# ---------------------------------------------------------------- one function for each kind


def _framed(form: Framed, check: Callable[[Files, str], object] | None = None) -> Reader:
    """Return the reader of a framed file. `check` raises an error if its fields are not valid."""

    def read(files: Files, path: str) -> Fields:
        fields = form.load(files, path) or {}
        if check is not None:
            with form.reading(path):
                check(files, path)
        for name, value in fields.items():
            yield name, str(value)

    return read


def _lease(files: Files, path: str) -> object:
    directory, name = _partition(path), os.path.basename(path).removeprefix(names.LEASE)
    lease = leases.read(files, directory, name)
    if lease is not None and lease.damaged:
        raise ValueError("a field is missing, or no number")
    return lease


def _removal_log(files: Files, path: str) -> object:
    if removal_log.load(files, _partition(path)).unknown:
        raise ValueError("a field is missing, or no number")
    return None


def _partition(path: str) -> str:
    return os.path.dirname(os.path.dirname(real_path(path)))


def _accounts(files: Files, path: str) -> Fields:
    header = snapshot.check(files, path)
    if header.get("version") != ACCOUNTS_VERSION:
        raise CorruptFileError(
            f"accounts of version {header.get('version')}, this program reads version {ACCOUNTS_VERSION}",
            code="bad-accounts",
            file=path,
        )
    for name, value in header.items():
        if name not in ("segments", "map", "arrays"):
            yield name, str(value)
    yield "segments", str(len(header["segments"]))
    yield "map", "none" if header["map"] is None else "saved"


def _keys(files: Files, path: str) -> Fields:
    manifest = keys.check(files, path)
    for name, value in keys.fields_of(manifest).items():
        yield name, str(value)


def _key_run(files: Files, path: str) -> Fields:
    with files.open_read(path) as handle:
        run = Run(handle, handle.size(), None, path)
        run.check()
    yield "offsets", f"{run.start} to {run.end}"
    yield "entries", str(run.entries)
    yield "blocks", str(run.blocks)
    yield "positions", "none" if run.base == PLAIN else f"of offsets from {run.base} on"


def _journal(files: Files, path: str) -> Fields:
    producers, sound_bytes = read_journal(files, _partition(path))
    facts = files.stat(path)
    for producer in producers.values():
        yield producer.name, f"id {producer.producer_id}, last sequence {producer.last_sequence}"
    if facts is not None and facts.size > sound_bytes:
        raise CorruptFileError(
            f"{facts.size - sound_bytes} bytes after the last sound line",
            code="bad-journal",
            remedy="restore the file from a copy; if only the last line is torn, the next write of a named "
            "producer cuts it",
            file=path,
            position=sound_bytes,
        )


def _synced(files: Files, path: str) -> Fields:
    data = files.read_bytes(path)
    mark = decode_mark(data)
    if mark is None and data.strip(b"\0"):  # zeros: a power cut before the first sync of the file
        raise CorruptFileError("the mark's checksum is wrong", code="bad-synced", file=path, position=0)
    for name, value in zip(("synced below offset", "leader epoch"), mark or (0,), strict=False):
        yield name, str(value)


def _manifest(files: Files, path: str) -> Fields:
    manifest = CommitManifest.decoded(files.read_bytes(path), path)
    yield "job", manifest.commit_id
    for name in ("sync", "writer", "sequence"):
        yield name, str(getattr(manifest, name))
    for run in manifest.runs:
        where = f"{run.topic}-{run.partition}"
        yield run.name, f"{run.records} records, {run.size_bytes} bytes for {where}"


def _log_ends(files: Files, path: str) -> Fields:
    log_ends = staged_batches.load_log_ends(files, os.path.dirname(path))
    if log_ends is not None:
        yield "job", log_ends.commit_id
        for partition, offset in log_ends.offsets.items():
            yield partition, f"log end {offset}"


def _partition_list(files: Files, path: str) -> Fields:
    for tp in read_partition_list(files, path):
        yield str(tp), "listed"


def _settings(files: Files, path: str) -> Fields:
    from lastword.config.toml_file import read_entries

    text = text_of(files, path) or ""
    for entry in read_entries(text, path):
        yield f"{entry.where} {entry.name}".strip(), str(entry.value)
    check = layer_of_topic if is_topic_file(os.path.basename(path)) else Settings.from_text
    check(text, path)


def _arrays(files: Files, path: str) -> Fields:
    for name, array in job_files.read_arrays(files, path).items():
        yield name, f"{array.dtype} {array.shape}"


def _marker(files: Files, path: str) -> Fields:
    yield "marker", "only its existence counts"


def _sized(kind: str, why: str = "") -> Reader:
    """Return the reader of a file whose content is not read here."""

    def read(files: Files, path: str) -> Fields:
        facts = files.stat(path)
        yield kind, f"{0 if facts is None else facts.size} bytes{why}"

    return read


_unfinished = _sized("unfinished", " that nothing reads")
_scratch = _sized("scratch of a cleaning", ", checked by the step that reads them")
_other = _sized("not known to this version")
_job = _framed(job_files.FORM)
_NAMES: dict[str, Reader] = {
    names.ACCOUNTS: _accounts,
    names.SURVIVORSHIP: _framed(estimates.FORM),
    names.SUMMARY: _framed(snapshot.SUMMARY_FORM),
    names.DROPPED_TOMBSTONES: _framed(removal_log.FORM, _removal_log),
    names.QUARANTINE: _framed(quarantine.FORM),
    names.SYNCED: _synced,
    names.PRODUCERS: _journal,
    names.LOG_START_NOTE: _framed(cut.LOG_START_FORM),
    names.MOVED_FROM: _framed(MOVE_NOTE),
    names.MOVING: _marker,
    names.COPIED: _framed(COPIED),
    names.KEYS: _keys,
}
_PREFIXES: dict[str, Reader] = {
    names.LEASE: _framed(leases.FORM, _lease),
    names.KEY_RUN: _key_run,
    COMMITTED: _marker,
    OPEN: _marker,
}
_EXTENSIONS_BELOW: dict[str, Reader] = {
    ".json": _job,
    ".npz": _arrays,
    ".data": _scratch,
    ".dead": _scratch,
}
_ROOT_NAMES: dict[str, Reader] = {
    names.LOCK: _marker,
    names.SETTINGS: _settings,
    names.PARTITION_LIST: _partition_list,
    names.WRITERS: _framed(WRITERS_FORM),
    names.PRODUCER_IDS: _framed(PRODUCER_IDS),
    names.TRANSACTION: _framed(TRANSACTION),
    names.BEGUN: _log_ends,
}
_ROOT_PREFIXES: dict[str, Reader] = {
    TOPIC_FILE: _settings,
    names.STAGED: _sized("staged batches", ", checked with the manifest that names them"),
    names.COMMITTED: _marker,
    names.INBOX: _manifest,
    names.APPLYING: _manifest,
    names.REFUSED: _framed(REFUSED_FORM),
}
