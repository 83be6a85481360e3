import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.BitSet;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.function.LongSupplier;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogSegment;

/**
 * Writes partition directories with Kafka's own segment and batch code, the same bytes for the same arguments.
 *
 * <p>SegmentWriter DIRECTORY TOPIC PARTITIONS RECORDS KEYS VALUE_BYTES CHOICE CODEC BATCH_BYTES SEGMENT_BYTES SEED
 *
 * <p>CHOICE is uniform, zipf or once. A key is "key-" and 20 digits, 24 bytes; a key always goes to the same partition. A
 * value is text that looks like JSON, of which a quarter is random hex digits and the rest words, so that it compresses about
 * two to one. A batch is full when the next record would take it over BATCH_BYTES before compression. Prints one line of JSON,
 * in which "distinct" is the number of records that a cleaning must keep.
 */
public class SegmentWriter {
    static final int HEADER_BYTES = 61;
    static final long FIRST_TIMESTAMP = 1_750_000_000_000L;
    static final String[] WORDS = ("amber bridge cedar drift ember field glass harbor island jade kettle lumen meadow north ocean pepper quartz "
            + "river stone timber umber valley winter yellow zenith cargo delta frame grove metal paper sugar").split(" ");

    final File root;
    final String topic;
    final int valueBytes;
    final Compression compression;
    final int batchBytes;
    final int segmentBytes;
    final LogConfig config;
    final SplittableRandom content;
    int segments;
    long batches;
    long bytes;

    SegmentWriter(File root, String topic, int valueBytes, String codec, int batchBytes, int segmentBytes, long seed) {
        this.root = root;
        this.topic = topic;
        this.valueBytes = valueBytes;
        this.compression = Compression.of(codec).build();
        this.batchBytes = batchBytes;
        this.segmentBytes = segmentBytes;
        this.config = config(segmentBytes);
        this.content = new SplittableRandom(seed * 31 + 7);
    }

    public static void main(String[] a) throws Exception {
        int partitionCount = Integer.parseInt(a[2]);
        long records = Long.parseLong(a[3]);
        int keys = Integer.parseInt(a[4]);
        long seed = Long.parseLong(a[10]);
        SegmentWriter writer = new SegmentWriter(new File(a[0]), a[1], Integer.parseInt(a[5]), a[7],
                Integer.parseInt(a[8]), Integer.parseInt(a[9]), seed);
        LongSupplier choice = choice(a[6], keys, new SplittableRandom(seed));
        Partition[] partitions = new Partition[partitionCount];
        for (int p = 0; p < partitionCount; p++) partitions[p] = writer.new Partition(p);
        BitSet seen = new BitSet(keys);
        long began = System.nanoTime();
        for (long i = 0; i < records; i++) {
            long key = choice.getAsLong();
            seen.set((int) key);
            partitions[(int) (key % partitionCount)].append(key, i);
        }
        for (Partition partition : partitions) partition.close();
        System.out.printf(Locale.ROOT, "{\"topic\": \"%s\", \"records\": %d, \"distinct\": %d, \"segments\": %d, \"batches\": %d, "
                + "\"bytes\": %d, \"seconds\": %.3f}%n", a[1], records, seen.cardinality(), writer.segments, writer.batches,
                writer.bytes, (System.nanoTime() - began) / 1e9);
    }

    /** The settings under which segments are written and cleaned; Kafka allows none below 1 MiB by this name. */
    static LogConfig config(int segmentBytes) {
        Map<String, String> settings = new HashMap<>();
        settings.put("cleanup.policy", "compact");
        settings.put(segmentBytes < 1 << 20 ? "internal.segment.bytes" : "segment.bytes", Integer.toString(segmentBytes));
        settings.put("file.delete.delay.ms", "0");
        return new LogConfig(settings);
    }

