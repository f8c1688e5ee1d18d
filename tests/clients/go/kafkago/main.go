// A member of a consumer group with the Go client segmentio/kafka-go. SIGTERM makes it leave the group.
//
// Its reader does not tell what it owns.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"

	"members/line"
)

var balancers = map[string]kafka.GroupBalancer{
	"range":      kafka.RangeGroupBalancer{},
	"roundrobin": kafka.RoundRobinGroupBalancer{},
}

// What kafka-go logs as errors although each member of a group sees it: a heartbeat that ends a generation.
func report(format string, values ...any) {
	level := "ERROR "
	if strings.Contains(format, "rebalance") {
		level = "INFO "
	}
	log.Printf(level+format, values...)
}

func configuration(settings line.Settings) kafka.ReaderConfig {
	config := kafka.ReaderConfig{
		Brokers:           settings.List("servers"),
		GroupID:           settings["group"],
		GroupTopics:       settings.List("topics"),
		Dialer:            &kafka.Dialer{ClientID: settings["client"], Timeout: 10 * time.Second, DualStack: true},
		StartOffset:       kafka.FirstOffset,
		SessionTimeout:    settings.Session(),
		HeartbeatInterval: 200 * time.Millisecond,
		MaxWait:           200 * time.Millisecond,
		ErrorLogger:       kafka.LoggerFunc(report),
	}
	for _, name := range settings.List("assignor") {
		config.GroupBalancers = append(config.GroupBalancers, balancers[name])
	}
	return config
}

func main() {
	reader := kafka.NewReader(configuration(line.Arguments()))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for ctx.Err() == nil {
		record, err := reader.FetchMessage(ctx)
		if err != nil {
			if ctx.Err() == nil {
				log.Print("ERROR fetch: ", err)
			}
			continue
		}
		line.Read(record.Topic, int32(record.Partition), record.Offset)
		if err := reader.CommitMessages(context.Background(), record); err != nil {
			log.Print("ERROR commit: ", err)
			continue
		}
		line.Committed(record.Topic, int32(record.Partition), record.Offset+1)
	}
	if err := reader.Close(); err != nil {
		log.Print("ERROR close: ", err)
	}
}
