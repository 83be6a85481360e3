#!/usr/bin/env bash
# A consumer is stopped while its broker is away, and the task that stops it ends as if somebody had cancelled it.
#
# Guess: AIOKafkaConsumer.stop() returns, or raises an error of aiokafka. What follows it runs, and a worker that does not
#   end well ends its asyncio.TaskGroup with an ExceptionGroup.
# Versions: aiokafka 0.14.0, kafka_2.13 4.4.0 (one KRaft node, ended by SIGKILL), Java 17, Python 3.11.
# Behaviour: a fetch that fails waits for `retry_backoff_ms` (100 by default) before it ends. stop() cancels it, waits for it,
#   and lets its CancelledError out, which is no Exception. The task that called stop() is cancelled, although nobody
#   cancelled it: `except Exception` does not see it, what follows is left out, and the connections of the consumer are not
#   closed. A TaskGroup takes a cancelled task for one that was asked to end: it ends without an error. With a broker
#   that answers, stop() returns.
# Output seen (2026-11-30):
#   with the broker: stopped, saved; the worker was cancelled: False
#   without the broker: neither stopped nor saved; the worker was cancelled: True; cancel() was called 0 times; the group ended without an error
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be fetched or the broker does not start.
set -u
work=$(mktemp -d); trap 'kill -9 $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT
cat > "$work/pom.xml" <<'XML'
<project><modelVersion>4.0.0</modelVersion><groupId>f</groupId><artifactId>f</artifactId><version>1</version>
<dependencies><dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency></dependencies></project>
XML
mvn --batch-mode --quiet -f "$work/pom.xml" dependency:copy-dependencies -DoutputDirectory="$work/jars" || exit 2
python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet aiokafka==0.14.0 || exit 2
read -r port other <<< "$(python3 -c 'import socket; s=[socket.create_server(("127.0.0.1", 0)) for _ in "ab"]; print(*(x.getsockname()[1] for x in s))')"
cat > "$work/server.properties" <<END
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$other
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$other
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
log.dirs=$work/data
END
java -cp "$work/jars/*" kafka.tools.StorageTool format -t AAAAAAAAAAAAAAAAAAAAAQ -c "$work/server.properties" > "$work/format.out" 2>&1 || exit 2
java -Xmx512m -cp "$work/jars/*" kafka.Kafka "$work/server.properties" > "$work/broker.out" 2>&1 &
said=$(timeout 120 "$work/venv/bin/python" - "$port" $! 2> "$work/python.out" <<'PY'
import asyncio, os, signal, socket, sys, time
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

address = f"127.0.0.1:{sys.argv[1]}"
for _ in range(240):
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
        break
    except OSError:
        time.sleep(0.5)
else:
    sys.exit(2)

class Counting(asyncio.Task):
    """A task that counts the calls of its cancel()."""
    calls = 0

    def cancel(self, *given):
        self.calls += 1
        return super().cancel(*given)

async def worker(asked, reads, done):
    consumer = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
    consumer.assign([TopicPartition("t", 0)])
    await consumer.start()
    await consumer.getone()
    reads.set()
    try:
        while not asked.is_set():
            await consumer.getmany(timeout_ms=100)
        await consumer.stop()
        done.append("stopped")
    except Exception:
        done.append("an error")
    done.append("saved")  # for example its position

async def run(when, before_stop):
    asked, reads, done, group_error = asyncio.Event(), asyncio.Event(), [], None
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(worker(asked, reads, done))
            await reads.wait()
            await before_stop()
            asked.set()
    except BaseException as error:
        group_error = error
    said = ", ".join(done) or "neither stopped nor saved"
    text = f"{when}: {said}; the worker was cancelled: {task.cancelled()}"
    if task.cancelled():
        text += f"; cancel() was called {task.calls} times"
        text += "; the group ended without an error" if group_error is None else f"; the group: {group_error!r}"
    print(text)

async def kill():
    os.kill(int(sys.argv[2]), signal.SIGKILL)
    await asyncio.sleep(3)

async def main():
    asyncio.get_running_loop().set_task_factory(lambda loop, work, **given: Counting(work, loop=loop, **given))
    async with AIOKafkaProducer(bootstrap_servers=address) as producer:
        await producer.send_and_wait("t", b"v")
    await run("with the broker", lambda: asyncio.sleep(1))
    await run("without the broker", kill)

asyncio.run(main())
PY
)
code=$?
echo "$said"
test $code -eq 2 && exit 2
expected='with the broker: stopped, saved; the worker was cancelled: False
without the broker: neither stopped nor saved; the worker was cancelled: True; cancel() was called 0 times; the group ended without an error'
test "$said" = "$expected"
