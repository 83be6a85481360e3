import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
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

/**
 * A Kafka Streams application: counts the records of each key of the topic `words`, in a store in memory.
 *
 * <p>Arguments: bootstrap servers, state directory, processing guarantee. The application runs twice. Before each run
 * ten records of each of three keys are produced; after it one line is printed: how many records the store restored
 * from its changelog, and the counts.
 */
public class Counts {
    public static void main(String[] arguments) throws Exception {
        for (int run = 1; run <= 2; run++) {
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(Map.of("bootstrap.servers", arguments[0]),
                    new StringSerializer(), new StringSerializer())) {
                for (int i = 0; i < 30; i++) producer.send(new ProducerRecord<>("words", "k" + i % 3, "x"));
            }
            count(arguments, 30L * run);
        }
    }

    static void count(String[] arguments, long wanted) throws Exception {
        Properties config = new Properties();
        config.putAll(Map.of(StreamsConfig.APPLICATION_ID_CONFIG, "counts",
                StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0], StreamsConfig.STATE_DIR_CONFIG, arguments[1],
                StreamsConfig.PROCESSING_GUARANTEE_CONFIG, arguments[2], StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100,
                "auto.offset.reset", "earliest", "group.instance.id", "only")); // which rejoins immediately
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("words", Consumed.with(Serdes.String(), Serdes.String())).groupByKey().count(
                Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts")).withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.Long()));
        AtomicLong restored = new AtomicLong();
        Map<String, Long> counts = new TreeMap<>();
        try (KafkaStreams streams = new KafkaStreams(builder.build(), config)) {
            streams.setGlobalStateRestoreListener(new StateRestoreListener() {
                public void onRestoreStart(TopicPartition partition, String store, long start, long end) { }
                public void onBatchRestored(TopicPartition partition, String store, long end, long count) { }
                public void onRestoreEnd(TopicPartition partition, String store, long total) { restored.addAndGet(total); }
            });
            streams.start();
            for (long end = System.nanoTime() + 30_000_000_000L; System.nanoTime() < end; Thread.sleep(20)) {
                if (streams.state() != KafkaStreams.State.RUNNING) continue;
                counts.clear();
                ReadOnlyKeyValueStore<String, Long> store = streams.store(StoreQueryParameters.fromNameAndType(
                        "counts", QueryableStoreTypes.<String, Long>keyValueStore()));
                try (KeyValueIterator<String, Long> all = store.all()) {
                    all.forEachRemaining(entry -> counts.put(entry.key, entry.value));
                }
                if (counts.values().stream().mapToLong(Long::longValue).sum() >= wanted) break;
            }
        }
        System.out.println(restored.get() + " " + counts);
    }
}
