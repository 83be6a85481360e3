package main

import (
	"context"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	ctx := context.Background()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]), kgo.ConsumeTopics(os.Args[2]), kgo.ConsumerGroup(os.Args[4]),
		kgo.DefaultProduceTopic(os.Args[3]), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
		kgo.SessionTimeout(6*time.Second), kgo.RebalanceTimeout(6*time.Second), kgo.HeartbeatInterval(500*time.Millisecond),
	)
	check(err)
	for {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		for _, r := range fetches.Records() {
			check(client.ProduceSync(ctx, &kgo.Record{Key: r.Key, Value: r.Value}).FirstErr())
		}
		check(client.CommitUncommittedOffsets(ctx))
	}
}
