"""A failed request becomes a typed error with the object's URL and a remedy, and without a credential."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lastword.errors import (
    BucketMissingError,
    ClockSkewError,
    CredentialsRefusedError,
    InvalidSettingError,
    LastwordError,
    MissingError,
    NotALogDirError,
    NotPermittedError,
    ObjectTakenError,
    ObjectVanishedError,
    StorageError,
    SwapRefusedError,
    ThrottledError,
    TruncatedObjectError,
    UncertainRequestError,
    UnconditionalStoreError,
    UnknownSettingError,
    UsageError,
)
from lastword.objects import ObjectStore, ObjectVersion, is_secret, is_url, open_store, probe, remote
from lastword.objects.failures import Secrets, translate
from tests.support.gcs import GcsServer
from tests.support.stores import Server

SECRET = "s3cr3t"
VERSION = ObjectVersion('"1"', "1")
REQUESTS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("k"),
    "range": lambda store: store.get_range("k", 0, 10),
    "facts": lambda store: store.facts("k"),
    "list": lambda store: list(store.list("k")),
    "put": lambda store: store.put("k", b"1"),
    "create": lambda store: store.create("k", b"1"),
    "swap": lambda store: store.swap("k", b"1", VERSION),
    "delete": lambda store: store.delete(["k"]),
}
CONDITIONAL = ("create", "swap")
WRITES = ("put", "create", "swap", "delete")


class Replies:
    """A server with one reply for every request: a status and a code, "close", "hang", or "cut"."""

    def __init__(self) -> None:
        self.reply: tuple[int, str] | str = (200, "")
        self.authorizations: list[str] = []
        self.paths: list[str] = []
        self.wait_seconds = 0.0
        self.done = threading.Event()
        replies = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *arguments: object) -> None:
                """Print nothing."""

            def handle_all(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                authorization = self.headers.get("Authorization") or ""
                replies.authorizations.append(authorization)
                replies.paths.append(self.path)
                time.sleep(replies.wait_seconds)
                if replies.reply == "hang":
                    replies.done.wait(10)
                if isinstance(replies.reply, str) and replies.reply != "cut":
                    self.close_connection = True
                    return
                status, code = (200, "") if isinstance(replies.reply, str) else replies.reply
                provided = f"<Provided>{authorization} {SECRET}</Provided>"
                body = f"<Error><Code>{code}</Code>{provided}</Error>".encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("ETag", '"1"')
                self.send_header("Last-Modified", "Mon, 23 Nov 2026 09:00:00 GMT")
                self.end_headers()
                if self.command != "HEAD":
                    with contextlib.suppress(ConnectionError):  # a client that gave up does not read
                        self.wfile.write(body[:10] if replies.reply == "cut" else body)
                self.close_connection = replies.reply == "cut"

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_all

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.done.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def s3(self, **options: str) -> ObjectStore:
        secrets = {
            "access_key_id": f"{SECRET}-id",
            "secret_access_key": f"{SECRET}-key",
            "session_token": f"{SECRET}-t",
        }
        return open_store("s3://bucket/logs", {"endpoint": self.address, "region": "x", **secrets, **options})

    def az(self, **options: str) -> ObjectStore:
        secrets = {"account_name": "account", "sas_key": f"sv=1&sig={SECRET}-sas"}
        return open_store("az://bucket/logs", {"endpoint": self.address, **secrets, **options})

    def gs(self, **options: str) -> ObjectStore:
        return open_store(
            "gs://bucket/logs", {"base_url": self.address, "bearer_token": f"{SECRET}-bearer"} | options
        )


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replies]:
    brief = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2}
    monkeypatch.setitem(remote._RETRIES, "backoff", brief)
    server = Replies()
    yield server
    server.close()


def failure(request: Callable[[], object]) -> LastwordError:
    with pytest.raises(LastwordError) as raised:
        request()
    return raised.value


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ((403, "AccessDenied"), NotPermittedError),
        ((403, "InvalidAccessKeyId"), CredentialsRefusedError),
        ((403, "SignatureDoesNotMatch"), CredentialsRefusedError),
        ((400, "ExpiredToken"), CredentialsRefusedError),
        ((401, ""), CredentialsRefusedError),
        ((403, "RequestTimeTooSkewed"), ClockSkewError),
        ((404, "NoSuchBucket"), BucketMissingError),
        ((429, ""), ThrottledError),
        ((503, "SlowDown"), ThrottledError),
        ((503, ""), UncertainRequestError),
        ((500, "InternalError"), UncertainRequestError),
        ((409, "OperationAborted"), UncertainRequestError),
        ((400, "InvalidRequest"), StorageError),
        ((400, "RequestTimeout"), UncertainRequestError),
        ((301, "PermanentRedirect"), InvalidSettingError),  # another region
        ("close", UncertainRequestError),
    ],
    ids=str,
)
def test_replies_of_s3(replies: Replies, reply: tuple[int, str] | str, expected: type[LastwordError]) -> None:
    replies.reply = reply
    store = replies.s3()
    for name, request in REQUESTS.items():
        if name == "facts" and reply[1:] in (("NoSuchBucket",), ("ExpiredToken",), ("RequestTimeout",)):
            continue  # the reply to HEAD has no body, so no code
        error = failure(lambda request=request: request(store))
        known = NotPermittedError if name == "facts" and reply[0] == 403 else expected
        known = UncertainRequestError if name == "facts" and reply == (503, "SlowDown") else known
        if reply == (400, "InvalidRequest") and name in CONDITIONAL:
            known = UnconditionalStoreError
        assert type(error) is known, f"{name}: {error!r}"
        assert "s3://bucket/logs/k" in error.message
        assert error.file in ("s3://bucket/logs", "s3://bucket/logs/k")
        assert error.remedy and ("AWS_REGION" in error.remedy) == (expected is InvalidSettingError)
        if isinstance(error, UncertainRequestError):
            assert ("may have taken effect" in error.message) == (name in WRITES)


def test_conditional_replies(replies: Replies) -> None:
    s3, gs, az = replies.s3(), replies.gs(), replies.az()
    replies.reply = (412, "PreconditionFailed")
    assert type(failure(lambda: s3.create("k", b""))) is ObjectTakenError
    assert type(failure(lambda: s3.swap("k", b"", VERSION))) is SwapRefusedError
    assert type(failure(lambda: gs.create("k", b""))) is ObjectTakenError
    assert type(failure(lambda: gs.swap("k", b"", VERSION))) is SwapRefusedError
    replies.reply = (409, "ConditionalRequestConflict")  # two writers met; nothing is known of the object
    assert type(failure(lambda: s3.create("k", b""))) is UncertainRequestError
    assert type(failure(lambda: s3.swap("k", b"", VERSION))) is UncertainRequestError
    replies.reply = (409, "BlobAlreadyExists")
    assert type(failure(lambda: az.create("k", b""))) is ObjectTakenError
    replies.reply = (501, "NotImplemented")
    assert type(failure(lambda: s3.create("k", b""))) is UnconditionalStoreError
    replies.reply = (404, "NoSuchKey")
    assert type(failure(lambda: s3.swap("k", b"", VERSION))) is SwapRefusedError
    assert type(failure(lambda: s3.get("k"))) is ObjectVanishedError


@pytest.mark.parametrize("reply", [(503, ""), (500, ""), "close"], ids=str)
def test_only_requests_without_a_condition_are_repeated(
    replies: Replies, reply: tuple[int, str] | str
) -> None:
    """A repetition of a write that took effect is refused: a writer would be told of another writer."""
    replies.reply, store = reply, replies.s3()
    for name, request in REQUESTS.items():
        replies.authorizations.clear()
        failure(lambda request=request: request(store))
        assert len(replies.authorizations) == (1 if name in CONDITIONAL else 7), name


@pytest.mark.parametrize(
    ("options", "requests"), [({"max_retries": "2"}, {3}), ({"retry_timeout": "1ms"}, {1, 2})]
)
def test_the_bounds_of_repetitions_are_options(
    replies: Replies, options: dict[str, str], requests: set[int]
) -> None:
    """A request that fails within a millisecond is repeated once."""
    replies.reply = (503, "")
    failure(lambda: REQUESTS["get"](replies.s3(**options)))
    assert len(replies.authorizations) in requests
    assert replies.s3(commit_attempts="3").commit_attempts == 3
    for wrong in ({"max_retries": "-1"}, {"commit_attempts": "0"}, {"retry_timeout": "long"}):
        with pytest.raises(InvalidSettingError, match=next(iter(wrong))):
            replies.s3(**wrong)


def test_each_object_is_deleted_where_one_that_is_missing_ends_the_request(replies: Replies) -> None:
    """GCS answers 404 for a missing object; what is not asked for then is deleted alone."""
    replies.reply = (404, "")
    keys = [f"key{number:02}" for number in range(50)]
    replies.gs().delete(keys)
    assert {path[-5:] for path in replies.paths} == set(keys)
    replies.paths.clear()
    replies.gs().delete(keys[:1])
    assert len(replies.paths) == 1


def test_no_answer_and_no_connection(replies: Replies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(remote._RETRIES, "max_retries", 0)
    replies.reply = "hang"
    for name in ("get", "swap"):
        error = failure(lambda name=name: REQUESTS[name](replies.s3(timeout="100ms")))
        assert type(error) is UncertainRequestError
        assert "no answer within the timeout" in error.message
    replies.reply = "cut"
    assert type(failure(lambda: replies.s3().get("k"))) is UncertainRequestError
    error = failure(lambda: REQUESTS["swap"](replies.s3(endpoint="http://127.0.0.1:1")))
    assert error.message.endswith("no connection: Connection refused")  # so it has no effect
    error = failure(lambda: REQUESTS["put"](replies.s3(endpoint="http://127.0.0.1:1")))
    assert error.message.endswith("no connection: Connection refused; the change may have taken effect")
    error = failure(lambda: REQUESTS["get"](replies.s3(endpoint=replies.address.replace("http", "https"))))
    assert error.message.endswith("no connection: InvalidMessage: InvalidContentType")  # it speaks no TLS


def test_a_range_that_is_ignored_and_an_object_that_is_too_short(
    replies: Replies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Azurite answers a range of an empty object without Content-Range."""
    monkeypatch.setitem(remote._RETRIES, "max_retries", 0)
    for store in (replies.s3(), replies.az(), replies.gs()):
        error = failure(lambda store=store: store.get_range("k", 1, 2))
        assert type(error) is UnconditionalStoreError and "answers a read with Range" in error.message
        error = failure(lambda store=store: store.get_range("k", 1 << 20, 2))
        assert type(error) is TruncatedObjectError and error.file == f"{store.url}/k"


