"""A topic with the policy `delete` in a bucket: segments, manifest and the time to open stay bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

import lastword
from lastword.api.bucket_cleaner import BucketWork
from lastword.background.states import States
from lastword.bucket.manifest import MANIFEST
from lastword.clock import ManualClock
from tests.bucket.test_log import bucket_of
from tests.support.exhaustive import EXHAUSTIVE

Open = Callable[..., lastword.LogDir]
TEXT = {"key_serializer": "str", "value_serializer": "str"}
WEEK_MS = 7 * 86_400_000
COMMITS = 20_000 if EXHAUSTIVE else 2000


@pytest.mark.slow
def test_a_week_of_commits_leaves_few_segments(opened: Open, requests: Counter[str]) -> None:
    clock = ManualClock(1_795_168_800_000)
    logs = opened(clock=clock)
    topic = logs.create_topic("t", cleanup_policy="delete", retention_ms="2d", **TEXT)
    work = BucketWork(logs.dirs, States(clock))  # type: ignore[arg-type]
    segments = []
    for number in range(COMMITS):
        topic.append("k", str(number), timestamp=clock.now_ms())
        clock.advance(WEEK_MS // COMMITS)
        if number % 20 == 0:
            task = work.next(logs.dirs.paths[0], ())
            if task is not None:
                assert task.run(lambda: False) is None
            list(work.chores(()))
            segments.append(len(logs.dirs.view("t", 0).segments))
    assert max(segments) < 64 + 2 * 8 + 40
    stored = bucket_of(logs).store.get(MANIFEST)
    assert stored is not None and len(stored.data) < 8000
    requests.clear()
    reader = opened("r", clock=clock)
    assert sum(requests.values()) <= 3
    values = [int(record.value) for record in reader["t"].read()]
    assert values == list(range(values[0], COMMITS))
    kept = COMMITS - values[0]
    assert COMMITS * 2 / 7 <= kept <= COMMITS * 2 / 7 * (1 + 1 / 8) + 30
    assert not reader.verify().problems


def test_the_background_cleaner_joins_what_it_does_not_clean(opened: Open) -> None:
    logs = opened()
    for name, policy in (("c", "compact"), ("d", "delete")):
        topic = logs.create_topic(name, cleanup_policy=policy, **TEXT)
        for number in range(70):
            topic.append("k", str(number))
    work = BucketWork(logs.dirs, States(logs.dirs.clock))  # type: ignore[arg-type]
    tasks = []
    while (task := work.next(logs.dirs.paths[0], ())) is not None:
        tasks.append(task.partition.topic)
        task.run(lambda: False)
    assert tasks.count("d") == 1
    assert len(logs.dirs.view("d", 0).segments) <= 8
    assert [record.value for record in logs["d"].read()] == [str(number) for number in range(70)]
