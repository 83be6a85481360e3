import os
import sys

import faust

address, source, target, group, state = sys.argv[1:6]
os.environ.pop("FAUST_LOOP", None)
app = faust.App(
    group,
    broker=f"kafka://{address}",
    store="memory://",
    datadir=state,
    topic_replication_factor=1,
    topic_partitions=2,
    topic_allow_declare=True,
    web_enabled=False,
    consumer_auto_offset_reset="earliest",
    broker_commit_interval=0.2,
)
counts = app.Table("counts", default=int, partitions=2, key_type=str, value_type=int)
incoming = app.topic(source, key_type=str, value_type=str, value_serializer="raw", key_serializer="raw")
outgoing = app.topic(target, key_type=str, value_type=str, value_serializer="raw", key_serializer="raw")


@app.agent(incoming)
async def count(stream):
    async for key, _ in stream.items():
        counts[key] += 1
        await outgoing.send(key=key, value=str(counts[key]))


sys.argv = [sys.argv[0], "worker", "-l", "warn", "--without-web"]
app.main()
