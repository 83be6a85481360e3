#!/usr/bin/env bash
# A consumer asks a compacted topic for the first record from time 0 on, and the broker says that there is none.
#
# Guess: offsets_for_times with time 0 returns the first record that the topic has, before and after a cleaning, and the
#   offset of the largest timestamp is that of the record which has it. Minus one means that no record is as new.
# Versions: kafka_2.13 4.4.0 (one KRaft node), confluent-kafka 2.16.1, Java 17, Python 3.11. The topic has cleanup.policy
#   compact and segments of 1 MiB. The record that is superseded was sent by an idempotent producer, the default of Java's.
# Behaviour: the cleaner keeps the last batch of such a producer without its records, and with its largest timestamp. A
#   lookup by time takes the first segment whose largest timestamp is not older, and looks into this one alone. If
#   every record of the segment was superseded, it finds none and answers -1, which clients take for the end of the
#   topic, although all records are in later segments. If that timestamp is the largest of the log, the lookup of
#   the largest timestamp answers -1, too.
# Output seen (2026-11-30):
#   before: time 0: offset 0; the largest time: offset 0; a consumer reads [0, 1, 2, 3]
#   after: time 0: offset -1; the largest time: offset -1; a consumer reads [1, 2, 3]
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be fetched or the broker does not start.
set -u
work=$(mktemp -d); trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT
cat > "$work/pom.xml" <<'XML'
<project><modelVersion>4.0.0</modelVersion><groupId>f</groupId><artifactId>f</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency></dependencies></project>
XML
mvn --batch-mode --quiet -f "$work/pom.xml" dependency:copy-dependencies -DoutputDirectory="$work/jars" || exit 2
python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet confluent-kafka==2.16.1 || exit 2
read -r port other <<< "$(python3 -c 'import socket; s=[socket.create_server(("127.0.0.1", 0)) for _ in "ab"]; print(*(x.getsockname()[1] for x in s))')"
cat > "$work/server.properties" <<EOF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$other
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$other
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
log.dirs=$work/data
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.cleaner.backoff.ms=200
log.cleaner.dedupe.buffer.size=4194304
EOF
java -cp "$work/jars/*" kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c "$work/server.properties" > "$work/format.out" 2>&1 || exit 2
java -Xmx512m -cp "$work/jars/*" kafka.Kafka "$work/server.properties" > "$work/broker.out" 2>&1 &
said=$("$work/venv/bin/python" - "$port" 2> /dev/null <<'PY'
import socket, sys, time
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, OffsetSpec

address = {"bootstrap.servers": f"127.0.0.1:{sys.argv[1]}"}
for _ in range(240):
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
        break
    except OSError:
        time.sleep(0.5)
else:
    sys.exit(2)
admin = AdminClient(address)
config = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.001"}
config["min.compaction.lag.ms"] = "3600000"  # until the lookups before the cleaning are made
admin.create_topics([NewTopic("t", 1, 1, config=config)])["t"].result(60)
start = int(time.time() * 1000) - 100_000
large = b"x" * 700_000  # two of them do not fit into one segment

def send(idempotent, *records):
    producer = Producer({**address, "enable.idempotence": idempotent})
    for key, value, after in records:
        producer.produce("t", value, key, timestamp=start + after)
    if producer.flush(60):
        sys.exit(2)
    return producer  # which stays open: its batch is kept

# Each large record begins a segment: k | a, k | b.
producers = send(True, (b"k", large, 9000)), send(False, (b"a", large, 6000), (b"k", b"new", 6100), (b"b", large, 7000))
consumer = Consumer({**address, "group.id": "none", "enable.partition.eof": True})

def read():
    consumer.assign([TopicPartition("t", 0, 0)])
    offsets = []
    while (message := consumer.poll(60)) is not None and not message.error():
        offsets.append(message.offset())
    return offsets

def show(when):
    (at_zero,) = consumer.offsets_for_times([TopicPartition("t", 0, 0)], 60)
    (largest,) = admin.list_offsets({TopicPartition("t", 0): OffsetSpec.max_timestamp()}).values()
    print(f"{when}: time 0: offset {at_zero.offset}; the largest time: offset {largest.result(60).offset}; a consumer reads {read()}")

show("before")
now = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
topic = ConfigResource("topic", "t", incremental_configs=[now])
admin.incremental_alter_configs([topic])[topic].result(60)
for _ in range(120):
    if 0 not in read():
        break
    time.sleep(0.5)
show("after")
PY
) || exit 2
echo "$said"
[ "$said" = "before: time 0: offset 0; the largest time: offset 0; a consumer reads [0, 1, 2, 3]
after: time 0: offset -1; the largest time: offset -1; a consumer reads [1, 2, 3]" ] || exit 1
