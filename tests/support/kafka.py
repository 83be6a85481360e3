"""A real Kafka broker on the loopback interface, its clients and its dump tool.

    jars = KafkaJars.find_or_fetch()
    with Tools(jars) as tools, Broker(tools, directory) as broker:
        broker.create_topic("users", cleanup_policy="compact")
        broker.produce("users", [[KafkaRecord(b"ada", b"1"), KafkaRecord(b"bob", None)]])
        broker.consume("users")["users-0"].records

A request to `Tools` takes milliseconds. A broker starts in three seconds, and in half a second if its JVM ran
another broker before: a JVM whose broker was stopped waits in `Tools` for the next one of its kind. The log
directory is `directory` itself; the broker's other files are in `directory.kafka/` beside it. The broker's
own cleaner is off unless a test switches it on, so that only the test changes a log.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.jars import BROKERS, HERE, SHORT_LIFE, KafkaJars

CLUSTER = "bGFzdHdvcmQtdGVzdHMhIQ"
STOP_SECONDS = 60


@dataclass(frozen=True)
class KafkaRecord:
    """A record of Kafka's clients. If the timestamp is None, the client sets it."""

    key: bytes | None
    value: bytes | None
    timestamp: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = 0
    offset: int = -1
    timestamp_type: str = "CreateTime"


@dataclass(frozen=True)
class Consumed:
    """A partition as a consumer read it: its first offset, its end, and every record between."""

    start: int
    end: int
    records: tuple[KafkaRecord, ...]

    def newest(self) -> dict[bytes | None, bytes | None]:
        return {record.key: record.value for record in self.records}


@dataclass(frozen=True)
class Counted:
    """The counts of a store of Kafka Streams, and the records that it restored from its changelog."""

    restored: int
    counts: dict[str, int]


