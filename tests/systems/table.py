"""Outside clients and systems that run against the server and a real Kafka: one row each.

A program gets the addresses of a cluster and of another one, the names of two topics and of a group, and a
directory for its state: ADDRESS SOURCE TARGET GROUP STATE OTHER. It goes on until it is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.jars import KAFKA_VERSION, OLDER_VERSION


@dataclass(frozen=True)
class System:
    """A client or a system.

    Attributes:
        name: Its name.
        kind: How it is installed and started: one of the keys of `install.INSTALLERS`.
        packages: Its packages, each with its version, as its package manager takes them.
        program: A file in `programs/`.
        does: The content of the target: "copy": each record of the source; "count": the number of records of
            each key; "lines": each value of the source, as key and value; "mirror": a copy elsewhere.
        deletes: The source has tombstones, too.
        kafka: The version of Kafka's jars on its class path, for the kind "jvm".
        remark: A sentence for the page.
    """

    name: str
    kind: str
    packages: tuple[str, ...]
    program: str
    does: str = "copy"
    deletes: bool = True
    kafka: str = KAFKA_VERSION
    remark: str = ""


SYSTEMS = (
    System("aiokafka", "python", ("aiokafka==0.14.0",), "copy_aiokafka.py"),
    System("kafka-python", "python", ("kafka-python==3.0.12",), "copy_kafka_python.py"),
    System("quixstreams", "python", ("quixstreams==3.28.1",), "count_quixstreams.py", "count", False),
    System("faust-streaming", "python", ("faust-streaming==0.15.3",), "count_faust.py", "count", False),
    System("kafkajs", "node", ("kafkajs@2.2.4",), "copy_kafkajs.js"),
    System(
        "@platformatic/kafka",
        "node",
        ("@platformatic/kafka@2.12.1",),
        "copy_platformatic.mjs",
        remark="on Node.js 20 with a shim; it wants 22",
    ),
    System("sarama", "go", ("github.com/IBM/sarama@v1.61.1",), "copy_sarama.go"),
    System("kafka-go", "go", ("github.com/segmentio/kafka-go@v0.4.51",), "copy_kafka_go.go"),
    System("franz-go", "go", ("github.com/twmb/franz-go@v1.22.3",), "copy_franz_go.go"),
    System(
        "rskafka",
        "rust",
        ('rskafka = "=0.6.0"', 'futures = "0.3"', 'tokio = { version = "1", features = ["full"] }'),
        "copy_rskafka.rs",
        remark="it has no groups: it reads from the start in each life",
    ),
    System(
        "Kafka Streams",
        "jvm",
        (f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}",),
        "CountStreams.java",
        "count",
        False,
        remark="exactly once; stores in memory",
    ),
    System(
        "Connect, two workers",
        "jvm",
        (f"org.apache.kafka:connect-file:{OLDER_VERSION}",),
        "connect_distributed.py",
        "lines",
        False,
        OLDER_VERSION,
        "the source exactly once; a file sink and a file source behind it",
    ),
    System(
        "MirrorMaker 2",
        "jvm",
        tuple(f"org.apache.kafka:connect-mirror{part}:{OLDER_VERSION}" for part in ("", "-client")),
        "mirror_maker.py",
        "mirror",
        kafka=OLDER_VERSION,
        remark="both directions at a time, between the two servers",
    ),
)

NOT_HERE = ("Flink upsert-kafka", "the own test suites of aiokafka, kafka-python and franz-go")
"""Systems that have no row yet."""
