"""What Kafka's own parser answered for random texts of topic settings, and what we make of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.config import TOPIC_SETTINGS
from lastword.logdir.broker import DECIDING
from lastword.server.configs import kafka_settings
from tests.logdir.test_broker import as_of_a_broker, root  # noqa: F401  the fixture
from tests.unit.kafka_texts import histories, judge, judge_history, table


def test_every_text_is_read_as_kafka_reads_it() -> None:
    for row in table():
        judge(*row)
    named = {name for name, _, _ in table()}
    assert named == kafka_settings("topic").keys() and set(DECIDING) < named
    for name in DECIDING:
        answers = [answer for known, _, answer in table() if known == name]
        assert 10 < sum(answer is not None for answer in answers) < len(answers) - 10


def test_nothing_is_removed_that_kafka_keeps(root: Path) -> None:  # noqa: F811
    as_of_a_broker(root)
    configs = [judge_history(root, history) for history in histories(table(), 5, 300)]
    assert sum(config.compacts for config in configs) > 20 < sum(config.deletes for config in configs)
    assert sum(config.unread is not None for config in configs) > 20
    assert sum(config.policy == frozenset() for config in configs) > 5


@pytest.mark.parametrize(
    ("name", "parse"),
    [
        ("retention.bytes", int),  # as before: -7 is no size, and an Arabic digit is one
        ("min.cleanable.dirty.ratio", float),
        ("cleanup.policy", lambda text: frozenset(text.split(","))),
    ],
)
def test_the_harness_finds_a_parser_that_is_not_kafkas(name, parse, monkeypatch) -> None:
    monkeypatch.setattr(type(TOPIC_SETTINGS[name]), "read_kafka", lambda self, text: parse(text))
    with pytest.raises(AssertionError, match=name):
        for row in table():
            if row[0] == name:
                judge(*row)
