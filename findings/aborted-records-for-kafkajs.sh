#!/usr/bin/env bash
# A committed reader of kafkajs gets records of aborted transactions: after one with the key 0, and if two overlap.
#
# Guess: kafkajs reads committed records by default (readUncommitted: false). A record of an aborted transaction never reaches
#   eachMessage, whatever its key is, and whatever other producers do in the partition.
# Versions: kafkajs 2.2.4, kafka_2.13 4.4.0 (one KRaft node), confluent-kafka 2.16.1 (writes, and reads beside it), Java 17,
#   Node.js 20, Python 3.11.
# Behaviour: kafkajs takes a record whose key is four zero bytes for the marker of an abort, as only a control batch has it.
#   This is the key 0 of Kafka's IntegerSerializer. From this record on, also with it, all records of the aborted
#   transaction are delivered. Second, it goes through the list of aborted transactions in the order of the answer, as if
#   the first offsets rose. The broker has them in the order in which they ended: of a transaction that began before another one
#   and ended after it, the records before the first of the other are delivered. librdkafka has neither.
# Output seen (2026-11-30):
#   keys 1, 0, 2, aborted: librdkafka: end; kafkajs: 0, 2, end
#   a1 b1 a2, b aborted, a aborted: librdkafka: end; kafkajs: a1, end
#   a1 b1 a2, a aborted, b aborted: librdkafka: end; kafkajs: end
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
npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$work" kafkajs@2.2.4 > /dev/null || exit 2
read -r port other <<< "$(python3 -c 'import socket; s=[socket.create_server(("127.0.0.1", 0)) for _ in "ab"]; print(*(x.getsockname()[1] for x in s))')"
cat > "$work/server.properties" <<EOF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$other
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$other
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
log.dirs=$work/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
EOF
java -cp "$work/jars/*" kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c "$work/server.properties" > "$work/format.out" 2>&1 || exit 2
java -Xmx512m -cp "$work/jars/*" kafka.Kafka "$work/server.properties" > "$work/broker.out" 2>&1 &
cat > "$work/read.js" <<'JS'
const { Kafka, logLevel } = require("kafkajs");
const [port, topic] = process.argv.slice(2);

async function main() {
  const kafka = new Kafka({ brokers: [`127.0.0.1:${port}`], logLevel: logLevel.NOTHING });
  const consumer = kafka.consumer({ groupId: topic });
  const values = [];
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ message }) => {
      values.push(message.value.toString());
      if (values.at(-1) === "end") {
        console.log(values.join(", "));
        process.exit();
      }
    },
  });
}
setTimeout(() => process.exit(1), 60000);
main();
JS
said=$("$work/venv/bin/python" - "$port" "$work" 2> "$work/clients.out" <<'PY'
import socket
import subprocess
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PORT, WORK = sys.argv[1:]
SERVERS = {"bootstrap.servers": f"127.0.0.1:{PORT}"}
end = time.monotonic() + 120
while True:
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
        break
    except OSError as error:
        if time.monotonic() > end:
            raise SystemExit(f"the broker does not start: {error}")
        time.sleep(0.5)
admin = AdminClient(SERVERS)
for created in admin.create_topics([NewTopic(name, 1) for name in ("keys", "ended-first", "ended-last")]).values():
    created.result(60)


def begun(name):
    producer = Producer({**SERVERS, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    return producer


def send(producer, topic, value, key=None):
    producer.produce(topic, value, key)
    producer.flush(30)


def read(topic):
    """Write one more record without a transaction, and return what both clients read up to it."""
    send(Producer(SERVERS), topic, "end")
    consumer = Consumer({**SERVERS, "group.id": "g", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    while "end" not in values:
        (message,) = consumer.consume(1, 30)
        values.append(message.value().decode())
    consumer.close()
    other = subprocess.run(["node", f"{WORK}/read.js", PORT, topic], capture_output=True, text=True)
    return f"librdkafka: {', '.join(values)}; kafkajs: {other.stdout.strip()}"


producer = begun("keys")
for number in (1, 0, 2):
    send(producer, "keys", str(number), number.to_bytes(4, "big"))
producer.abort_transaction(30)
print("keys 1, 0, 2, aborted:", read("keys"))
for topic, order in ("ended-first", "ba"), ("ended-last", "ab"):
    producers = {name: begun(topic + name) for name in "ab"}
    for value in ("a1", "b1", "a2"):
        send(producers[value[0]], topic, value)
    for name in order:
        producers[name].abort_transaction(30)
    print(f"a1 b1 a2, {order[0]} aborted, {order[1]} aborted:", read(topic))
PY
)
echo "$said"
[ -n "$said" ] || { cat "$work/clients.out"; exit 2; }
[ "$said" = "keys 1, 0, 2, aborted: librdkafka: end; kafkajs: 0, 2, end
a1 b1 a2, b aborted, a aborted: librdkafka: end; kafkajs: a1, end
a1 b1 a2, a aborted, b aborted: librdkafka: end; kafkajs: end" ] || { cat "$work/clients.out"; exit 1; }
