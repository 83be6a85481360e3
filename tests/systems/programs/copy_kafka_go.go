package main

import (
	"context"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx := context.Background()
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{os.Args[1]}, Topic: os.Args[2], GroupID: os.Args[4], StartOffset: kafka.FirstOffset,
		SessionTimeout: 6 * time.Second, RebalanceTimeout: 6 * time.Second, HeartbeatInterval: 500 * time.Millisecond,
		MaxWait: 100 * time.Millisecond,
	})
	writer := &kafka.Writer{
		Addr: kafka.TCP(os.Args[1]), Topic: os.Args[3], Balancer: &kafka.Murmur2Balancer{}, BatchSize: 1,
		RequiredAcks: kafka.RequireAll,
	}
	for {
		m, err := reader.FetchMessage(ctx)
		check(err)
		check(writer.WriteMessages(ctx, kafka.Message{Key: m.Key, Value: m.Value}))
		check(reader.CommitMessages(ctx, m))
	}
}