def test_requests_of_threads_wait_together(replies: Replies) -> None:
    """A request lets other threads run: eight take about as long as one."""
    replies.reply, replies.wait_seconds = (404, "NoSuchKey"), 0.3
    store = replies.s3()
    store.facts("k")
    start = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.facts(str(number)), range(8)))
    assert time.monotonic() - start < 1.5


def test_an_upload_that_fails_is_aborted() -> None:
    with GcsServer() as server:
        server.state.refused_part = "2"
        store = open_store("gs://bucket", {"base_url": server.address, "bearer_token": SECRET})
        assert type(failure(lambda: store.put("k", [bytes(8 << 20)] * 3))) is NotPermittedError
        assert server.state.uploads == {}
        assert list(store.list()) == []


def test_a_source_of_credentials_that_refuses() -> None:
    for line, expected in (
        (
            "Generic GCS error: Error performing token request: ... status code: 403 Forbidden",
            CredentialsRefusedError,
        ),
        (
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1ms",
            CredentialsRefusedError,
        ),
        (
            "Error performing POST https://sts.eu-central-1.amazonaws.com/ - status code: 403",
            CredentialsRefusedError,
        ),
        (
            "Error performing POST https://sts.eu-central-1.amazonaws.com/ - status code: 503",
            UncertainRequestError,
        ),
        ("Error performing GET https://host/bucket/oauth2.token - status code: 403", NotPermittedError),
    ):
        assert type(translate(Exception(line), "s3://b/k", "read", Secrets())) is expected, line


