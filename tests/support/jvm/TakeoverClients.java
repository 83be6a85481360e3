import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Java's clients of tests/server/takeovers.py: an idempotent producer, a member of a group, and a copier.
 *
 * <p>Arguments: addresses, number of partitions, seed, and the roles. Each line on stdout is a list of JSON: the role,
 * and what the client has done. A line on stdin ends the producer, the end of stdin all of them.
 */
public class TakeoverClients {
    static final String KIND = "java", TOPIC = "events";
    static volatile boolean producing = true, running = true;
    static String addresses;
    static int partitions;

    public static void main(String[] arguments) throws Exception {
        addresses = arguments[0];
        partitions = Integer.parseInt(arguments[1]);
        Random random = new Random(Long.parseLong(arguments[2]));
        List<Thread> threads = new ArrayList<>();
        for (String role : arguments[3].split(",")) {
            long seed = random.nextLong();
            threads.add(start(role, switch (role) {
                case "producer" -> life -> produce(life);
                case "reader" -> life -> read();
                case "copier" -> life -> copy(life, new Random(seed + life));
                default -> throw new IllegalArgumentException(role);
            }));
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        in.readLine();
        producing = false;
        while (in.readLine() != null) continue;
        running = false;
        for (Thread thread : threads) thread.join(30_000);
        Runtime.getRuntime().halt(0); // a producer without a server never closes
    }

    interface Life {
        void run(int life) throws Exception;
    }

    /** Runs a client until it ends; after an error that its program cannot repair, a new one. */
    static Thread start(String role, Life client) {
        Thread thread = new Thread(() -> {
            for (int life = 0; ; life++) {
                try {
                    client.run(life);
                    note(role, "ended");
                    return;
                } catch (Throwable problem) {
                    note(role, "failed", problem.toString());
                    if (!running) return;
                }
            }
        });
        thread.start();
        return thread;
    }

    static synchronized void note(Object... words) {
        ArrayNode line = Tools.JSON.createArrayNode();
        for (Object word : words)
            if (word instanceof Long number) line.add(number);
            else if (word instanceof Integer number) line.add(number);
            else line.add((String) word);
        System.out.println(line);
        System.out.flush();
    }

    static Properties settings(String... more) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", addresses);
        settings.put("reconnect.backoff.ms", "10");
        settings.put("reconnect.backoff.max.ms", "100");
        settings.put("retry.backoff.ms", "20");
        settings.put("retry.backoff.max.ms", "200");
        settings.put("request.timeout.ms", "1500"); // a server that is stopped keeps its connections
        for (int i = 0; i < more.length; i += 2) settings.put(more[i], more[i + 1]);
        return settings;
    }

    static KafkaProducer<byte[], byte[]> producer(String... more) {
        Properties settings = settings(more);
        settings.put("linger.ms", "5");
        settings.put("delivery.timeout.ms", "120000");
        settings.put("enable.idempotence", "true");
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(String role) {
        Properties settings = settings("group.id", KIND + "-" + role, "enable.auto.commit", "false", "auto.offset.reset",
                "earliest", "session.timeout.ms", "10000", "heartbeat.interval.ms", "500", "fetch.max.wait.ms", "500");
        return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static int number = 0;

    static void produce(int life) throws Exception {
        try (KafkaProducer<byte[], byte[]> producer = producer()) {
            while (producing) {
                int mine = number++;
                byte[] value = bytes(KIND + ":" + life + ":" + mine);
                producer.send(new ProducerRecord<>(TOPIC, mine % partitions, value, value), (to, problem) -> {
                    if (problem == null) note("producer", "acked", mine, to.partition(), to.offset());
                    else note("producer", "failed", problem.toString());
                });
                Thread.sleep(100);
            }
        }
    }

    static void read() {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer("reader")) {
            consumer.subscribe(List.of(TOPIC), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                    for (TopicPartition one : assigned) note("reader", "assigned", one.partition());
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> revoked) {}
            });
            while (running) {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    note("reader", "read", record.partition(), record.offset(), text(record.value()));
                    offsets.put(partition(record), new OffsetAndMetadata(record.offset() + 1));
                }
                if (offsets.isEmpty()) continue;
                consumer.commitSync(offsets, Duration.ofSeconds(60));
                offsets.forEach((at, offset) -> note("reader", "committed", at.partition(), offset.offset()));
            }
        }
    }

    static String text(byte[] value) {
        return new String(value, StandardCharsets.UTF_8);
    }

    static TopicPartition partition(ConsumerRecord<byte[], byte[]> record) {
        return new TopicPartition(record.topic(), record.partition());
    }

    static int transaction = 0;

    /** Copies all records in transactions that also have the offsets; some of them are aborted. */
    static void copy(int life, Random random) throws Exception {
        String topic = "copies-" + KIND;
        try (KafkaProducer<byte[], byte[]> producer =
                        producer("transactional.id", KIND, "transaction.timeout.ms", "60000");
                KafkaConsumer<byte[], byte[]> consumer = consumer("copier")) {
            producer.initTransactions();
            Map<TopicPartition, Long> next = new TreeMap<>((a, b) -> a.partition() - b.partition());
            for (int i = 0; i < partitions; i++) next.put(new TopicPartition(TOPIC, i), 0L);
            consumer.committed(next.keySet(), Duration.ofSeconds(60)).forEach((at, offset) -> {
                if (offset != null) next.put(at, offset.offset());
            });
            consumer.assign(next.keySet());
            next.forEach(consumer::seek);
            while (running) {
                List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
                consumer.poll(Duration.ofMillis(500)).forEach(records::add);
                if (records.isEmpty()) continue;
                int mine = transaction++;
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    byte[] value = bytes(mine + ":" + records.size() + ":" + record.partition() + ":" + record.offset());
                    producer.send(new ProducerRecord<>(topic, record.partition(), null, value));
                    offsets.put(partition(record), new OffsetAndMetadata(record.offset() + 1));
                }
                producer.send(new ProducerRecord<>(topic, partitions, null, bytes(mine + ":" + records.size())));
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (random.nextInt(10) == 0) {
                    finished(() -> producer.abortTransaction());
                    note("copier", "aborted", mine);
                    next.forEach(consumer::seek);
                    continue;
                }
                finished(() -> producer.commitTransaction());
                note("copier", "copied", mine, records.size());
                offsets.forEach((at, offset) -> {
                    next.put(at, offset.offset());
                    note("copier", "committed", at.partition(), offset.offset());
                });
            }
        }
    }

    /** The end of a transaction may be called again after a timeout, not after another error. */
    static void finished(Runnable end) {
        while (true) {
            try {
                end.run();
                return;
            } catch (TimeoutException again) {
                if (!running) throw again;
            }
        }
    }
}
