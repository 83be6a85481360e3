"""Tools for the tests of other programs: a broker for Kafka's clients, a log builder, a manual clock.

    from lastword.testing import Broker, Clock, LogBuilder

    with Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        ...

    clock = Clock()
    with LogBuilder(tmp_path, clock).topic("users").put("a", 1).roll().delete("a").open() as logs:
        ...

pytest has the fixtures `kafka_broker`, a broker for one test, and `logs`, an open, empty log directory. They
are installed with the package.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal

from lastword.clock import StandingClock

if TYPE_CHECKING:
    from datetime import datetime

    from lastword.api.logs import LogDir
    from lastword.api.topic import Topic
    from lastword.parse import Duration
    from lastword.testing.broker import Broker

__all__ = ["Broker", "Clock", "LogBuilder"]

if not TYPE_CHECKING:  # pytest imports this package in each run

    def __getattr__(name: str) -> Any:
        if name != "Broker":
            raise AttributeError(f"module 'lastword.testing' has no attribute {name!r}")
        from lastword.testing.broker import Broker

        globals()[name] = Broker
        return Broker


class Clock(StandingClock):
    """A clock that stands still until a test moves it with `advance` or `set_date`.

    Args:
        date: The date at the start: an aware datetime, or a timestamp of Kafka (milliseconds since 1970).
    """

    def __init__(self, date: datetime | int = 1_700_000_000_000) -> None:
        from lastword.parse import to_ms  # pytest imports this package in each run

        super().__init__(to_ms(date))

    def set_date(self, date: datetime | int) -> None:
        """Move the date only, as a clock correction does. `date`: as for a new clock."""
        from lastword.parse import to_ms

        self._date(to_ms(date))

    def advance(self, time: Duration) -> None:
        """Let time pass.

        Args:
            time: "2d", "90 s", "250ms", a `timedelta`, or a number of seconds.

        Raises:
            UsageError: The time is not a duration, or is negative: `set_date` moves the date back.
        """
        from lastword.errors import UsageError  # pytest imports this package in each run
        from lastword.parse import parse_duration_ms

        ms = parse_duration_ms(time)
        if ms < 0:
            raise UsageError(f"{time!r} is in the past", remedy="set_date moves the date back")
        self._move(ms)


class LogBuilder:
    """Builds a log directory step by step; every step returns the builder.

    `topic` makes a topic and selects it; `put`, `delete`, `advance`, `roll` and `clean` act on it; `open`
    returns the directory as a `LogDir`. Without a call of `topic`, the first step makes topic "users".
    """

    def __init__(self, path: str | os.PathLike[str], clock: Clock | None = None) -> None:
        from lastword.api.opening import open

        self.path = os.fspath(path)
        self.clock = clock or Clock()
        self._logs: LogDir = open(self.path, "a", clock=self.clock)
        self._topic: Topic[Any, Any] | None = None

    def topic(
        self,
        name: str = "users",
        partitions: int | None = None,
        *,
        key_serializer: str | None = None,
        value_serializer: str | None = None,
        **config: Any,
    ) -> LogBuilder:
        """Make a topic, or select an existing topic.

        A new topic has one partition, serializers "str" and "json", and `cleanup_policy="compact"`, unless
        other values are given. Values given for an existing topic must match it.
        """
        if name not in self._logs:
            key_serializer, value_serializer = key_serializer or "str", value_serializer or "json"
            config = {"cleanup_policy": "compact", **config}
        self._topic = self._logs.create_topic(
            name,
            partitions,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            exist_ok=True,
            **config,
        )
        return self

    def put(self, key: Any, value: Any, **options: Any) -> LogBuilder:
        """Append one record; the options are those of `Topic.append`."""
        self._current().append(key, value, **options)
        return self

    def delete(self, key: Any, **options: Any) -> LogBuilder:
        """Append a tombstone."""
        self._current().delete(key, **options)
        return self

    def advance(self, time: Duration) -> LogBuilder:
        """Let time pass, as `Clock.advance` does."""
        self.clock.advance(time)
        return self

    def roll(self, partition: int | None = None) -> LogBuilder:
        """Roll the active segment of one partition, or of all."""
        topic = self._current()
        for number in range(topic.partitions) if partition is None else (partition,):
            self._logs.dirs.log(topic.name, number).roll()
        return self

    def clean(self, **options: Any) -> LogBuilder:
        """Clean the topic; the options are those of `LogDir.clean`."""
        self._logs.clean(self._current().name, **options)
        return self

    def open(self, mode: Literal["r", "a"] = "a") -> LogDir:
        """Return the directory: still open to append, or closed and opened again to read."""
        if mode == "a":
            return self._logs
        self._logs.close()
        from lastword.api.opening import open

        return open(self.path, mode, clock=self.clock)

    def _current(self) -> Topic[Any, Any]:
        return self._topic if self._topic is not None else self.topic()._current()
