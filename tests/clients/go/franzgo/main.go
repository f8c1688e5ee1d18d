// A member of a consumer group with the Go client franz-go. SIGTERM makes it leave the group.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"members/line"
)

var balancers = map[string]kgo.GroupBalancer{
	"range":              kgo.RangeBalancer(),
	"roundrobin":         kgo.RoundRobinBalancer(),
	"sticky":             kgo.StickyBalancer(),
	"cooperative-sticky": kgo.CooperativeStickyBalancer(),
	"uniform":            kgo.StickyBalancer(),
}

// What the member owns now. franz-go calls its functions one after the other.
type owned map[string]map[int32]bool

func (o owned) tell() {
	partitions := map[string][]int32{}
	for topic, numbers := range o {
		for number := range numbers {
			partitions[topic] = append(partitions[topic], number)
		}
	}
	line.Assigned(partitions)
}

func (o owned) add(partitions map[string][]int32) {
	for topic, numbers := range partitions {
		for _, number := range numbers {
			if o[topic] == nil {
				o[topic] = map[int32]bool{}
			}
			o[topic][number] = true
		}
	}
	o.tell()
}

func (o owned) remove(partitions map[string][]int32) {
	for topic, numbers := range partitions {
		for _, number := range numbers {
			delete(o[topic], number)
		}
	}
	o.tell()
}

func commit(ctx context.Context, client *kgo.Client) {
	client.CommitOffsetsSync(ctx, client.UncommittedOffsets(), confirmed)
}

func confirmed(_ *kgo.Client, request *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error) {
	if err != nil {
		log.Printf("WARN commit: %v", err)
		return
	}
	for number, topic := range response.Topics {
		for at, partition := range topic.Partitions {
			if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
				log.Printf("WARN commit of %s-%d: %v", topic.Topic, partition.Partition, err)
				continue
			}
			line.Committed(topic.Topic, partition.Partition, request.Topics[number].Partitions[at].Offset)
		}
	}
}

func options(settings line.Settings) []kgo.Opt {
	has := owned{}
	chosen := []kgo.Opt{
		kgo.SeedBrokers(settings.List("servers")...),
		kgo.ClientID(settings["client"]),
		kgo.ConsumerGroup(settings["group"]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(settings.Session()),
		kgo.HeartbeatInterval(200 * time.Millisecond),
		kgo.MetadataMaxAge(time.Second),
		kgo.MetadataMinAge(100 * time.Millisecond),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, more map[string][]int32) { has.add(more) }),
		kgo.OnPartitionsRevoked(func(ctx context.Context, client *kgo.Client, less map[string][]int32) {
			commit(ctx, client)
			has.remove(less)
		}),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, less map[string][]int32) { has.remove(less) }),
	}
	if settings["pattern"] != "" {
		chosen = append(chosen, kgo.ConsumeRegex(), kgo.ConsumeTopics("^"+settings["pattern"]+"$"))
	} else {
		chosen = append(chosen, kgo.ConsumeTopics(settings.List("topics")...))
	}
	if settings["instance"] != "" {
		chosen = append(chosen, kgo.InstanceID(settings["instance"]))
	}
	if settings["protocol"] == "consumer" {
		chosen = append(chosen, kgo.ServerSideBalancer())
	}
	var chosenBalancers []kgo.GroupBalancer
	for _, name := range settings.List("assignor") {
		chosenBalancers = append(chosenBalancers, balancers[name])
	}
	if chosenBalancers != nil {
		chosen = append(chosen, kgo.Balancers(chosenBalancers...))
	}
	return chosen
}

func main() {
	client, err := kgo.NewClient(options(line.Arguments())...)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	for ctx.Err() == nil {
		polled, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		fetches := client.PollFetches(polled)
		cancel()
		fetches.EachRecord(func(record *kgo.Record) { line.Read(record.Topic, record.Partition, record.Offset) })
		if fetches.NumRecords() > 0 {
			commit(context.Background(), client)
		}
		client.AllowRebalance()
	}
	commit(context.Background(), client)
	client.CloseAllowingRebalance()
}
