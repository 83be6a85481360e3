import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.logging.log4j.core.config.Configurator;
import org.slf4j.LoggerFactory;

/**
 * Brokers behind one long-lived process, one after the other: all but the first start in a fraction of its CPU.
 *
 * <p>A line on stdin is a request: "start", the files of the properties, of the log, and for what is printed, with
 * tabs between them; or "stop". The answer is a line on stdout: "ok", or "error" if the broker did not start; its log
 * has the reason. A broker that ends itself ends the process.
 */
public class Brokers {
    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        KafkaRaftServer broker = null;
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split("\t");
            if (words[0].equals("start")) {
                broker = start(words[1], words[2], words[3]);
                answers.println(broker == null ? "error" : "ok");
            } else {
                end(broker);
                broker = null;
                answers.println("ok");
            }
        }
        end(broker);
        System.exit(0);
    }

    static KafkaRaftServer start(String properties, String log, String printed) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(printed), true, StandardCharsets.UTF_8);
        System.setOut(out);
        System.setErr(out);
        log(log);
        KafkaRaftServer broker = null;
        try {
            broker = new KafkaRaftServer(KafkaConfig.fromProps(Utils.loadProps(properties), false), Time.SYSTEM);
            broker.startup();
            return broker;
        } catch (Throwable problem) { // as kafka.Kafka does
            LoggerFactory.getLogger(Brokers.class).error("Exiting Kafka due to fatal exception during startup.", problem);
            end(broker);
            return null;
        }
    }

    static void end(KafkaRaftServer broker) {
        if (broker != null) {
            broker.shutdown();
            broker.awaitShutdown();
        }
        log("/dev/null"); // the same name again would be the same open file, also if it has been removed
    }

    static void log(String file) {
        System.setProperty("lastword.log", file);
        Configurator.reconfigure();
    }
}
