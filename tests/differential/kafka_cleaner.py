"""Run Kafka's own cleaner class in a process that stays alive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lastword.config import TopicConfig
from tests.support.answering import AnsweringProcess
from tests.support.jars import HERE as LOGGING
from tests.support.jars import KafkaJars

SOURCES = Path(__file__).parent / "java"
#: Kafka's error if a round must empty its last batch, and the batch has magic 0 or 1: those cannot be empty.
OLD_EMPTY_BATCH = "Empty batches are only supported for magic v2"


@dataclass(frozen=True)
class Cleaned:
    """The result: `limit`, the end of the cleaned range; `first_dirty`, the start of the next cleaning."""

    limit: int
    first_dirty: int
    rounds: int


class Refused(Exception):
    """Kafka's cleaner gave up; the text is its message."""


class KafkaCleaner:
    """`with KafkaCleaner(jars) as kafka: kafka.clean(...)`. Not safe for several threads."""

    def __init__(self, jars: KafkaJars) -> None:
        flags = ("-Xmx1g", f"-Dlog4j2.configurationFile={LOGGING / 'log4j2.xml'}", "-Dlastword.log=/dev/null")
        self._process = AnsweringProcess(jars.command("CleanMany", *flags, sources=SOURCES))

    def clean(
        self,
        directory: Path,
        config: TopicConfig,
        *,
        slots: int,
        now_ms: int,
        first_dirty: int = 0,
        log_start: int = 0,
    ) -> Cleaned:
        """Clean one partition up to its first undecided transaction, with a map of `slots` keys."""
        words = (directory, slots, config.segment_bytes, config.delete_retention_ms, now_ms)
        kind, answer = self._process.ask("\t".join(map(str, (*words, log_start, first_dirty))))
        if kind == "error":
            raise Refused(answer)
        return Cleaned(*map(int, answer.split("\t")))

    def __enter__(self) -> KafkaCleaner:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.close()
