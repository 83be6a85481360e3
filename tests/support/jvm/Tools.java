import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.internals.Exit;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.ConfigSynonym;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * Kafka's clients and tools behind one long-lived process, since each start of a JVM costs more than most tests.
 *
 * <p>A line of JSON on stdin is a request, {"do": "produce", ...}; the answer is one line on stdout, {"ok": ...} or
 * {"error": "..."}. Byte strings are base64. Nothing else is printed: what a tool prints is the answer to its request.
 */
public class Tools {
    static final ObjectMapper JSON = new ObjectMapper();
    static final PrintStream OUT = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false,
            StandardCharsets.UTF_8);

    /** What tools print, on both streams. One stream for ever: scala.Console keeps the first that it sees. */
    static final ByteArrayOutputStream PRINTED = new ByteArrayOutputStream();
    static final AtomicReference<Integer> EXIT_CODE = new AtomicReference<>();
    static volatile String atExit; // many tools catch Exited, and print it

    static class Exited extends RuntimeException {
        Exited(int code, String message) {
            super("exit " + code + (message == null ? "" : ": " + message));
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream printed = new PrintStream(PRINTED, true, StandardCharsets.UTF_8);
        System.setOut(printed);
        System.setErr(printed);
        Exit.setExitProcedure((code, message) -> {
            if (EXIT_CODE.compareAndSet(null, code)) {
                if (message != null) printed.println(message);
                atExit = PRINTED.toString(StandardCharsets.UTF_8);
            }
            throw new Exited(code, message);
        });
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("ok", handle(JSON.readTree(line)));
            } catch (Throwable problem) {
                StringBuilder text = new StringBuilder(problem.toString());
                for (Throwable cause = problem.getCause(); cause != null; cause = cause.getCause())
                    text.append(" <- ").append(cause);
                answer = JSON.createObjectNode().put("error", text.toString());
            }
            OUT.println(JSON.writeValueAsString(answer));
            OUT.flush();
        }
    }

    static JsonNode handle(JsonNode request) throws Exception {
        return switch (request.get("do").asText()) {
            case "format" -> format(request);
            case "create" -> create(request);
            case "alter" -> alter(request);
            case "describe" -> describe(request);
            case "commit" -> commit(request);
            case "produce" -> produce(request);
            case "keep" -> keep(request);
            case "send" -> send(request);
            case "producers" -> producers(request);
            case "consume" -> consume(request);
            case "offsets" -> offsets(request);
            case "count" -> Counts.run(request);
            case "copy" -> Copies.run(request);
            case "run" -> run(request);
            case "configs" -> configs();
            case "parse" -> parse(request);
            default -> throw new IllegalArgumentException("no such request: " + request);
        };
    }

    /** Gives a new broker its metadata directory, as `kafka-storage format` does. */
    static JsonNode format(JsonNode request) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        String[] arguments = {"format", "--ignore-formatted", "--cluster-id", request.get("cluster").asText(),
            "--config", request.get("config").asText(), "--release-version", request.get("release").asText()};
        int code = kafka.tools.StorageTool.execute(arguments, new PrintStream(printed, true));
        if (code != 0) throw new IllegalStateException(printed.toString());
        return JSON.getNodeFactory().textNode(printed.toString());
    }

    static JsonNode create(JsonNode request) throws Exception {
        try (Admin admin = Admin.create(client(request))) {
            List<NewTopic> topics = new ArrayList<>();
            for (JsonNode topic : request.get("topics")) {
                NewTopic one = new NewTopic(topic.get("name").asText(), topic.get("partitions").asInt(), (short) 1);
                topics.add(one.configs(strings(topic.get("config"))));
            }
            admin.createTopics(topics).all().get();
        }
        return JSON.getNodeFactory().nullNode();
    }

    /** Sets or (null) removes settings of a resource: kind TOPIC or BROKER, and its name. */
    static JsonNode alter(JsonNode request) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        request.get("config").fields().forEachRemaining(e -> changes.add(e.getValue().isNull()
                ? new AlterConfigOp(new ConfigEntry(e.getKey(), ""), AlterConfigOp.OpType.DELETE)
                : new AlterConfigOp(new ConfigEntry(e.getKey(), e.getValue().asText()), AlterConfigOp.OpType.SET)));
        try (Admin admin = Admin.create(client(request))) {
            admin.incrementalAlterConfigs(Map.of(resource(request), changes)).all().get();
        }
        return JSON.getNodeFactory().nullNode();
    }

    /** The settings of a resource that are no defaults of Kafka or of server.properties, by name. */
    static JsonNode describe(JsonNode request) throws Exception {
        ObjectNode found = JSON.createObjectNode();
        try (Admin admin = Admin.create(client(request))) {
            for (ConfigEntry entry : admin.describeConfigs(List.of(resource(request))).all().get().get(resource(request)).entries())
                if (entry.source().name().startsWith("DYNAMIC")) found.put(entry.name(), entry.value());
        }
        return found;
    }

    static ConfigResource resource(JsonNode request) {
        return new ConfigResource(ConfigResource.Type.valueOf(request.get("kind").asText()), request.get("name").asText());
    }

    /** A group commits offsets of one topic, by partition. */
    static JsonNode commit(JsonNode request) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        request.get("offsets").fields().forEachRemaining(e -> offsets.put(
                new TopicPartition(request.get("topic").asText(), Integer.parseInt(e.getKey())),
                new OffsetAndMetadata(e.getValue().asLong())));
        try (Admin admin = Admin.create(client(request))) {
            admin.alterConsumerGroupOffsets(request.get("group").asText(), offsets).all().get();
        }
        return JSON.getNodeFactory().nullNode();
    }

    /** Each inner list of "batches" is flushed by itself, and so becomes one batch of its partition. Answers with offsets. */
    static JsonNode produce(JsonNode request) throws Exception {
        Map<String, Object> config = client(request);
        config.put("key.serializer", ByteArraySerializer.class);
        config.put("value.serializer", ByteArraySerializer.class);
        config.put("linger.ms", "60000");
        config.put("batch.size", "8388608");
        config.put("max.request.size", "16777216");
        config.putAll(strings(request.get("config")));
        String topic = request.get("topic").asText();
        ArrayNode offsets = JSON.createArrayNode();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config)) {
            for (JsonNode batch : request.get("batches")) {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (JsonNode r : batch) {
                    ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, r.get("partition").asInt(),
                            r.get("timestamp").isNull() ? null : r.get("timestamp").asLong(),
                            bytes(r.get("key")), bytes(r.get("value")));
                    for (JsonNode header : r.get("headers"))
                        record.headers().add(header.get(0).asText(), bytes(header.get(1)));
                    sent.add(producer.send(record));
                }
                producer.flush();
                for (Future<RecordMetadata> one : sent) offsets.add(one.get().offset());
            }
        }
        return offsets;
    }

    static final Map<String, KafkaProducer<byte[], byte[]>> KEPT = new HashMap<>();

    /** Makes a producer that stays, with its id and sequences, whatever the broker does; "name" is its name here. */
    static JsonNode keep(JsonNode request) throws Exception {
        Map<String, Object> config = client(request);
        config.put("key.serializer", ByteArraySerializer.class);
        config.put("value.serializer", ByteArraySerializer.class);
        config.put("linger.ms", "60000");
        config.put("reconnect.backoff.max.ms", "200");
        config.putAll(strings(request.get("config")));
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config);
        if (config.containsKey("transactional.id")) producer.initTransactions();
        KEPT.put(request.get("name").asText(), producer);
        return JSON.getNodeFactory().nullNode();
    }

    /** "steps" of kept producers, each [name, step]: begin, commit, abort, close, or a list of records for one batch. */
    static JsonNode send(JsonNode request) throws Exception {
        ArrayNode offsets = JSON.createArrayNode();
        String topic = request.get("topic").asText();
        for (JsonNode pair : request.get("steps")) {
            KafkaProducer<byte[], byte[]> producer = KEPT.get(pair.get(0).asText());
            JsonNode step = pair.get(1);
            switch (step.asText()) {
                case "begin" -> producer.beginTransaction();
                case "commit" -> producer.commitTransaction();
                case "abort" -> producer.abortTransaction();
                case "close" -> KEPT.remove(pair.get(0).asText()).close(Duration.ZERO);
                default -> {
                    List<Future<RecordMetadata>> sent = new ArrayList<>();
                    for (JsonNode r : step)
                        sent.add(producer.send(new ProducerRecord<>(topic, r.get("partition").asInt(),
                                r.get("timestamp").isNull() ? null : r.get("timestamp").asLong(),
                                bytes(r.get("key")), bytes(r.get("value")))));
                    producer.flush();
                    for (Future<RecordMetadata> one : sent) offsets.add(one.get().offset());
                }
            }
        }
        return offsets;
    }

    /** What the broker remembers of the producers of a partition. */
    static JsonNode producers(JsonNode request) throws Exception {
        TopicPartition partition = new TopicPartition(request.get("topic").asText(), request.get("partition").asInt());
        ArrayNode answer = JSON.createArrayNode();
        try (Admin admin = Admin.create(client(request))) {
            admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers().forEach(
                    p -> answer.addObject().put("id", p.producerId()).put("epoch", p.producerEpoch())
                            .put("sequence", p.lastSequence()).put("timestamp", p.lastTimestamp())
                            .put("coordinator", p.coordinatorEpoch().orElse(-1))
                            .put("start", p.currentTransactionStartOffset().orElse(-1)));
        }
        return answer;
    }

    /** Every record of a topic from the first offset to the end it had when asked, partition by partition. */
    static JsonNode consume(JsonNode request) throws Exception {
        Map<String, Object> config = client(request);
        config.put("key.deserializer", ByteArrayDeserializer.class);
        config.put("value.deserializer", ByteArrayDeserializer.class);
        config.put("enable.auto.commit", "false");
        config.put("isolation.level", request.get("isolation").asText());
        ObjectNode answer = JSON.createObjectNode();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config)) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (JsonNode topic : request.get("topics"))
                consumer.partitionsFor(topic.asText()).forEach(
                        p -> partitions.add(new TopicPartition(p.topic(), p.partition())));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> begins = consumer.beginningOffsets(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            for (TopicPartition partition : partitions) {
                ObjectNode one = answer.putObject(partition.toString());
                one.put("start", begins.get(partition)).put("end", ends.get(partition)).putArray("records");
            }
            long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
            while (partitions.stream().anyMatch(p -> consumer.position(p) < ends.get(p))) {
                if (System.nanoTime() > deadline) throw new IllegalStateException("the consumer did not reach " + ends);
                for (ConsumerRecord<byte[], byte[]> r : consumer.poll(Duration.ofMillis(200))) {
                    ObjectNode record = ((ArrayNode) answer.get(r.topic() + "-" + r.partition()).get("records")).addObject();
                    record.put("offset", r.offset()).put("timestamp", r.timestamp());
                    record.put("timestamp_type", r.timestampType().toString());
                    record.put("key", text(r.key())).put("value", text(r.value()));
                    ArrayNode headers = record.putArray("headers");
                    for (Header h : r.headers()) headers.addArray().add(h.key()).add(text(h.value()));
                }
            }
        }
        return answer;
    }

    /** The offsets of partition 0 of each topic that an isolation level has: start, end, newest by timestamp. */
    static JsonNode offsets(JsonNode request) throws Exception {
        IsolationLevel level = IsolationLevel.valueOf(request.get("isolation").asText().toUpperCase(java.util.Locale.ROOT));
        Map<String, OffsetSpec> specs = Map.of("start", OffsetSpec.earliest(), "end", OffsetSpec.latest(),
                "newest", OffsetSpec.maxTimestamp());
        ObjectNode answer = JSON.createObjectNode();
        request.get("topics").forEach(topic -> answer.putObject(topic.asText()));
        try (Admin admin = Admin.create(client(request))) {
            for (Map.Entry<String, OffsetSpec> spec : specs.entrySet()) {
                Map<TopicPartition, OffsetSpec> partitions = new HashMap<>();
                answer.fieldNames().forEachRemaining(t -> partitions.put(new TopicPartition(t, 0), spec.getValue()));
                admin.listOffsets(partitions, new ListOffsetsOptions(level)).all().get().forEach(
                        (p, found) -> ((ObjectNode) answer.get(p.topic())).put(spec.getKey(), found.offset()));
            }
        }
        return answer;
    }

    /** The main method of a class; answers with its exit code and with what it prints on both its streams. */
    static JsonNode run(JsonNode request) throws Exception {
        List<String> arguments = new ArrayList<>();
        for (JsonNode argument : request.get("arguments")) arguments.add(argument.asText());
        System.setIn(new ByteArrayInputStream(request.get("stdin").asText().getBytes(StandardCharsets.UTF_8)));
        PRINTED.reset();
        EXIT_CODE.set(null);
        atExit = null;
        try {
            Class.forName(request.get("tool").asText()).getMethod("main", String[].class)
                    .invoke(null, (Object) arguments.toArray(new String[0]));
        } catch (InvocationTargetException thrown) {
            if (EXIT_CODE.get() == null) {
                thrown.getCause().printStackTrace();
                EXIT_CODE.set(1);
            }
        }
        return JSON.createObjectNode().put("code", EXIT_CODE.get() == null ? 0 : EXIT_CODE.get())
                .put("printed", atExit == null ? PRINTED.toString(StandardCharsets.UTF_8) : atExit);
    }

    /** Every public setting of topics and brokers: {"topic" or "broker": [{name, type, default, synonyms}]}. */
    static JsonNode configs() {
        ObjectNode answer = JSON.createObjectNode();
        Map<String, ConfigDef> kinds = Map.of("topic", LogConfig.configDefCopy(), "broker", AbstractKafkaConfig.CONFIG_DEF);
        for (Map.Entry<String, ConfigDef> kind : kinds.entrySet()) {
            ArrayNode list = answer.putArray(kind.getKey());
            for (ConfigDef.ConfigKey key : new java.util.TreeMap<>(kind.getValue().configKeys()).values()) {
                if (key.internalConfig) continue;
                Object value = key.hasDefault() ? key.defaultValue : null;
                ObjectNode one = list.addObject().put("name", key.name).put("type", key.type.name())
                        .put("default", ConfigDef.convertToString(value, key.type));
                List<String> synonyms = new ArrayList<>();
                if (kind.getKey().equals("topic")) {
                    for (ConfigSynonym s : ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS.getOrDefault(key.name, List.of()))
                        synonyms.add(s.name());
                } else {
                    synonyms.addAll(DynamicBrokerConfig.brokerConfigSynonyms(key.name, false));
                }
                one.set("synonyms", JSON.valueToTree(synonyms));
            }
        }
        return answer;
    }

    /** The value that a topic's configuration has for each pair of name and text, as text; null if it is refused. */
    static JsonNode parse(JsonNode request) {
        ArrayNode answer = JSON.createArrayNode();
        ConfigDef known = LogConfig.configDefCopy();
        for (JsonNode pair : request.get("values")) {
            String name = pair.get(0).asText();
            try {
                Object value = known.parse(Map.of(name, pair.get(1).asText())).get(name);
                answer.add(ConfigDef.convertToString(value, known.configKeys().get(name).type));
            } catch (ConfigException refused) {
                answer.addNull();
            }
        }
        return answer;
    }

    static Map<String, Object> client(JsonNode request) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", request.get("bootstrap").asText());
        return config;
    }

    static Map<String, String> strings(JsonNode object) {
        Map<String, String> map = new HashMap<>();
        object.fields().forEachRemaining(entry -> map.put(entry.getKey(), entry.getValue().asText()));
        return map;
    }

    static byte[] bytes(JsonNode text) {
        return text.isNull() ? null : Base64.getDecoder().decode(text.asText());
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
