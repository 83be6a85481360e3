#!/usr/bin/env bash
# kafka-go reads an empty value as no value: a copy of a topic has a tombstone where the topic has an empty value.
#
# Guess: Kafka's records tell an empty value from none, and kafka-go's Writer does, too: nil is a tombstone, []byte{} is
#   a value. So a program that reads with its Reader and writes with its Writer copies a topic as it is.
# Versions: segmentio/kafka-go 0.4.51, twmb/franz-go 1.22.3 (writes and reads beside it), Go 1.26, kafka_2.13 4.4.0 (one KRaft
#   node), Java 17.
# Behaviour: the Reader gives nil for a value, a key or the value of a header of length 0. Who takes nil for a deletion deletes
#   the key, and a copy in a compacted topic loses it at its next cleaning. Of a record with an empty key the copy has no
#   key, which a compacted topic refuses. Time 0 is read as Go's zero time, and the Writer puts the present time in
#   its place. Client.Fetch of the same library keeps the empty value, and so do franz-go and sarama.
# Output seen (2026-11-30):
#   topic: value = "", tombstone = nil, time = "0" at 0
#   Reader: value = nil, tombstone = nil, time = "0" at year 1
#   Client.Fetch: value = "", tombstone = nil
#   copy: value = nil, tombstone = nil, time = "0" at the present time
#   copy of a record with an empty key: Invalid Record
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be fetched or the broker does not start.
set -u
work=$(mktemp -d); trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT
cat > "$work/pom.xml" <<'XML'
<project><modelVersion>4.0.0</modelVersion><groupId>f</groupId><artifactId>f</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency></dependencies></project>
XML
mvn --batch-mode --quiet -f "$work/pom.xml" dependency:copy-dependencies -DoutputDirectory="$work/jars" || exit 2
mkdir "$work/copy"
cat > "$work/copy/main.go" <<'GO'
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	ctx, _ = context.WithTimeout(context.Background(), 2*time.Minute)
	broker = os.Args[1]
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func text(data []byte) string {
	if data == nil {
		return "nil"
	}
	return fmt.Sprintf("%q", data)
}

func show(key, value []byte, at time.Time) string {
	told := fmt.Sprintf("%s = %s", key, text(value))
	switch {
	case string(key) != "time":
		return told
	case at.IsZero():
		return told + " at year 1"
	case time.Since(at) < time.Hour:
		return told + " at the present time"
	}
	return fmt.Sprintf("%s at %d", told, at.UnixMilli())
}

// topic tells the first three records of a topic, as franz-go reads them.
func topic(name string) string {
	start := map[string]map[int32]kgo.Offset{name: {0: kgo.NewOffset().AtStart()}}
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumePartitions(start))
	check(err)
	defer client.Close()
	var told []string
	for len(told) < 3 {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if len(told) < 3 {
				told = append(told, show(r.Key, r.Value, r.Timestamp))
			}
		})
	}
	return strings.Join(told, ", ")
}

func main() {
	client := &kafka.Client{Addr: kafka.TCP(broker)}
	for tries := 0; ; tries++ { // until the broker serves
		answer, err := client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
			{Topic: "topic", NumPartitions: 1, ReplicationFactor: 1},
			{Topic: "copy", NumPartitions: 1, ReplicationFactor: 1,
				ConfigEntries: []kafka.ConfigEntry{{ConfigName: "cleanup.policy", ConfigValue: "compact"}}},
		}})
		if err == nil && answer.Errors["topic"] == nil && answer.Errors["copy"] == nil {
			break
		}
		if tries == 120 {
			check(errors.New("the broker does not start"))
		}
		time.Sleep(500 * time.Millisecond)
	}
	producer, err := kgo.NewClient(kgo.SeedBrokers(broker))
	check(err)
	check(producer.ProduceSync(ctx,
		&kgo.Record{Topic: "topic", Key: []byte("value"), Value: []byte{}},
		&kgo.Record{Topic: "topic", Key: []byte("tombstone")},
		&kgo.Record{Topic: "topic", Key: []byte("time"), Value: []byte("0"), Timestamp: time.UnixMilli(0)},
		&kgo.Record{Topic: "topic", Key: []byte{}, Value: []byte("of an empty key")},
	).FirstErr())
	fmt.Println("topic:", topic("topic"))

	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{broker}, Topic: "topic", MaxBytes: 1e6})
	writer := &kafka.Writer{Addr: kafka.TCP(broker), Topic: "copy", BatchSize: 1, RequiredAcks: kafka.RequireAll}
	var told []string
	for range 3 {
		m, err := reader.ReadMessage(ctx)
		check(err)
		told = append(told, show(m.Key, m.Value, m.Time))
		check(writer.WriteMessages(ctx, kafka.Message{Key: m.Key, Value: m.Value, Headers: m.Headers, Time: m.Time}))
	}
	fmt.Println("Reader:", strings.Join(told, ", "))

	fetched, err := client.Fetch(ctx, &kafka.FetchRequest{Topic: "topic", MinBytes: 1, MaxBytes: 1e6, MaxWait: time.Second})
	check(err)
	told = nil
	for range 2 {
		record, err := fetched.Records.ReadRecord()
		check(err)
		key, err := kafka.ReadAll(record.Key)
		check(err)
		value, err := kafka.ReadAll(record.Value)
		check(err)
		told = append(told, show(key, value, record.Time))
	}
	fmt.Println("Client.Fetch:", strings.Join(told, ", "))
	fmt.Println("copy:", topic("copy"))

	m, err := reader.ReadMessage(ctx)
	check(err)
	err = writer.WriteMessages(ctx, kafka.Message{Key: m.Key, Value: m.Value})
	var refused kafka.WriteErrors
	var code kafka.Error
	if errors.As(err, &refused) {
		err = refused[0]
	}
	if !errors.As(err, &code) {
		check(fmt.Errorf("written, or another error: %v", err))
	}
	fmt.Println("copy of a record with an empty key:", code.Title())
}
GO
(cd "$work/copy" && go mod init copy && go get github.com/segmentio/kafka-go@v0.4.51 github.com/twmb/franz-go@v1.22.3 \
  && go mod tidy && go build -o copy .) > "$work/go.out" 2>&1 || { cat "$work/go.out"; exit 2; }
read -r port other <<< "$(python3 -c 'import socket; s=[socket.create_server(("127.0.0.1", 0)) for _ in "ab"]; print(*(x.getsockname()[1] for x in s))')"
cat > "$work/server.properties" <<EOP
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$other
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$other
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
log.dirs=$work/data
log.cleaner.enable=false
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
EOP
java -cp "$work/jars/*" kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c "$work/server.properties" > "$work/format.out" 2>&1 || exit 2
java -Xmx512m -cp "$work/jars/*" kafka.Kafka "$work/server.properties" > "$work/broker.out" 2>&1 &
said=$("$work/copy/copy" "127.0.0.1:$port" 2> "$work/copy.out") || { cat "$work/copy.out"; exit 2; }
echo "$said"
[ "$said" = 'topic: value = "", tombstone = nil, time = "0" at 0
Reader: value = nil, tombstone = nil, time = "0" at year 1
Client.Fetch: value = "", tombstone = nil
copy: value = nil, tombstone = nil, time = "0" at the present time
copy of a record with an empty key: Invalid Record' ] || exit 1
