#!/usr/bin/env bash
# A file system of obstore replaces an object that it was told to create, and keeps what a failed transaction has written.
#
# Guess: `pipe_file(path, data, mode="create")` of fsspec raises FileExistsError if the object exists, as a lock or a commit needs
#   it: fsspec's own tests of a file system ask for that, and s3fs, gcsfs and adlfs do it with a conditional write. After an error
#   in `with system.transaction:` its files are not there. obstore has conditional writes, `put(..., mode="create")`.
# Versions: obstore 0.12.1 (obstore.fsspec), fsspec 2026.9.0, moto 5.2.5 (S3) with boto3 1.44.8, Python 3.11.
# Behaviour: pipe_file(), pipe() and put_file() take `mode`, and do not use it: two who create one object both succeed, and
#   the second one replaces it. A transaction is begun and ended without an error of its own, but each file is in its place
#   when it is closed, also for readers inside, and a failed transaction leaves it. In fsspec's local file system put_file()
#   does not use `mode` either. `put()` of the store itself refuses.
# Output seen (2026-11-30):
#   fsspec's memory: pipe_file: FileExistsError, then old; put_file: FileExistsError, then old; failed transaction: old
#   fsspec's directory: pipe_file: FileExistsError, then old; put_file: no error, then new; failed transaction: old
#   obstore's memory: pipe_file: no error, then new; put_file: no error, then new; failed transaction: new
#   obstore's directory: pipe_file: no error, then new; put_file: no error, then new; failed transaction: new
#   obstore's S3: pipe_file: no error, then new; put_file: no error, then new; failed transaction: new
#   put() of obstore's S3 store: AlreadyExistsError, then old
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet --disable-pip-version-check \
  obstore==0.12.1 fsspec==2026.9.0 "moto[s3]==5.2.5" flask flask-cors boto3==1.44.8 || exit 2
mkdir "$work/objects"
said=$("$work/venv/bin/python" -W ignore - "$work/objects" 2> "$work/errors" <<'PY'
import logging
import sys
from pathlib import Path

import boto3
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from moto.server import ThreadedMotoServer
from obstore.fsspec import FsspecStore
from obstore.store import S3Store

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
host, port = server.get_host_and_port()
access = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
endpoint = f"http://127.0.0.1:{port}"
boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **access).create_bucket(Bucket="objects")
s3 = {"config": {**access, "aws_endpoint": endpoint, "aws_region": "us-east-1"}, "client_options": {"allow_http": True}}
folder = Path(sys.argv[1])
new = folder / "new"
new.write_bytes(b"new")


def outcome(work):
    try:
        work()
        return "no error"
    except Exception as error:
        return type(error).__name__


def fail(system, path):
    with system.transaction:
        with system.open(path, "wb") as file:
            file.write(b"new")
        raise RuntimeError


def told(system, path):
    results = []
    for name, work in {
        "pipe_file: {}, then ": lambda: system.pipe_file(path, b"new", mode="create"),
        "put_file: {}, then ": lambda: system.put_file(str(new), path, mode="create"),
        "failed transaction: ": lambda: fail(system, path),
    }.items():
        system.pipe_file(path, b"old")
        results.append(name.format(outcome(work)) + system.cat_file(path).decode())
    return "; ".join(results)


print("fsspec's memory:", told(MemoryFileSystem(), "/object"))
print("fsspec's directory:", told(LocalFileSystem(), str(folder / "theirs")))
print("obstore's memory:", told(FsspecStore("memory"), "objects/object"))
print("obstore's directory:", told(FsspecStore("file"), str(folder / "object")))
print("obstore's S3:", told(FsspecStore("s3", **s3), "objects/object"))
store = S3Store("objects", **s3)
store.put("object", b"old")
refused = outcome(lambda: store.put("object", b"new", mode="create"))
print(f"put() of obstore's S3 store: {refused}, then {bytes(store.get('object').bytes()).decode()}")
server.stop()
PY
) || { cat "$work/errors"; exit 2; }
echo "$said"
[ "$said" = "fsspec's memory: pipe_file: FileExistsError, then old; put_file: FileExistsError, then old; failed transaction: old
fsspec's directory: pipe_file: FileExistsError, then old; put_file: no error, then new; failed transaction: old
obstore's memory: pipe_file: no error, then new; put_file: no error, then new; failed transaction: new
obstore's directory: pipe_file: no error, then new; put_file: no error, then new; failed transaction: new
obstore's S3: pipe_file: no error, then new; put_file: no error, then new; failed transaction: new
put() of obstore's S3 store: AlreadyExistsError, then old" ]
