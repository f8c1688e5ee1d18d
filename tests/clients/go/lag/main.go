// The lag of a group as franz-go's kadm, which kminion uses, and sarama's admin client, which kafka_exporter uses, see it.
//
// Arguments: servers=, group=, judge=kadm or sarama. It prints "STATE MEMBERS", then "TOPIC PARTITION COMMIT END LAG" for
// each partition with a commit.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"members/line"
)

func say(topic string, partition int32, commit, end, lag int64) {
	fmt.Println(topic, partition, commit, end, lag)
}

func byKadm(settings line.Settings) error {
	client, err := kadm.NewOptClient(kgo.SeedBrokers(settings.List("servers")...))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	group := settings["group"]
	described, err := client.DescribeGroups(ctx, group)
	if err != nil {
		return err
	}
	fmt.Println(described[group].State, len(described[group].Members))
	commits, err := client.FetchOffsets(ctx, group)
	if err != nil {
		return err
	}
	// As kminion: the lag from commits and ends, because kadm's own Lag asks for the description of a classic group.
	var topics []string
	for topic := range commits {
		topics = append(topics, topic)
	}
	ends, err := client.ListEndOffsets(ctx, topics...)
	if err != nil {
		return err
	}
	for _, commit := range commits.Sorted() {
		end, _ := ends.Lookup(commit.Topic, commit.Partition)
		say(commit.Topic, commit.Partition, commit.At, end.Offset, end.Offset-commit.At)
	}
	return nil
}

func bySarama(settings line.Settings) error {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	client, err := sarama.NewClient(settings.List("servers"), config)
	if err != nil {
		return err
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return err
	}
	defer admin.Close()
	group := settings["group"]
	described, err := admin.DescribeConsumerGroups([]string{group})
	if err != nil {
		return err
	}
	fmt.Println(described[0].State, len(described[0].Members))
	commits, err := admin.ListConsumerGroupOffsets(group, nil)
	if err != nil {
		return err
	}
	for topic, partitions := range commits.Blocks {
		for partition, block := range partitions {
			end, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
			if err != nil {
				return err
			}
			say(topic, partition, block.Offset, end, end-block.Offset)
		}
	}
	return nil
}

func main() {
	settings := line.Arguments()
	judges := map[string]func(line.Settings) error{"kadm": byKadm, "sarama": bySarama}
	if err := judges[settings["judge"]](settings); err != nil {
		log.Fatal(err)
	}
}
