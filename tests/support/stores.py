"""Servers of object storage for tests, each on a free port of 127.0.0.1: moto, S3Mock, Azurite, and our GCS.

moto comes with the development tools. Maven fetches S3Mock and npm fetches Azurite, once, into the user's
cache. Emulators of GCS from the registries have JSON requests only or no conditions, and obstore sends XML
requests; gcs.py answers those.

`ServerMissing` names the missing part in one sentence, and the test is skipped. With CI=true only an
unreachable registry is a reason to skip.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from examples.local_s3 import BUCKET, ignore, serve

import lastword
from lastword import LogDir
from lastword.objects import ObjectStore, open_store
from lastword.testing.unsynced import UNSYNCED
from tests.support.gcs import GcsServer
from tests.support.jars import UNREACHABLE, KafkaMissing, cache_directory, find_java

S3MOCK = "5.0.0"
AZURITE = "3.35.0"  # the newest that runs on Node.js 20
START_SECONDS = 60
AZURE_ACCOUNT = "devstoreaccount1"  # public: each Azurite has this account and this key
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class ServerMissing(Exception):
    """A server cannot run here; the text says what to install. In CI a `setup_fault` fails the test."""

    def __init__(self, reason: str, *, setup_fault: bool = True) -> None:
        super().__init__(reason)
        self.must_not_skip = setup_fault and os.environ.get("CI", "").lower() in ("true", "1")


@dataclass(frozen=True)
class Server:
    """A running server with an empty bucket."""

    root: str
    options: dict[str, str] = field(default_factory=dict)
    address: str = ""

    def open(self, prefix: str, **options: str) -> ObjectStore:
        return open_store(f"{self.root}/{prefix}", self.options | options)


def s3_at(address: str) -> Server:
    keys = {"access_key_id": "AKIATESTS", "secret_access_key": "tests-only"}
    return Server(f"s3://{BUCKET}", {"endpoint": address, "region": "us-east-1", **keys}, address)


# ---------------------------------------------------------------- moto


@contextmanager
def moto(on_request: Callable[[str, int, int], None] = ignore) -> Iterator[Server]:
    """Run moto's server in this process. In the bucket "ignorant" it ignores conditions.

    `on_request` is called with each request's method, the bytes of its body and those of the reply's.
    """
    with ExitStack() as stack:
        try:
            address = stack.enter_context(serve(on_request, ignorant=["ignorant"]))
        except ImportError as missing:
            raise ServerMissing(f"no moto with its server: pip install -e '.[dev]' ({missing})") from None
        yield s3_at(address)


# ---------------------------------------------------------------- the place of logs that clients use


@contextmanager
def log_for_clients(directory: Path, **settings: Any) -> Iterator[LogDir]:
    """Open a log directory to append; if LASTWORD_STORE names a store, a copy of it in a bucket of its own.

    The stores are "moto" and "azurite". The directory may be absent.
    """
    store = os.environ.get("LASTWORD_STORE")
    with ExitStack() as stack:
        if not store:
            yield stack.enter_context(lastword.open(directory, "a", files=UNSYNCED, **settings))
            return
        server = stack.enter_context(moto() if store == "moto" else azurite(directory.with_suffix(".log")))
        url = "/".join(
            (server.root, *directory.parts[-2:])
        )  # all servers of moto in a process have one bucket
        if directory.exists():
            lastword.copy(directory, url, storage_options=server.options)
        settings = {"lastword_commit_linger_ms": 5} | settings
        yield stack.enter_context(lastword.open(url, "a", storage_options=server.options, **settings))


# ---------------------------------------------------------------- S3Mock


@contextmanager
def s3mock(log: Path) -> Iterator[Server]:
    """Run Adobe's S3Mock in a JVM."""
    try:
        java = find_java()
    except KafkaMissing as missing:
        raise ServerMissing(str(missing)) from None
    folder = cache_directory() / f"s3mock-{S3MOCK}"
    jar = folder / f"s3mock-{S3MOCK}-exec.jar"
    if not jar.exists():
        maven = shutil.which("mvn")
        if not maven:
            raise ServerMissing("no Maven to fetch S3Mock with: apt-get install maven")
        artifact = f"-Dartifact=com.adobe.testing:s3mock:{S3MOCK}:jar:exec"
        fetch(
            folder,
            lambda private: [maven, "-B", "-q", "dependency:copy", artifact, f"-DoutputDirectory={private}"],
        )
    port = free_port()
    command = [java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", str(jar)]
    command += ["--server.port=0", f"--com.adobe.testing.s3mock.httpPort={port}"]
    with process(command, log):
        address = f"http://127.0.0.1:{port}"
        wait_for(lambda: _request("PUT", f"{address}/{BUCKET}"), log)
        yield s3_at(address)


# ---------------------------------------------------------------- Azurite


@contextmanager
def azurite(log: Path) -> Iterator[Server]:
    """Run Azurite, Microsoft's emulator of Azure's blobs, in memory."""
    node = shutil.which("node")
    folder = npm_packages(f"azurite-{AZURITE}", "Azurite", f"azurite@{AZURITE}")
    program = folder / "node_modules/azurite/dist/src/blob/main.js"
    port = free_port()
    command = [str(node), str(program), "--inMemoryPersistence", "--disableTelemetry", "--silent"]
    command += ["--blobKeepAliveTimeout", "600"]  # after its 5 s of idleness it resets a client's connection
    with process([*command, "--blobHost", "127.0.0.1", "--blobPort", str(port)], log):
        address = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
        wait_for(lambda: _create_container(address), log)
        account = {"account_name": AZURE_ACCOUNT, "account_key": AZURE_KEY}
        yield Server(f"az://{BUCKET}", {"endpoint": address, **account}, address)


def npm_packages(name: str, purpose: str, *packages: str) -> Path:
    """Return a folder of the cache with these packages in `node_modules`; npm fetches them once."""
    npm = shutil.which("npm")
    if not npm or not shutil.which("node"):
        raise ServerMissing(f"no Node.js with npm to run {purpose} with: apt-get install nodejs npm")
    folder, options = cache_directory() / name, ("install", "--silent", "--no-audit", "--no-fund")
    if not (folder / "node_modules").exists():
        fetch(folder, lambda private: [npm, *options, "--prefix", str(private), *packages])
    return folder


def _create_container(address: str) -> None:
    """Create the container with a signed request; obstore has none for that."""
    date, version = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"), "2021-08-06"
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{BUCKET}\nrestype:container"
    text = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
    digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    headers = {"x-ms-date": date, "x-ms-version": version, "Content-Type": ""}
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{signature}"
    _request("PUT", f"{address}/{BUCKET}?restype=container", headers)


# ---------------------------------------------------------------- GCS


@contextmanager
def gcs() -> Iterator[Server]:
    """Run our own server of the requests that obstore sends to GCS."""
    with GcsServer() as server:
        token = {"bearer_token": "tests-only"}  # obstore signs writes even with skip_signature
        yield Server(f"gs://{BUCKET}", {"base_url": server.address, **token}, server.address)


# ---------------------------------------------------------------- processes and requests


def _request(method: str, address: str, headers: dict[str, str] | None = None) -> None:
    request = urllib.request.Request(address, method=method, headers=headers or {}, data=b"")
    urllib.request.urlopen(request, timeout=10).close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(command: list[str], log: Path, seconds: float = 10) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, and end it: by SIGKILL if it takes longer than these seconds."""
    with log.open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(seconds)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def wait_for(first_request: Callable[[], None], log: Path, seconds: float = START_SECONDS) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            return first_request()
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if isinstance(error, urllib.error.HTTPError) or time.monotonic() > end:
                raise AssertionError(f"{error}\n{log.read_text(errors='replace')[-2000:]}") from error
            time.sleep(0.05)


def fetch(target: Path, command: Callable[[Path], list[str]]) -> None:
    """Fill `target` with what a command writes into its private folder: all of it, or nothing."""
    private = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.rmtree(private, ignore_errors=True)
    private.mkdir(parents=True)
    done = subprocess.run(command(private), capture_output=True, text=True)
    if done.returncode:
        output = (done.stdout + done.stderr).strip()
        shutil.rmtree(private, ignore_errors=True)
        away = bool(
            UNREACHABLE.search(output) or re.search(r"ENOTFOUND|ETIMEDOUT|ECONNREFUSED|EAI_AGAIN", output)
        )
        raise ServerMissing(f"{target.name} could not be fetched: {output[:400]}", setup_fault=not away)
    try:
        private.rename(target)
    except OSError:  # another process was faster
        shutil.rmtree(private)
