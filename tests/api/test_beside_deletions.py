"""Threads that use a topic while another one deletes it and creates it again."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.errors import LastwordError, TopicExistsError
from lastword.testing.unsynced import UNSYNCED
from tests.support.exhaustive import few
from tests.support.threads import together

FORMS: dict[str, Any] = {"cleanup_policy": "compact", "key_serializer": "str", "value_serializer": "json"}
CALLS: list[Callable[[lastword.LogDir], object]] = [
    lambda logs: logs["t"].append("a", 1),
    lambda logs: logs["t"].extend([("b", number) for number in range(3)]),
    lambda logs: logs["t"].extend([("c", 1)], producer="p", sequence=1),
    lambda logs: logs["t"].append("d", 1, expect=lastword.ABSENT),
    lambda logs: logs.state("t").update(a=2, e=1),
    lambda logs: logs.state("t").incr("n"),
    lambda logs: logs["t"].get("a"),
    lambda logs: list(logs["t"].newest()),
]


@pytest.mark.slow
def test_each_call_ends_or_raises_a_typed_error(tmp_path: Path) -> None:
    given: dict[str, Any] = {"log_cleaner_enable": False, "file_delete_delay_ms": 0, "files": UNSYNCED}
    with lastword.open(tmp_path / "log", "a", **given) as logs:
        rounds = few(900)
        over: list[object] = []

        def use(seed: int) -> None:
            rng, topic = random.Random(seed), None
            while not over:
                try:
                    topic = topic if topic is not None and rng.random() < 0.9 else logs.topic("t")
                    rng.choice(CALLS)(logs)
                    topic.append("f", 1)
                except LastwordError:
                    pass

        def make_again() -> None:
            try:
                for _ in range(rounds):
                    with suppress(TopicExistsError):  # opening its state has created it
                        logs.create_topic("t", **FORMS)
                    logs.delete_topic("t")
            finally:
                over.append(True)

        together(make_again, *(partial(use, seed) for seed in range(3)))
        state = logs.state("t")
        state["a"] = 1
        assert dict(state) == {record.key: record.value for record in logs["t"].newest()}
