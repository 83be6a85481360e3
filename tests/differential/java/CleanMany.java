import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.Stream;
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
 * <p>A line of stdin is one log: ROOT TOPIC SLOTS SEGMENT_BYTES RETENTION_MS NOW_1 NOW_2, split by tabs. ROOT/TOPIC-0 is cleaned
 * at NOW_1 until all below its first undecided transaction is mapped, with a map of SLOTS slots; then the segments of ROOT/later
 * join it, and it is cleaned at NOW_2. The answer is "ok", both first dirty offsets and the number of rounds, or "error" and why.
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
        }
        scheduler.shutdown();
        System.exit(0);
    }

    static String clean(String[] a, KafkaScheduler scheduler) throws Exception {
        Path root = Path.of(a[0]);
        Path directory = root.resolve(a[1] + "-0");
        LogConfig config = config(Integer.parseInt(a[3]), Long.parseLong(a[4]));
        StandingTime time = new StandingTime();
        long dirty = 0;
        int rounds = 0;
        StringBuilder ends = new StringBuilder();
        for (int part = 0; part < 2; part++) {
            time.nowMs = Long.parseLong(a[5 + part]);
            if (part == 1) join(root.resolve("later"), directory);
            UnifiedLog log = UnifiedLog.create(directory.toFile(), config, 0L, 0L, scheduler, new BrokerTopicStats(), time, 60_000,
                    new ProducerStateManagerConfig(86_400_000, false), 60_000, new LogDirFailureChannel(1), false, Optional.empty());
            try {
                log.updateHighWatermark(log.logEndOffset());
                log.roll();
                long limit = limit(log);
                Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(Integer.parseInt(a[2]) * 24), IO_BUFFER_BYTES, MAX_BATCH_BYTES,
                        LOAD_FACTOR, new Throttler(Double.MAX_VALUE, 300, "none", "bytes", time), time, partition -> { });
                while (dirty < limit) {
                    Map.Entry<Long, CleanerStats> done = cleaner.doClean(new LogToClean(log, dirty, limit, false), time.nowMs);
                    if (done.getKey() <= dirty) throw new IllegalStateException("no progress at " + dirty);
                    dirty = done.getKey();
                    rounds++;
                }
                ends.append(limit).append('\t');
            } finally {
                log.close();
                CountDownLatch removed = new CountDownLatch(1);     // behind the removals: the next opening must not meet them
                scheduler.scheduleOnce("removed", removed::countDown);
                removed.await();
            }
        }
        return ends.toString() + rounds;
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

    static void join(Path later, Path directory) throws IOException {
        for (Path file : listed(later)) {
            String name = file.getFileName().toString();
            String base = name.substring(0, name.indexOf('.'));
            for (String suffix : List.of("index", "timeindex", "txnindex")) Files.deleteIfExists(directory.resolve(base + "." + suffix));
            Files.move(file, directory.resolve(name), StandardCopyOption.REPLACE_EXISTING);
        }
    }

    static LogConfig config(int segmentBytes, long retentionMs) {
        Map<String, String> settings = new HashMap<>();
        settings.put("cleanup.policy", "compact");
        settings.put(segmentBytes < 1 << 20 ? "internal.segment.bytes" : "segment.bytes", Integer.toString(segmentBytes));
        settings.put("delete.retention.ms", Long.toString(retentionMs));
        settings.put("file.delete.delay.ms", "0");
        return new LogConfig(settings);
    }

    static List<Path> listed(Path directory) throws IOException {
        if (!Files.exists(directory)) return List.of();
        try (Stream<Path> files = Files.list(directory)) {
            return files.sorted().collect(Collectors.toList());
        }
    }
}
