"""One partition as a drive of its own: its segments scanned, and one run of them rewritten."""

from __future__ import annotations

from lastword.accounts import DriveAccount
from lastword.cleaner import CleanRound
from lastword.cleaner.drive import DriveCleaner, InlineExecutor, clean_one
from lastword.cleaner.engine.cleaning import CleanContext
from lastword.cleaner.inspection import DrivePartition
from lastword.cleaner.policy.generational import SegmentRun


def inspected(place: DrivePartition, now_ms: int) -> DriveAccount:
    """Return the account of a drive with this partition, its new segments scanned."""
    clock = place.log_dir.clock
    cleaner = DriveCleaner("d", [place], InlineExecutor(), space_target=1.5, clock=clock)
    account = cleaner.inspect(now_ms)
    assert not cleaner.errors
    return account


def rewritten(place: DrivePartition, run: SegmentRun) -> CleanRound | None:
    """Return the result of cleaning this run."""
    with place.log_dir.claim(*place.tp):
        return clean_one(place, CleanContext(place.log_dir.files, place.log_dir.clock), run=run)
