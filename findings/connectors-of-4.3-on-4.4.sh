#!/usr/bin/env bash
# Kafka 4.4.0 moves a class that connectors take their version from.
#
# Guess: a connector that is compiled against Kafka 4.3 runs in a Connect worker of 4.4.0: a minor release keeps the
#   API of connectors. Kafka's own file connectors are such connectors; the newest on Maven Central is 4.3.1.
# Versions: connect-file 4.3.1, connect-api, connect-runtime and kafka-clients 4.4.0; Java 17.
# Behaviour: 4.4.0 has `org.apache.kafka.common.utils.AppInfoParser` in another package, `…utils.internals`.
#   `version()`, which a worker calls, ends with NoClassDefFoundError. It is not an API that Kafka promises, but its own
#   connectors, and those that were written after them, take their version from it. With 4.3.1 the same program is fine.
# Output seen (2026-11-28):
#   4.3.1: version 4.3.1
#   4.4.0: java.lang.NoClassDefFoundError: org/apache/kafka/common/utils/AppInfoParser
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be fetched.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cat > "$work/Version.java" <<'JAVA'
public class Version {
    public static void main(String[] args) {
        try {
            System.out.println("version " + new org.apache.kafka.connect.file.FileStreamSinkConnector().version());
        } catch (Throwable error) {
            System.out.println(error);
        }
    }
}
JAVA
get() { mvn --batch-mode --quiet dependency:copy -Dartifact="$1" -DoutputDirectory="$2" || exit 2; }
for version in 4.3.1 4.4.0; do
  get org.apache.kafka:connect-file:4.3.1 "$work/$version"
  for part in connect-api kafka-clients; do get "org.apache.kafka:$part:$version" "$work/$version"; done
  get org.slf4j:slf4j-api:1.7.36 "$work/$version"
  said=$(java -cp "$work/$version/*" "$work/Version.java" 2>/dev/null | grep -m1 -E 'version|Error')
  echo "$version: $said"
  case "$version $said" in
    "4.3.1 version 4.3.1" | "4.4.0 java.lang.NoClassDefFoundError: org/apache/kafka/common/utils/AppInfoParser") ;;
    *) exit 1 ;;
  esac
done
