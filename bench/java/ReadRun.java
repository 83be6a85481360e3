import java.io.File;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;

/**
 * Kafka's record classes over the files of a partition, without a broker and a network in between.
 *
 * <p>ReadRun PARTITION_DIRECTORY REPETITIONS scan|restore
 *
 * <p>scan verifies every checksum and decodes every record. restore also puts the newest value of each key into a HashMap, as
 * an application does that reads a compacted topic back into memory. A line of JSON for each repetition; the first is cold.
 */
public class ReadRun {
    static final class Key {
        final byte[] bytes;
        final int hash;

        Key(byte[] bytes) {
            this.bytes = bytes;
            this.hash = Arrays.hashCode(bytes);
        }

        @Override public int hashCode() { return hash; }

        @Override public boolean equals(Object other) { return other instanceof Key && Arrays.equals(bytes, ((Key) other).bytes); }
    }

    public static void main(String[] a) throws Exception {
        File[] logs = new File(a[0]).listFiles((directory, name) -> name.endsWith(".log"));
        Arrays.sort(logs);
        boolean restore = a[2].equals("restore");
        for (int repetition = 1; repetition <= Integer.parseInt(a[1]); repetition++) {
            System.gc();
            double cpu = CleanerRun.processCpuSeconds();
            long began = System.nanoTime();
            Map<Key, byte[]> newest = new HashMap<>();
            long records = 0, bytes = 0, sum = 0;
            for (File log : logs) {
                try (FileRecords file = FileRecords.open(log)) {
                    ByteBuffer buffer = ByteBuffer.allocate(1 << 20);
                    for (int position = 0; position < file.sizeInBytes(); ) {
                        buffer.clear();
                        file.readInto(buffer, position);
                        int used = 0;
                        for (MutableRecordBatch batch : MemoryRecords.readableRecords(buffer).batches()) {
                            batch.ensureValid();
                            for (Record record : batch) {
                                records++;
                                sum += record.offset() + record.timestamp() + record.keySize() + record.valueSize();
                                if (restore) {
                                    Key key = new Key(bytes(record.key()));
                                    if (record.hasValue()) newest.put(key, bytes(record.value()));
                                    else newest.remove(key);
                                }
                            }
                            used += batch.sizeInBytes();
                        }
                        if (used == 0) buffer = ByteBuffer.allocate(buffer.capacity() * 2);
                        position += used;
                    }
                    bytes += file.sizeInBytes();
                }
            }
            System.out.printf(Locale.ROOT, "{\"repetition\": %d, \"records\": %d, \"keys\": %d, \"bytes\": %d, \"check\": %d, "
                    + "\"cpu_seconds\": %.3f, \"wall_seconds\": %.3f}%n", repetition, records, newest.size(), bytes, sum,
                    CleanerRun.processCpuSeconds() - cpu, (System.nanoTime() - began) / 1e9);
        }
    }

    static byte[] bytes(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }
}
