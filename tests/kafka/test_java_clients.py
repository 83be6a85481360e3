"""Kafka's command-line tools, and its Java clients, against the server; one JVM, one server for all.

`test_client_matrix.py` has the Java clients with each codec, isolation level and gap.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastword
from tests.server.certificates import made_pem
from tests.server.gaps import CODECS
from tests.support.exhaustive import stride
from tests.support.jars import HERE, KafkaJars
from tests.support.kafka import Clients, KafkaRecord, Tools
from tests.support.stores import log_for_clients

GROUPS = "consumer.group.ConsumerGroupCommand"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lastword.LogDir]:
    directory = tmp_path_factory.mktemp("served") / "data"
    cleaning = {"log_cleaner_backoff_ms": 200, "segment_bytes": "64KiB", "min_cleanable_dirty_ratio": 0.1}
    with log_for_clients(directory, **cleaning) as logs:  # type: ignore[arg-type]
        logs.create_topic("compacted", cleanup_policy="compact")
        yield logs


@pytest.fixture(scope="module")
def java(tools: Tools, logs: lastword.LogDir) -> Iterator[Clients]:
    with lastword.serve(logs, "127.0.0.1:0") as server:
        yield Clients(tools, server.bootstrap_servers)


def _logging(log_file: Path) -> list[str]:
    return [f"-Dlog4j2.configurationFile={HERE / 'log4j2.xml'}", f"-Dlastword.log={log_file}"]


@pytest.fixture(scope="module")
def tester_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tester") / "tester.log"


@pytest.fixture(scope="module", autouse=True)
def compaction_tester(
    java: Clients, kafka_jars: KafkaJars, tester_log: Path
) -> Iterator[subprocess.Popen[str]]:
    """Start LogCompactionTester beside the other tests: its consumer waits 20 s for a last record."""
    command = kafka_jars.command("org.apache.kafka.tools.LogCompactionTester", *_logging(tester_log))
    command += ["--bootstrap-server", java.bootstrap]
    command += ["--messages", "20000", "--duplicates", "20", "--percent-deletes", "20", "--sleep", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


# ------------------------------------------------------------------ tools


def test_topics_are_created_described_changed_and_deleted(java: Clients) -> None:
    create = ("TopicCommand", "--create", "--topic", "made", "--partitions", "2")
    assert "Created topic made." in java.run(*create, "--config", "cleanup.policy=compact")
    assert java.run(*create, "--if-not-exists") == ""
    with pytest.raises(RuntimeError, match="Topic 'made' already exists"):
        java.run(*create)
    described = java.run("TopicCommand", "--describe", "--topic", "made")
    assert "PartitionCount: 2\tReplicationFactor: 1\tConfigs: cleanup.policy=compact," in described
    assert "Partition: 1\tLeader: 1\tReplicas: 1\tIsr: 1" in described
    java.run("TopicCommand", "--alter", "--topic", "made", "--partitions", "3")
    assert "Partition: 2\t" in java.run("TopicCommand", "--describe", "--topic", "made")
    assert "made" in java.run("TopicCommand", "--list").split()
    java.run("TopicCommand", "--delete", "--topic", "made")
    assert "made" not in java.run("TopicCommand", "--list").split()
    with pytest.raises(RuntimeError, match="'made' does not exist"):
        java.run("TopicCommand", "--describe", "--topic", "made")
    with pytest.raises(RuntimeError, match="Not a number of type LONG"):
        java.run("TopicCommand", "--create", "--topic", "made", "--config", "retention.ms=x")


def test_settings_are_described_and_changed(java: Clients) -> None:
    java.create_topic("configured")
    topic = ("--entity-type", "topics", "--entity-name", "configured")

    def change(*arguments: str) -> str:
        return java.run("ConfigCommand", "--alter", *arguments)

    change(*topic, "--add-config", "retention.ms=1000,cleanup.policy=[compact,delete]")
    described = java.run("ConfigCommand", "--describe", *topic)
    assert "  retention.ms=1000 " in described and "  cleanup.policy=compact,delete " in described
    change(*topic, "--delete-config", "retention.ms")
    assert "retention.ms" not in java.run("ConfigCommand", "--describe", *topic)
    with pytest.raises(RuntimeError, match="Unknown topic config name: nonsense"):
        change(*topic, "--add-config", "nonsense=1")
    with pytest.raises(RuntimeError, match="InvalidRequestException"):
        change("--entity-type", "brokers", "--entity-name", "1", "--add-config", "log.cleaner.threads=2")
    brokers = java.run("ConfigCommand", "--describe", "--all", "--entity-type", "brokers")
    assert "node.id=1 " in brokers


def test_console_producer_consumer_and_groups(java: Clients) -> None:
    java.create_topic("lines", 2)
    properties = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
    java.run("ConsoleProducer", "--topic", "lines", *properties, stdin="ada:1\nbob:2\ncy:3\ndi:4\n")
    consume = ("consumer.ConsoleConsumer", "--topic", "lines", "--timeout-ms", "9000")
    first = java.run(*consume, "--max-messages", "4", "--from-beginning", "--group", "readers")
    assert sorted(line for line in first.splitlines() if len(line) == 1) == ["1", "2", "3", "4"]
    keys = ("--formatter-property", "print.key=true", "--isolation-level", "read_committed")
    second = java.run(*consume, "--max-messages", "2", "--partition", "0", "--offset", "earliest", *keys)
    assert "bob\t2\n" in second

    assert "readers" in java.run(GROUPS, "--list").split()
    group = ("--group", "readers")
    lags = [line.split()[1:6] for line in java.run(GROUPS, "--describe", *group).splitlines()[-2:]]
    assert [lag[0] for lag in lags] == ["lines", "lines"]
    assert sum(int(lag[2]) for lag in lags) == 4 and {lag[4] for lag in lags} == {"0"}
    assert "Empty" in java.run(GROUPS, "--describe", *group, "--state")
    java.run(GROUPS, "--reset-offsets", *group, "--topic", "lines", "--to-earliest", "--execute")
    lags = [line.split()[1:6] for line in java.run(GROUPS, "--describe", *group).splitlines()[-2:]]
    assert sum(int(lag[4]) for lag in lags) == 4
    assert "Successful" in java.run(GROUPS, "--delete-offsets", *group, "--topic", "lines")
    assert "was successful" in java.run(GROUPS, "--delete", *group)
    assert "readers" not in java.run("GroupsCommand", "--list").split()


def test_groups_of_the_consumer_protocol(java: Clients) -> None:
    java.create_topic("modern", 2)
    java.produce("modern", [[KafkaRecord(b"k%d" % n, b"%d" % n, partition=n % 2)] for n in range(4)])
    protocol = ("--command-property", "group.protocol=consumer")
    consume = ("consumer.ConsoleConsumer", "--topic", "modern", "--timeout-ms", "9000", *protocol)
    for offset in ("earliest", "latest"):  # the second does not start again
        reset = ("--command-property", f"auto.offset.reset={offset}")
        read = java.run(*consume, "--max-messages", "4", "--group", "moderns", *reset)
        assert sorted(line for line in read.splitlines() if len(line) == 1) == ["0", "1", "2", "3"]
        java.produce("modern", [[KafkaRecord(b"k%d" % n, b"%d" % n, partition=n % 2)] for n in range(4)])
    group = ("--group", "moderns")
    assert "Empty" in java.run(GROUPS, "--describe", *group, "--state")
    assert re.search(r"moderns +Consumer", java.run(GROUPS, "--list", "--type"))
    java.run(GROUPS, "--reset-offsets", *group, "--topic", "modern", "--to-earliest", "--execute")
    lags = [line.split()[1:6] for line in java.run(GROUPS, "--describe", *group).splitlines()[-2:]]
    assert [lag[0] for lag in lags] == ["modern", "modern"] and sum(int(lag[4]) for lag in lags) == 12

    with _live_consumer(java.bootstrap, "moderns", "modern"):
        assert "Stable" in java.run(GROUPS, "--describe", *group, "--state")
        members = java.run(GROUPS, "--describe", *group, "--members", "--verbose")
        assert "modern:0,1" in members
        assert "The group is not empty" in java.run(GROUPS, "--delete", *group)
    assert "was successful" in java.run(GROUPS, "--delete", *group)
    options = ("--topic", "modern", "--group-id", "moderns", "--max-messages", "12")
    events = java.run("VerifiableConsumer", *options, "--group-protocol", "consumer").splitlines()
    counts = [json.loads(line) for line in events if line]
    assert sum(event["count"] for event in counts if event["name"] == "records_consumed") == 12


@contextlib.contextmanager
def _live_consumer(bootstrap: str, group: str, topic: str) -> Iterator[None]:
    """Run librdkafka's consumer, which has all partitions of the topic, in a thread."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer"}
    )
    consumer.subscribe([topic])
    has_all, is_over = threading.Event(), threading.Event()

    def poll() -> None:
        while not is_over.is_set():
            consumer.poll(0.05)
            if len(consumer.assignment()) == 2:
                has_all.set()
        consumer.close()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        assert has_all.wait(20)
        yield
    finally:
        is_over.set()
        thread.join()


