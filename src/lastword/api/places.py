"""`Places`: where the partitions of an open `LogDir` lie, and what is known of each.

For who runs its verbs elsewhere or shows them: Spark's functions, the commands. It asks what every verb asks
first (`found.py`), and nothing of it is for users of a `LogDir`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.api.found import Found
from lastword.files import Files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lastword.config import TopicConfig
    from lastword.partition.log import PartitionLog
    from lastword.partition.view import PartitionView


class Places:
    """The partitions of `logs`, an open `LogDir`."""

    def __init__(self, logs: Found) -> None:
        self._found = logs

    @property
    def files(self) -> Files:
        return self._found._files

    def now_ms(self) -> int:
        """By the clock that the directory was opened with."""
        return self._found._clock.now_ms()

    def one_topic(self, topic: str | None) -> str:
        """The topic that was named, or the only one there is; UsageError if there are several."""
        return self._found._one_topic(topic)

    def chosen(self, topic: str | None, partition: int | None) -> dict[str, list[int]]:
        """Partitions by topic, as the first two arguments of a verb name them; UsageError for others."""
        found: dict[str, list[int]] = {}
        for name, number in self._found._chosen(topic, partition):
            found.setdefault(name, []).append(number)
        return found

    def config(self, topic: str) -> TopicConfig:
        """The topic's settings."""
        return self._found._config(topic)

    def view(self, topic: str, partition: int) -> PartitionView:
        """A partition as it is now, to look at."""
        return self._found._view(topic, partition)

    def views(self, topic: str) -> Mapping[int, PartitionView]:
        """All partitions of a topic, each looked at when it is asked for."""
        return self._found._views(topic)

    def directory(self, topic: str, partition: int) -> str:
        """The log directory that a partition is in."""
        return self._found._home(topic, partition).path

    def log(self, topic: str, partition: int) -> PartitionLog:
        """A partition that is open to append."""
        return self._found._log(topic, partition)

    def topic_id(self, topic: str) -> str | None:
        """The topic's id; None in a bare directory."""
        return next(iter(self._found._partitions(topic).values())).topic_id(topic)

    def gone_below(self, topic: str, partition: int) -> int:
        """A key whose newest record lay below this offset may have left the log with its tombstone."""
        return self._found._gone_below(topic, partition)