# ---------------------------------------------------------------- credentials


def everything(error: BaseException | None) -> str:
    """Return all text that a log could have of an error, with the errors that led to it."""
    text = ""
    while error is not None:
        text += repr(error) + str(error) + repr(error.__dict__) + repr(error.args)
        text += "".join(traceback.format_exception(error))
        error = error.__cause__ or error.__context__
    return text


@pytest.mark.parametrize("scheme", ["s3", "az", "gs"])
@pytest.mark.parametrize(
    "reply",
    [
        (403, "SignatureDoesNotMatch"),
        (400, "Odd"),
        (404, ""),
        (409, ""),
        (412, ""),
        (500, ""),
        "close",
        "hang",
        "cut",
    ],
    ids=str,
)
def test_no_text_has_a_credential(
    replies: Replies, scheme: str, reply: tuple[int, str] | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(remote._RETRIES, "max_retries", 0)
    replies.reply = reply
    store = getattr(replies, scheme)(timeout="50ms")
    texts = [repr(store), str(store), store.url]
    for request in REQUESTS.values():
        try:
            texts.append(repr(request(store)))
        except LastwordError as error:
            texts.append(everything(error))
    assert replies.authorizations
    # The data of an object is not a text of ours.
    texts = [text for text in texts if not text.startswith("Stored(")]
    assert SECRET not in "".join(texts)


def test_options_that_cannot_be_read_are_named_without_secrets() -> None:
    for url, options in (
        ("s3://bucket", {"s3_express": "maybe", "secret_access_key": SECRET}),
        ("az://bucket", {"account_name": "a", "account_key": f"{SECRET} is not base64"}),
        ("gs://bucket", {"service_account_key": f'{{"private_key": "{SECRET}"}}'}),
        ("gs://bucket", {"service_account_key": SECRET}),
        ("s3://bucket", {"timeout": "soon", "proxy_url": f"http://user:{SECRET}@proxy"}),
    ):
        error = failure(lambda url=url, options=options: open_store(url, options))
        assert type(error) is InvalidSettingError, error
        assert url in error.message
        assert SECRET not in everything(error)


def test_credentials_of_the_environment_are_used_and_hidden(
    replies: Replies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"{SECRET}-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{SECRET}-key")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", replies.address)
    replies.reply = (403, "AccessDenied")
    store = open_store("s3://bucket")
    error = failure(lambda: store.get("k"))
    assert f"{SECRET}-id/" in replies.authorizations[0]
    assert "eu-central-1" in replies.authorizations[0]
    assert SECRET not in everything(error) + repr(store)


def test_secrets_are_hidden_in_any_text() -> None:
    secrets = Secrets(["abcd", "abcdef", ""])
    assert secrets.hide("GET http://h/k?sig=1 abcdef abcd a") == "GET http://h/k **** **** a"
    assert "abcd" not in repr(secrets)


def test_options_that_may_be_secret() -> None:
    known = {name for scheme in remote._SCHEMES.values() for name in scheme.options} | remote._CLIENT
    public = {name for name in known if not is_secret(name)}
    assert {"region", "endpoint", "account_name", "timeout", "base_url", "role_arn"} <= public
    assert not public & {
        "secret_access_key",
        "session_token",
        "sas_key",
        "token",
        "client_secret",
        "proxy_url",
    }
    assert not public & {"account_key", "service_account_key", "bearer_token", "encryption_key"}
    assert is_secret("AWS_SECRET_ACCESS_KEY")


def test_a_store_is_not_pickled(replies: Replies) -> None:
    with pytest.raises(TypeError, match="credentials"):
        pickle.dumps(replies.s3())


# ---------------------------------------------------------------- URLs and options


def test_what_is_a_url() -> None:
    assert all(is_url(url) for url in ("s3://b/p", "S3://b", "memory://x", "file:///x", "x+y://z"))
    assert not any(is_url(path) for path in ("data", "/srv/kafka", "C:/x", "a:b", "s3:/b", "./s3://b", ""))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3a://b/p", "s3a://b/p: unknown scheme 's3a'; nearest: s3"),
        ("gcs://b/p", "unknown scheme 'gcs'; nearest: gs"),
        ("http://b/p", "unknown scheme 'http'"),
        ("file:///srv/kafka", "no object storage"),
        ("s3://", "names no bucket"),
        ("s3:///p", "names no bucket"),
        ("s3://b//p", "empty part"),
        ("s3://b/../p", "empty part"),
        (f"s3://id:{SECRET}@b/p", r"s3://\*\*\*\*@b/p: a URL here has no credentials"),
        (f"az://b/p?sig={SECRET}", "az://b/p: a URL here has no credentials, no query"),
    ],
)
def test_urls_that_are_refused(url: str, message: str) -> None:
    with pytest.raises(NotALogDirError, match=message) as raised:
        open_store(url)
    assert raised.value.remedy
    assert SECRET not in everything(raised.value)


