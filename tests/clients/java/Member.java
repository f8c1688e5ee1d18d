import java.time.Duration;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a consumer group with Kafka's Java client, of either group protocol. SIGTERM makes it leave the group.
 *
 * <p>The same lines and arguments as in go/line/line.go.
 */
public class Member implements ConsumerRebalanceListener {
    private static final Map<String, String> ASSIGNORS = Map.of(
        "range", "RangeAssignor",
        "roundrobin", "RoundRobinAssignor",
        "sticky", "StickyAssignor",
        "cooperative-sticky", "CooperativeStickyAssignor");

    private final Map<String, String> settings = new HashMap<>();
    private final Map<TopicPartition, OffsetAndMetadata> read = new HashMap<>();
    private final TreeSet<String> owned = new TreeSet<>();
    private final KafkaConsumer<byte[], byte[]> consumer;
    private volatile boolean ends;

    public static void main(String[] arguments) throws Exception {
        new Member(arguments).run();
    }

    private Member(String[] arguments) {
        for (String each : arguments) {
            settings.put(each.substring(0, each.indexOf('=')), each.substring(each.indexOf('=') + 1));
        }
        consumer = new KafkaConsumer<>(configuration(), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    private Properties configuration() {
        Properties chosen = new Properties();
        chosen.put("bootstrap.servers", settings.get("servers"));
        chosen.put("group.id", settings.get("group"));
        chosen.put("client.id", settings.get("client"));
        chosen.put("auto.offset.reset", "earliest");
        chosen.put("enable.auto.commit", "false");
        chosen.put("metadata.max.age.ms", "1000");
        if (!settings.getOrDefault("instance", "").isEmpty()) {
            chosen.put("group.instance.id", settings.get("instance"));
        }
        String assignor = settings.getOrDefault("assignor", "");
        if (isKip848()) {
            chosen.put("group.protocol", "consumer");
            if (!assignor.isEmpty()) {
                chosen.put("group.remote.assignor", assignor);
            }
            return chosen;
        }
        chosen.put("session.timeout.ms", settings.get("session"));
        chosen.put("heartbeat.interval.ms", "200");
        if (!assignor.isEmpty()) {
            chosen.put("partition.assignment.strategy", Arrays.stream(assignor.split(","))
                .map(each -> "org.apache.kafka.clients.consumer." + ASSIGNORS.get(each))
                .collect(Collectors.joining(",")));
        }
        return chosen;
    }

    private boolean isKip848() {
        return "consumer".equals(settings.get("protocol"));
    }

    private void subscribe() {
        String pattern = settings.getOrDefault("pattern", "");
        if (pattern.isEmpty()) {
            consumer.subscribe(List.of(settings.get("topics").split(",")), this);
        } else if (isKip848()) {
            consumer.subscribe(new SubscriptionPattern(pattern), this);
        } else {
            consumer.subscribe(Pattern.compile(pattern), this);
        }
    }

    private void run() throws Exception {
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            ends = true;
            consumer.wakeup();
            try {
                main.join();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }));
        subscribe();
        while (!ends) {
            try {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    say("read " + record.topic() + " " + record.partition() + " " + record.offset() + " "
                        + System.currentTimeMillis());
                    read.put(new TopicPartition(record.topic(), record.partition()),
                        new OffsetAndMetadata(record.offset() + 1));
                }
                commit();
            } catch (WakeupException wakeup) {
                continue;
            }
        }
        commit();
        consumer.close(Duration.ofSeconds(10));
    }

    /** Keeps what could not be committed, for the next time. */
    private void commit() {
        if (read.isEmpty()) {
            return;
        }
        Map<TopicPartition, OffsetAndMetadata> offsets = Map.copyOf(read);
        try {
            consumer.commitSync(offsets);
        } catch (RebalanceInProgressException | CommitFailedException rebalance) {
            return;
        }
        read.clear();
        offsets.forEach((tp, offset) -> say("committed " + tp.topic() + " " + tp.partition() + " " + offset.offset()));
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> more) {
        more.forEach(tp -> owned.add(tp.topic() + ":" + tp.partition()));
        say("assigned " + String.join(",", owned));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> less) {
        commit();
        onPartitionsLost(less);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> less) {
        less.forEach(tp -> owned.remove(tp.topic() + ":" + tp.partition()));
        read.keySet().removeAll(less);
        say("assigned " + String.join(",", owned));
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
