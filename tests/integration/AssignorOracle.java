import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.*;

/** Reads cases as lines of JSON and answers each with what the assignors of Kafka's own client assign. */
public class AssignorOracle {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        ExecutorService worker = Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task);
            thread.setDaemon(true);
            return thread;
        });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode given = JSON.readTree(line);
            Object answer;
            try {
                answer = worker.submit(() -> answer(given)).get(5, TimeUnit.SECONDS);
            } catch (ExecutionException | TimeoutException error) {
                answer = Map.of("error", String.valueOf(error.getCause() == null ? error : error.getCause()));
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
    }

    static Map<String, Map<String, Set<Integer>>> answer(JsonNode given) {
        Map<String, Subscription> members = new HashMap<>();
        for (JsonNode each : given.get("members")) {
            byte[] told = HexFormat.of().parseHex(each.get("subscription").asText());
            Subscription subscription = ConsumerProtocol.deserializeSubscription(ByteBuffer.wrap(told));
            subscription.setGroupInstanceId(Optional.ofNullable(text(each.get("instance_id"))));
            members.put(each.get("id").asText(), subscription);
        }
        GroupAssignment assigned = assignor(given.get("assignor").asText())
            .assign(cluster(given.get("topics")), new GroupSubscription(members));
        Map<String, Map<String, Set<Integer>>> answer = new TreeMap<>();
        assigned.groupAssignment().forEach((member, share) -> {
            Map<String, Set<Integer>> topics = answer.computeIfAbsent(member, each -> new TreeMap<>());
            for (TopicPartition partition : share.partitions())
                if (!topics.computeIfAbsent(partition.topic(), each -> new TreeSet<>()).add(partition.partition()))
                    throw new IllegalStateException("twice: " + partition);
        });
        return answer;
    }

    static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            default -> new CooperativeStickyAssignor();
        };
    }

    /** Topics are lists of partitions, which are lists of their replicas' racks. */
    static Cluster cluster(JsonNode topics) {
        Map<String, Node> nodes = new LinkedHashMap<>();
        List<PartitionInfo> partitions = new ArrayList<>();
        topics.properties().forEach(topic -> {
            int number = 0;
            for (JsonNode racks : topic.getValue()) {
                List<Node> replicas = new ArrayList<>();
                for (JsonNode rack : racks)
                    replicas.add(nodes.computeIfAbsent(String.valueOf(text(rack)), name -> new Node(nodes.size(), "host", 1, text(rack))));
                Node[] all = replicas.toArray(new Node[0]);
                partitions.add(new PartitionInfo(topic.getKey(), number++, null, all, all));
            }
        });
        return new Cluster("cluster", nodes.values(), partitions, Set.of(), Set.of());
    }

    static String text(JsonNode node) {
        return node == null || node.isNull() ? null : node.asText();
    }
}