def test_offsets_sizes_and_deleted_records(java: Clients, tmp_path: Path) -> None:
    java.create_topic("sized", 2)
    java.produce("sized", [[KafkaRecord(b"k", b"v", 1000 * n)] for n in (1, 3, 2)])

    def offsets(at: str) -> list[str]:
        return java.run("GetOffsetShell", "--topic", "sized", "--time", at).split()

    assert offsets("-1") == ["sized:0:3", "sized:1:0"]
    assert offsets("-2") == ["sized:0:0", "sized:1:0"]
    assert offsets("-3") == ["sized:0:1"]
    assert offsets("1500") == ["sized:0:1"]
    found = json.loads(java.run("LogDirsCommand", "--describe", "--topic-list", "sized").splitlines()[-1])
    sizes = {p["partition"]: p["size"] for p in found["brokers"][0]["logDirs"][0]["partitions"]}
    assert sizes["sized-0"] > 3 * 61 and sizes["sized-1"] == 0

    request = tmp_path / "records.json"
    wanted = [("sized", 0, 2), ("sized", 1, -1), ("compacted", 0, 9)]
    partitions = [{"topic": topic, "partition": number, "offset": offset} for topic, number, offset in wanted]
    request.write_text(json.dumps({"partitions": partitions, "version": 1}))
    deleted = java.run("DeleteRecordsCommand", "--offset-json-file", str(request))
    assert "partition: sized-0\tlow_watermark: 2" in deleted
    assert "partition: sized-1\tlow_watermark: 0" in deleted
    assert "partition: compacted-0\terror: org.apache.kafka.common.errors.PolicyViolationException" in deleted
    assert offsets("-2") == ["sized:0:2", "sized:1:0"]


