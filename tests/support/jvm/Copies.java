import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.kafka.connect.cli.ConnectStandalone;
import org.apache.kafka.connect.runtime.Connect;
import org.apache.kafka.connect.runtime.Herder;
import org.apache.kafka.connect.runtime.rest.entities.ConnectorInfo;
import org.apache.kafka.connect.runtime.standalone.StandaloneHerder;
import org.apache.kafka.connect.util.FutureCallback;

/** A standalone worker of Kafka Connect. */
class Copies {
    /** Runs the worker with its connectors until each file has the wanted lines. */
    static JsonNode run(JsonNode request) throws Exception {
        Connect<StandaloneHerder> connect = new ConnectStandalone().startConnect(Tools.strings(request.get("worker")));
        try {
            for (Iterator<Map.Entry<String, JsonNode>> all = request.get("connectors").fields(); all.hasNext(); ) {
                Map.Entry<String, JsonNode> connector = all.next();
                Map<String, String> config = new HashMap<>(Tools.strings(connector.getValue()));
                config.put("name", connector.getKey());
                FutureCallback<Herder.Created<ConnectorInfo>> created = new FutureCallback<>();
                connect.herder().putConnectorConfig(connector.getKey(), config, false, created);
                created.get(60, TimeUnit.SECONDS);
            }
            long end = System.nanoTime() + 120_000_000_000L;
            for (Iterator<Map.Entry<String, JsonNode>> all = request.get("lines").fields(); all.hasNext(); ) {
                Map.Entry<String, JsonNode> file = all.next();
                for (; lines(Path.of(file.getKey())) < file.getValue().asLong(); Thread.sleep(20))
                    if (System.nanoTime() > end) throw new IllegalStateException("not all lines in " + file.getKey());
            }
        } finally {
            connect.stop();
        }
        return Tools.JSON.getNodeFactory().nullNode();
    }

    static long lines(Path file) throws IOException {
        if (!Files.exists(file)) return 0;
        try (Stream<String> lines = Files.lines(file)) {
            return lines.count();
        }
    }
}
