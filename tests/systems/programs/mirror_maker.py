"""MirrorMaker 2 between two clusters, both ways: the topic of one is `here.NAME` in the other."""

import os
import pathlib
import sys

address, source, target, group, state, other = sys.argv[1:7]
settings = {
    "clusters": "here,there",
    "here.bootstrap.servers": address,
    "there.bootstrap.servers": other,
    "here->there.enabled": "true",
    "there->here.enabled": "true",
    "topics": source,
    "groups": "nothing",
    "replication.factor": 1,
    "tasks.max": 2,
    "refresh.topics.interval.seconds": 2,
    "emit.checkpoints.interval.seconds": 2,
    "sync.topic.configs.interval.seconds": 2,
    "sync.topic.acls.enabled": "false",
    "offset.flush.interval.ms": 200,
    "heartbeats.replication.factor": 1,
    "checkpoints.topic.replication.factor": 1,
    "heartbeats.topic.replication.factor": 1,
    "offset-syncs.topic.replication.factor": 1,
    "offset.storage.replication.factor": 1,
    "status.storage.replication.factor": 1,
    "config.storage.replication.factor": 1,
}
path = pathlib.Path(state, "mirror.properties")
path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
java = [
    "java",
    "-Xmx384m",
    "-cp",
    os.environ["JARS"],
    "org.apache.kafka.connect.mirror.MirrorMaker",
    str(path),
]
os.execvp(java[0], java)
