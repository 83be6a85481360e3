import java.io.File;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.common.record.internal.FileLogInputStream;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;

/**
 * What Kafka's own cleaner reads and writes while a log grows: each batch of a partition directory is appended to a new log, and
 * whenever a segment is closed the log is cleaned if its dirty ratio is above a bound. That is as eager as its settings allow.
 *
 * <p>CostRun PARTITION_DIRECTORY WORK_DIRECTORY SEGMENT_BYTES RATIO BUFFER_BYTES
 *
 * <p>One line of JSON for each closed segment (records and bytes appended so far, size of the log before and after cleaning, bytes
 * written, read by rewriting and read for maps so far, rounds so far) and one for the end.
 */
public class CostRun {
    public static void main(String[] a) throws Exception {
        Path work = Path.of(a[1]);
        double ratio = Double.parseDouble(a[3]);
        CleanerRun.remove(work);
        Path partition = work.resolve("cost-0");
        Files.createDirectories(partition);
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        Throttler unlimited = new Throttler(Double.MAX_VALUE, 300, "none", "bytes", Time.SYSTEM);
        CleanerRun.PhaseCleaner cleaner = new CleanerRun.PhaseCleaner(Integer.parseInt(a[4]), unlimited);
        UnifiedLog log = CleanerRun.open(partition.toFile(), Integer.parseInt(a[2]), scheduler);
        long records = 0, appended = 0, written = 0, read = 0, mapRead = 0, firstDirty = 0, lastBase = 0;
        int rounds = 0;
        List<Path> sources = CleanerRun.listed(Path.of(a[0])).stream().filter(file -> file.toString().endsWith(".log")).sorted()
                .collect(Collectors.toList());
        for (Path source : sources) {
            try (FileRecords file = FileRecords.open(new File(source.toString()), false)) {
                for (FileLogInputStream.FileChannelRecordBatch batch : file.batches()) {
                    ByteBuffer bytes = ByteBuffer.allocate(batch.sizeInBytes());
                    batch.writeTo(bytes);
                    bytes.flip();
                    bytes.putLong(0, 0);                           // as it came from its producer; the log gives the offset
                    records += batch.countOrNull();
                    appended += batch.sizeInBytes();
                    log.appendAsLeader(MemoryRecords.readableRecords(bytes), 0);
                    long base = log.activeSegment().baseOffset();
                    if (base == lastBase) continue;
                    lastBase = base;
                    long before = log.size();
                    while (true) {
                        LogToClean dirty = new LogToClean(log, firstDirty, base, false);
                        if (dirty.cleanableRatio() <= ratio) break;
                        Map.Entry<Long, CleanerStats> done = cleaner.clean(dirty);
                        firstDirty = done.getKey();
                        written += done.getValue().bytesWritten();
                        read += done.getValue().bytesRead();
                        mapRead += dirty.cleanableBytes();         // the map is large enough for all keys: one pass
                        rounds++;
                    }
                    tell(records, appended, before, log.size(), written, read, mapRead, rounds);
                }
            }
        }
        tell(records, appended, log.size(), log.size(), written, read, mapRead, rounds);
        log.close();
        CleanerRun.remove(work);
        System.exit(0);
    }

    static void tell(long records, long appended, long before, long after, long written, long read, long mapRead, int rounds) {
        System.out.printf(Locale.ROOT, "{\"records\": %d, \"appended\": %d, \"before\": %d, \"after\": %d, \"written\": %d, "
                + "\"read\": %d, \"map_read\": %d, \"rounds\": %d}%n", records, appended, before, after, written, read, mapRead, rounds);
    }
}
