"""Run a command beside a local server of S3, to try logs in buckets without an account: moto's, in memory.

python examples/local_s3.py COMMAND...      (for example bash: its lastword and Python find s3://bucket)
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

BUCKET = "bucket"


def environment_of(address: str) -> dict[str, str]:
    """Return variables with which a process finds the server, which accepts any credentials."""
    keys = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local", "AWS_REGION": "us-east-1"}
    return {"AWS_ENDPOINT_URL": address, **keys}


def ignore(method: str, sent: int, received: int) -> None:
    """Take no note of a request."""


@contextmanager
def serve(
    on_request: Callable[[str, int, int], None] = ignore, *, ignorant: Collection[str] = ()
) -> Iterator[str]:
    """Run the server in threads of this process, with an empty bucket; yield its address.

    It answers one request at a time, because moto's conditional writes are not atomic.

    Args:
        on_request: Called with the method of each request (LIST for a GET that lists), the bytes of its body
            and those of the reply's.
        ignorant: More buckets, in which conditions are ignored, as old stores do.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = DomainDispatcherApplication(create_backend_app)
    turn = threading.Lock()

    def one_by_one(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        if environ["PATH_INFO"].split("/")[1] in ignorant:
            environ.pop("HTTP_IF_MATCH", None)
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with turn:
            reply = list(application(environ, start_response))
            lists = environ["REQUEST_METHOD"] == "GET" and "list-type=" in environ["QUERY_STRING"]
            method = "LIST" if lists else environ["REQUEST_METHOD"]
            received = 0 if method == "HEAD" else sum(map(len, reply))
            on_request(method, int(environ.get("CONTENT_LENGTH") or 0), received)
        return reply

    # Else a reply in two packets waits 40 ms.
    handler = type("Handler", (WSGIRequestHandler,), {"disable_nagle_algorithm": True})
    listener = make_server("127.0.0.1", 0, one_by_one, threaded=True, request_handler=handler)
    address = f"http://127.0.0.1:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        for bucket in (BUCKET, *ignorant):
            make = urllib.request.Request(f"{address}/{bucket}", method="PUT", data=b"")
            urllib.request.urlopen(make, timeout=10).close()
        yield address
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()


def main(command: list[str]) -> int:
    """Run the command with the server's environment; return its exit code."""
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the command
    requests: Counter[str] = Counter()
    traffic: Counter[str] = Counter()

    def count(method: str, sent: int, received: int) -> None:
        requests[method] += 1
        traffic.update(sent=sent, received=received)

    with serve(count) as address:
        code = subprocess.run(command, env=os.environ | environment_of(address)).returncode
    counts = ", ".join(f"{number:,} {method}" for method, number in requests.most_common())
    sizes = ", ".join(f"{number / 1e6:.1f} MB {kind}" for kind, number in traffic.items())
    print(f"requests to S3: {counts}; {sizes}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) if len(sys.argv) > 1 else __doc__)
