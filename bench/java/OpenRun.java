import java.nio.file.Path;
import java.util.Locale;
import java.util.Optional;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * What a broker does with one partition when it starts: opens its log, after a clean stop or after a kill.
 *
 * <p>OpenRun PARTITION_DIRECTORY WORK_DIRECTORY REPETITIONS clean|killed SEGMENT_BYTES
 *
 * <p>Works on a copy whose log files are hard links. After a kill everything from offset 0 on is recovered, as nothing was
 * flushed. A line of JSON for each repetition; the first is cold.
 */
public class OpenRun {
    public static void main(String[] a) throws Exception {
        Path copy = Path.of(a[1]).resolve(Path.of(a[0]).getFileName());
        CleanerRun.remove(copy.getParent());
        CleanerRun.copyOf(Path.of(a[0]), copy);
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        for (int repetition = 1; repetition <= Integer.parseInt(a[2]); repetition++) {
            System.gc();
            double cpu = CleanerRun.processCpuSeconds();
            long began = System.nanoTime();
            UnifiedLog log = UnifiedLog.create(copy.toFile(), SegmentWriter.config(Integer.parseInt(a[4])), 0L, 0L, scheduler,
                    new BrokerTopicStats(), Time.SYSTEM, 60_000, new ProducerStateManagerConfig(86_400_000, false), 60_000,
                    new LogDirFailureChannel(1), a[3].equals("clean"), Optional.empty());
            double wall = (System.nanoTime() - began) / 1e9;
            System.out.printf(Locale.ROOT, "{\"repetition\": %d, \"segments\": %d, \"log_end\": %d, \"cpu_seconds\": %.3f, "
                    + "\"wall_seconds\": %.3f}%n", repetition, log.logSegments().size(), log.logEndOffset(),
                    CleanerRun.processCpuSeconds() - cpu, wall);
            log.close();
        }
        CleanerRun.remove(copy.getParent());
        System.exit(0);
    }
}
