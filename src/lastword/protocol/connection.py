"""Both ends of a connection of Kafka's protocol, without a socket: bytes in, requests or responses out.

```
frame      i32 size · header · body
request    i16 API key · i16 version · i32 correlation id · string client id or null · [tagged fields] · body
response   i32 correlation id · [tagged fields] · body
```

The tagged fields of a header are there if the version is flexible. ApiVersions has two rules of its own,
because a client sends it before it has the versions of the server: its response header never has tagged
fields, and a request in a version that the server does not have is answered in version 0, with
UNSUPPORTED_VERSION.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from lastword.errors import FrameTooLargeError, MalformedMessageError, UnsupportedVersionError
from lastword.protocol.codecs import READ_FAULTS, Buffer, Part, codec, skip_tags
from lastword.protocol.codes import UNSUPPORTED_VERSION
from lastword.protocol.schemas import APIS, BY_NAME, Api, Message, message_class
from lastword.units import format_bytes

MAX_FRAME = 100 << 20
"""Kafka's default of `socket.request.max.bytes`."""

SPARE_BYTES = 64
"""Bytes behind a frame that arrived in parts, so that kernels can read its records where they are."""

PRODUCE, API_VERSIONS, SASL_AUTHENTICATE = 0, 18, 36
TOKEN = -1
_CLOSE = "close the connection; the peer does not speak this version of Kafka's protocol"
_SIZE = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")
Body = TypeVar("Body", covariant=True)
T = TypeVar("T")


class Request(NamedTuple, Generic[Body]):
    """A request that a client sent.

    Attributes:
        api: The API.
        version: The version of the request, in which it is answered.
        correlation_id: The client's number of this request.
        client_id: The client's name for itself, or None.
        body: The message. The records of a ProduceRequest are slices of the bytes that were received.
        size: The bytes of the frame.
        error: UNSUPPORTED_VERSION for an ApiVersions request in a version that is not supported; its body is
            empty and its version 0. Otherwise 0.
    """

    api: Api
    version: int
    correlation_id: int
    client_id: str | None
    body: Body
    size: int
    error: int = 0


class Response(NamedTuple):
    """An answer that a server sent.

    Attributes:
        api: The API.
        version: The version of the request.
        correlation_id: The number of the request.
        body: The message. The records of a FetchResponse are slices of the bytes that were received.
        size: The bytes of the frame.
    """

    api: Api
    version: int
    correlation_id: int
    body: Any
    size: int


class _Frames:
    """Cuts received bytes into frames. Memory grows with the bytes received, not with the announced size."""

    def __init__(self, max_frame: int) -> None:
        self.max_frame = max_frame
        self._received = memoryview(b"")  # not yet cut
        self._partial: bytearray | None = None  # the start of a frame, with its size
        self._failed: MalformedMessageError | UnsupportedVersionError | None = None

    def receive(self, data: Buffer, parse: Callable[[memoryview], T]) -> Iterator[T]:
        """Add bytes that were received, and yield the messages that `parse` returns for the whole frames.

        The bytes must not change while messages of them are used. After an error each call raises it again.
        """
        if self._failed is not None:
            raise self._failed
        if len(self._received):  # the caller left the last iterator early
            data = b"".join((self._received, data))
        self._received = memoryview(data)
        return self._parsed(parse)

    def _parsed(self, parse: Callable[[memoryview], T]) -> Iterator[T]:
        while True:
            try:
                frame = self.next()
                if frame is None:
                    return
                message = parse(frame)
            except (MalformedMessageError, UnsupportedVersionError) as error:
                self._failed = error
                raise
            yield message

    def waiting(self) -> int:
        """Return the number of bytes that no frame has yet."""
        return len(self._received) + (0 if self._partial is None else len(self._partial))

    def next(self) -> memoryview | None:
        """Return the next whole frame without its size, or None if bytes are missing."""
        partial = self._partial
        if partial is not None:
            self._take(4, partial)
            if len(partial) < 4:
                return None
            end = 4 + self._size(partial)
            self._take(end, partial)
            if len(partial) < end:
                return None
            self._partial = None
            partial += bytes(SPARE_BYTES)
            return memoryview(partial)[4:end]
        received = self._received
        if len(received) >= 4:
            end = 4 + self._size(received)
            if len(received) >= end:
                self._received = received[end:]
                return received[4:end]
        if len(received):
            self._partial = bytearray(received)
            self._received = memoryview(b"")
        return None

    def _take(self, end: int, partial: bytearray) -> None:
        """Move received bytes to `partial` until it has `end` bytes."""
        count = max(0, end - len(partial))
        partial += self._received[:count]
        self._received = self._received[count:]

    def _size(self, data: Buffer) -> int:
        size: int = _SIZE.unpack_from(data)[0]
        if size < 4:
            raise MalformedMessageError(f"a frame of {size} bytes", remedy=_CLOSE, position=0)
        if size > self.max_frame:
            raise FrameTooLargeError(
                f"a frame of {format_bytes(size)}; {format_bytes(self.max_frame)} at most",
                remedy="close the connection; raise max_frame if the peer may send such messages",
                position=0,
            )
        return size


