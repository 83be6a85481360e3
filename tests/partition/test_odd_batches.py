"""Batches with a right checksum whose fields contradict each other or the log: an opening never cuts them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import lastword
from lastword.errors import CorruptBatchError
from tests.crash.odd import Batch, Case, case, compare, judge, sizes

SOUND = Batch(2, 1)
ODD = {
    "it begins before the end of the batch before it": ("offsets-fall", SOUND),
    "a base offset below zero": ("bad-header", replace(SOUND, base=-1)),
    "a record count below zero": ("bad-header", replace(SOUND, base=3, count=-1)),
    "a last offset delta below zero": ("bad-header", replace(SOUND, base=3, last=-1, payload=b"")),
    "an unknown magic": ("unknown-magic", replace(SOUND, base=3, magic=4)),
    "it reaches into the next segment": ("offsets-fall", replace(SOUND, base=3, last=1)),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("is_last", [False, True])
def test_a_batch_with_a_right_checksum_is_no_torn_tail(tmp_path: Path, name: str, is_last: bool) -> None:
    """It was cut with all segments behind it, and the log went on at its offset; Kafka keeps every byte."""
    code, odd = ODD[name]
    if is_last and name == "it reaches into the next segment":
        pytest.skip("there is no next segment")
    first = Batch(0, 3, last=2).encoded() + odd.encoded()
    logs = {0: first} if is_last else {0: first, 4: Batch(4, 1).encoded() + Batch(5, 1).encoded()}
    Case(logs, 0, clean=False, torn=False, indexed=True).write(tmp_path)
    before = sizes(tmp_path)
    with lastword.open(tmp_path) as opened:
        assert not opened.verify().cuts
    with (
        lastword.open(tmp_path, "a", log_cleaner_enable=False) as opened,
        pytest.raises(CorruptBatchError) as caught,
    ):
        opened.topic("t").bounds()
    assert caught.value.code == code
    assert caught.value.position is not None and caught.value.remedy is not None
    assert sizes(tmp_path) == before


def test_random_odd_and_torn_batches(tmp_path: Path) -> None:
    """`make odd` runs more of them, also beside Kafka's own recovery."""
    outcomes: Counter[str] = Counter()
    for seed in range(60):
        outcome, fault = compare(case(seed), tmp_path / str(seed), None)
        assert not fault, (seed, fault)
        outcomes[outcome] += 1
    assert min(outcomes[word] for word in ("cut", "kept", "refused")) > 2, outcomes


def test_the_judge_finds_a_cut_that_was_not_announced(tmp_path: Path) -> None:
    torn = next(
        made for made in map(case, range(1000)) if made.torn and not (made.clean or made.recovery_point)
    )
    assert judge(torn, tmp_path / "right") == ("cut", "")
    assert "right checksum was cut" in judge(replace(torn, torn=False), tmp_path / "wrong")[1]
