"""`lastword.pull` from a real broker, and the copies in the place of the broker's own logs.

broker     transactions, five codecs, a cleaned log, deleted records, positions of groups
pull       without TLS
broker     restarts, so that leader epochs begin; goes on
pull       with TLS and SCRAM, then PLAIN: only what is new
broker     stops: its logs and the copies have the same bytes; starts on the copies
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest

import lastword
from lastword.errors import AuthenticationFailedError, BrokerUnreachableError, UnknownTopicError
from lastword.files import DEFAULT
from lastword.partition.checkpoint_file import LeaderEpochs
from lastword.pulling import PullResult
from tests.kafka.conftest import LOGIN, secured_broker
from tests.kafka.traffic import CODECS, batches, updates
from tests.server.certificates import made_pem
from tests.support.kafka import Broker, Consumed, KafkaRecord, Tools, adopt, complaints

TOPICS = {
    "codecs": {"partitions": 3, "retention_ms": 123456789, "min_insync_replicas": 1},
    "transactions": {},
    "cleaned": {
        "cleanup_policy": "compact",
        "segment_ms": 500,
        "min_cleanable_dirty_ratio": 0.0001,
        "delete_retention_ms": 0,
    },
    "deleted": {"cleanup_policy": "delete"},
    "empty": {"partitions": 2},
}
PASSWORD = "a pass=word;"
Results = dict[tuple[str, int], PullResult]


@dataclass
class Story:
    """The results of the steps."""

    copy: Path
    first: Results = field(default_factory=dict)
    second: Results = field(default_factory=dict)
    third: Results = field(default_factory=dict)
    same: dict[str, bool] = field(default_factory=dict)
    config: Any = None
    epochs: dict[str, list[dict[int, int]]] = field(default_factory=dict)
    problems: list[Any] = field(default_factory=list)
    dumped: str = ""
    consumed: dict[str, dict[str, Consumed]] = field(default_factory=dict)
    again: dict[str, dict[str, Consumed]] = field(default_factory=dict)
    positions: list[tuple[str, int, int, str | None]] = field(default_factory=list)
    refusals: list[BaseException] = field(default_factory=list)


def pull(at: str, copy: Path, **options: Any) -> Results:
    results = lastword.pull(at, list(TOPICS), copy, **options)
    return {(result.topic, result.partition): result for result in results}


def certificates(directory: Path) -> None:
    """Make certificates of 127.0.0.1, and Kafka's file of key and certificate."""
    pem = made_pem(directory)
    (directory / "both.pem").write_text(Path(pem.key).read_text() + Path(pem.cert).read_text())


