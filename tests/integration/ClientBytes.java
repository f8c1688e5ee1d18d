import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.*;
import org.apache.kafka.common.message.*;
import org.apache.kafka.common.message.JoinGroupRequestData.*;
import org.apache.kafka.common.message.LeaveGroupRequestData.*;
import org.apache.kafka.common.message.OffsetFetchRequestData.*;
import org.apache.kafka.common.protocol.*;

/** Prints what Kafka's own client writes as a member of a group, by name, in hex: tests/java_bytes.json. */
public class ClientBytes {
    static final Map<String, String> FOUND = new LinkedHashMap<>();
    static final Cluster CLUSTER = cluster();

    public static void main(String[] arguments) throws Exception {
        for (ConsumerPartitionAssignor assignor : List.of(new RangeAssignor(), new RoundRobinAssignor(), new StickyAssignor(), new CooperativeStickyAssignor())) {
            String name = assignor.name();
            Subscription first = subscription(assignor, List.of(), -1, Optional.empty());
            put(name + ": first subscription", ConsumerProtocol.serializeSubscription(first));
            put(name + ": with a rack", ConsumerProtocol.serializeSubscription(subscription(assignor, List.of(), -1, Optional.of("a"))));
            Assignment mine = assignor.assign(CLUSTER, new GroupSubscription(Map.of("m", first))).groupAssignment().get("m");
            put(name + ": assignment", ConsumerProtocol.serializeAssignment(mine, (short) 0));
            assignor.onAssignment(mine, new ConsumerGroupMetadata("g", 5, "m", Optional.empty()));
            List<TopicPartition> kept = name.startsWith("cooperative") ? mine.partitions() : List.of();
            put(name + ": next subscription", ConsumerProtocol.serializeSubscription(subscription(assignor, kept, 5, Optional.empty())));
        }
        put("no assignment", ConsumerProtocol.serializeAssignment(new Assignment(List.of()), (short) 0));
        for (String instance : new String[] {null, "i"}) {
            String member = instance == null ? "" : " of a static member";
            put("JoinGroup" + member, join(instance), 9);
            put("SyncGroup" + member, new SyncGroupRequestData().setGroupId("g").setMemberId("m").setProtocolType("consumer")
                .setProtocolName("range").setGroupInstanceId(instance).setGenerationId(5).setAssignments(List.of()), 5);
            put("Heartbeat" + member, new HeartbeatRequestData().setGroupId("g").setMemberId("m").setGroupInstanceId(instance).setGenerationId(5), 4);
            put("LeaveGroup" + member, new LeaveGroupRequestData().setGroupId("g").setMembers(List.of(
                new MemberIdentity().setMemberId("m").setGroupInstanceId(instance).setReason("the query ends"))), 5);
            put("OffsetCommit" + member, commit(instance), 8);
            ConsumerGroupHeartbeatRequestData beat = new ConsumerGroupHeartbeatRequestData().setGroupId("g").setMemberId("m").setInstanceId(instance);
            put("ConsumerGroupHeartbeat that joins" + member, beat.duplicate().setMemberEpoch(0).setRebalanceTimeoutMs(300000)
                .setSubscribedTopicNames(List.of("t")).setTopicPartitions(List.of()), 1);
            put("ConsumerGroupHeartbeat" + member, beat.duplicate().setMemberEpoch(5), 1);
            put("ConsumerGroupHeartbeat that leaves" + member, beat.duplicate().setMemberEpoch(instance == null ? -1 : -2), 1);
        }
        List<OffsetFetchRequestTopics> topics = List.of(new OffsetFetchRequestTopics().setName("t").setPartitionIndexes(List.of(0)));
        put("OffsetFetch", fetch(new OffsetFetchRequestGroup().setGroupId("g").setTopics(topics)), 8);
        put("OffsetFetch of a KIP-848 member", fetch(new OffsetFetchRequestGroup().setGroupId("g").setMemberId("m").setMemberEpoch(5).setTopics(topics)), 9);
        System.out.println(new ObjectMapper().writerWithDefaultPrettyPrinter().writeValueAsString(FOUND));
    }

    static Subscription subscription(ConsumerPartitionAssignor assignor, List<TopicPartition> owned, int generation, Optional<String> rack) {
        return new Subscription(List.of("t"), assignor.subscriptionUserData(Set.of("t")), owned, generation, rack);
    }

    /** As AbstractCoordinator.sendJoinGroupRequest builds it. */
    static JoinGroupRequestData join(String instance) {
        JoinGroupRequestProtocol range = new JoinGroupRequestProtocol().setName("range").setMetadata(new byte[] {1, 2});
        return new JoinGroupRequestData().setGroupId("g").setSessionTimeoutMs(45000).setMemberId("m").setGroupInstanceId(instance)
            .setProtocolType("consumer").setProtocols(new JoinGroupRequestProtocolCollection(List.of(range).iterator()))
            .setRebalanceTimeoutMs(300000).setReason("the query starts");
    }

    static OffsetCommitRequestData commit(String instance) {
        OffsetCommitRequestData.OffsetCommitRequestPartition partition = new OffsetCommitRequestData.OffsetCommitRequestPartition()
            .setPartitionIndex(0).setCommittedOffset(7).setCommittedLeaderEpoch(3).setCommittedMetadata(new OffsetAndMetadata(7, null).metadata());
        OffsetCommitRequestData.OffsetCommitRequestTopic topic = new OffsetCommitRequestData.OffsetCommitRequestTopic()
            .setName("t").setPartitions(List.of(partition));
        return new OffsetCommitRequestData().setGroupId("g").setGenerationIdOrMemberEpoch(5).setMemberId("m")
            .setGroupInstanceId(instance).setTopics(List.of(topic));
    }

    static OffsetFetchRequestData fetch(OffsetFetchRequestGroup group) {
        return new OffsetFetchRequestData().setGroups(List.of(group)).setRequireStable(true);
    }

    static Cluster cluster() {
        Node node = new Node(1, "host", 1);
        Node[] all = {node};
        return new Cluster("cluster", List.of(node), List.of(new PartitionInfo("t", 0, node, all, all), new PartitionInfo("t", 1, node, all, all)), Set.of(), Set.of());
    }

    static void put(String name, ApiMessage message, int version) {
        put(name, MessageUtil.toByteBufferAccessor(message, (short) version).buffer());
    }

    static void put(String name, ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        FOUND.put(name, HexFormat.of().formatHex(bytes));
    }
}