def test_the_url_of_a_store_has_no_slash_at_its_end() -> None:
    assert open_store("memory://name/a/b/").url == "memory://name/a/b"
    assert open_store("MEMORY://name/").url == "memory://name"


def test_unknown_options_name_the_nearest() -> None:
    with pytest.raises(
        UnknownSettingError, match="unknown storage option 'regoin' for s3://; nearest: region"
    ) as raised:
        open_store("s3://b", {"regoin": "x", "bucket": "other", "timeout": "5s"})
    assert len(raised.value.problems) == 2
    assert "access_key_id" in (raised.value.remedy or "")
    with pytest.raises(UnknownSettingError, match="memory:// has no options"):
        open_store("memory://b", {"region": "x"})
    with pytest.raises(UnknownSettingError, match="'conditional_put'"):
        open_store("s3://b", {"conditional_put": "disabled"})


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_obstore_has_every_option_that_is_listed(scheme: str) -> None:
    import obstore.store

    kind = getattr(obstore.store, remote._SCHEMES[scheme].kind)
    options = dict.fromkeys(remote._SCHEMES[scheme].options, "1")
    with pytest.raises(obstore.exceptions.UnknownConfigurationKeyError):
        kind("bucket", config=options | {"no_such_option": "1"})
    with contextlib.suppress(
        obstore.exceptions.GenericError, ValueError
    ):  # a value: names are checked before
        kind("bucket", config=options)


