import java.nio.file.Path;
import java.util.Locale;
import java.util.Optional;
import java.util.SplittableRandom;
import java.util.TreeMap;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/**
 * Random offsets of a partition: looked up in the offset indexes, or read and decoded, one record each.
 *
 * <p>LookupRun PARTITION_DIRECTORY WORK_DIRECTORY REPETITIONS index|record COUNT SEGMENT_BYTES
 *
 * <p>The indexes are warm. A record is found as a fetch finds it, its batch's checksum verified as a consumer does. A line of
 * JSON for each repetition; the first is cold.
 */
public class LookupRun {
    public static void main(String[] a) throws Exception {
        Path copy = Path.of(a[1]).resolve(Path.of(a[0]).getFileName());
        CleanerRun.remove(copy.getParent());
        CleanerRun.copyOf(Path.of(a[0]), copy);
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        UnifiedLog log = CleanerRun.open(copy.toFile(), Integer.parseInt(a[5]), scheduler);
        TreeMap<Long, LogSegment> segments = new TreeMap<>();
        for (LogSegment segment : log.logSegments()) segments.put(segment.baseOffset(), segment);
        int count = Integer.parseInt(a[4]);
        long[] offsets = new SplittableRandom(1).longs(count, 0, log.logEndOffset()).toArray();
        for (int repetition = 1; repetition <= Integer.parseInt(a[2]); repetition++) {
            System.gc();
            double cpu = CleanerRun.processCpuSeconds();
            long began = System.nanoTime();
            long sum = 0, found = 0;
            for (long offset : offsets) {
                LogSegment segment = segments.floorEntry(offset).getValue();
                if (a[3].equals("index")) {
                    sum += segment.offsetIndex().lookup(offset).position();
                    found++;
                    continue;
                }
                for (RecordBatch batch : segment.read(offset, 1, Optional.of((long) segment.size()), true).records.batches()) {
                    batch.ensureValid();
                    for (Record record : batch) {
                        if (record.offset() != offset) continue;
                        sum += ReadRun.bytes(record.key()).length + ReadRun.bytes(record.value()).length;
                        found++;
                        break;
                    }
                    break;
                }
            }
            System.out.printf(Locale.ROOT, "{\"repetition\": %d, \"found\": %d, \"check\": %d, \"cpu_seconds\": %.4f, "
                    + "\"wall_seconds\": %.4f}%n", repetition, found, sum, CleanerRun.processCpuSeconds() - cpu,
                    (System.nanoTime() - began) / 1e9);
        }
        log.close();
        CleanerRun.remove(copy.getParent());
        System.exit(0);
    }
}
