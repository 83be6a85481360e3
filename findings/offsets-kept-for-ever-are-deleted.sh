#!/usr/bin/env bash
# Kafka 4.4.0 deletes a committed offset at once if its client asks to keep it for ever.
#
# Guess: an OffsetCommit of version 2 to 4 gives the time for which an offset is kept. The largest time keeps it: who asks
#   for more than the clock can hold gets the most that there is.
# Versions: kafka_2.13 4.4.0 (one KRaft node with its defaults, but one replica and a check every half second); Java 17.
# Behaviour: the coordinator adds the time to its clock in 64 bits without a bound. With 2^63-1 ms the sum is negative, lies
#   in the past, and the next check for expired offsets deletes the offset. The commit was answered without an error. Ten
#   minutes are kept as asked. sarama and kafka-go have a setting for this time.
# Output seen (2026-11-29):
#   answers to the commits: 0 0
#   kept for 600000 ms: offset 5; kept for 9223372036854775807 ms: offset -1
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be fetched or the broker does not start.
set -u
work=$(mktemp -d); trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT
cat > "$work/pom.xml" <<'XML'
<project><modelVersion>4.0.0</modelVersion><groupId>f</groupId><artifactId>f</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency></dependencies></project>
XML
mvn --batch-mode --quiet -f "$work/pom.xml" dependency:copy-dependencies -DoutputDirectory="$work/jars" || exit 2
read -r port other <<< "$(python3 -c 'import socket; s=[socket.create_server(("127.0.0.1", 0)) for _ in "ab"]; print(*(x.getsockname()[1] for x in s))')"
cat > "$work/server.properties" <<EOF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$other
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$other
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
log.dirs=$work/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
offsets.retention.check.interval.ms=500
num.partitions=2
EOF
java -cp "$work/jars/*" kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c "$work/server.properties" > "$work/format.out" 2>&1 || exit 2
java -Xmx512m -cp "$work/jars/*" kafka.Kafka "$work/server.properties" > "$work/broker.out" 2>&1 &
said=$(python3 - "$port" <<'PY'
import socket, struct, sys, time

def text(value):
    return struct.pack(">h", len(value)) + value

def ask(key, version, body):
    """Send one request, and return the body of its answer."""
    with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10) as sock:
        frame = struct.pack(">hhi", key, version, 1) + text(b"c") + body
        sock.sendall(struct.pack(">i", len(frame)) + frame)
        stream = sock.makefile("rb")
        (size,) = struct.unpack(">i", stream.read(4))
        return stream.read(size)[4:]

def commit(partition, kept_ms):
    body = text(b"g") + struct.pack(">i", -1) + text(b"") + struct.pack(">qi", kept_ms, 1) + text(b"t")
    body += struct.pack(">iiq", 1, partition, 5) + text(b"")
    return struct.unpack(">h", ask(8, 2, body)[-2:])[0]

def committed(partition):
    body = text(b"g") + struct.pack(">i", 1) + text(b"t") + struct.pack(">ii", 1, partition)
    return struct.unpack(">iq", ask(9, 1, body)[11:23])[1]

times = (600_000, 2**63 - 1)
end = time.monotonic() + 120
while time.monotonic() < end:
    try:
        ask(3, 4, struct.pack(">i", 1) + text(b"t") + b"\1")  # Metadata: creates the topic
        ask(10, 0, text(b"g"))  # FindCoordinator: creates the topic of offsets
        answers = [commit(partition, kept) for partition, kept in enumerate(times)]
        if answers == [0, 0]:
            break
    except (OSError, struct.error):
        pass
    time.sleep(0.5)
else:
    sys.exit(2)
print("answers to the commits:", *answers)
end = time.monotonic() + 30
while committed(1) != -1 and time.monotonic() < end:
    time.sleep(0.5)
print("; ".join(f"kept for {kept} ms: offset {committed(partition)}" for partition, kept in enumerate(times)))
PY
) || exit 2
echo "$said"
[ "$said" = "answers to the commits: 0 0
kept for 600000 ms: offset 5; kept for 9223372036854775807 ms: offset -1" ] || exit 1