class BrokerJvm:
    """A JVM that runs one broker after the other (`Brokers.java`)."""

    def __init__(self, command: list[str], new_archive: Path | None) -> None:
        """`new_archive`: the archive of loaded classes that the JVM writes when it ends."""
        self.command = command
        self._new_archive = new_archive
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0
        )

    def ask(self, *words: str, seconds: float) -> bool:
        """Send a request; return whether it was done.

        Raises:
            RuntimeError: The process ended, or did not answer in time; it does not run then.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        deadline = time.monotonic() + seconds
        try:
            self.process.stdin.write("\t".join(words).encode() + b"\n")
            while select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                line = self.process.stdout.readline()
                if line in (b"ok\n", b"error\n"):  # others are warnings of the JVM
                    return line == b"ok\n"
                if not line:
                    raise BrokenPipeError
        except BrokenPipeError:
            raise RuntimeError(f"the JVM of the broker ended with {self.process.wait()}") from None
        self.kill()
        raise RuntimeError(f"no answer to {words[0]} in {seconds} s")

    def kill(self) -> None:
        self.process.kill()
        self._wait()

    def close(self) -> None:
        """Let the process end, which ends its broker."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._wait()
        if self._new_archive is not None and self._new_archive.exists():
            self._new_archive.replace(self._new_archive.with_suffix(".jsa"))

    def _wait(self) -> None:
        self.process.wait(timeout=STOP_SECONDS)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Tools:
    """A JVM with Kafka's clients, tools, Streams and Connect, driven by lines of JSON; for one thread."""

    def __init__(self, jars: KafkaJars, log_file: Path | None = None) -> None:
        self.jars = jars
        self.free: list[BrokerJvm] = []
        """JVMs without a broker, which brokers take and give back."""
        logging = _logging(log_file, "warn")
        command = jars.command("Tools", *logging, sources=HERE, more=f"{jars.apps}/*")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, do: str, **request: Any) -> Any:
        """Send a request and return its answer; raise RuntimeError with Kafka's text if it fails."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the JVM of Kafka's tools ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]

    def run(self, tool: str, *arguments: str, stdin: str = "") -> str:
        """Return what a command of Kafka prints to stdout and stderr.

        Args:
            tool: Its class; `org.apache.kafka.tools.` may be left out.
            arguments: Its arguments.
            stdin: The text that it reads.

        Raises:
            RuntimeError: The exit code of the command is not 0.
        """
        name = tool if tool.startswith(("kafka.", "org.")) else f"org.apache.kafka.tools.{tool}"
        answer = self.ask("run", tool=name, arguments=arguments, stdin=stdin)
        if answer["code"]:
            raise RuntimeError(f"{tool} ended with {answer['code']}: {answer['printed']}")
        return str(answer["printed"])

    def dump_log(self, files: Iterable[Path], *options: str) -> str:
        """Return the output of DumpLogSegments; by default --deep-iteration, which reads every record."""
        names = ",".join(str(path) for path in files)
        return self.run("DumpLogSegments", *(options or ("--deep-iteration",)), "--files", names)

    def close(self) -> None:
        for jvm in self.free:
            jvm.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=20)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Tools:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


#: The lines that DumpLogSegments prints for a sound file. Its exit code never reports a fault, and it prints
#: faults to stderr in several forms, so every other line counts as a fault. Gaps between offsets are normal
#: in a cleaned log.
SOUND = re.compile(
    r"|Dumping .*|Log starting offset: \d+"
    r"|baseOffset: .* isvalid: true|\| offset: .*"
    r"|offset: \d+ position: \d+|timestamp: \d+ offset: \d+"
    r"|version: \d+ producerId: .*|producerId: .*"
    r"|.* passed sanity check\.|.* is empty\."
    r"|Non-consecutive offsets in .*| +-?\d+ is followed by \d+"
)


#: Its message for an emptied batch (its producer's last batch, whose records a cleaner removed) if the batch
#: has the segment's largest timestamp: the tool searches for a record with that timestamp. Kafka's own
#: cleaner leaves such batches too, so this is not a fault.
EMPTIED = re.compile(
    r"Found timestamp mismatch in :.*\n  Index timestamp: \d+, log timestamp: -1\n"
    r"(?:  Index timestamp: \d+, log timestamp: -1\n)*"
)


def complaints(printed: str, *, emptied: bool = False) -> list[str]:
    """Return the lines of DumpLogSegments that report a fault; `emptied` ignores emptied batches."""
    text = EMPTIED.sub("", printed) if emptied else printed
    return [line for line in text.splitlines() if not SOUND.fullmatch(line)]


#: Errors of the broker's controller, which has no part in its log directories. On a busy machine it meets a
#: request before it leads, or a late heartbeat.
CONTROLLER = re.compile(r" ERROR \[(ControllerApis|ReplicationControlManager|QuorumController)\] ")


def errors_of(log_text: str, *, ignored: Sequence[str] = ()) -> list[str]:
    """Return the lines with errors in a broker's log, but for its controller's and `ignored` texts."""
    return [
        line
        for line in log_text.splitlines()
        if " ERROR " in line and not CONTROLLER.search(line) and not any(text in line for text in ignored)
    ]


@dataclass
class Clients:
    """Kafka's clients and tools for the cluster that `bootstrap` names."""

    tools: Tools
    bootstrap: str

    def run(self, tool: str, *arguments: str, stdin: str = "") -> str:
        """Return what a command of Kafka prints; see `Tools.run`."""
        return self.tools.run(tool, "--bootstrap-server", self.bootstrap, *arguments, stdin=stdin)

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Create a topic; `config` is in Python's spelling: cleanup_policy="compact"."""
        self.create_topics({name: {"partitions": partitions, **config}})

    def create_topics(self, topics: dict[str, dict[str, Any]]) -> None:
        wanted = []
        for name, settings in topics.items():
            config = {k.replace("_", "."): str(v) for k, v in settings.items() if k != "partitions"}
            wanted.append({"name": name, "partitions": settings.get("partitions", 1), "config": config})
        self.tools.ask("create", bootstrap=self.bootstrap, topics=wanted)

    def alter(self, kind: str, name: str, **config: str | None) -> None:
        """Set or (None) remove settings of a resource: kind "TOPIC" or "BROKER" (name "": all brokers)."""
        settings = {k.replace("_", "."): v for k, v in config.items()}
        self.tools.ask("alter", bootstrap=self.bootstrap, kind=kind, name=name, config=settings)

    def settings_of(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic that come from the cluster's metadata."""
        settings: dict[str, str] = self.tools.ask(
            "describe", bootstrap=self.bootstrap, kind="TOPIC", name=topic
        )
        return settings

    def commit(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Commit offsets of a consumer group."""
        self.tools.ask("commit", bootstrap=self.bootstrap, group=group, topic=topic, offsets=offsets)

    def produce(self, topic: str, batches: Sequence[Sequence[KafkaRecord]], **config: str) -> list[int]:
        """Send each inner list as one batch, by a producer with `config`; return the offsets."""
        lines = [[_to_json(record) for record in batch] for batch in batches]
        settings = {k.replace("_", "."): str(v) for k, v in config.items()}
        offsets: list[int] = self.tools.ask(
            "produce", bootstrap=self.bootstrap, topic=topic, batches=lines, config=settings
        )
        return offsets

    def keep_producer(self, name: str, **config: str) -> None:
        """Create a producer that keeps its id and sequences when the broker restarts."""
        settings = {k.replace("_", "."): str(v) for k, v in config.items()}
        self.tools.ask("keep", bootstrap=self.bootstrap, name=name, config=settings)

    def send(self, topic: str, *steps: tuple[str, str | Sequence[KafkaRecord]]) -> list[int]:
        """Run steps of kept producers; return the offsets.

        A step is `("name", step)`: begin, commit, abort, close, or the records of one batch.
        """
        lines = [[name, s if isinstance(s, str) else [_to_json(r) for r in s]] for name, s in steps]
        offsets: list[int] = self.tools.ask("send", topic=topic, steps=lines)
        return offsets

    def producers(self, topic: str, partition: int = 0) -> list[dict[str, int]]:
        """Return the broker's state of a partition's producers, in order of id.

        Fields: id, epoch, sequence, timestamp, coordinator, start (first offset of the open transaction).
        """
        producers = self.tools.ask("producers", bootstrap=self.bootstrap, topic=topic, partition=partition)
        return sorted(producers, key=lambda producer: producer["id"])

    def offsets(self, *topics: str, isolation: str = "read_uncommitted") -> dict[str, dict[str, int]]:
        """Return the offsets of partition 0 of each topic: "start", "end", and "newest" by timestamp."""
        offsets: dict[str, dict[str, int]] = self.tools.ask(
            "offsets", bootstrap=self.bootstrap, topics=topics, isolation=isolation
        )
        return offsets

    def count(
        self,
        application: str,
        stores: dict[str, str],
        wanted: dict[str, int],
        *,
        state: Path,
        guarantee: str,
        codec: str,
    ) -> dict[str, Counted]:
        """Run an application of Kafka Streams that counts the records of each key.

        Args:
            application: Its id.
            stores: The topic of each of its stores.
            wanted: The sum of the counts of each store with which the application is closed.
            state: Its state directory.
            guarantee: Its `processing.guarantee`; exactly_once_v2 reads committed records only.
            codec: The `compression.type` of its producer, which writes the changelogs.
        """
        answer = self.tools.ask(
            "count",
            bootstrap=self.bootstrap,
            application=application,
            stores=stores,
            wanted=wanted,
            state=str(state),
            guarantee=guarantee,
            codec=codec,
        )
        return {store: Counted(**counted) for store, counted in answer.items()}

    def copy_files(
        self, worker: dict[str, str], connectors: dict[str, dict[str, str]], lines: dict[Path, int]
    ) -> None:
        """Run a worker of Kafka Connect with connectors, by name, until each file has its lines."""
        wanted = {str(path): count for path, count in lines.items()}
        settings = {"bootstrap.servers": self.bootstrap, **worker}
        self.tools.ask("copy", worker=settings, connectors=connectors, lines=wanted)

    def consume(self, *topics: str, isolation: str = "read_uncommitted") -> dict[str, Consumed]:
        """Read every partition of the topics, from its first record to its current end."""
        answer = self.tools.ask("consume", bootstrap=self.bootstrap, topics=topics, isolation=isolation)
        return {
            name: Consumed(
                content["start"], content["end"], tuple(_from_json(line, name) for line in content["records"])
            )
            for name, content in answer.items()
        }


@dataclass
class Broker(Clients):
    """A single-node Kafka on `directory`; `with` starts it and stops it cleanly."""

    bootstrap: str = field(init=False, default="")
    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    java_flags: Sequence[str] = SHORT_LIFE  # with others each start has a JVM of its own
    keeps_port: bool = False  # so that kept producers can reconnect
    uid: int | None = None  # of the user that runs the broker; needs root
    jars: KafkaJars | None = None  # of an older broker than the tools
    _jvm: BrokerJvm | None = None
    _controller: int = 0

    def __post_init__(self) -> None:
        self._jars = self.jars or self.tools.jars

    @property
    def home(self) -> Path:
        """Return the directory of the broker's other files: settings, KRaft metadata, its log."""
        return self.directory.with_name(self.directory.name + ".kafka")

    @property
    def log_text(self) -> str:
        path = self.home / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *, seconds: float = 60) -> Broker:
        """Start the broker and wait for it; RuntimeError has the end of its log if it does not start."""
        assert self._jvm is None, "already started"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.home.mkdir(exist_ok=True)
        if not (self.bootstrap and self.keeps_port):
            port, self._controller = _free_ports(2)
            self.bootstrap = f"127.0.0.1:{port}"
        config = self.home / "server.properties"
        config.write_text("".join(f"{k}={v}\n" for k, v in self._properties(self._controller).items()))
        if not (self.home / "metadata" / "meta.properties").exists():
            release = self._jars.version.rpartition(".")[0]
            self.tools.ask("format", cluster=CLUSTER, config=str(config), release=release)
        log, printed = self.home / "server.log", self.home / "server.out"
        log.unlink(missing_ok=True)
        printed.touch()
        jvm = self._jvm = self._new_or_free()
        try:
            is_started = jvm.ask("start", str(config), str(log), str(printed), seconds=seconds)
        except RuntimeError as error:
            self._jvm = None
            raise RuntimeError(f"{error}\n{self._last_words()}") from None
        if not is_started:
            self._release()
            raise RuntimeError(f"the broker did not start:\n{self._last_words()}")
        return self

    def _new_or_free(self) -> BrokerJvm:
        """Return a JVM that waits for a broker, or a new one."""
        command, new_archive = self._command(), None
        for jvm in reversed(self.tools.free):
            if jvm.command == command:
                self.tools.free.remove(jvm)
                return jvm
        if self._is_shared and self.uid is None and not self._jars.archive.exists():
            new_archive = self._jars.archive.with_suffix(f".{os.getpid()}")
            command.insert(1, f"-XX:ArchiveClassesAtExit={new_archive}")
        return BrokerJvm(command, new_archive)

    @property
    def _is_shared(self) -> bool:
        """Return whether the JVM may run other brokers: figures of the bench are those of a new JVM."""
        return self.java_flags == SHORT_LIFE

    def _command(self) -> list[str]:
        flags = ("-Djava.net.preferIPv4Stack=true", *_logging(None, "info"))
        if self.uid is None:
            return self._jars.command("Brokers", *flags, life=self.java_flags, sources=BROKERS)
        lib = self.home / "lib"  # other users may not be able to read the cache
        if not lib.exists():  # at the first start: made by `format`
            classpath = self._jars.compiled(BROKERS).split(":")
            shutil.copytree(classpath[0].removesuffix("/*"), lib)
            for file in map(str, (*classpath[1:], HERE / "log4j2.xml")):
                shutil.copy(file, lib)
            for path in (self.directory, *self.directory.iterdir()):
                os.chown(path, self.uid, self.uid)
        for path in (self.home, *self.home.rglob("*")):
            os.chown(path, self.uid, self.uid)
        become = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        flags = (*flags, *_logging(None, "info", lib))
        return [*become, self._jars.java, *self.java_flags, *flags, "-cp", f"{lib}/*", "Brokers"]

    def _release(self) -> None:
        """Keep the JVM for the next broker, or end it."""
        jvm, self._jvm = self._jvm, None
        assert jvm is not None
        if self._is_shared:
            self.tools.free.append(jvm)
        else:
            jvm.close()

    def stop(self) -> None:
        """Stop cleanly: the broker closes the logs, writes the marker and releases the lock."""
        if self._jvm is not None:
            self._jvm.ask("stop", seconds=STOP_SECONDS)
            self._release()

    def kill(self) -> None:
        """Kill the process."""
        jvm, self._jvm = self._jvm, None
        if jvm is not None:
            jvm.kill()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._jvm is not None
        return self._jvm.process.pid

    def _properties(self, controller_port: int) -> dict[str, str]:
        voter = f"127.0.0.1:{controller_port}"
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{voter}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{voter}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": str(self.directory),
            "metadata.log.dir": str(self.home / "metadata"),
            "log.cleaner.enable": "false",
            "log.retention.ms": "-1",
            "auto.create.topics.enable": "false",
            # Without a controlled shutdown the metadata name the stopped broker as leader. The next start
            # waits until its session expires. Until then it leads, and once it is fenced it skips the
            # transaction markers that are due ("Couldn't find leader endpoint for partitions").
            "controlled.shutdown.enable": "true",
            "default.replication.factor": "1",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # a start after a kill waits until the session of the previous broker expires
            "broker.heartbeat.interval.ms": "200",
            "broker.session.timeout.ms": "1500",
        }
        return properties | self.settings

    def _last_words(self) -> str:
        lines = (
            self.log_text.splitlines() + (self.home / "server.out").read_text(errors="replace").splitlines()
        )
        return "\n".join(lines[-40:])


