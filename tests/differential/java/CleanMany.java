import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.function.Supplier;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Kafka's own cleaner over many partition directories in one process.
 *
 * <p>A line of stdin is one cleaning: DIRECTORY SLOTS SEGMENT_BYTES RETENTION_MS NOW_MS LOG_START FIRST_DIRTY, split by tabs. The log
 * is opened as after a crash, its active segment closed, and all below its first undecided transaction cleaned, with a map of
 * SLOTS slots. The answer is "ok", up to where, the next first dirty offset and the number of rounds, or "error" and why.
 */
public class CleanMany {
    static final int IO_BUFFER_BYTES = 64 * 1024;
    static final int MAX_BATCH_BYTES = 1024 * 1024 + 12;
    static final double LOAD_FACTOR = 0.9;

    /** Time stands where the log's cleaning says it stands. */
    static final class StandingTime implements Time {
        long nowMs;

        @Override public long milliseconds() { return nowMs; }
        @Override public long nanoseconds() { return System.nanoTime(); }
        @Override public void sleep(long ms) { }
        @Override public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) { }
    }

    public static void main(String[] arguments) throws Exception {
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String answer;
            try {
                answer = "ok\t" + clean(line.split("\t"), scheduler);
            } catch (Throwable problem) {
                answer = "error\t" + problem.toString().replaceAll("\\s+", " ");
            }
            System.out.println(answer);
            System.out.flush();
        }
        scheduler.shutdown();
        System.exit(0);
    }

    static String clean(String[] a, KafkaScheduler scheduler) throws Exception {
        LogConfig config = config(Integer.parseInt(a[2]), Long.parseLong(a[3]));
        StandingTime time = new StandingTime();
        time.nowMs = Long.parseLong(a[4]);
        long start = Long.parseLong(a[5]);
        long dirty = Math.max(Long.parseLong(a[6]), start);
        long limit;
        int rounds = 0;
        UnifiedLog log = UnifiedLog.create(Path.of(a[0]).toFile(), config, start, 0L, scheduler, new BrokerTopicStats(), time, 60_000,
                new ProducerStateManagerConfig(86_400_000, false), 60_000, new LogDirFailureChannel(1), false, Optional.empty());
        try {
            log.updateHighWatermark(log.logEndOffset());
            log.roll();
            limit = limit(log);
            Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(Integer.parseInt(a[1]) * 24), IO_BUFFER_BYTES, MAX_BATCH_BYTES,
                    LOAD_FACTOR, new Throttler(Double.MAX_VALUE, 300, "none", "bytes", time), time, partition -> { });
            while (dirty < limit) {
                Map.Entry<Long, CleanerStats> done = cleaner.doClean(new LogToClean(log, dirty, limit, false), time.nowMs);
                if (done.getKey() <= dirty) throw new IllegalStateException("no progress at " + dirty);
                dirty = done.getKey();
                rounds++;
            }
        } finally {
            log.close();
            CountDownLatch removed = new CountDownLatch(1);     // behind the removals: the next opening must not meet them
            scheduler.scheduleOnce("removed", removed::countDown);
            removed.await();
        }
        return limit + "\t" + dirty + "\t" + rounds;
    }

    /** The base of the segment that holds the first undecided record, or of the active one. */
    static long limit(UnifiedLog log) {
        long end = Math.min(log.lastStableOffset(), log.activeSegment().baseOffset());
        long limit = 0;
        for (LogSegment segment : log.logSegments()) {
            if (segment.baseOffset() <= end) limit = segment.baseOffset();
        }
        return limit;
    }

    static LogConfig config(int segmentBytes, long retentionMs) {
        Map<String, String> settings = new HashMap<>();
        settings.put("cleanup.policy", "compact");
        settings.put(segmentBytes < 1 << 20 ? "internal.segment.bytes" : "segment.bytes", Integer.toString(segmentBytes));
        settings.put("delete.retention.ms", Long.toString(retentionMs));
        settings.put("file.delete.delay.ms", "0");
        return new LogConfig(settings);
    }
}
