#!/usr/bin/env bash
# A transaction of librdkafka is committed, its record is reported as delivered, and the record is not in the log.
#
# Guess: commit_transaction() returns without an error only if every record of the transaction was delivered, and a
#   delivery report without an error has the offset of the record. What happened in an aborted transaction before is past.
# Versions: confluent-kafka 2.16.1 (librdkafka 2.16.0), kafka_2.13 4.4.0 (one KRaft node), Java 17, Python 3.11. A program
#   between both closes one connection in place of the answer to one Produce request, as a broker that is killed does.
# Behaviour: the batch of the lost answer is in the log. abort_transaction() removes it from the producer's queue and keeps
#   the epoch, and the first batch of the next transaction gets the same sequence number. The broker takes it for a repeat
#   of the batch before, also after the abort marker, answers with that offset, and writes nothing. A first batch with
#   another number of records gets OUT_OF_ORDER_SEQUENCE_NUMBER in place of that, and the producer ends.
# Output seen (2026-11-30):
#   aborted: Local: Purged in queue
#   committed: delivered at offset 2
#   commit_transaction: no error
#   read_committed: first
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be fetched or the broker does not start.
set -u
work=$(mktemp -d); trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT
cat > "$work/pom.xml" <<'XML'
<project><modelVersion>4.0.0</modelVersion><groupId>f</groupId><artifactId>f</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency></dependencies></project>
XML
mvn --batch-mode --quiet -f "$work/pom.xml" dependency:copy-dependencies -DoutputDirectory="$work/jars" || exit 2
python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet --disable-pip-version-check confluent-kafka==2.16.1 || exit 2
read -r port other between <<< "$(python3 -c 'import socket; s=[socket.create_server(("127.0.0.1", 0)) for _ in "abc"]; print(*(x.getsockname()[1] for x in s))')"
cat > "$work/server.properties" <<EOF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$other
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$other
advertised.listeners=PLAINTEXT://127.0.0.1:$between
controller.listener.names=CONTROLLER
log.dirs=$work/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
EOF
java -cp "$work/jars/*" kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c "$work/server.properties" > "$work/format.out" 2>&1 || exit 2
java -Xmx512m -cp "$work/jars/*" kafka.Kafka "$work/server.properties" > "$work/broker.out" 2>&1 &
said=$("$work/venv/bin/python" - "$port" "$between" 2> "$work/clients.out" <<'PY'
import socket
import struct
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BROKER, BETWEEN = map(int, sys.argv[1:])
loses, lost = threading.Event(), threading.Event()


def forward_requests(client, broker, closes):
    stream = client.makefile("rb")
    while len(head := stream.read(4)) == 4:
        data = stream.read(*struct.unpack(">i", head))
        if loses.is_set() and data[:2] == b"\0\0":  # Produce
            loses.clear()
            closes.set()
        broker.sendall(head + data)


def forward_answers(client, broker, closes):
    while (data := broker.recv(65536)) and not closes.is_set():
        client.sendall(data)
    client.shutdown(socket.SHUT_RDWR)
    if closes.is_set():
        lost.set()


def connect():
    listener = socket.create_server(("127.0.0.1", BETWEEN))
    while True:
        client = listener.accept()[0]
        try:
            broker = socket.create_connection(("127.0.0.1", BROKER))
        except OSError:
            client.close()
            continue
        closes = threading.Event()
        for work in (forward_requests, forward_answers):
            threading.Thread(target=work, args=(client, broker, closes), daemon=True).start()


threading.Thread(target=connect, daemon=True).start()
servers = {"bootstrap.servers": f"127.0.0.1:{BETWEEN}"}
end = time.monotonic() + 60
while True:
    try:
        admin = AdminClient(servers)
        admin.create_topics([NewTopic("t", 1)])["t"].result(10)
        break
    except KafkaException as error:
        if time.monotonic() > end:
            raise SystemExit(f"the broker does not start: {error}")
        time.sleep(1)


def told(error, message):
    value = message.value().decode()
    if value != "first":
        print(f"{value}: {error.str() if error else f'delivered at offset {message.offset()}'}")


producer = Producer(
    {**servers, "transactional.id": "x", "linger.ms": 0, "retry.backoff.ms": 3000, "retry.backoff.max.ms": 3000}
)
producer.init_transactions(60)
producer.begin_transaction()
producer.produce("t", b"first", on_delivery=told)
producer.commit_transaction(30)
producer.begin_transaction()
loses.set()
producer.produce("t", b"aborted", on_delivery=told)
lost.wait(30)
producer.abort_transaction(30)
producer.begin_transaction()
producer.produce("t", b"committed", on_delivery=told)
producer.commit_transaction(30)
print("commit_transaction: no error")
consumer = Consumer({**servers, "group.id": "g", "isolation.level": "read_committed"})
consumer.assign([TopicPartition("t", 0, 0)])
found, end = [], time.monotonic() + 8
while time.monotonic() < end:
    message = consumer.poll(0.5)
    if message is not None and message.error() is None:
        found.append(message.value().decode())
print("read_committed:", *found)
PY
)
echo "$said"
[ -n "$said" ] || { cat "$work/clients.out"; exit 2; }
[ "$said" = "aborted: Local: Purged in queue
committed: delivered at offset 2
commit_transaction: no error
read_committed: first" ] || { cat "$work/clients.out"; exit 1; }
