"""Clean a partition directory without a log directory, and read its records."""

from __future__ import annotations

import contextlib
from pathlib import Path

from lastword.cleaner.engine.report import CleanRound
from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.files import DEFAULT, Files
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.open import open_log
from lastword.partition.view import PartitionView
from lastword.records.formats import read_header, read_records
from lastword.records.record import RawRecord
from tests.support.cleaning import clean


def clean_partition(
    directory: Path,
    config: TopicConfig,
    clock: Clock,
    *,
    files: Files = DEFAULT,
    first_dirty: int | None = None,
    clean_stop: bool = True,
    recorded: list[int] | None = None,
    due: bool = False,
    strategy: str = "kafka",
) -> CleanRound | None:
    """Clean `directory` once; the new first dirty offset is appended to `recorded`."""
    log, _ = open_log(files, str(directory), config, clock, clean=clean_stop)
    with contextlib.closing(log):
        return clean(
            log,
            config,
            first_dirty=first_dirty,
            record_first_dirty=(recorded if recorded is not None else []).append,
            due=due,
            strategy=strategy,
        )


def records_of(directory: Path, files: Files = DEFAULT) -> list[RawRecord]:
    """Return every data record of a partition, as a reader without a lock reads them, in plain Python."""
    return data_records(PartitionView.load(DirectorySegments(files, str(directory))))


def data_records(view: PartitionView) -> list[RawRecord]:
    """Return every data record of a view, in plain Python."""
    records: list[RawRecord] = []
    for segment in view.segments:
        for header in segment.headers():
            if not header.control:
                data = segment.read_batch(header)
                records += read_records(data, read_header(data, 0, len(data), segment.file))
    return records


def log_end(directory: Path, files: Files = DEFAULT) -> int:
    return PartitionView.load(DirectorySegments(files, str(directory))).log_end
