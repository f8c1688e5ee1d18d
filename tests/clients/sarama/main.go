// A member of a consumer group with the Go client sarama, for the tests of groups with several clients.
//
// It prints "partition offset" of each record, and commits what it has printed. SIGTERM makes it leave the group.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/IBM/sarama"
)

type handler struct{}

func (handler) Setup(session sarama.ConsumerGroupSession) error {
	log.Printf("generation %d owns %v", session.GenerationID(), session.Claims())
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
			fmt.Println(record.Partition, record.Offset)
			session.MarkMessage(record, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

func strategy(name string) sarama.BalanceStrategy {
	switch name {
	case "range":
		return sarama.NewBalanceStrategyRange()
	case "roundrobin":
		return sarama.NewBalanceStrategyRoundRobin()
	case "sticky":
		return sarama.NewBalanceStrategySticky()
	}
	log.Fatalf("unknown assignor %q", name)
	return nil
}

func main() {
	servers := flag.String("servers", "", "bootstrap servers, separated by commas")
	group := flag.String("group", "", "group id")
	topic := flag.String("topic", "", "topic")
	assignor := flag.String("assignor", "sticky", "range, roundrobin or sticky")
	flag.Parse()

	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.ClientID = "sarama"
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 200 * time.Millisecond
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 200 * time.Millisecond
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy(*assignor)}

	member, err := sarama.NewConsumerGroup(strings.Split(*servers, ","), *group, config)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for ctx.Err() == nil {
		if err := member.Consume(ctx, []string{*topic}, handler{}); err != nil {
			log.Print("consume: ", err)
			time.Sleep(time.Second)
		}
	}
	if err := member.Close(); err != nil {
		log.Print("close: ", err)
	}
}