def advertised() -> list[tuple[int, int, int]]:
    """Return (key, first version, last version) of each API for the answer to ApiVersions.

    Produce begins at 0, although 0 to 2 are refused: librdkafka compresses only if they are listed.
    """
    return [
        (api.key, 0 if api.key == PRODUCE else api.first, min(api.last, api.stable)) for api in APIS.values()
    ]


class ServerConnection:
    """The server's end: requests out of bytes, and bytes for their responses.

    Args:
        apis: The APIs that are served, by key, with their versions.
        max_frame: The most bytes of one request.

    Attributes:
        has_tokens: The next frames are tokens of SASL without a header, as after SaslHandshake in version 0.
            A token is a SaslAuthenticate request in version -1, and so is its answer.
    """

    def __init__(self, *, apis: Mapping[int, Api] = APIS, max_frame: int = MAX_FRAME) -> None:
        self.has_tokens = False
        self._apis = apis
        self._frames = _Frames(max_frame)

    def allow(self, apis: Mapping[int, Api], max_frame: int) -> None:
        """Serve other APIs, and requests of another size, from the next request on."""
        self._apis = apis
        self._frames.max_frame = max_frame

    @property
    def waiting(self) -> int:
        """Return the number of bytes that were received and belong to no request yet."""
        return self._frames.waiting()

    def receive_data(self, data: Buffer) -> Iterator[Request[Any]]:
        """Yield the requests that are whole with these bytes.

        A caller that leaves the iterator early gets the other requests with the next call; `b""` is enough.

        Args:
            data: Bytes as they were received. Records of requests are slices of them, so they must not change
                while a request is used: give `bytes`, not a buffer that the next receive fills again.

        Raises:
            MalformedMessageError: The bytes are no request. The connection must be closed; each further call
                raises the error again.
            UnsupportedVersionError: A request of an API or version that is not served. As above.
        """
        return self._frames.receive(data, self._request)

    def _request(self, frame: memoryview) -> Request[Any]:
        size = len(frame)
        if self.has_tokens:
            token = message_class("SaslAuthenticateRequest")()
            token.auth_bytes = bytes(frame)  # type: ignore[attr-defined]
            return Request(APIS[SASL_AUTHENTICATE], TOKEN, 0, None, token, size)
        if size < _HEADER.size:
            raise MalformedMessageError(f"a request of {size} bytes", remedy=_CLOSE, position=size)
        key, version, correlation_id, length = _HEADER.unpack_from(frame)
        position = _HEADER.size
        client_id = None
        if length != -1:
            if length < 0 or length > size - position:
                raise MalformedMessageError(
                    f"a client id of {length} bytes in a request of {size}",
                    remedy=_CLOSE,
                    position=position - 2,
                )
            position += length
            try:
                client_id = str(frame[position - length : position], "utf-8")
            except UnicodeDecodeError:
                raise MalformedMessageError(
                    "a client id that is not UTF-8", remedy=_CLOSE, position=position - length
                ) from None
        api = self._apis.get(key)
        if api is None or not api.first <= version <= api.last:
            if key == API_VERSIONS and api is not None:
                body = message_class("ApiVersionsRequest")()
                return Request(api, 0, correlation_id, client_id, body, size, UNSUPPORTED_VERSION)
            raise _unsupported(key, version, api)
        if version >= api.flexible:
            position = _skip_tags(frame, position)
        # Kafka ignores bytes behind a request. librdkafka sends 3 of them when it requests all topics.
        body = codec(f"{api.name}Request", version).decode(frame, position, whole=False)
        return Request(api, version, correlation_id, client_id, body, size)

    def response(self, request: Request[Any], body: Message) -> list[Part]:
        """Return the frame that answers a request, as parts to be sent one after the other.

        The records of a FetchResponse stay the buffers and file ranges that the message has.

        Raises:
            UnsupportedVersionError: A field that this version does not have would be lost.
            UnencodableMessageError: A field has a value of another type, or one that is too large.
        """
        api, version = request.api, request.version
        if version == TOKEN:
            return _framed(body.auth_bytes, [])  # type: ignore[attr-defined]
        header = _SIZE.pack(request.correlation_id)
        if version >= api.flexible and api.key != API_VERSIONS:
            header += b"\0"
        return _framed(header, codec(f"{api.name}Response", version).encode_parts(body))


