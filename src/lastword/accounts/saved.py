"""What a ledger writes down, and what is made of it again: the content of a `snapshot`.

Two parts in one file: a header with an entry for each segment, and the arrays of the map and the clocks. The
map may be missing, where it would be larger than the log.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lastword.accounts import snapshot
from lastword.accounts.deletes import Deletes
from lastword.accounts.entries import Entry, private_path, tail_crc
from lastword.accounts.tracking import Tracking
from lastword.files import Files
from lastword.segment import names
from lastword.segment.segment import Segment

VERSION = 3


@dataclass(slots=True)
class SavedTime:
    """The drive's time when accounts were saved, and how far the log went then: base offset and size of its
    active segment."""

    t: int = 0
    seen: tuple[int, int] = (-1, 0)


def put(
    files: Files,
    directory: str,
    tracking: Tracking,
    deletes: Deletes,
    more: dict[str, Any],
    into: str | None = None,
    *,
    whole: bool = True,
) -> None:
    """Write the snapshot, durably. The order: private directory, file, rename, directory. `more`: what else
    the header holds; `into`: another directory, which is there; `whole`: with the map, or else the clocks of
    tombstones alone."""
    private = into or private_path(directory, "").rstrip("/")
    if into is None and not files.exists(private):
        files.mkdir(private)
        files.fsync_dir(directory)
    header: dict[str, Any] = {
        **more,
        "version": VERSION,
        "share": tracking.share,
        "gone": tracking.gone,
        "transactions_from": tracking.transactions_from,
        "counts_copies": tracking.counts_copies,
        "uncounted": tracking.uncounted,
        "ends_old": deletes.ends_old,
        "segments": [list(dataclasses.astuple(one)) for one in tracking.entries],
    }
    clocks, due = (deletes.clocks.offset, deletes.clocks.since_ms), deletes.due
    plain: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    if whole:
        for name, value in tracking.running.to_parts().items():
            if isinstance(value, np.ndarray):
                arrays[f"map_{name}"] = value
            else:
                plain[name] = value
    else:
        clocks, due = deletes.running(), due[:0]  # without the map they are live again, and due
    header["map"] = plain if whole else None
    arrays.update(clock_offset=clocks[0], clock_since_ms=clocks[1], due=due)
    snapshot.save(files, os.path.join(private, names.ACCOUNTS), header, arrays)


def load(
    files: Files, directory: str, map_bytes: int, scratch: str | None = None
) -> snapshot.Snapshot | None:
    """What was saved, checked for damage only; its keys have room to grow to `map_bytes` without a copy, or
    lie in `scratch`."""
    path = private_path(directory, names.ACCOUNTS)
    if scratch is None:
        return snapshot.load(files, path, room={"map_arena": map_bytes & ~7})
    from lastword.files.scratch import new_path
    from lastword.resolve.spill import Spill

    return snapshot.load(files, path, places={"map_arena": Spill(new_path(scratch))})


def take(found: snapshot.Snapshot, tracking: Tracking, deletes: Deletes) -> str:
    """Fill both from what was saved, without a map if there is none; else why it cannot be used. Whether the
    log lies there as it was left is another question."""
    from lastword.resolve.running import MapFull, RunningResolution

    header, arrays = found.header, found.arrays
    if header["version"] != VERSION:
        return "saved by another version"
    entries = [Entry(*values) for values in header["segments"]]
    if header["map"] is None:
        tracking.entries = entries
        deletes.clocks.offset, deletes.clocks.since_ms = arrays["clock_offset"], arrays["clock_since_ms"]
        return ""
    parts: dict[str, Any] = dict(header["map"])
    parts.update({n.removeprefix("map_"): a for n, a in arrays.items() if n.startswith("map_")})
    try:
        running = RunningResolution.from_parts(
            parts, map_bytes=tracking.map_bytes, scratch=tracking.scratch, give=True
        )
    except MapFull:
        return "it does not fit the memory that it may take now"
    tracking.running, tracking.entries = running, entries
    tracking.share, tracking.gone = float(header["share"]), int(header["gone"])
    tracking.transactions_from = int(header["transactions_from"])
    tracking.counts_copies, tracking.uncounted = bool(header["counts_copies"]), bool(header["uncounted"])
    deletes.clocks.offset, deletes.clocks.since_ms = arrays["clock_offset"], arrays["clock_since_ms"]
    deletes.due = arrays["due"]
    deletes.ends_old = bool(header["ends_old"])
    deletes.touched()
    return ""


def otherwise(tracking: Tracking, segments: Sequence[Segment]) -> str:
    """Why the map is not of these segments, the files themselves being those that were accounted."""
    for entry, segment in zip(tracking.entries, segments, strict=False):
        if tail_crc(segment) != entry.tail_crc:
            return f"{segment.file} ends otherwise than when it was accounted"
    facts = [one.base_offset for one in tracking.facts()]
    if facts and facts != [one.base_offset for one in tracking.entries]:
        return "its map is of other segments"
    return ""


def has_accounts(files: Files, directory: str) -> bool:
    """Is anything saved, whatever it is worth?"""
    return files.exists(private_path(directory, names.ACCOUNTS))


def saved_entries(files: Files, directory: str) -> list[Entry]:
    """What was saved of each segment, unchecked: for figures that nothing relies on."""
    header = snapshot.load_header(files, private_path(directory, names.ACCOUNTS))
    try:
        if header is not None and header["version"] == VERSION:
            return [Entry(*values) for values in header["segments"]]
    except (KeyError, TypeError):
        pass
    return []


def saved_time(files: Files, directory: str) -> SavedTime:
    """When the accounts of a partition were saved; the beginning if there are none."""
    header = snapshot.load_header(files, private_path(directory, names.ACCOUNTS))
    try:
        if header is not None:
            base, size = header["seen"]
            return SavedTime(max(int(header["t"]), 0), (int(base), int(size)))
    except (KeyError, TypeError, ValueError):
        pass
    return SavedTime()


def saved_clock(files: Files, directory: str) -> int:
    """The drive's time when the accounts of a partition were saved; 0 if there are none."""
    return saved_time(files, directory).t
