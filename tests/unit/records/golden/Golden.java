import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.*;

/** Writes the records that capture.py keeps, and prints what Java's consumer reads of them, one JSON object a line. */
public class Golden {
    static final long FIRST = 1700000000000L;

    static byte[] bytes(String text) { return text == null ? null : text.getBytes(StandardCharsets.UTF_8); }

    static KafkaProducer<byte[], byte[]> producer(String servers, String codec, String transactionalId) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", servers);
        config.put("compression.type", codec);
        config.put("linger.ms", 500);
        if (transactionalId != null) config.put("transactional.id", transactionalId);
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static void send(KafkaProducer<byte[], byte[]> to, String topic, long time, byte[] key, byte[] value, Object... headers) {
        RecordHeaders found = new RecordHeaders();
        for (int i = 0; i < headers.length; i += 2) found.add((String) headers[i], (byte[]) headers[i + 1]);
        to.send(new ProducerRecord<>(topic, 0, time, key, value, found));
    }

    static void plain(String servers, String topic, String codec) {
        try (var to = producer(servers, codec, null)) {
            send(to, topic, FIRST, bytes("key"), bytes("value"));
            send(to, topic, FIRST + 1, null, bytes("no key"));
            send(to, topic, FIRST + 2, new byte[0], new byte[0]);
            send(to, topic, FIRST + 3, bytes("tombstone"), null);
            send(to, topic, FIRST + 200000, null, null);
            to.flush();
            send(to, topic, FIRST - 5, bytes("a"), bytes("headers"), "one", bytes("1"), "two", null, "one", bytes("again"));
            send(to, topic, FIRST, bytes("b"), bytes("header forms"), "", new byte[0], "größe €", bytes("ü"));
            to.flush();
            for (int i = 0; i < 70; i++) send(to, topic, FIRST + i, bytes("k" + i), bytes("v".repeat(i)));
            send(to, topic, FIRST, bytes("large"), bytes("0123456789".repeat(900)));
            to.flush();
        }
    }

    static void transactions(String servers, String topic) {
        try (var one = producer(servers, "none", "one-" + topic); var two = producer(servers, "lz4", "two-" + topic);
             var none = producer(servers, "none", null)) {
            one.initTransactions();
            two.initTransactions();
            one.beginTransaction();
            two.beginTransaction();
            send(one, topic, FIRST, bytes("one"), bytes("aborted 0"));
            one.flush();
            send(two, topic, FIRST, bytes("two"), bytes("committed 1"));
            two.flush();
            send(none, topic, FIRST, bytes("none"), bytes("plain 2"));
            none.flush();
            send(one, topic, FIRST, bytes("one"), bytes("aborted 3"));
            one.flush();  // an abort drops what was not sent yet
            one.abortTransaction();
            send(two, topic, FIRST, bytes("two"), bytes("committed 5"));
            two.commitTransaction();
            one.beginTransaction();
            send(one, topic, FIRST, bytes("one"), bytes("committed 7"));
            one.commitTransaction();
            two.beginTransaction();
            send(two, topic, FIRST, bytes("two"), bytes("aborted 9"));
            two.flush();  // an abort drops what was not sent yet
            two.abortTransaction();
            send(none, topic, FIRST, bytes("none"), bytes("plain 11"));
            none.flush();
            one.beginTransaction();
            send(one, topic, FIRST, bytes("one"), bytes("aborted 12"));
            one.flush();  // an abort drops what was not sent yet
            one.abortTransaction();
        }
    }

    static void compacted(String servers, String topic) {
        try (var to = producer(servers, "none", null)) {
            for (int round = 0; round < 4; round++) {
                for (int i = 0; i < 6; i++)
                    send(to, topic, FIRST + round * 1000 + i, bytes("k" + i % (round + 2)), i == 1 ? null : bytes(round + "/" + i));
                if (round == 2) send(to, topic, FIRST + round * 1000, bytes("gone"), null);
                to.flush();
            }
        }
    }

    static String hex(byte[] found) { return found == null ? "null" : '"' + HexFormat.of().formatHex(found) + '"'; }

    static void consume(String servers, String topic, long end, String isolation) {
        Map<String, Object> config = Map.of("bootstrap.servers", servers, "isolation.level", isolation);
        TopicPartition tp = new TopicPartition(topic, 0);
        try (var from = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            from.assign(List.of(tp));
            from.seekToBeginning(List.of(tp));
            while (from.position(tp) < end)
                for (var record : from.poll(Duration.ofMillis(100))) {
                    List<String> headers = new ArrayList<>();
                    for (Header each : record.headers())
                        headers.add("[" + hex(bytes(each.key())) + ", " + hex(each.value()) + "]");
                    System.out.println("{\"offset\": " + record.offset() + ", \"timestamp\": " + record.timestamp()
                        + ", \"timestampType\": " + record.timestampType().id + ", \"key\": " + hex(record.key())
                        + ", \"value\": " + hex(record.value()) + ", \"headers\": " + headers + "}");
                }
        }
    }

    public static void main(String[] args) {
        switch (args[0]) {
            case "plain" -> plain(args[1], args[2], args[3]);
            case "transactions" -> transactions(args[1], args[2]);
            case "compacted" -> compacted(args[1], args[2]);
            case "consume" -> consume(args[1], args[2], Long.parseLong(args[3]), args[4]);
            default -> throw new IllegalArgumentException(args[0]);
        }
    }
}
