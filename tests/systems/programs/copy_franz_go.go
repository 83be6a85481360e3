package main

import (
	"context"
	"os"

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