def metadata_of(directory: Path) -> Path:
    """Return the directory of the metadata of the broker of a log directory."""
    return directory.with_name(directory.name + ".kafka") / "metadata"


def adopt(directory: Path, partition: str, source: Path) -> None:
    """Replace a partition of the stopped broker of `directory` by the files of `source`.

    The partition keeps its `partition.metadata`: Kafka treats a directory without the topic's id as a stray.
    Its lines in the checkpoints and the clean-shutdown marker are removed, so the broker checks every batch.
    """
    target = directory / partition
    with (directory / ".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while a broker runs
    (directory / ".lock").unlink()
    metadata = (target / "partition.metadata").read_bytes()
    shutil.rmtree(target)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("partition.metadata"))
    (target / "partition.metadata").write_bytes(metadata)
    topic, _, number = partition.rpartition("-")
    for checkpoint in directory.glob("*-offset-checkpoint"):
        lines = checkpoint.read_text().splitlines()[2:]
        kept = [line for line in lines if line.split()[:2] != [topic, number]]
        checkpoint.write_text("".join(f"{line}\n" for line in ("0", str(len(kept)), *kept)))
    (directory / ".kafka_cleanshutdown").unlink(missing_ok=True)


def _logging(log_file: Path | None, level: str, directory: Path = HERE) -> list[str]:
    return [
        f"-Dlog4j2.configurationFile={directory / 'log4j2.xml'}",
        f"-Dlastword.log={log_file or '/dev/null'}",
        f"-Dlastword.level={level}",
    ]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports


def _to_json(record: KafkaRecord) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "timestamp": record.timestamp,
        "key": _base64(record.key),
        "value": _base64(record.value),
        "headers": [[name, _base64(value)] for name, value in record.headers],
    }


def _from_json(line: dict[str, Any], partition: str) -> KafkaRecord:
    return KafkaRecord(
        key=_unbase64(line["key"]),
        value=_unbase64(line["value"]),
        timestamp=line["timestamp"],
        headers=tuple((name, _unbase64(value)) for name, value in line["headers"]),
        partition=int(partition.rpartition("-")[2]),
        offset=line["offset"],
        timestamp_type=line["timestamp_type"],
    )


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _unbase64(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)
