import sys

from quixstreams import Application

address, source, target, group, state = sys.argv[1:6]
app = Application(
    address, consumer_group=group, state_dir=state, auto_offset_reset="earliest", commit_interval=0.2
)
texts = {
    "key_serializer": "str",
    "key_deserializer": "str",
    "value_serializer": "str",
    "value_deserializer": "str",
}


def counted(value, state):
    count = state.get("count", 0) + 1
    state.set("count", count)
    return str(count)


app.dataframe(app.topic(source, **texts)).apply(counted, stateful=True).to_topic(app.topic(target, **texts))
app.run()
