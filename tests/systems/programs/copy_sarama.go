package main

import (
	"context"
	"os"
	"time"

	"github.com/IBM/sarama"
)

type copier struct {
	producer sarama.SyncProducer
	target   string
}

func (c copier) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (c copier) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (c copier) ConsumeClaim(s sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for m := range claim.Messages() {
		out := &sarama.ProducerMessage{Topic: c.target, Key: sarama.ByteEncoder(m.Key)}
		if m.Value != nil {
			out.Value = sarama.ByteEncoder(m.Value)
		}
		if _, _, err := c.producer.SendMessage(out); err != nil {
			return err
		}
		s.MarkMessage(m, "")
	}
	return nil
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Net.MaxOpenRequests = 1
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	brokers := []string{os.Args[1]}
	producer, err := sarama.NewSyncProducer(brokers, config)
	check(err)
	group, err := sarama.NewConsumerGroup(brokers, os.Args[4], config)
	check(err)
	for {
		check(group.Consume(context.Background(), []string{os.Args[2]}, copier{producer, os.Args[3]}))
	}
}