class ClientConnection:
    """The client's end: bytes for requests, and responses out of bytes, in the order of their requests.

    Args:
        client_id: The client's name for itself.
        max_frame: The most bytes of one response.
    """

    def __init__(self, client_id: str | None = None, *, max_frame: int = MAX_FRAME) -> None:
        self._client_id = client_id
        self._frames = _Frames(max_frame)
        self._asked: deque[tuple[Api, int, int]] = deque()
        self._next = 0

    def request(self, body: Message, version: int) -> list[Part]:
        """Return the frame of a request, as parts to be sent one after the other.

        Raises:
            UnsupportedVersionError: The API has no such version, or a field has no place in it.
            UnencodableMessageError: A field has a value of another type, or one that is too large.
        """
        api = BY_NAME[type(body).__name__.removesuffix("Request")]
        parts = codec(type(body).__name__, version).encode_parts(body)
        client_id = b"" if self._client_id is None else self._client_id.encode()
        length = -1 if self._client_id is None else len(client_id)
        header = _HEADER.pack(api.key, version, self._next, length) + client_id
        if version >= api.flexible:
            header += b"\0"
        if api.key != PRODUCE or body.acks:  # type: ignore[attr-defined]
            self._asked.append((api, version, self._next))
        self._next = (self._next + 1) & 0x7FFFFFFF
        return _framed(header, parts)

    def receive_data(self, data: Buffer) -> Iterator[Response]:
        """Yield the responses that are whole with these bytes, which must not change while they are used.

        Raises:
            MalformedMessageError: The bytes are not the response to the oldest request. The caller must close
                the connection; each further call raises the error again.
        """
        return self._frames.receive(data, self._response)

    def _response(self, frame: memoryview) -> Response:
        (correlation_id,) = _SIZE.unpack_from(frame)
        if not self._asked or self._asked[0][2] != correlation_id:
            raise MalformedMessageError(
                f"a response with correlation id {correlation_id}, which is not the oldest request's",
                remedy=_CLOSE,
                position=0,
            )
        api, version, _ = self._asked.popleft()
        position = 4
        if api.key == API_VERSIONS:
            if frame[4:6] == struct.pack(">h", UNSUPPORTED_VERSION):
                version = 0
        elif version >= api.flexible:
            position = _skip_tags(frame, position)
        body = codec(f"{api.name}Response", version).decode(frame, position)
        return Response(api, version, correlation_id, body, len(frame))


def _framed(header: bytes, parts: list[Part]) -> list[Part]:
    """Return the parts with size and header in front; the first part is bytes."""
    size = len(header) + sum(map(len, parts))
    first = parts[0] if parts else b""
    assert isinstance(first, bytes)
    return [_SIZE.pack(size) + header + first, *parts[1:]]


def _skip_tags(frame: memoryview, position: int) -> int:
    """Return the position behind the tagged fields of a header, which has none that we read."""
    try:
        return skip_tags(frame, position, len(frame))
    except READ_FAULTS:
        raise MalformedMessageError(
            "tagged fields of a header beyond its frame", remedy=_CLOSE, position=position
        ) from None


def _unsupported(key: int, version: int, api: Api | None) -> UnsupportedVersionError:
    text = f"a request of API {key}, which is not served"
    if api is not None:
        text = f"a {api.name} request in version {version}; {api.first} to {api.last} are served"
    return UnsupportedVersionError(text, remedy="close the connection; ask for ApiVersions first")
