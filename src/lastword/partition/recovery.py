"""What opening a partition found and put right, as values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Repaired:
    """One thing that opening put right. `code`: torn-tail, lost-segment, swap-finished, swap-undone, split,
    index, snapshot, leftover, checkpoint. `offset`: where a cut log ends now.
    """

    topic: str
    partition: int
    code: str
    file: str
    text: str
    cut_bytes: int = 0
    offset: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {self.text} ({self.file})"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening one partition found and did. `walked`: segments whose every checksum was verified."""

    topic: str
    partition: int
    clean: bool
    log_start: int
    log_end: int
    walked: int
    repaired: tuple[Repaired, ...]

    @property
    def cut_bytes(self) -> int:
        return sum(r.cut_bytes for r in self.repaired)


class Repairs:
    """Collects what is put right in one partition."""

    def __init__(self, topic: str, partition: int) -> None:
        self.done: list[Repaired] = []
        self._topic = topic
        self._partition = partition

    def tell(self, code: str, file: str, text: str, *, cut_bytes: int = 0, offset: int | None = None) -> None:
        """See `Repaired`."""
        self.done.append(Repaired(self._topic, self._partition, code, file, text, cut_bytes, offset))
