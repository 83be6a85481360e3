"""Two workers of Connect: a sink writes a topic into a file, a source reads its lines into another."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

address, source, target, group, state = sys.argv[1:6]
home = pathlib.Path(state)
lines, ports = home.with_name(home.name + ".lines"), (18083, 18084)


def worker(port):
    settings = {
        "bootstrap.servers": address,
        "group.id": group,
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.path": os.environ["PLUGINS"],
        "plugin.discovery": "service_load",
        "offset.flush.interval.ms": 200,
        "scheduled.rebalance.max.delay.ms": 0,
        "exactly.once.source.support": "enabled",
        "auto.offset.reset": "earliest",
    }
    settings |= {f"{kind}.storage.topic": f"{group}-{kind}" for kind in ("config", "offset", "status")}
    settings |= {f"{kind}.storage.replication.factor": 1 for kind in ("config", "offset", "status")}
    settings |= {f"{kind}.storage.partitions": 1 for kind in ("offset", "status")}
    settings |= {
        f"{kind}.converter": "org.apache.kafka.connect.storage.StringConverter" for kind in ("key", "value")
    }
    path = home / f"worker-{port}.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = [
        "java",
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        os.environ["JARS"],
        "org.apache.kafka.connect.cli.ConnectDistributed",
    ]
    return subprocess.Popen([*java, str(path)])


def put(name, config):
    body = json.dumps(config).encode()
    url = f"http://127.0.0.1:{ports[0]}/connectors/{name}/config"
    reason = ""
    for _ in range(240):
        try:
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="PUT")
            return urllib.request.urlopen(request, timeout=10).read()
        except urllib.error.HTTPError as error:
            reason = f"{error.code} {error.read().decode(errors='replace')}"
        except OSError as error:
            reason = str(error)
        time.sleep(0.5)
    raise SystemExit(f"the workers do not answer: {reason}")


workers = [worker(port) for port in ports]
signal.signal(signal.SIGTERM, lambda *_: [each.terminate() for each in workers])
file = "org.apache.kafka.connect.file.FileStream"
put("sink", {"connector.class": f"{file}SinkConnector", "topics": source, "file": str(lines)})
hoist = {"type": "org.apache.kafka.connect.transforms.HoistField$Value", "field": "line"}
key = {"type": "org.apache.kafka.connect.transforms.ValueToKey", "fields": "line"}
chain = {"hoist": hoist, "key": key}
for name, part in (("keyed", "Key"), ("plain", "Value")):
    chain[name] = {"type": f"org.apache.kafka.connect.transforms.ExtractField${part}", "field": "line"}
source_config = {"connector.class": f"{file}SourceConnector", "topic": target, "file": str(lines)}
source_config["transforms"] = ",".join(chain)
source_config |= {
    f"transforms.{name}.{key}": value for name, step in chain.items() for key, value in step.items()
}
put("source", source_config)
for each in workers:
    each.wait()
