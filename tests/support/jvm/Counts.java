import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** A Kafka Streams application: counts the records of each key of some topics, each topic in a store in memory. */
class Counts {
    /** Runs until the counts of each store have the wanted sum; answers with what each restored, and its counts. */
    static JsonNode run(JsonNode request) throws Exception {
        Properties config = new Properties();
        config.putAll(Map.of(StreamsConfig.APPLICATION_ID_CONFIG, request.get("application").asText(),
                StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, request.get("bootstrap").asText(),
                StreamsConfig.STATE_DIR_CONFIG, request.get("state").asText(),
                StreamsConfig.PROCESSING_GUARANTEE_CONFIG, request.get("guarantee").asText(),
                StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100,
                "producer.compression.type", request.get("codec").asText(), "auto.offset.reset", "earliest",
                "group.instance.id", "only")); // which rejoins immediately
        Map<String, String> stores = Tools.strings(request.get("stores"));
        StreamsBuilder builder = new StreamsBuilder();
        stores.forEach((store, topic) -> builder.stream(topic, Consumed.with(Serdes.String(), Serdes.ByteArray()))
                .groupByKey().count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore(store))
                        .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long())));
        Map<String, Long> restored = new ConcurrentHashMap<>();
        Map<String, Map<String, Long>> counts = new HashMap<>();
        try (KafkaStreams streams = new KafkaStreams(builder.build(), config)) {
            streams.setGlobalStateRestoreListener(new StateRestoreListener() {
                public void onRestoreStart(TopicPartition partition, String store, long start, long end) { }
                public void onBatchRestored(TopicPartition partition, String store, long end, long count) { }
                public void onRestoreEnd(TopicPartition partition, String store, long total) {
                    restored.merge(store, total, Long::sum);
                }
            });
            streams.start();
            long end = System.nanoTime() + 60_000_000_000L;
            for (boolean complete = false; !complete; Thread.sleep(20)) {
                if (System.nanoTime() > end) throw new IllegalStateException(streams.state() + ", counted " + counts);
                if (streams.state() != KafkaStreams.State.RUNNING) continue;
                complete = true;
                for (String store : stores.keySet()) {
                    counts.put(store, all(streams, store));
                    long sum = counts.get(store).values().stream().mapToLong(Long::longValue).sum();
                    complete &= sum >= request.get("wanted").get(store).asLong();
                }
            }
        }
        ObjectNode answer = Tools.JSON.createObjectNode();
        counts.forEach((store, of) -> answer.putObject(store).put("restored", restored.getOrDefault(store, 0L))
                .set("counts", Tools.JSON.valueToTree(of)));
        return answer;
    }

    static Map<String, Long> all(KafkaStreams streams, String store) {
        Map<String, Long> counts = new TreeMap<>();
        ReadOnlyKeyValueStore<String, Long> view = streams.store(StoreQueryParameters.fromNameAndType(
                store, QueryableStoreTypes.<String, Long>keyValueStore()));
        try (KeyValueIterator<String, Long> entries = view.all()) {
            entries.forEachRemaining(entry -> counts.put(entry.key, entry.value));
        }
        return counts;
    }
}
