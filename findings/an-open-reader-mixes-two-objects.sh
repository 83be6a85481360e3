#!/usr/bin/env bash
# A file that obstore has opened continues in another object, when its object is replaced: half old, half new, no error.
#
# Guess: `open_reader` asks for the object's size and ETag once, and a read of the same ETag or an error follows, as in
#   Hadoop's S3A and in minio-go. A file of a directory keeps its content as long as it is open, when another file
#   takes its name.
# Versions: obstore 0.12.1, fsspec 2026.9.0, moto 5.2.5 (S3) with boto3 1.44.8, Python 3.11. An object of 4,096 bytes is
#   replaced by another one, after the first bytes of it were read.
# Behaviour: each buffer of the reader is a range request of its own, without a condition, also for a directory, where each
#   read opens the name again. The bytes in the buffer are of the old object, all others of the new one. The size is
#   the first one: of a longer object the rest is missing. Only a shorter object can be an error. A file that is
#   opened by obstore.fsspec does the same. `get()` and its stream are of one object, and a get with `if_match` is an error.
# Output seen (2026-11-30):
#   memory: replaced: 1024 old and 3072 new bytes; by a longer one: 1024 old and 3072 of 8192 new bytes
#   directory: replaced: 1024 old and 3072 new bytes; by a longer one: 1024 old and 3072 of 8192 new bytes
#   S3: replaced: 1024 old and 3072 new bytes; by a longer one: 1024 old and 3072 of 8192 new bytes
#   S3: fsspec: 10 old and 4086 new bytes; a stream of get(): 4096 old and 0 new bytes; if_match: PreconditionError
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  obstore==0.12.1 fsspec==2026.9.0 "moto[s3]==5.2.5" flask flask-cors boto3==1.44.8 || exit 2
mkdir "$work/objects"
said=$("$work/venv/bin/python" -W ignore - "$work/objects" 2> "$work/errors" <<'PY'
import logging
import sys

import boto3
import obstore
from moto.server import ThreadedMotoServer
from obstore.fsspec import FsspecStore
from obstore.store import LocalStore, MemoryStore, S3Store

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
host, port = server.get_host_and_port()
access = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
endpoint = f"http://127.0.0.1:{port}"
boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **access).create_bucket(Bucket="objects")
options = {**access, "aws_endpoint": endpoint, "aws_region": "us-east-1"}
s3 = S3Store("objects", config=options, client_options={"allow_http": True})
OLD = b"o" * 4096


def read(store, opened, new=b"n" * 4096):
    """Replace an object after the first read of it; return the counts of the bytes of both."""
    store.put("object", OLD)
    file = opened()
    data = bytes(file.read(10))
    store.put("object", new)
    data += bytes(file.read())
    return data.count(b"o"), data.count(b"n")


def mixed(store, opened):
    return "{} old and {} new bytes".format(*read(store, opened))


for name, store in ("memory", MemoryStore()), ("directory", LocalStore(sys.argv[1])), ("S3", s3):
    def opened(store=store):
        return obstore.open_reader(store, "object", buffer_size=1024)
    old, new = read(store, opened, b"n" * 8192)
    print(f"{name}: replaced: {mixed(store, opened)}; by a longer one: {old} old and {new} of 8192 new bytes")
system = FsspecStore("s3", config=options, client_options={"allow_http": True})
told = mixed(s3, lambda: system.open("objects/object", block_size=1024, buffer_size=1024))
s3.put("object", OLD)
tag = s3.head("object")["e_tag"]
stream = s3.get("object").stream(min_chunk_size=1024)
s3.put("object", b"n" * 4096)
data = b"".join(map(bytes, stream))
try:
    condition = str(bytes(s3.get("object", options={"if_match": tag}).bytes())[:1])
except Exception as error:
    condition = type(error).__name__
print(f"S3: fsspec: {told}; a stream of get(): {data.count(b'o')} old and {data.count(b'n')} new bytes; if_match: {condition}")
server.stop()
PY
) || { cat "$work/errors"; exit 2; }
echo "$said"
[ "$said" = "memory: replaced: 1024 old and 3072 new bytes; by a longer one: 1024 old and 3072 of 8192 new bytes
directory: replaced: 1024 old and 3072 new bytes; by a longer one: 1024 old and 3072 of 8192 new bytes
S3: replaced: 1024 old and 3072 new bytes; by a longer one: 1024 old and 3072 of 8192 new bytes
S3: fsspec: 10 old and 4086 new bytes; a stream of get(): 4096 old and 0 new bytes; if_match: PreconditionError" ]
