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


FLINK = (
    "org.apache.flink:flink-clients:2.0.0",
    "org.apache.flink:flink-connector-base:2.0.0",
    "org.apache.flink:flink-table-api-java-bridge:2.0.0",
    "org.apache.flink:flink-table-planner-loader:2.0.0",
    "org.apache.flink:flink-table-runtime:2.0.0",
    "org.apache.flink:flink-sql-connector-kafka:4.0.1-2.0",
)

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
        "Connect with two workers",
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
    System(
        "Flink upsert-kafka",
        "maven",
        FLINK,
        "CopyFlink.java",
        remark="from a keyed table to another; it reads from the start in each life",
    ),
)


@dataclass(frozen=True)
class Suite:
    """The own test suite of a client, whose tests run against a broker that runs already.

    Attributes:
        name: The name of its row.
        kind: How it is installed and started: one of the keys of `suites.KINDS`.
        packages: Packages that are installed, each with its version; the client is the first.
        source: The tests: "pip" for the source package of the client, or a repository and a tag of git.
        package: The directory of the client in the source; removed, so that the installed one is tested.
        added: A file of `programs/`, and the file of the source to whose end it is added.
        tests: Files of pytest, or the package of Go.
        env: The environment of the tests, where ADDRESS is the server's address.
        remark: A sentence for the page.
    """

    name: str
    kind: str
    packages: tuple[str, ...]
    source: str = ""
    package: str = ""
    added: tuple[str, str] = ("", "")
    tests: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    remark: str = ""


PYTEST = ("pytest==9.0.2", "pytest-mock==3.15.1", "pytest-timeout==2.4.0")
PLACES = ("admin", "consumer", "producer")
FILES = (
    "admin",
    "client",
    "coordinator",
    "pep492",
    "producer",
    "transactional_consumer",
    "transactional_producer",
)

SUITES = (
    Suite(
        "tests of aiokafka",
        "python",
        ("aiokafka==0.14.0", *PYTEST, "pytest-asyncio==1.3.0", "docker==7.1.0", "cramjam==2.11.0"),
        "https://github.com/aio-libs/aiokafka v0.14.0",
        "aiokafka",
        ("aiokafka_conftest.py", "tests/conftest.py"),
        tuple(f"tests/test_{name}.py" for name in FILES),
        (("ADDRESS", "ADDRESS"),),
        "without those of SASL, TLS, the consumer and the fetcher",
    ),
    Suite(
        "tests of kafka-python",
        "python",
        (
            "kafka-python==3.0.12",
            *PYTEST,
            "crc32c==2.7.1",
            "lz4==4.4.4",
            "zstandard==0.25.0",
            "python-snappy==0.7.3",
        ),
        "pip",
        "kafka",
        ("kafka_python_service.py", "test/service.py"),
        tuple(f"test/integration/test_{name}_integration.py" for name in PLACES),
        (("KAFKA_URI", "kafka://ADDRESS"), ("KAFKA_VERSION", "4.2.0"), ("KAFKA_ROOT", "/")),
        "without those of SASL and of TLS, which start a Kafka of their own",
    ),
    Suite(
        "tests of franz-go",
        "go",
        ("github.com/twmb/franz-go@v1.22.3",),
        tests=("github.com/twmb/franz-go/pkg/kgo",),
        env=(
            ("KGO_SEEDS", "ADDRESS"),
            ("KGO_TEST_RF", "1"),
            ("KGO_TEST_RECORDS", "1000"),
            ("KGO_TEST_MAX_TOPIC_PARTS", "3"),
            ("KGO_LOG_LEVEL", "none"),
        ),
        remark="package kgo, with 1,000 records in each topic",
    ),
)
"""The own suites of clients: their failed tests on the server are compared with those on Kafka."""

ROWS: tuple[System | Suite, ...] = (*SYSTEMS, *SUITES)
