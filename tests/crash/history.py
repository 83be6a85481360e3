"""Record the attempts and acknowledgements of a directory's processes by moment of the journal: the oracle.

A process records an attempt before it starts and an acknowledgement after it arrives. `History.at(upto)`
is the state after the first `upto` changes. At equal moments the stricter reading counts: an
acknowledgement that was possible was given, and an attempt that was possible had started.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Attempt(NamedTuple):
    """A record at the offset that the log was about to assign."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    producer_id: int = -1

    @property
    def tombstone(self) -> bool:
        return self.key is not None and self.value is None


@dataclass
class Partition:
    """The events of one partition up to a moment.

    lineages        records that the log may be a prefix of, by offset; a process that recovered and appended
                    started a new lineage. Newest last.
    os, disk        records acknowledged at that level, and neither removed by the user nor dropped by a
                    recovery that was allowed to drop them
    rounds          times of cleaning rounds that had begun, with the log end of each
    removed         sets of offsets that were missing after each swap, in order; the first is empty
    starts          log starts that the log may have
    least_start     the log start that was acknowledged: no record below is returned again
    """

    lineages: list[dict[int, Attempt]] = field(default_factory=lambda: [{}])
    os: dict[int, Attempt] = field(default_factory=dict)
    disk: dict[int, Attempt] = field(default_factory=dict)
    rounds: list[tuple[int, int]] = field(default_factory=list)
    removed: list[frozenset[int]] = field(default_factory=lambda: [frozenset()])
    starts: list[int] = field(default_factory=lambda: [0])
    least_start: int = 0
    aborted: set[int] = field(default_factory=set)  # offsets of transactions whose abort had begun
    ends: list[int] = field(default_factory=list)  # of truncations that had begun
    end: int = 0  # no log end is above it
    gone: bool = False  # the partition's removal had begun
    made: bool = False  # its creation was acknowledged
    retention_ms: int = 0

    def due(self, record: Attempt) -> bool:
        """Return whether this tombstone may be gone: two cleanings must have seen it, `retention` apart."""
        seen = [now for now, end in self.rounds if end > record.offset]
        return len(seen) > 1 and seen[-1] - seen[0] >= self.retention_ms


class Event(NamedTuple):
    at: int
    kind: str
    name: str
    value: Any


class History:
    """The events by moment. `moment` returns the present length of the journal."""

    def __init__(self, retention_ms: int = 0) -> None:
        self.events: list[Event] = []
        self.retention_ms = retention_ms
        self.moment: Callable[[], int] = lambda: 0

    def note(self, kind: str, name: str, value: Any = None) -> None:
        self.events.append(Event(self.moment(), kind, name, value))

    def fold(self) -> History:
        """Return a copy with every event at moment 0, for a process that starts on this state."""
        past = History(self.retention_ms)
        past.events = [event._replace(at=0) for event in self.events]
        return past

    def until(self, upto: int, *, killed: bool) -> History:
        """Return the events that count for a process that starts after a crash at this moment.

        A power cut removes the acknowledgements given at `os`.
        """
        cut = History(self.retention_ms)
        cut.events = [e for e in self.events if e.at <= upto and (killed or e.kind != "os")]
        return cut

    def settings_at(self, upto: int) -> dict[str, list[dict[str, Any]]]:
        """Return the settings that each topic may have: the acknowledged ones, and later attempts."""
        states: dict[str, list[dict[str, Any]]] = {}
        for event in self.events:
            if event.at <= upto and event.kind in ("setting", "new settings"):
                before = states.get(event.name, []) if event.kind == "setting" else []
                states[event.name] = [*before, event.value]
            elif event.at <= upto and event.kind == "set":
                states[event.name] = states[event.name][-1:]
        return states

    def at(self, upto: int) -> dict[str, Partition]:
        known: dict[str, Partition] = {}
        for event in self.events:
            if event.at <= upto and event.kind not in ("setting", "new settings", "set"):
                partition = known.setdefault(event.name, Partition(retention_ms=self.retention_ms))
                _apply(partition, event)
        return known


def _apply(known: Partition, event: Event) -> None:
    kind, value = event.kind, event.value
    if kind == "attempt":
        for record in value:
            known.lineages[-1][record.offset] = record
            known.end = max(known.end, record.offset + 1)
    elif kind == "marker":  # a control record takes this offset
        known.end = max(known.end, value + 1)
    elif kind in ("os", "disk"):
        line = known.lineages[-1]
        target = known.os if kind == "os" else known.disk
        for offset in [o for o in line if o < value and o not in target]:
            target[offset] = line[offset]
        if kind == "disk":
            known.os.update(known.disk)
    elif kind == "opened":  # a recovery ended the log here: later records are dropped, a new lineage starts
        line = known.lineages[-1]
        if any(offset >= value for offset in line):
            known.lineages.append({o: r for o, r in line.items() if o < value})
            for acked in (known.os, known.disk):
                for offset in [o for o in acked if o >= value]:
                    del acked[offset]
    elif kind == "round":
        known.rounds.append(value)
    elif kind == "removed":
        known.removed.append(known.removed[-1] | value)
    elif kind == "start":
        known.starts.append(value)
        known.end = max(known.end, value)
        for acked in (known.os, known.disk):
            for offset in [o for o in acked if o < value]:
                del acked[offset]
    elif kind == "aborted":
        known.aborted |= value
    elif kind == "started":
        known.least_start = value
    elif kind == "truncate":
        known.ends.append(value)
        for acked in (known.os, known.disk):
            for offset in [o for o in acked if o >= value]:
                del acked[offset]
    elif kind == "made":
        known.made = True
        known.gone = False
    elif kind == "drop":
        known.gone = True
    else:
        raise AssertionError(kind)
