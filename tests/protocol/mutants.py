"""Frames with random damage, fed to both ends of a connection in random pieces.

    python -m tests.protocol.mutants --frames 1000000 --seed 7

Each frame gives messages, or an error of ours with position and remedy. A message that is accepted can be
written, and what was written gives the same message again.
"""

from __future__ import annotations

import argparse
import random
import struct
from collections import Counter

from lastword.errors import MalformedMessageError, UnsupportedVersionError
from lastword.protocol import ClientConnection, ServerConnection, codec
from lastword.protocol.schemas import APIS
from tests.protocol.random_messages import random_message

HOSTILE = (
    b"\xff" * 11,
    b"\x80" * 11,
    b"\xff\xff\xff\xff\x0f",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xfe",
    b"\x7f\xff",
    b"\x80\x00",
    b"\xc3\x28",
)


def frame(rng: random.Random, *, response: bool) -> tuple[ClientConnection, ServerConnection, bytes]:
    """Return both ends after a request, and the bytes of that request or of its response."""
    api = rng.choice(list(APIS.values()))
    version = rng.randint(api.first, api.last)
    client, server = ClientConnection("c"), ServerConnection()
    body = random_message(f"{api.name}Request", version, rng)
    if api.name == "Produce":
        body.acks = 1
    data = b"".join(client.request(body, version))
    if response:
        (request,) = server.receive_data(data)
        data = b"".join(server.response(request, random_message(f"{api.name}Response", version, rng)))
    return client, server, data


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return the frame with one to three changes; its size is mostly made right again."""
    body = bytearray(data[4:])
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(8):
            case 0 | 1 | 2 | 3 if body:
                body[at % len(body)] ^= 1 << rng.randrange(8)
            case 4:
                del body[at:]
            case 5:
                piece = rng.choice(HOSTILE)
                body[at : at + len(piece)] = piece
            case 6:
                body[at:at] = rng.randbytes(rng.randint(1, 9))
            case _:
                del body[at : at + rng.randint(1, 9)]
    size = (
        len(body) if rng.random() < 0.95 else rng.choice((-1, 0, 3, 0x7FFFFFFF, len(body) + 1, len(body) - 1))
    )
    return struct.pack(">i", size) + body


def run(frames: int, seed: int) -> Counter[str]:
    """Judge `frames` frames; return how many were accepted, refused, and waited for more bytes."""
    rng = random.Random(seed)
    results: Counter[str] = Counter()
    while results.total() < frames:
        response = rng.random() < 0.4
        client, server, sound = frame(rng, response=response)
        data = mutated(sound, rng)
        end = client if response else server
        cut = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
        pieces = [data[i:j] for i, j in zip([0, *cut], [*cut, len(data)], strict=True)]
        result = "waiting"
        try:
            for piece in pieces:
                for message in end.receive_data(piece):
                    kind = "Response" if response else "Request"
                    text = codec(f"{message.api.name}{kind}", message.version)
                    assert text.decode(text.encode(message.body)) == message.body
                    result = "accepted"
        except MalformedMessageError as error:
            assert error.remedy and error.position is not None and error.position <= len(data), error
            result = "refused"
        except UnsupportedVersionError as error:
            assert error.remedy and not response
            result = "refused"
        results[result] += 1
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(dict(run(arguments.frames, arguments.seed)))
