#!/usr/bin/env bash
# Spark's Kafka source goes on in a topic that was deleted and made again, and leaves out its first records.
#
# Guess: failOnDataLoss is true by default, and by its documentation a query fails if data may be lost, "e.g., topics are deleted, or offsets
#   are out of range". A topic that was deleted and made again under its name has another topic id, which each broker gives since Kafka 2.8.
# Versions: PySpark 4.2.0 with spark-sql-kafka-0-10_2.13 4.2.0, confluent-kafka 2.16.1 (writes), kafka_2.13 4.4.0 (one KRaft node), Java 17,
#   Python 3.11.
# Behaviour: a checkpoint has offsets by the name of the topic, and no id. If the new topic has at least as many records as the
#   query had read of the old one, the query goes on at the old offset: the records before it are never read, without an error.
#   With fewer records the query fails, as documented.
# Output seen (2026-12-01):
#   first run: a0, a1, a2
#   made again with b0 to b4: b3, b4
#   made again with c0: StreamingQueryException
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be fetched or the broker does not start.
set -u
work=$(mktemp -d); trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT
load() { # the project, the artifact, its version, and the folder for the jars
  cat > "$work/pom.xml" <<XML
<project><modelVersion>4.0.0</modelVersion><groupId>f</groupId><artifactId>f</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.$1</groupId><artifactId>$2</artifactId><version>$3</version></dependency>
</dependencies></project>
XML
  mvn --batch-mode --quiet -f "$work/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/$4"
}
load kafka kafka_2.13 4.4.0 jars || exit 2
load spark spark-sql-kafka-0-10_2.13 4.2.0 connector || exit 2
python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.2.0 confluent-kafka==2.16.1 || exit 2
read -r port other <<< "$(python3 -c 'import socket; s=[socket.create_server(("127.0.0.1", 0)) for _ in "ab"]; print(*(x.getsockname()[1] for x in s))')"
cat > "$work/server.properties" <<EOF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$other
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$other
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
log.dirs=$work/data
EOF
java -cp "$work/jars/*" kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c "$work/server.properties" > "$work/format.out" 2>&1 || exit 2
java -Xmx512m -cp "$work/jars/*" kafka.Kafka "$work/server.properties" > "$work/broker.out" 2>&1 &
cat > "$work/stream.py" <<'PY'
import sys
import time

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

SERVER, WORK = sys.argv[1:]
admin = AdminClient({"bootstrap.servers": SERVER})
found = []


def made(values):
    """Make the topic, again if it exists, with these records."""
    end = time.monotonic() + 120
    while True:
        try:
            if "t" in admin.list_topics(timeout=10).topics:
                admin.delete_topics(["t"])["t"].result(10)
            admin.create_topics([NewTopic("t", 1)])["t"].result(10)
            break
        except (KafkaException, TimeoutError) as error:  # the broker starts, or still deletes
            if time.monotonic() > end:
                sys.exit(f"no topic: {error}")
            time.sleep(1)
    producer = Producer({"bootstrap.servers": SERVER})
    for value in values:
        producer.produce("t", value)
    if producer.flush(30):
        sys.exit("the records were not written")


def run():
    """Return the values that the query reads until it has all there is."""
    found.clear()
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", SERVER).option("subscribe", "t")
    values = source.option("startingOffsets", "earliest").load().selectExpr("cast(value as string) as value")
    writer = values.writeStream.foreachBatch(lambda rows, _: found.extend(row.value for row in rows.collect()))
    try:
        writer.option("checkpointLocation", f"{WORK}/checkpoint").trigger(availableNow=True).start().awaitTermination()
    except Exception as error:
        return type(error).__name__
    return ", ".join(found)


builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
made(["a0", "a1", "a2"])
spark = builder.getOrCreate()
print("first run:", run())
made([f"b{n}" for n in range(5)])
print("made again with b0 to b4:", run())
made(["c0"])
print("made again with c0:", run())
PY
said=$(SPARK_DIST_CLASSPATH="$work/connector/*" PYSPARK_PYTHON="$work/venv/bin/python" "$work/venv/bin/python" "$work/stream.py" "127.0.0.1:$port" "$work" 2> "$work/errors")
ended=$?
echo "$said"
[ "$ended" = 0 ] || { tail -n 5 "$work/errors" >&2; exit 2; }
[ "$said" = "first run: a0, a1, a2
made again with b0 to b4: b3, b4
made again with c0: StreamingQueryException" ] || { echo "the behaviour has changed"; exit 1; }
