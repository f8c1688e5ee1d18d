// A member of a consumer group with the Go client sarama. SIGTERM makes it leave the group.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/IBM/sarama"

	"members/line"
)

type handler struct{}

func (handler) Setup(session sarama.ConsumerGroupSession) error {
	line.Assigned(session.Claims())
	return nil
}

func (handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case record, open := <-claim.Messages():
			if !open {
				return nil
			}
			line.Read(record.Topic, record.Partition, record.Offset)
			session.MarkMessage(record, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

var strategies = map[string]func() sarama.BalanceStrategy{
	"range":              sarama.NewBalanceStrategyRange,
	"roundrobin":         sarama.NewBalanceStrategyRoundRobin,
	"sticky":             sarama.NewBalanceStrategySticky,
	"cooperative-sticky": sarama.NewBalanceStrategyCooperativeSticky,
}

func configuration(settings line.Settings) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.ClientID = settings["client"]
	config.Metadata.RefreshFrequency = time.Second
	config.Consumer.Return.Errors = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 200 * time.Millisecond
	config.Consumer.Group.Session.Timeout = settings.Session()
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	config.Consumer.Group.InstanceId = settings["instance"]
	var chosen []sarama.BalanceStrategy
	for _, name := range settings.List("assignor") {
		chosen = append(chosen, strategies[name]())
	}
	if chosen != nil {
		config.Consumer.Group.Rebalance.GroupStrategies = chosen
	}
	return config
}

func main() {
	settings := line.Arguments()
	member, err := sarama.NewConsumerGroup(settings.List("servers"), settings["group"], configuration(settings))
	if err != nil {
		log.Fatal("ERROR start: ", err)
	}
	go func() {
		for err := range member.Errors() {
			log.Print("ERROR ", err)
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for ctx.Err() == nil {
		if err := member.Consume(ctx, settings.List("topics"), handler{}); err != nil {
			log.Print("ERROR consume: ", err)
			time.Sleep(time.Second)
		}
	}
	if err := member.Close(); err != nil {
		log.Print("ERROR close: ", err)
	}
}
