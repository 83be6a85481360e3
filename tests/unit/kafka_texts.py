"""Texts of topic settings, read by Kafka and by us: nothing may be removed that Kafka keeps.

    python -m tests.unit.kafka_texts --texts 100000     # Kafka's own class reads N texts; judge ours
    python -m tests.unit.kafka_texts --save             # write the table that tests without a JVM use

`texts` makes texts for every setting that Kafka has for a topic: numbers at the ends of ranges, with signs,
blanks and suffixes, words of the setting with other cases and separators, and noise. Kafka's answer is the
text of the value, or None if Kafka refuses it. `judge` compares one text; `histories` lays such texts over
each other as the settings of a topic and of all brokers, and `judge_history` compares what may be removed.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from lastword.config import TOPIC_SETTINGS, Settings, TopicConfig
from lastword.files import DEFAULT
from lastword.logdir.broker import DECIDING, DEFAULTS_OF_BROKERS, BrokerSettings
from lastword.server.configs import kafka_settings
from lastword.wire import INT32_MAX, INT64_MAX
from tests.logdir.test_broker import ID, config_record, topic_record, write_log

TABLE = Path(__file__).with_name("kafka_texts.jsonl")
SAVED = 1500
BLANKS = ("", "", "", " ", "\t", "\n", "\x00", "\x0b", "\u00a0", "\u3000", "  ")
SUFFIXES = ("", "", "", "", "L", "f", "D", "d", "ms", "_", ".0", "e3", "\u0661")
NUMBERS = (0, 1, 2, 7, 9, 10, 17, 22, 100, 1000, 1 << 20, 86_400_000, INT32_MAX, INT64_MAX, INT64_MAX + 1)
RATIOS = (
    "0",
    "1",
    ".5",
    "0.5",
    "1.",
    "5e-1",
    "1e-400",
    "1.0000001",
    "0x1p-1",
    "0x.8p0",
    "NaN",
    "Infinity",
    ".",
    "",
)
WORDS = {
    "cleanup.policy": ("compact", "delete"),
    "compression.type": ("gzip", "snappy", "lz4", "zstd", "producer", "uncompressed", "none"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "createtime"),
}
OURS_IS_WIDER = {"segment.bytes", "compression.gzip.level"}
"""Settings of which we take values that Kafka refuses: small segments, gzip without compression."""


def texts(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """Yield `count` pairs of a topic setting of Kafka and a text."""
    rng = random.Random(seed)
    known = kafka_settings("topic")
    deciding = [name for name in DECIDING if name in known]
    for _ in range(count):
        name = rng.choice(deciding if rng.random() < 0.6 else list(known))
        core = _core(rng, name, known[name].type)
        if rng.random() < 0.05 and core:
            at = rng.randrange(len(core))
            core = core[:at] + rng.choice("_-+. ,xX0") + core[at + 1 :]
        yield name, rng.choice(BLANKS) + core + rng.choice(BLANKS)


def _core(rng: random.Random, name: str, kind: str) -> str:
    if kind in ("INT", "LONG"):
        number = rng.choice(NUMBERS) + rng.choice((-1, 0, 0, 1))
        sign = rng.choice(("", "", "+", "-", "-", "--"))
        return sign + "0" * rng.choice((0, 0, 0, 2)) + str(number) + rng.choice(SUFFIXES)
    if kind == "DOUBLE":
        return rng.choice(("", "", "+", "-")) + rng.choice(RATIOS) + rng.choice(SUFFIXES)
    if kind == "BOOLEAN":
        return rng.choice(("true", "false", "TRUE", "False", "yes", "1", ""))
    words = WORDS.get(name, ("1:2", "*", "none"))
    if kind == "LIST":
        comma = rng.choice((",", ",", ", ", " ,", "\t,\n", ",,", ";"))
        return comma.join(rng.choice((*words, "")) for _ in range(rng.randrange(4)))
    word = rng.choice(words)
    return rng.choice((word, word, word, word.upper(), word.title(), "", word[:-1]))


def judge(name: str, text: str, answer: str | None) -> None:
    """Raise AssertionError if we read a text otherwise than Kafka."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        return
    try:
        ours = setting.read_kafka(text)
    except ValueError:
        assert answer is None, f"{name}={text!r} is {answer!r} in Kafka, and refused here"
        return
    if answer is None:
        assert name in OURS_IS_WIDER, f"{name}={text!r} is refused by Kafka, and {ours!r} here"
    else:
        assert ours == meaning(name, answer), f"{name}={text!r} is {answer!r} in Kafka, and {ours!r} here"


