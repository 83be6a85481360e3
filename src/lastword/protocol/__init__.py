"""Kafka's wire protocol as messages and bytes. No socket, no log.

```
schemas.py      Kafka's schemas; the APIs with their versions; the classes of messages, made at first use
codecs.py       a reader and a writer of each message in each version, compiled at first use
connection.py   frames, headers, correlation ids: bytes in, requests out, and the bytes of responses
messages.py     the classes of messages, by name
refusals.py     the answer that refuses a request of any API
codes.py        error codes; generated, as are schemas.jsonl and messages.pyi
```

A server:

    connection = ServerConnection()
    for request in connection.receive_data(data):
        body = MetadataResponse(cluster_id="...", brokers=[...])
        for part in connection.response(request, body):
            ...  # send bytes; os.sendfile for a FileRange
"""

from lastword.protocol.codecs import FileRange as FileRange
from lastword.protocol.codecs import codec as codec
from lastword.protocol.codecs import decode_stored as decode_stored
from lastword.protocol.codecs import encode_stored as encode_stored
from lastword.protocol.codecs import java_hash as java_hash
from lastword.protocol.connection import ClientConnection as ClientConnection
from lastword.protocol.connection import Request as Request
from lastword.protocol.connection import Response as Response
from lastword.protocol.connection import ServerConnection as ServerConnection
from lastword.protocol.schemas import Message as Message