@pytest.mark.parametrize("codec", CODECS[3 % stride(5) :: stride(5)])
def test_performance_of_producer_and_consumer(java: Clients, codec: str) -> None:
    topic = f"load-{codec}"
    properties = (f"bootstrap.servers={java.bootstrap}", "acks=all", f"compression.type={codec}")
    load = ("--num-records", "20000", "--record-size", "100", "--throughput", "-1")
    sent = java.tools.run("ProducerPerformance", "--topic", topic, *load, "--command-property", *properties)
    assert "20000 records sent" in sent
    read = java.run("ConsumerPerformance", "--topic", topic, "--num-records", "20000", "--timeout", "9000")
    assert ", 20000, " in read


def test_the_latency_from_end_to_end(java: Clients) -> None:
    options = ("--num-records", "50", "--producer-acks", "all", "--record-size", "20")
    assert "Avg latency" in java.run("EndToEndLatency", "--topic", "latency", *options)


def test_tools_that_verify(java: Clients) -> None:
    java.run("VerifiableProducer", "--topic", "verified", "--max-messages", "100", "--acks", "-1")
    options = ("--topic", "verified", "--group-id", "verifiers", "--max-messages", "100")
    events = [json.loads(line) for line in java.run("VerifiableConsumer", *options).splitlines() if line]
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 100
    assert any(event["name"] == "offsets_committed" and event["success"] for event in events)


def test_the_cluster_is_described(java: Clients) -> None:
    assert java.bootstrap in java.run("BrokerApiVersionsCommand")
    at = ("--bootstrap-server", java.bootstrap)
    assert "Cluster ID: " in java.tools.run("ClusterTool", "cluster-id", *at)
    assert "unfenced" in java.tools.run("ClusterTool", "list-endpoints", *at)


