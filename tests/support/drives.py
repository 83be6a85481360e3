"""Scan the segments of one partition as those of a drive, and rewrite one run of them."""

from __future__ import annotations

from lastword.accounts import DriveAccount
from lastword.cleaner.drive import DriveCleaner, InlineExecutor, clean_one
from lastword.cleaner.engine.cleaning import CleanContext
from lastword.cleaner.engine.report import CleanRound
from lastword.cleaner.inspection import DrivePartition
from lastword.cleaner.policy.generational import SegmentRun


def inspected(place: DrivePartition, now_ms: int) -> DriveAccount:
    """Return the account of a drive with only this partition, after a scan of its new segments."""
    clock = place.log_dir.clock
    cleaner = DriveCleaner("d", [place], InlineExecutor(), space_target=1.5, clock=clock)
    account = cleaner.inspect(now_ms)
    assert not cleaner.errors
    return account


def rewritten(place: DrivePartition, run: SegmentRun) -> CleanRound | None:
    """Clean this run; return the result."""
    with place.log_dir.claim(*place.tp):
        return clean_one(place, CleanContext(place.log_dir.files, place.log_dir.clock), runs=[run])
