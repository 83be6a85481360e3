"""A log in a bucket against a dict and a list of what was appended, with several writers and cleaners."""

from __future__ import annotations

from itertools import count

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import lastword
from lastword.clock import ManualClock
from tests.support.exhaustive import few

_numbers = count()
KEYS = st.sampled_from(["a", "b", "c", "d"])
WRITERS = st.integers(0, 1)
HOUR_MS = 3_600_000


class BucketModel(RuleBasedStateMachine):
    """Two processes over one log; every call of one sees what the other has committed."""

    @initialize(segment_bytes=st.sampled_from([400, 1 << 20]), retention_ms=st.sampled_from([0, HOUR_MS]))
    def start(self, segment_bytes: int, retention_ms: int) -> None:
        self.clock = ManualClock()
        self.url = f"memory://model-{next(_numbers)}/log"
        self.logs = [self.open(), self.open()]
        self.logs[0].create_topic(
            "t",
            key_serializer="str",
            value_serializer="json",
            cleanup_policy="compact",
            segment_bytes=segment_bytes,
            delete_retention_ms=retention_ms,
        )
        self.appended: list[tuple[int, str, int | None]] = []
        self.sequence = 0

    def open(self) -> lastword.LogDir:
        return lastword.open(self.url, "a", clock=self.clock, lastword_commit_linger_ms=0)

    def topic(self, writer: int) -> lastword.Topic:
        return self.logs[writer]["t"]

    @rule(writer=WRITERS, key=KEYS, value=st.one_of(st.none(), st.integers(0, 9)))
    def append(self, writer: int, key: str, value: int | None) -> None:
        offset = self.topic(writer).append(key, value).offset
        assert offset == len(self.appended)
        self.appended.append((offset, key, value))

    @rule(writer=WRITERS, rows=st.lists(st.tuples(KEYS, st.integers(0, 9)), min_size=1, max_size=6))
    def extend(self, writer: int, rows: list[tuple[str, int]]) -> None:
        self.sequence += 1
        for sender in (writer, 1 - writer):  # the second time as a repetition by another process
            self.topic(sender).extend(rows, producer="job", sequence=self.sequence)
        for key, value in rows:
            self.appended.append((len(self.appended), key, value))

    @rule(writer=WRITERS, strategy=st.sampled_from(["kafka", "generational"]))
    def clean(self, writer: int, strategy: str) -> None:
        self.logs[writer].clean("t", strategy=strategy)

    @rule(writer=WRITERS)
    def collect(self, writer: int) -> None:
        self.logs[writer].collect(retention=0)

    @rule(writer=WRITERS)
    def open_again(self, writer: int) -> None:
        self.logs[writer].close()
        self.logs[writer] = self.open()

    @rule(hours=st.integers(1, 30))
    def time_passes(self, hours: int) -> None:
        self.clock.advance(hours * HOUR_MS)

    @invariant()
    def the_newest_values_are_there(self) -> None:
        newest = {key: value for _, key, value in self.appended}
        wanted = {key: value for key, value in newest.items() if value is not None}
        for logs in self.logs:
            topic = logs["t"]
            assert {r.key: r.value for r in topic.read(view="newest")} == wanted
            records = [(r.offset, r.key, r.value) for r in topic.read()]
            assert records == sorted(set(records)) and set(records) <= set(self.appended)
            assert topic.bounds() == {0: (0, len(self.appended))}
        assert dict(self.logs[0].state("t")) == wanted

    def teardown(self) -> None:
        if hasattr(self, "logs"):
            assert not self.logs[0].verify().problems
            for logs in self.logs:
                logs.close()


TestBucketModel = BucketModel.TestCase
TestBucketModel.settings = settings(
    max_examples=few(25),
    stateful_step_count=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
