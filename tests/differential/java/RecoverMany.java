import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Kafka's own recovery of many partition directories in one process.
 *
 * <p>A line of stdin is one opening: DIRECTORY RECOVERY_POINT CLEAN, split by tabs. The answer is "ok" and the log end, or
 * "error" and why.
 */
public class RecoverMany {
    public static void main(String[] arguments) throws Exception {
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            String[] a = line.split("\t");
            String answer;
            try {
                UnifiedLog log = UnifiedLog.create(Path.of(a[0]).toFile(), new LogConfig(Map.of("cleanup.policy", "compact")), 0L,
                        Long.parseLong(a[1]), scheduler, new BrokerTopicStats(), Time.SYSTEM, 60_000,
                        new ProducerStateManagerConfig(86_400_000, false), 60_000, new LogDirFailureChannel(1),
                        Boolean.parseBoolean(a[2]), Optional.empty());
                answer = "ok\t" + log.logEndOffset();
                log.close();
            } catch (Throwable problem) {
                answer = "error\t" + problem.toString().replaceAll("\\s+", " ");
            }
            System.out.println(answer);
            System.out.flush();
        }
        scheduler.shutdown();
        System.exit(0);
    }
}