def test_a_node_without_an_authorizer_is_administered(java: Clients) -> None:
    """As with a broker of Kafka 4.4.0 that has no authorizer."""
    with pytest.raises(
        RuntimeError, match=r"SecurityDisabledException: No Authorizer is configured on the broker"
    ):
        java.run("AclCommand", "--list")
    java.create_topic("elected")
    elect = ("LeaderElectionCommand", "--election-type", "preferred")
    assert java.run(*elect, "--all-topic-partitions") == ""
    printed = java.run(*elect, "--topic", "elected", "--partition", "0")
    assert printed == "Valid replica already elected for partitions elected-0\n"
    assert "No partition reassignments found" in java.run("reassign.ReassignPartitionsCommand", "--list")
    assert "LeaderId:" in java.run("MetadataQuorumCommand", "describe", "--status").replace("\t", "")
    with pytest.raises(RuntimeError, match="UnknownTopicOrPartitionException: No such topic as missing"):
        java.run(*elect, "--topic", "missing", "--partition", "0")


def test_the_client_compatibility_test(java: Clients) -> None:
    java.create_topic("compatible")
    supported = (
        "offsets-for-times",
        "cluster-id",
        "create-topics",
        "describe-configs",
        "idempotent-producer",
        "describe-acls",  # the error that no authorizer is there counts as support, as with a broker
    )
    options = [text for name in supported for text in (f"--{name}-supported", "true")]
    options += ["--expect-record-too-large-exception", "false"]
    java.run("ClientCompatibilityTest", "--topic", "compatible", "--num-cluster-nodes", "1", *options)


def test_the_log_compaction_tester(compaction_tester: subprocess.Popen[str], tester_log: Path) -> None:
    printed, _ = compaction_tester.communicate(timeout=60)
    code = compaction_tester.returncode
    if not 0 < _consumed_rows(printed) < 15_000:
        # The tool waits 2 s for a cleaning, which may come later on a busy machine. It takes an empty poll
        # for the end: a poll of Kafka's consumer is also empty if it passed only emptied batches, which may
        # be all that a cleaning left of the first segment.
        assert isinstance(compaction_tester.args, list)
        again = [*compaction_tester.args[:-1], "20"]
        done = subprocess.run(again, capture_output=True, text=True, timeout=120)
        printed, code = done.stdout, done.returncode
    assert code == 0, printed + tester_log.read_text()
    assert "0 mismatches" in printed
    assert 0 < _consumed_rows(printed) < 15_000, printed


def _consumed_rows(printed: str) -> int:
    """Return the number of rows that LogCompactionTester has consumed of its 20,000."""
    rows = re.search(r"20000 rows of data produced, (\d+) rows of data consumed", printed)
    return int(rows[1]) if rows else 0


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_a_user_over_tls(tools: Tools, tmp_path: Path, mechanism: str) -> None:
    pem = made_pem(tmp_path)
    users = {"ada": "secret, =é"}
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    config = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"org.apache.kafka.common.security.{module}LoginModule required "
        f'username="ada" password="{users["ada"]}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": pem.ca,
    }
    properties = tmp_path / "client.properties"
    properties.write_text(
        "".join(f"{name}={value}\n" for name, value in config.items()).replace("é", "\\u00e9")
    )
    topic = f"secured-{mechanism}"
    with (
        log_for_clients(tmp_path / "data") as logs,
        lastword.serve(logs, "127.0.0.1:0", users=users, tls=(pem.cert, pem.key)) as server,
    ):
        java = Clients(tools, server.bootstrap_servers)
        sent = [KafkaRecord(key=b"k%d" % number, value=b"v" * 50_000) for number in range(20)]
        assert java.produce(
            topic, [sent], **{name.replace(".", "_"): value for name, value in config.items()}
        )
        assert topic in java.run("TopicCommand", "--list", "--command-config", str(properties)).split()
        reader = ("--topic", topic, "--from-beginning", "--max-messages", "20", "--timeout-ms", "20000")
        read = java.run("consumer.ConsoleConsumer", *reader, "--command-config", str(properties))
        assert read.count("v" * 50_000) == 20
        properties.write_text(properties.read_text().replace("secret", "wrong"))
        with pytest.raises(RuntimeError, match=r"[Aa]uthentication"):
            java.run("TopicCommand", "--list", "--command-config", str(properties))