    /** Which key comes next: uniform; zipf (exponent 0.99, the popular keys spread over the whole range); once (each in turn). */
    static LongSupplier choice(String name, int keys, SplittableRandom random) {
        switch (name) {
            case "uniform":
                return () -> random.nextInt(keys);
            case "once":
                long[] next = {0};
                return () -> next[0]++ % keys;
            case "zipf":
                double[] upTo = new double[keys];
                double sum = 0;
                for (int rank = 0; rank < keys; rank++) upTo[rank] = sum += StrictMath.pow(rank + 1, -0.99);
                final double total = sum;
                long step = 1_000_003;
                while (greatestCommonDivisor(step, keys) != 1) step++;
                final long stride = step;
                return () -> {
                    int rank = java.util.Arrays.binarySearch(upTo, random.nextDouble() * total);
                    rank = Math.min(rank < 0 ? -rank - 1 : rank, keys - 1);
                    return (rank * stride + 17) % keys;
                };
            default:
                throw new IllegalArgumentException(name);
        }
    }

    static long greatestCommonDivisor(long a, long b) {
        return b == 0 ? a : greatestCommonDivisor(b, a % b);
    }

    byte[] key(long id) {
        byte[] key = "key-00000000000000000000".getBytes(StandardCharsets.US_ASCII);
        for (int i = key.length - 1; id > 0; i--, id /= 10) key[i] += (byte) (id % 10);
        return key;
    }

    byte[] value(long number) {
        StringBuilder text = new StringBuilder(valueBytes + 16);
        text.append("{\"n\":").append(1_000_000_000L + number % 1_000_000_000L).append(",\"tag\":\"");
        for (int hex = Math.max(16, valueBytes / 4); hex > 0; hex -= 16) {
            String digits = Long.toHexString(content.nextLong());
            text.append("0000000000000000", 0, 16 - digits.length()).append(digits);
        }
        text.append("\",\"note\":\"");
        while (text.length() < valueBytes) text.append(WORDS[content.nextInt(WORDS.length)]).append(' ');
        text.setLength(valueBytes - 2);
        return text.append("\"}").toString().getBytes(StandardCharsets.US_ASCII);
    }

    class Partition {
        final File directory;
        final ByteBuffer buffer = ByteBuffer.allocate(batchBytes + valueBytes + 4096);
        LogSegment segment;
        MemoryRecordsBuilder builder;
        long firstOffset;
        long nextOffset;
        int filled;

        Partition(int number) {
            directory = new File(root, topic + "-" + number);
            if (!directory.mkdirs()) throw new IllegalStateException(directory + " exists");
        }

        void append(long id, long number) throws IOException {
            byte[] key = key(id);
            byte[] value = value(number);
            int size = key.length + value.length + 14;
            if (builder != null && filled + size > batchBytes) flush();
            if (builder == null) {
                buffer.clear();
                builder = MemoryRecords.builder(buffer, RecordBatch.CURRENT_MAGIC_VALUE, compression, TimestampType.CREATE_TIME,
                        nextOffset, RecordBatch.NO_TIMESTAMP, 0);
                firstOffset = nextOffset;
                filled = HEADER_BYTES;
            }
            builder.append(FIRST_TIMESTAMP + number / 100, key, value);
            filled += size;
            nextOffset++;
        }

        void flush() throws IOException {
            MemoryRecords built = builder.build();
            builder = null;
            if (segment != null && segment.size() + built.sizeInBytes() > segmentBytes) finishSegment();
            if (segment == null) {
                segment = LogSegment.open(directory, firstOffset, config, Time.SYSTEM, 0, false);
                segments++;
            }
            segment.append(nextOffset - 1, built);
            batches++;
            bytes += built.sizeInBytes();
        }

        void finishSegment() throws IOException {
            segment.onBecomeInactiveSegment();
            segment.close();
            segment = null;
        }

        void close() throws IOException {
            if (builder != null) flush();
            if (segment != null) finishSegment();
        }
    }
}