def properties(root: Path, mechanism: str, password: str = PASSWORD) -> Path:
    """Write a file of properties for Java's clients."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    path = root / f"{mechanism}.properties"
    path.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config={LOGIN}.{module} required "
        f'username="backup" password="{password}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={root / 'ca.pem'}\n"
    )
    return path


def traffic(broker: Broker, seed: int) -> None:
    for number, codec in enumerate(CODECS):
        records = updates(150, 20, seed * 10 + number)
        placed = [
            [KafkaRecord(r.key, r.value, r.timestamp, r.headers, partition=number % 3) for r in batch]
            for batch in batches(records)
        ]
        broker.produce("codecs", placed, compression_type=codec)
    if seed == 1:
        broker.keep_producer("t", transactional_id="a-transaction", enable_idempotence="true")
    one = [KafkaRecord(b"k", b"%d" % seed)] * 3
    steps: list[tuple[str, Any]] = [("t", "begin"), ("t", one), ("t", "commit"), ("t", "begin"), ("t", one)]
    broker.send("transactions", *steps, ("t", "abort"), ("t", "begin"), ("t", one))
    for number in range(2):
        broker.produce("cleaned", [[KafkaRecord(b"key %d" % n, b"%d" % number)] for n in range(20)])
        time.sleep(0.6)  # longer than segment.ms: the next record closes the segment
    broker.produce("cleaned", [[KafkaRecord(b"last", b"%d" % seed)]])
    broker.produce("deleted", [[KafkaRecord(b"k", b"v")] * 10] * 2)
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    before = confluent_kafka.TopicPartition("deleted", 0, 20 * seed - 5)
    for done in admin.delete_records([before]).values():
        done.result(10)


def wait_until_cleaned(broker: Broker, offset: int) -> None:
    end = time.monotonic() + 30
    while True:
        text = (broker.directory / "cleaner-offset-checkpoint").read_text()
        reached = [int(line.split()[2]) for line in text.splitlines() if line.startswith("cleaned ")]
        if reached and reached[0] >= offset:
            return
        assert time.monotonic() < end, text
        time.sleep(0.1)


def committed(broker: Broker) -> list[tuple[str, int, int, str | None]]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
    wanted = [confluent_kafka.TopicPartition("codecs", number) for number in range(3)]
    known = consumer.committed(wanted, timeout=20)
    consumer.close()
    return [(p.topic, p.partition, p.offset, p.metadata) for p in known]


def bytes_of(directory: Path) -> bytes:
    logs = sorted(directory.glob("*.log"))
    return b"".join(path.read_bytes() for path in logs)


@pytest.fixture(scope="module")
def story(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    root = tmp_path_factory.mktemp("pull")
    story = Story(root / "copy")
    certificates(root)
    listener = "listener.name.sasl"
    settings = {
        f"{listener}.ssl.keystore.type": "PEM",
        f"{listener}.ssl.keystore.location": str(root / "both.pem"),
        f"{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        f"{listener}.plain.sasl.jaas.config": f"{LOGIN}.plain.PlainLoginModule required "
        f'user_backup="{PASSWORD}";',
        f"{listener}.scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
        "log.cleaner.enable": "true",
        "log.cleaner.backoff.ms": "200",
    }
    broker, secured = secured_broker(tools, root / "logs", "SASL_SSL", settings)
    with broker:
        broker.create_topics(TOPICS)
        traffic(broker, 1)
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
        scram = confluent_kafka.admin.ScramCredentialInfo(
            confluent_kafka.admin.ScramMechanism.SCRAM_SHA_512, 4096
        )
        user = confluent_kafka.admin.UserScramCredentialUpsertion("backup", scram, PASSWORD.encode())
        admin.alter_user_scram_credentials([user])["backup"].result(10)
        broker.commit("readers", "codecs", {0: 100, 1: 7})
        wait_until_cleaned(broker, 20)
        story.first = pull(broker.bootstrap, story.copy)
        for isolation in ("read_committed", "read_uncommitted"):
            story.consumed[isolation] = broker.consume(*TOPICS, isolation=isolation)
    compare(broker.directory, story)
    for path in story.copy.glob("*-*/"):
        adopt(broker.directory, path.name, path)
    with broker:
        for isolation in story.consumed:
            story.again[isolation] = broker.consume(*TOPICS, isolation=isolation)
        story.positions = committed(broker)
        broker.send("transactions", ("t", "commit"))
        traffic(broker, 2)
        broker.commit("readers", "codecs", {1: 150, 2: 3})
        wait_until_cleaned(broker, 61)
        story.second = pull(secured, story.copy, client_config=properties(root, "SCRAM-SHA-512"))
        story.third = pull(secured, story.copy, client_config=properties(root, "PLAIN"))
        for options, error in (
            ({"client_config": properties(root, "PLAIN", "wrong")}, AuthenticationFailedError),
            ({"client_config": properties(root, "SCRAM-SHA-512", "wrong")}, AuthenticationFailedError),
            ({"client_config": {"request.timeout.ms": 2000}}, BrokerUnreachableError),
        ):
            with pytest.raises(error) as raised:
                pull(secured, story.copy, **options)
            story.refusals.append(raised.value)
        with pytest.raises(UnknownTopicError, match="nearest: 'codecs'"):
            lastword.pull(broker.bootstrap, "codec", story.copy)
    compare(broker.directory, story)
    story.dumped = tools.dump_log(sorted(story.copy.glob("*/*.log")))
    yield story


def compare(broker: Path, story: Story) -> None:
    with lastword.open(story.copy) as copies, lastword.open(broker) as theirs:
        story.config = copies["codecs"].config
        story.problems = list(copies.verify().problems)
        for name in TOPICS:
            for number in copies.dirs.partitions(name):
                ours, other = copies.dirs.view(name, number), theirs.dirs.view(name, number)
                assert (ours.log_start, ours.log_end) == (other.log_start, other.log_end)
                assert ours.stable_offset == other.stable_offset
                partition = f"{name}-{number}"
                story.same[partition] = story.same.get(partition, True) and bytes_of(
                    story.copy / partition
                ) == bytes_of(broker / partition)
                story.epochs[partition] = [
                    {e.epoch: e.start_offset for e in LeaderEpochs.load(DEFAULT, view.directory).entries}
                    for view in (ours, other)
                ]
            assert copies.dirs.topic_id(name) == theirs.dirs.topic_id(name)


def test_what_was_pulled(story: Story) -> None:
    assert [story.first["codecs", n].next_offset for n in range(3)] == [300, 300, 150]
    assert [story.second["codecs", n].first_offset for n in range(3)] == [300, 300, 150]
    assert all(
        result.reason is None for results in (story.first, story.second) for result in results.values()
    )
    assert {result.batches for result in story.third.values()} == {0}
    assert story.first["deleted", 0].log_start == 15
    assert story.second["deleted", 0].log_start == 35
    assert story.second["deleted", 0].gone_offsets == 15
    assert story.first["cleaned", 0].records < story.first["cleaned", 0].next_offset
    assert [story.second["codecs", n].positions for n in range(3)] == [1, 1, 1]


def test_the_bytes_are_those_of_the_broker(story: Story) -> None:
    """Except for the topic that Kafka's cleaner went on to clean."""
    same = {name for name, equal in story.same.items() if equal}
    assert same >= {f"codecs-{n}" for n in range(3)} | {"transactions-0", "empty-0", "empty-1"}


