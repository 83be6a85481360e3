"""Readers of segments in memory, beside a writer and cleaners; the code is that for directories."""

from __future__ import annotations

import collections
from dataclasses import replace
from typing import Any

import pytest

from lastword.errors import FileVanishedError
from lastword.segment.segment import Segment
from tests.fakes import memory_segments
from tests.readers.store import KINDS, interleavings, make
from tests.support.exhaustive import stride

EACH = 250


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [seed for seed in range(14) if seed % 8 != 6][:: stride(4)]
)  # kind 6 has two partitions
def test_interleavings(seed: int) -> None:
    history = make(seed)
    kinds: collections.Counter[str] = collections.Counter()
    for outcome in interleavings(history, EACH):
        assert outcome.violation is None, f"{outcome.label}: {outcome.violation}"
        kinds[outcome.kind] += 1
    assert set(kinds) == set(KINDS)


def test_some_interleavings_of_one_history() -> None:
    history = make(2, steps=30)
    violations = [o for o in interleavings(history, 60) if o.violation is not None]
    assert not violations, f"{violations[0].label}: {violations[0].violation}"
    assert {label for _, label in history.calls} >= {"roll", "clean, kafka, all"}
    assert "replace" in history.files.labels


# ---------------------------------------------------------------- planted faults


def _is_caught(*seeds: int) -> bool:
    return any(o.violation is not None for seed in seeds for o in interleavings(make(seed), EACH))


def test_a_vanished_segment_that_is_passed_over_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Segment.headers

    def headers(segment: Segment, *given: Any) -> Any:
        try:
            return real(segment, *given)
        except FileVanishedError:
            return iter(())

    monkeypatch.setattr(Segment, "headers", headers)
    assert _is_caught(0, 2)


def test_segments_and_an_end_of_two_moments_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = memory_segments.EarlierSegments.load

    def load(store: Any) -> Any:
        return replace(real(store), log_end=real(store).log_end)

    monkeypatch.setattr(memory_segments.EarlierSegments, "load", load)
    assert _is_caught(0, 2)
