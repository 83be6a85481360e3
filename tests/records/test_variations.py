"""What Kafka's decoders accept is read, with Kafka's times: by the functions and by the kernels."""

from __future__ import annotations

from collections import Counter

from lastword.records.record import record_time
from tests.records.variations import NAMES, SAVED, TABLE, batch, fault


def test_the_saved_answers_of_kafka() -> None:
    """`make variations` asks Kafka's decoders, and saves their answers to these seeds."""
    answers = TABLE.read_text().strip()
    assert len(answers) == SAVED
    counts: Counter[str] = Counter()
    for seed, answer in enumerate(answers[:300]):
        codec, data, records = batch(seed)
        if answer != "c":
            counts[NAMES[codec] + answer] += 1
            wrong = fault(data, records if answer == "r" else None)
            assert not wrong, (seed, NAMES[codec], wrong)
    assert all(counts[name + "r"] > 5 for name in NAMES), counts


def test_a_time_wraps() -> None:
    assert record_time(-(2**63), -(2**63)) == 0
    assert record_time(2**63 - 1, 1) == -(2**63)
    assert record_time(1_700_000_000_000, -5) == 1_699_999_999_995