def test_leader_epochs_are_those_of_the_broker(story: Story) -> None:
    """The copy has the epochs that have batches, from their first batch on."""
    assert len(story.epochs["codecs-0"][0]) >= 1
    for partition, (ours, theirs) in story.epochs.items():
        for epoch, start in ours.items():
            assert theirs[epoch] <= start, partition


def test_the_settings_are_those_of_the_topic(story: Story) -> None:
    assert story.config.retention_ms == 123456789
    assert story.config.source("segment.bytes") == "default"
    assert story.config.lastword_pulled_from == "bGFzdHdvcmQtdGVzdHMhIQ"


def test_the_copies_are_sound(story: Story) -> None:
    assert story.problems == []
    assert complaints(story.dumped, emptied=True) == []


def test_the_broker_serves_the_copies(story: Story) -> None:
    for isolation, consumed in story.consumed.items():
        for partition, content in consumed.items():
            again = story.again[isolation][partition]
            assert again.end == content.end, partition
            if partition == "deleted-0":  # without the checkpoint of the log start, which `adopt` removes
                assert again.records[-len(content.records) :] == content.records
            elif partition != "cleaned-0":  # cleaned further by the broker
                assert again.records == content.records, (isolation, partition)
            assert again.newest() == content.newest()
    assert len(story.consumed["read_committed"]["transactions-0"].records) == 3
    assert len(story.consumed["read_uncommitted"]["transactions-0"].records) == 9


def test_the_broker_continues_the_groups(story: Story) -> None:
    none = confluent_kafka.OFFSET_INVALID
    offsets = [(partition, offset) for _, partition, offset, _ in story.positions]
    assert offsets == [(0, 100), (1, 7), (2, none)]


def test_wrong_credentials_are_named(story: Story) -> None:
    plain, scram, without = story.refusals
    assert "refuses the user backup (PLAIN)" in str(plain)
    assert "refuses the user backup (SCRAM-SHA-512)" in str(scram)
    assert "security.protocol" in str(without)
    assert PASSWORD not in str(plain) + str(scram)
