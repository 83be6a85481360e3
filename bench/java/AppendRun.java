import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.SplittableRandom;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/**
 * What a producer and a broker's log do for an append, in one process: batches built, validated, given offsets, written.
 *
 * <p>AppendRun WORK_DIRECTORY REPETITIONS RECORDS RECORDS_PER_BATCH CODEC
 *
 * <p>Keys of 24 and values of 100 bytes, prepared before the clock starts. Nothing is synced, as in a broker's default.
 */
public class AppendRun {
    public static void main(String[] a) throws Exception {
        Path work = Path.of(a[0]);
        int records = Integer.parseInt(a[2]);
        int perBatch = Integer.parseInt(a[3]);
        Compression compression = Compression.of(a[4]).build();
        byte[][] keys = new byte[1 << 16][], values = new byte[1 << 16][];
        SplittableRandom random = new SplittableRandom(1);
        for (int i = 0; i < keys.length; i++) {
            keys[i] = String.format("key-%020d", random.nextInt(1 << 20)).getBytes(StandardCharsets.US_ASCII);
            values[i] = String.format("{\"n\":%010d,\"tag\":\"%016x\",\"note\":\"%s\"}", i, random.nextLong(),
                    "amber bridge cedar drift ember field glass harbor ".substring(0, 48)).getBytes(StandardCharsets.US_ASCII);
        }
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        for (int repetition = 1; repetition <= Integer.parseInt(a[1]); repetition++) {
            CleanerRun.remove(work);
            Path partition = work.resolve("append-0");
            Files.createDirectories(partition);
            UnifiedLog log = CleanerRun.open(partition.toFile(), 128 << 20, scheduler);
            ByteBuffer buffer = ByteBuffer.allocate(1 << 20);
            System.gc();
            double cpu = CleanerRun.processCpuSeconds();
            long began = System.nanoTime();
            for (int i = 0; i < records; ) {
                buffer.clear();
                MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, RecordBatch.CURRENT_MAGIC_VALUE, compression,
                        TimestampType.CREATE_TIME, 0L);
                for (int end = Math.min(records, i + perBatch); i < end; i++)
                    builder.append(1_750_000_000_000L + i, keys[i & 0xffff], values[i & 0xffff]);
                log.appendAsLeader(builder.build(), 0);
            }
            System.out.printf(Locale.ROOT, "{\"repetition\": %d, \"records\": %d, \"bytes\": %d, \"cpu_seconds\": %.3f, "
                    + "\"wall_seconds\": %.3f}%n", repetition, records, log.size(), CleanerRun.processCpuSeconds() - cpu,
                    (System.nanoTime() - began) / 1e9);
            log.close();
        }
        CleanerRun.remove(work);
        System.exit(0);
    }
}
