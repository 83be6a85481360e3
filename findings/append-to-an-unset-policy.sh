#!/usr/bin/env bash
# APPEND to a topic's cleanup.policy may take a policy away.
#
# Guess: IncrementalAlterConfigs with the operation APPEND adds a word to the list that is in effect. A topic
#   without a policy of its own has that of the broker (log.cleanup.policy, in server.properties or as the
#   dynamic default of the cluster): compact. After APPEND delete it has compact,delete.
# Versions: Apache Kafka 4.3.1 (broker, controller and Admin client, KRaft), Java 17 or newer, Maven.
# Behaviour: the controller begins with the default of the software, `delete`, not with the value in effect. APPEND
#   delete stores cleanup.policy=delete: the topic is not compacted any more, and its newest values expire after
#   retention.ms. SUBTRACT compact, where nothing is stored and compact is in effect, stores delete, too.
# Output seen (2026-11-28):
#   in effect: compact from DYNAMIC_DEFAULT_BROKER_CONFIG
#   after APPEND delete: delete from DYNAMIC_TOPIC_CONFIG
#   after SUBTRACT compact: delete from DYNAMIC_TOPIC_CONFIG
#   the same as before
# Exit code: 0 if the behaviour is as described, 1 if it has changed.
set -euo pipefail
place=$(mktemp -d)
broker=""
trap '[ -z "$broker" ] || kill -9 "$broker" 2>/dev/null || true; rm -rf "$place"' EXIT
cd "$place"
cat > pom.xml <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>x</groupId><artifactId>x</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.3.1</version></dependency>
</dependencies></project>
POM
mvn -q -B dependency:copy-dependencies -DoutputDirectory=jars
port=$((20000 + RANDOM % 20000))
cat > server.properties <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((port + 1))
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
log.dirs=$place/data
PROPERTIES
java -cp 'jars/*' kafka.tools.StorageTool format -t bGFzdHdvcmQtdGVzdHMhIQ -c server.properties > format.txt 2>&1
java -Xmx512m -cp 'jars/*' kafka.Kafka server.properties > broker.txt 2>&1 &
broker=$!
cat > Finding.java <<'JAVA'
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.common.config.ConfigResource;

class Finding {
    static final ConfigResource ALL = new ConfigResource(ConfigResource.Type.BROKER, "");
    static Admin admin;

    static void alter(ConfigResource resource, String name, String value, OpType operation) throws Exception {
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry(name, value), operation);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
    }

    static String policy(ConfigResource topic) throws Exception {
        ConfigEntry entry = admin.describeConfigs(List.of(topic)).all().get().get(topic).get("cleanup.policy");
        return entry.value() + " from " + entry.source();
    }

    public static void main(String[] arguments) throws Exception {
        admin = Admin.create(Map.of("bootstrap.servers", arguments[0], "default.api.timeout.ms", "120000"));
        alter(ALL, "log.cleanup.policy", "compact", OpType.SET);
        List<String> after = new ArrayList<>();
        for (OpType operation : List.of(OpType.APPEND, OpType.SUBTRACT)) {
            String name = "t-" + operation, word = operation == OpType.APPEND ? "delete" : "compact";
            admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all().get();
            ConfigResource topic = new ConfigResource(ConfigResource.Type.TOPIC, name);
            for (int n = 0; n < 300; n++) { // until the broker has applied the default and the topic
                try {
                    if (policy(topic).startsWith("compact ")) break;
                } catch (java.util.concurrent.ExecutionException early) { }
                Thread.sleep(100);
            }
            if (operation == OpType.APPEND) System.out.println("in effect: " + policy(topic));
            if (!policy(topic).startsWith("compact ")) System.exit(1);
            alter(topic, "cleanup.policy", word, operation);
            for (int n = 0; n < 300 && !policy(topic).endsWith("DYNAMIC_TOPIC_CONFIG"); n++) Thread.sleep(100);
            System.out.println("after " + operation + " " + word + ": " + policy(topic));
            after.add(policy(topic));
        }
        boolean same = after.equals(List.of("delete from DYNAMIC_TOPIC_CONFIG", "delete from DYNAMIC_TOPIC_CONFIG"));
        System.out.println(same ? "the same as before" : "the behaviour has changed");
        System.exit(same ? 0 : 1);
    }
}
JAVA
java -cp 'jars/*' Finding.java "127.0.0.1:$port" 2> client.txt
