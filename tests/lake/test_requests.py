"""Let each request of an export to a bucket fail, before or after its effect, or end the process there."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.api import export as calls
from lastword.clock import ManualClock
from lastword.errors import LastwordError
from tests.fakes.objects import POSSIBLE, Bucket, FakeStore, Fault, Planned, Request, Stopped
from tests.lake.histories import Rows, rows_of

pytestmark = pytest.mark.slow

TO = "delta:s3://double/table"
LATE_MS = 60_000


class Exporter:
    """A topic and a bucket; each export is that of a new process."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock(1_790_000_000_000)
        self.bucket = Bucket(clock=self.clock)
        self.place = place
        self.dumps = 0
        self.process: FakeStore
        monkeypatch.setattr(calls, "open_store", lambda url, options: self.process)
        monkeypatch.setattr(calls, "probe", lambda store, clock: None)
        monkeypatch.setattr(calls, "_checkpoint", lambda place, options: None)
        self.logs = lastword.open(place / "log", "a", clock=self.clock, log_cleaner_enable=False)
        self.topic: Any = self.logs.create_topic(
            "t", cleanup_policy="compact", key_serializer="str", value_serializer="str"
        )
        self.topic.extend([(f"k{number}", f"v{number}") for number in range(40)])
        self.export()
        self.topic.delete("k3")
        self.topic.append("k7", "new")

    def export(self, fault: tuple[int, Fault] | None = None) -> list[Request]:
        """Export; return the requests. `fault`: the number of the one that fails, and how."""
        faults = None if fault is None else Planned({fault[0]: fault[1]})
        self.process, before = self.bucket.process("exporter", faults=faults), len(self.bucket.log)
        self.topic.export(TO)
        return self.bucket.log[before:]

    def rows(self) -> Rows:
        """Return the rows of the table, in a copy of the bucket on the drive."""
        self.dumps += 1
        place = self.place / f"copy-{self.dumps}"
        for key, stored in self.bucket.objects.items():
            (place / key).parent.mkdir(parents=True, exist_ok=True)
            (place / key).write_bytes(stored.data)
        return rows_of(str(place))

    def newest(self) -> Rows:
        return {(r.partition, r.offset): (r.key, r.value) for r in self.topic.newest()}


def test_each_request_that_fails_leaves_the_table_as_before_or_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole").mkdir()
    whole = Exporter(tmp_path / "whole", monkeypatch)
    before, requests = whole.rows(), [request.kind for request in whole.export()]
    after = whole.rows()
    assert after == whole.newest() != before
    assert {"list", "get", "range", "put", "create"} <= set(requests)
    cases = [(number, fault) for number, kind in enumerate(requests, 1) for fault in POSSIBLE[kind]]
    for case, (number, fault) in enumerate(cases):
        if fault is Fault.TORN:  # only an object that was written over; a table has none
            continue
        place = tmp_path / str(case)
        place.mkdir()
        each = Exporter(place, monkeypatch)
        with contextlib.suppress(LastwordError, Stopped):
            each.export((number, fault))
        assert each.rows() in (before, after), f"request {number}: {fault}"
        if case % 2:  # a late request takes effect before the next export, or after it
            each.clock.advance(2 * LATE_MS)
            each.bucket.settle()
        each.topic.append("k9", "newest")
        each.export()
        each.clock.advance(2 * LATE_MS)
        each.bucket.settle()
        assert each.rows() == each.newest(), f"request {number}: {fault}"
        each.logs.close()
    whole.logs.close()


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data file is one request, if it is small, and so are a commit and the vectors of all files."""
    each = Exporter(tmp_path, monkeypatch)
    each.export()
    each.topic.append("k9", "newest")
    kinds = Counter(request.kind for request in each.export())
    assert kinds == {"list": 1, "get": 3, "range": 2, "put": 2, "create": 1}
    assert each.rows() == each.newest()
    each.logs.close()
