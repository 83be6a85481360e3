import com.sun.management.OperatingSystemMXBean;
import java.io.File;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.DigestException;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.OffsetMap;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Kafka's own cleaner, without a broker and without a throttle, over a copy of one partition directory.
 *
 * <p>CleanerRun PARTITION_DIRECTORY WORK_DIRECTORY REPETITIONS BUFFER_BYTES SEGMENT_BYTES [keep]
 *
 * <p>The log files of the copy are hard links, as the cleaner replaces files and never writes into one. A line of JSON for each
 * repetition; the first runs in a cold JVM. "passes" counts the rounds that it takes until all is clean: Kafka starts again
 * from the first offset whenever its map is full. With "keep" the last repetition's result stays in WORK_DIRECTORY.
 */
public class CleanerRun {
    static final int IO_BUFFER_BYTES = 512 * 1024 / 2;         // log.cleaner.io.buffer.size, halved by the broker for one thread
    static final int MAX_BATCH_BYTES = 1024 * 1024 + 12;       // message.max.bytes
    static final double LOAD_FACTOR = 0.9;                     // log.cleaner.io.buffer.load.factor

    public static void main(String[] a) throws Exception {
        Path source = Path.of(a[0]);
        Path work = Path.of(a[1]);
        int repetitions = Integer.parseInt(a[2]);
        int bufferBytes = Integer.parseInt(a[3]);
        int segmentBytes = Integer.parseInt(a[4]);
        boolean keep = a.length > 5;
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        Throttler unlimited = new Throttler(Double.MAX_VALUE, 300, "none", "bytes", Time.SYSTEM);
        PhaseCleaner cleaner = new PhaseCleaner(bufferBytes, unlimited);
        for (int repetition = 1; repetition <= repetitions; repetition++) {
            remove(work);
            Path copy = work.resolve(source.getFileName());
            copyOf(source, copy);
            UnifiedLog log = open(copy.toFile(), segmentBytes, scheduler);
            log.roll();                                        // so that no data is in the active segment
            System.out.println(clean(cleaner, log, repetition));
            log.close();
            scheduler.shutdown();                              // lets the removal of the old files end
            scheduler = new KafkaScheduler(1);
            scheduler.startup();
            if (!keep || repetition < repetitions) remove(work);
        }
        System.exit(0);
    }

    /** Kafka's cleaner, with the CPU time of its map phase counted separately. */
    static final class PhaseCleaner extends Cleaner {
        double mapCpuSeconds;

        PhaseCleaner(int bufferBytes, Throttler throttler) throws Exception {
            super(0, new SkimpyOffsetMap(bufferBytes), IO_BUFFER_BYTES, MAX_BATCH_BYTES, LOAD_FACTOR, throttler, Time.SYSTEM,
                    partition -> { });
        }

        @Override
        public void buildOffsetMap(UnifiedLog log, long start, long end, OffsetMap map, CleanerStats stats)
                throws IOException, DigestException {
            double before = threadCpuSeconds();
            super.buildOffsetMap(log, start, end, map, stats);
            mapCpuSeconds += threadCpuSeconds() - before;
        }
    }

    static String clean(PhaseCleaner cleaner, UnifiedLog log, int repetition) throws Exception {
        long end = log.activeSegment().baseOffset();
        long before = log.size();
        System.gc();
        double cpu = processCpuSeconds();
        double threadCpu = threadCpuSeconds();
        cleaner.mapCpuSeconds = 0;
        long began = System.nanoTime();
        long firstDirty = 0, read = 0, kept = 0, written = 0;
        int passes = 0;
        double mapUsed = 0;
        while (firstDirty < end) {
            Map.Entry<Long, CleanerStats> done = cleaner.clean(new LogToClean(log, firstDirty, end, false));
            CleanerStats stats = done.getValue();
            firstDirty = done.getKey();
            passes++;
            read += stats.mapMessagesRead();
            kept = stats.messagesWritten();                    // of the last pass, which goes over the whole log
            written += stats.bytesWritten();
            mapUsed = Math.max(mapUsed, stats.bufferUtilization());
        }
        double wall = (System.nanoTime() - began) / 1e9;
        cpu = processCpuSeconds() - cpu;
        threadCpu = threadCpuSeconds() - threadCpu;
        return String.format(Locale.ROOT, "{\"repetition\": %d, \"records\": %d, \"kept\": %d, \"passes\": %d, \"source_bytes\": %d, "
                + "\"written_bytes\": %d, \"cpu_seconds\": %.3f, \"wall_seconds\": %.3f, "
                + "\"map_cpu_seconds\": %.3f, \"rewrite_cpu_seconds\": %.3f, \"map_used_ratio\": %.4f}", repetition, read, kept, passes,
                before, written, cpu, wall, cleaner.mapCpuSeconds, threadCpu - cleaner.mapCpuSeconds, mapUsed);
    }

    static UnifiedLog open(File directory, int segmentBytes, KafkaScheduler scheduler) throws IOException {
        return UnifiedLog.create(directory, SegmentWriter.config(segmentBytes), 0L, Long.MAX_VALUE, scheduler, new BrokerTopicStats(),
                Time.SYSTEM, 60_000, new ProducerStateManagerConfig(86_400_000, false), 60_000, new LogDirFailureChannel(1), true,
                Optional.empty());
    }

    static double processCpuSeconds() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    static double threadCpuSeconds() {
        return ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() / 1e9;
    }

    static void copyOf(Path source, Path copy) throws IOException {
        Files.createDirectories(copy);
        for (Path file : listed(source)) {
            if (Files.isDirectory(file)) continue;
            Path target = copy.resolve(file.getFileName());
            if (file.toString().endsWith(".log")) Files.createLink(target, file);
            else Files.copy(file, target);
        }
    }

    static List<Path> listed(Path directory) throws IOException {
        try (Stream<Path> files = Files.list(directory)) {
            return files.collect(Collectors.toList());
        }
    }

    static void remove(Path directory) throws IOException {
        if (!Files.exists(directory)) return;
        try (Stream<Path> files = Files.walk(directory)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).collect(Collectors.toList())) Files.deleteIfExists(file);
        }
    }
}