def meaning(name: str, answer: str) -> Any:
    """Return Kafka's answer as our value."""
    kind = kafka_settings("topic")[name].type
    if kind in ("INT", "LONG"):
        return max(int(answer), -1) if name == "retention.bytes" else int(answer)
    if kind == "DOUBLE":
        return 1.0 if answer == "NaN" else float(answer)
    if kind == "BOOLEAN":
        return answer == "true"
    return frozenset(answer.split(",") if answer else ()) if kind == "LIST" else answer


# ---------------------------------------------------------------- layers


History = list[tuple[str, str, str | None]]
"""Settings with Kafka's answers; the names of defaults begin with `log.`."""


def histories(rows: list[tuple[str, str, str | None]], seed: int, count: int) -> Iterator[History]:
    """Yield settings of one topic and of all brokers, from texts and Kafka's answers."""
    rng = random.Random(seed)
    by_name: dict[str, list[tuple[str, str | None]]] = {}
    for name, text, answer in rows:
        by_name.setdefault(name, []).append((text, answer))
    defaults = {topic: broker for broker, topic in DEFAULTS_OF_BROKERS.items()}
    for _ in range(count):
        history: History = []
        for name in DECIDING:
            for key, share in ((name, 0.6), (defaults[name], 0.6)):
                if rng.random() < share:
                    accepted = [row for row in by_name[name] if row[1] is not None]
                    text, answer = rng.choice(accepted if rng.random() < 0.9 else by_name[name])
                    history.append((key, text, answer))
        yield history


def judge_history(root: Path, history: History) -> TopicConfig:
    """Raise AssertionError if we may remove what Kafka keeps. Kafka takes no value that it refuses.

    Args:
        root: A directory of `tests.logdir.test_broker`.
        history: The settings.
    """
    records = [topic_record("users", ID)]
    for name, text, _ in history:
        broker = ("", 4) if name in DEFAULTS_OF_BROKERS else ("users", 2)
        records.append(config_record(name, text, *broker))
    write_log(root, *records)
    config = Settings.from_text("").with_cluster(BrokerSettings(DEFAULT, [str(root)])).topic("users")
    for verb, is_done, deciding in (
        ("compact", config.compacts, ("min.compaction.lag.ms", "delete.retention.ms")),
        ("delete", config.deletes, ("retention.ms", "retention.bytes")),
    ):
        if is_done:
            policy = _kafka(history, "cleanup.policy")
            assert policy is None or verb in policy, f"{verb}: {history}"
            for name in deciding:
                kafka, value = _kafka(history, name), getattr(config, TOPIC_SETTINGS[name].keyword)
                keeps = kafka is None or value == kafka
                assert keeps, f"{name} is {value} here, and {kafka} in Kafka: {history}"
    return config


def _kafka(history: History, name: str) -> Any:
    """Return the value that counts in Kafka, the topic's own before the default; None: no value is known.

    A value that Kafka refuses cannot be there: it is of another version, and nothing may be removed by it.
    """
    for own in (True, False):
        for key, _, answer in history:
            if (key == name) if own else (DEFAULTS_OF_BROKERS.get(key) == name):
                return "refused" if answer is None else meaning(name, answer)
    return None


@cache
def table() -> list[tuple[str, str, str | None]]:
    """Return the saved texts with the answers of Kafka 4.3.1."""
    return [tuple(json.loads(line)) for line in TABLE.read_text(encoding="utf-8").splitlines()]


def ask(tools: Any, pairs: list[tuple[str, str]]) -> list[tuple[str, str, str | None]]:
    """Return the pairs with the answers of Kafka's own class."""
    answers = tools.ask("parse", values=pairs)
    return [(*pair, answer) for pair, answer in zip(pairs, answers, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    from tests.support.jars import KafkaJars
    from tests.support.kafka import Tools

    with Tools(KafkaJars.find_or_fetch()) as tools:
        if options.save:
            rows = ask(tools, list(dict.fromkeys(texts(1, 3 * SAVED)))[:SAVED])
            TABLE.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            return
        accepted = 0
        for first in range(0, options.texts, 10_000):
            count = min(10_000, options.texts - first)
            for row in ask(tools, list(texts(options.seed + first, count))):
                judge(*row)
                accepted += row[2] is not None
    print(f"{options.texts} texts from seed {options.seed}, {accepted} accepted by Kafka: all read alike")


if __name__ == "__main__":
    main()
