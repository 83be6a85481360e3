#!/usr/bin/env bash
# Clients of S3 say that an object exists that they have just created themselves.
#
# Guess: a create (If-None-Match: *) that ends with PreconditionFailed has created nothing: another writer was first. So it is used for
#   locks, leaders and commits. If the answer is lost, the client raises an error of the connection, because it cannot know.
# Versions: boto3 and botocore 1.43.117, s3fs 2026.9.0 with aiobotocore 3.10.0, obstore 0.12.1, moto 5.2.5, Python 3.11. A program between them
#   loses one answer: it closes the connection, or answers 503, after moto has stored the object.
# Behaviour: all three send the request again, with their defaults, boto3 also with retries in mode "standard". S3 refuses the second
#   one because of the first. The caller is told that the object exists, and it does: with the caller's bytes. A lock is then
#   held by nobody, until it expires; a commit that is there is made a second time. Without retries (boto3: total_max_attempts 1;
#   obstore: max_retries 0) the error is one that leaves the outcome open. A program that retries has to read the object.
# Output seen (2026-12-01):
#   boto3, connection closed: PreconditionFailed after 2 requests, the object is b'mine'
#   boto3, answer 503: PreconditionFailed after 2 requests, the object is b'mine'
#   s3fs, connection closed: FileExistsError after 2 requests, the object is b'mine'
#   s3fs, answer 503: FileExistsError after 2 requests, the object is b'mine'
#   obstore, connection closed: AlreadyExistsError after 2 requests, the object is b'mine'
#   obstore, answer 503: AlreadyExistsError after 2 requests, the object is b'mine'
#   boto3 without retries, connection closed: ConnectionClosedError after 1 request, the object is b'mine'
#   obstore without retries, connection closed: GenericError after 1 request, the object is b'mine'
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet --disable-pip-version-check boto3==1.43.117 botocore==1.43.117 \
  aiobotocore==3.10.0 s3fs==2026.9.0 fsspec==2026.9.0 obstore==0.12.1 "moto[s3]==5.2.5" flask flask-cors || exit 2
said=$("$work/venv/bin/python" -W ignore - 2> "$work/errors" <<'PY'
import logging
import socket
import threading

import boto3
import obstore
from botocore.config import Config
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer
from obstore.store import S3Store
from s3fs import S3FileSystem

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
host, port = server.get_host_and_port()
KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
direct = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **KEYS)
direct.create_bucket(Bucket="bucket")
puts, lost = 0, None  # the number of requests, and how the first answer is lost


def received(client):
    """Return one request of a client, or nothing at its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = client.recv(65536)
        if not more:
            return b"", b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    if b"100-continue" in head.lower():
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    size = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    chunked = b"transfer-encoding: chunked" in head.lower()
    while len(body) < size or (chunked and not (body.endswith(b"\r\n\r\n") and (b"\r\n0\r\n" in body or body.startswith(b"0\r\n")))):
        body += client.recv(65536)
    return head, body


def forward(client):
    global puts, lost
    with client:
        head, body = received(client)
        if not head:
            return
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith((b"expect:", b"connection:"))]
        with socket.create_connection(("127.0.0.1", port)) as moto:
            moto.sendall(b"\r\n".join([*lines, b"connection: close"]) + b"\r\n\r\n" + body)
            answer = b""
            while data := moto.recv(65536):
                answer += data
        if head.startswith(b"PUT"):
            puts, how, lost = puts + 1, lost, None
            if how == "connection closed":
                return
            if how == "answer 503":
                answer = b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        client.sendall(answer)


def listen():
    while True:
        threading.Thread(target=forward, args=(between.accept()[0],), daemon=True).start()


between = socket.create_server(("127.0.0.1", 0))
URL = f"http://127.0.0.1:{between.getsockname()[1]}"
threading.Thread(target=listen, daemon=True).start()


def by_boto3(**config):
    client = boto3.client("s3", endpoint_url=URL, config=Config(**config), **KEYS)
    return lambda key: client.put_object(Bucket="bucket", Key=key, Body=b"mine", IfNoneMatch="*")


def by_s3fs():
    system = S3FileSystem(endpoint_url=URL, key="key", secret="secret", client_kwargs={"region_name": "us-east-1"})
    return lambda key: system.pipe_file(f"bucket/{key}", b"mine", mode="create")


def by_obstore(**retries):
    options = {"endpoint": URL, "access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
    store = S3Store("bucket", **options, client_options={"allow_http": True}, retry_config=retries or None)
    return lambda key: obstore.put(store, key, b"mine", mode="create")


def show(name, create, how):
    global puts, lost
    key, puts, lost = f"{name} {how}".replace(" ", "-").replace(",", ""), 0, how
    try:
        create(key)
        told = "no error"
    except ClientError as error:
        told = error.response["Error"]["Code"]
    except Exception as error:
        told = type(error).__name__
    stored = direct.get_object(Bucket="bucket", Key=key)["Body"].read()
    print(f"{name}, {how}: {told} after {puts} request{'s' if puts > 1 else ''}, the object is {stored}")


for name, create in (("boto3", by_boto3()), ("s3fs", by_s3fs()), ("obstore", by_obstore())):
    for how in ("connection closed", "answer 503"):
        show(name, create, how)
show("boto3 without retries", by_boto3(retries={"total_max_attempts": 1}), "connection closed")
show("obstore without retries", by_obstore(max_retries=0), "connection closed")
server.stop()
PY
)
echo "$said"
[ "$said" = "boto3, connection closed: PreconditionFailed after 2 requests, the object is b'mine'
boto3, answer 503: PreconditionFailed after 2 requests, the object is b'mine'
s3fs, connection closed: FileExistsError after 2 requests, the object is b'mine'
s3fs, answer 503: FileExistsError after 2 requests, the object is b'mine'
obstore, connection closed: AlreadyExistsError after 2 requests, the object is b'mine'
obstore, answer 503: AlreadyExistsError after 2 requests, the object is b'mine'
boto3 without retries, connection closed: ConnectionClosedError after 1 request, the object is b'mine'
obstore without retries, connection closed: GenericError after 1 request, the object is b'mine'" ] || { tail -n 5 "$work/errors" >&2; echo "the behaviour has changed"; exit 1; }