def test_obstore_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingError, match="object storage needs obstore") as raised:
        open_store("s3://bucket")
    assert raised.value.remedy == 'pip install "obstore>=0.12.1,<0.13"'


def test_memory_is_one_store_for_each_name() -> None:
    open_store("memory://one/a").put("k", b"1")
    assert [facts.key for facts in open_store("memory://one").list()] == ["a/k"]
    assert list(open_store("memory://two").list()) == []


def test_a_closed_store_refuses() -> None:
    with open_store("memory://closed") as store:
        store.put("k", b"")
    store.close()
    with pytest.raises(UsageError, match="closed"):
        store.get("k")


def test_a_forked_process_is_refused_and_does_not_hang(replies: Replies) -> None:
    replies.reply = (404, "NoSuchKey")
    store, memory = replies.s3(), open_store("memory://forked")
    store.facts("k")
    memory.put("k", b"1")
    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            memory.get("k")
            store.facts("k")
        except UsageError as error:
            outcome = 0 if "forked" in error.message else 2
        finally:
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_large_file_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(remote.SINGLE_BYTES + 1))
    monkeypatch.setattr(Path, "read_bytes", None)
    store = open_store("memory://files")
    store.put_file("large", str(file))
    facts = store.facts("large")
    assert facts is not None
    assert facts.size == remote.SINGLE_BYTES + 1


def test_a_local_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot read .*no-such"):
        open_store("memory://files").put_file("k", str(tmp_path / "no-such"))


# ---------------------------------------------------------------- against moto


def test_a_bucket_that_is_missing(moto: Server) -> None:
    store = open_store("s3://no-such-bucket/p", moto.options)
    for name, request in REQUESTS.items():
        if name != "facts":  # HEAD has no body: a missing bucket looks like a missing object
            assert type(failure(lambda request=request: request(store))) is BucketMissingError, name
    assert type(failure(lambda: probe(store))) is BucketMissingError
