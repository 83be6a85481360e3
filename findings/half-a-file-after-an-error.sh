#!/usr/bin/env bash
# An error in a `with` block publishes half an object, and half a Parquet file that every reader takes for whole.
#
# Guess: an object in S3 appears whole or not at all. Who writes it in a `with` block, and meets an error in the middle, leaves no
#   object: the upload is aborted. At the least a Parquet file without its end is refused by its readers.
# Versions: s3fs 2026.9.0, pyarrow 26.0.1, obstore 0.12.1 with obstore.fsspec, smart-open 9.0.2, cloudpathlib 0.26.0, boto3 1.43.117, moto 5.2.5
#   (S3), Python 3.11.
# Behaviour: s3fs, obstore.fsspec, pyarrow's S3FileSystem and cloudpathlib close the file at the end of the block, also after an error,
#   and a close completes the upload: the object has what was written so far, in place of the one before it. ParquetWriter writes
#   a footer for the row groups that it has, so the file is valid and lacks rows. pyarrow does the same in a directory.
#   obstore.open_writer and smart_open abort, and the object before stays. In s3fs `with system.transaction:` around it helps.
# Output seen (2026-12-01):
#   s3fs: half
#   s3fs in a transaction: old
#   obstore.fsspec: half
#   pyarrow: half
#   cloudpathlib: half
#   obstore.open_writer: old
#   smart_open: old
#   ParquetWriter: 2 of 4 rows
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --quiet --disable-pip-version-check boto3==1.43.117 botocore==1.43.117 \
  aiobotocore==3.10.0 s3fs==2026.9.0 fsspec==2026.9.0 obstore==0.12.1 pyarrow==26.0.1 smart-open==9.0.2 cloudpathlib==0.26.0 \
  "moto[s3]==5.2.5" flask flask-cors || exit 2
said=$(AWS_EC2_METADATA_DISABLED=true "$work/venv/bin/python" -W ignore - 2> "$work/errors" <<'PY'
import io
import logging

import boto3
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import smart_open
from cloudpathlib import S3Client
from moto.server import ThreadedMotoServer
from obstore.fsspec import FsspecStore
from obstore.store import S3Store
from pyarrow.fs import S3FileSystem
from s3fs import S3FileSystem as S3fs

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
host, port = server.get_host_and_port()
ADDRESS = f"127.0.0.1:{port}"
URL = f"http://{ADDRESS}"
AWS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
client = boto3.client("s3", endpoint_url=URL, region_name="us-east-1", **AWS)
client.create_bucket(Bucket="bucket")
options = {"endpoint": URL, "access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}
store = S3Store("bucket", **options, client_options={"allow_http": True})
rust = FsspecStore("s3", **options, client_options={"allow_http": True})
system = S3fs(endpoint_url=URL, key="key", secret="secret", client_kwargs={"region_name": "us-east-1"})
arrow = S3FileSystem(endpoint_override=ADDRESS, scheme="http", access_key="key", secret_key="secret", region="us-east-1")
paths = S3Client(endpoint_url=URL, **AWS)


def stored():
    return client.get_object(Bucket="bucket", Key="object")["Body"].read()


def show(name, opened):
    client.put_object(Bucket="bucket", Key="object", Body=b"old")
    try:
        with opened() as file:
            file.write(b"half")
            raise KeyError("the other half is missing")
    except KeyError:
        print(f"{name}: {stored().decode()}")


show("s3fs", lambda: system.open("bucket/object", "wb"))
client.put_object(Bucket="bucket", Key="object", Body=b"old")
try:
    with system.transaction, system.open("bucket/object", "wb") as file:
        file.write(b"half")
        raise KeyError("the other half is missing")
except KeyError:
    print("s3fs in a transaction:", stored().decode())
show("obstore.fsspec", lambda: rust.open("bucket/object", "wb"))
show("pyarrow", lambda: arrow.open_output_stream("bucket/object"))
show("cloudpathlib", lambda: paths.CloudPath("s3://bucket/object").open("wb", force_overwrite_to_cloud=True))
show("obstore.open_writer", lambda: obstore.open_writer(store, "object"))
show("smart_open", lambda: smart_open.open("s3://bucket/object", "wb", transport_params={"client": client}))
try:
    with pq.ParquetWriter("bucket/object", pa.schema([("k", pa.int64())]), filesystem=arrow) as writer:
        writer.write_table(pa.table({"k": [1, 2]}))
        raise KeyError("rows 3 and 4 are missing")
except KeyError:
    print(f"ParquetWriter: {pq.read_table(io.BytesIO(stored())).num_rows} of 4 rows")
server.stop()
PY
)
echo "$said"
[ "$said" = "s3fs: half
s3fs in a transaction: old
obstore.fsspec: half
pyarrow: half
cloudpathlib: half
obstore.open_writer: old
smart_open: old
ParquetWriter: 2 of 4 rows" ] || { tail -n 5 "$work/errors" >&2; echo "the behaviour has changed"; exit 1; }
