"""`RemoteStore`: S3, GCS, Azure or memory through the library obstore, which is loaded when a URL is opened.

`open_store` parses the URL and the options. failures.py turns obstore's errors into typed ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from lastword.errors import (
    InvalidSettingError,
    MissingError,
    NotALogDirError,
    ObjectVanishedError,
    StorageError,
    TruncatedObjectError,
    UncertainRequestError,
    UnconditionalStoreError,
    UnknownSettingError,
    UsageError,
    nearest,
)
from lastword.objects import cached
from lastword.objects.cached import CachedRanges
from lastword.objects.failures import Secrets, translate
from lastword.objects.interface import (
    PART_BYTES,
    SINGLE_BYTES,
    URL,
    Buffer,
    ObjectFacts,
    ObjectStore,
    ObjectVersion,
    StoredObject,
    is_secret,
)
from lastword.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from datetime import datetime

T = TypeVar("T")

PARTS_TOGETHER = 3
"""Parts of one object that are sent at the same time: 48 MiB of memory."""

# Requests without a condition: reads, lists, deletes, and writes of names that are used once. To repeat them
# is harmless, so obstore repeats them after server errors, lost connections and, for reads, timeouts: up to 6
# times within 60 s. That outlasts a short outage, and credentials, which obstore does not renew between
# repetitions, stay valid.
_RETRIES: dict[str, Any] = {
    "max_retries": 6,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=5),
        "base": 2,
    },
}
# Requests with a condition are never repeated by obstore. If the first attempt took effect and its reply was
# lost, a repetition is refused with 412: the caller would take its own write for another process's. One
# request per call leaves the decision to the caller, which reads the object.
_NO_RETRIES: dict[str, Any] = {"max_retries": 0}
# A part of 16 MiB needs 280 KB/s for the first limit. `read_timeout` finds a connection that stands still.
_TIMEOUTS = {"connect_timeout": "5s", "read_timeout": "20s", "timeout": "60s"}
# Conditional requests write small objects, and a caller waits for the outcome.
_TIMEOUTS_CONDITIONAL = {"connect_timeout": "5s", "timeout": "20s"}

_CLIENT = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
_CACHE = frozenset({"cache", "cache_bytes"})
_BOUNDS = frozenset({"max_retries", "retry_timeout", "commit_attempts"})
_DURATION = re.compile(r"([1-9]\d*)(ms|s|min)")
_MILLISECONDS = {"ms": 1, "s": 1000, "min": 60_000}
_SIZE = re.compile(r"(\d+) ?(KiB|MiB|GiB|)")
_UNITS = {"": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}

_ADDRESSES = ("ENDPOINT_URL_S3", "ENDPOINT_URL", "ENDPOINT", "STORAGE_ENDPOINT")
"""Variables of the environment, after their prefix, with the address of a server."""


class _Scheme(NamedTuple):
    """A kind of store: obstore's class, the names of its options, and the prefix of its environment."""

    kind: str
    bucket: str  # the word for messages
    options: frozenset[str]
    environment: str


_SCHEMES = {
    "s3": _Scheme(
        "S3Store",
        "BUCKET",
        frozenset(
            {
                "access_key_id",
                "checksum_algorithm",
                "container_authorization_token_file",
                "container_credentials_full_uri",
                "container_credentials_relative_uri",
                "disable_bulk_delete",
                "endpoint",
                "imdsv1_fallback",
                "metadata_endpoint",
                "region",
                "request_payer",
                "role_arn",
                "role_session_name",
                "s3_express",
                "secret_access_key",
                "server_side_encryption",
                "session_token",
                "skip_signature",
                "sse_bucket_key_enabled",
                "sse_customer_key_base64",
                "sse_kms_key_id",
                "unsigned_payload",
                "virtual_hosted_style_request",
                "web_identity_token_file",
            }
        ),
        "AWS_",
    ),
    "gs": _Scheme(
        "GCSStore",
        "BUCKET",
        frozenset(
            {
                "application_credentials",
                "base_url",
                "bearer_token",
                "service_account",
                "service_account_key",
                "skip_signature",
            }
        ),
        "GOOGLE_",
    ),
    "az": _Scheme(
        "AzureStore",
        "CONTAINER",
        frozenset(
            {
                "account_key",
                "account_name",
                "authority_host",
                "client_id",
                "client_secret",
                "credential_type",
                "encryption_key",
                "endpoint",
                "federated_token_file",
                "msi_endpoint",
                "msi_resource_id",
                "object_id",
                "sas_key",
                "skip_signature",
                "tenant_id",
                "token",
                "use_azure_cli",
                "use_emulator",
                "use_fabric_endpoint",
            }
        ),
        "AZURE_",
    ),
    "memory": _Scheme("MemoryStore", "NAME", frozenset(), ""),
}

_memory: dict[str, Any] = {}  # by name; one store for the life of the process
_first_process = 0  # the process that sent the first request of this program


def open_store(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    """Open the objects below a URL. Sends no request.

    Args:
        url: `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`, or `memory://NAME/PREFIX`
            for a store of this process. The prefix may be empty.
        options: obstore's options for this kind of store and for its HTTP client, such as region, endpoint,
            access_key_id, account_name, timeout. Absent options come from the environment, under the names
            that the store's own tools use (AWS_REGION, GOOGLE_APPLICATION_CREDENTIALS, ...). Options of
            ours: cache, a local directory for small ranges of objects, and cache_bytes, its size; the bounds
            of repetitions max_retries, retry_timeout and commit_attempts.

    Raises:
        MissingError: obstore is not installed.
        NotALogDirError: The URL has an unknown scheme, or no bucket.
        UnknownSettingError: An option does not exist; names the nearest.
        InvalidSettingError: The value of an option cannot be read.
    """
    scheme, bucket, prefix = _parse(url)
    given = _checked(scheme, options or {})
    try:
        import obstore
        import obstore.store
    except ImportError:
        raise MissingError.package("object storage", "obstore", "obstore>=0.12.1,<0.13") from None
    rest = f"{bucket}/{prefix}" if prefix else bucket
    cache, bounds = _cache(given), _bounds(given)
    opener = _Opener(scheme, bucket, given, bounds.retries)
    store = RemoteStore(f"{scheme}://{rest}", obstore, opener, prefix, cache)
    store.commit_attempts = bounds.commit_attempts
    store.check()
    return store


def check_url(url: str) -> None:
    """Raise NotALogDirError for a URL that has an unknown scheme, or no bucket."""
    _parse(url)


def _parse(url: str) -> tuple[str, str, str]:
    """Return scheme, bucket and prefix of a URL."""
    match = URL.match(url)
    scheme = match[1].lower() if match else ""
    shown = re.sub(r"//[^/]*@", "//****@", re.split(r"[?#]", url)[0])
    forms = ", ".join(f"{name}://{kind.bucket}/PREFIX" for name, kind in _SCHEMES.items())
    if scheme == "file":
        raise NotALogDirError(
            f"{shown} is no object storage", remedy="give the path without file://", file=shown
        )
    if scheme not in _SCHEMES:
        near = nearest(scheme, _SCHEMES, 0.4)
        hint = f"; nearest: {near}" if near else ""
        raise NotALogDirError(
            f"{shown}: unknown scheme {scheme!r}{hint}", remedy=f"one of {forms}", file=shown
        )
    if shown != url:
        raise NotALogDirError(
            f"{shown}: a URL here has no credentials, no query and no fragment",
            remedy="give credentials in the environment or in storage_options",
            file=shown,
        )
    bucket, _, prefix = url[match.end() :].partition("/") if match else ("", "", "")
    prefix = prefix.rstrip("/")
    if not bucket or any(part in ("", ".", "..") for part in prefix.split("/") if prefix):
        fault = "has an empty part, `.` or `..` in its prefix" if bucket else "names no bucket"
        raise NotALogDirError(
            f"{url} {fault}", remedy=f"{scheme}://{_SCHEMES[scheme].bucket}/PREFIX", file=url
        )
    return scheme, bucket, prefix


def _checked(scheme: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with names in lower case; raise UnknownSettingError for all unknown names."""
    given = {str(name).lower(): str(value) for name, value in options.items() if value is not None}
    known = _SCHEMES[scheme].options | _CLIENT | _CACHE | _BOUNDS if scheme != "memory" else frozenset()
    problems = []
    for name in sorted(given.keys() - known):
        near = nearest(name, known)
        hint = f"; nearest: {near}" if near else f"; {scheme}:// has no options" if not known else ""
        problems.append(f"unknown storage option {name!r} for {scheme}://{hint}")
    if problems:
        remedy = f"the options are {', '.join(sorted(known))}" if known else "leave the options out"
        raise UnknownSettingError("\n".join(problems), problems=problems, remedy=remedy)
    return given


def _cache(options: dict[str, str]) -> CachedRanges | None:
    """Take the options of the cache out of `options`; return the cache that they state."""
    directory, size = options.pop("cache", None), options.pop("cache_bytes", None)
    match = _SIZE.fullmatch(size or str(cached.DEFAULT_BYTES))
    limit_bytes = int(match[1]) * _UNITS[match[2]] if match else 0
    if limit_bytes < cached.LEAST_BYTES or (size and directory is None):
        raise InvalidSettingError(
            f"storage option cache_bytes={size!r}"
            + (" has no effect without cache" if match and directory is None else ""),
            remedy="cache=DIRECTORY and, with at least 16MiB, cache_bytes=512MiB",
        )
    return CachedRanges(directory, limit_bytes) if directory is not None else None


class _Bounds(NamedTuple):
    """How often requests and commits are repeated: obstore's settings, and attempts of a commit."""

    retries: dict[str, Any]
    commit_attempts: int | None


def _bounds(options: dict[str, str]) -> _Bounds:
    """Take the bounds of repetitions out of `options`."""
    retries = dict(_RETRIES)
    attempts, repeats = options.pop("commit_attempts", None), options.pop("max_retries", None)
    timeout = options.pop("retry_timeout", None)
    for name, value, least in (("commit_attempts", attempts, 1), ("max_retries", repeats, 0)):
        if value is not None and not (value.isdecimal() and least <= int(value) <= MOST_ATTEMPTS):
            raise InvalidSettingError(
                f"storage option {name}={value!r}", remedy=f"a number from {least} to {MOST_ATTEMPTS}"
            )
    if repeats is not None:
        retries["max_retries"] = int(repeats)
    if timeout is not None:
        match = _DURATION.fullmatch(timeout)
        if match is None:
            raise InvalidSettingError(f"storage option retry_timeout={timeout!r}", remedy="60s, or 5min")
        retries["retry_timeout"] = timedelta(milliseconds=int(match[1]) * _MILLISECONDS[match[2]])
    return _Bounds(retries, None if attempts is None else int(attempts))


MOST_ATTEMPTS = 10_000


class _Opener:
    """Makes obstore's objects for one bucket: with repetitions, and without."""

    __slots__ = ("_bucket", "_options", "_retries", "_scheme", "secrets")

    def __init__(self, scheme: str, bucket: str, options: dict[str, str], retries: dict[str, Any]) -> None:
        self._scheme = scheme
        self._bucket = bucket
        self._options = options
        self._retries = retries
        values = [value for name, value in options.items() if is_secret(name)]
        environment = _SCHEMES[scheme].environment
        values += [
            value
            for name, value in os.environ.items()
            if environment and name.startswith(environment) and is_secret(name)
        ]
        self.secrets = Secrets(values)

    def open(self, obstore: Any, *, conditional: bool) -> Any:
        """Return obstore's object. Sends no request."""
        if self._scheme == "memory":
            return _memory.setdefault(self._bucket, obstore.store.MemoryStore())
        client = dict(_TIMEOUTS_CONDITIONAL if conditional else _TIMEOUTS)
        client |= {name: value for name, value in self._options.items() if name in _CLIENT}
        config = {name: value for name, value in self._options.items() if name not in _CLIENT}
        if any(address.startswith("http://") for address in self._addresses(config)):
            client.setdefault("allow_http", "true")  # the address that the caller wrote says so
        kind = getattr(obstore.store, _SCHEMES[self._scheme].kind)
        retries = _NO_RETRIES if conditional else self._retries
        failure: InvalidSettingError
        try:
            return kind(self._bucket, config=config, client_options=client, retry_config=retries)
        except Exception as error:  # of many classes; the text quotes the value that cannot be read
            reason = self.secrets.hide(str(error).partition("\n")[0])[:200]
            failure = InvalidSettingError(
                f"storage options for {self._scheme}://{self._bucket}: {reason}",
                remedy="correct the option, or the variable of the environment that stands for it",
            )
        raise failure  # outside of the handler, so that the error has no context with a secret

    def _addresses(self, config: Mapping[str, str]) -> list[str]:
        """Return the server's address: the option's, else that of the environment."""
        given = [config[name] for name in ("endpoint", "base_url") if name in config]
        prefix = _SCHEMES[self._scheme].environment
        return given or [os.environ.get(prefix + name, "") for name in _ADDRESSES]


class RemoteStore(ObjectStore):
    """The objects of a bucket below a prefix, through obstore."""

    def __init__(
        self, url: str, obstore: Any, opener: _Opener, prefix: str, cache: CachedRanges | None = None
    ) -> None:
        self.url = url
        self._obstore = obstore
        self._opener = opener
        self._folder = f"{prefix}/" if prefix else ""
        self._cache = cache
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a store may hold credentials and is not pickled: open its URL in the other process")

    @cached_property
    def _repeating(self) -> Any:
        return self._opener.open(self._obstore, conditional=False)

    @cached_property
    def _single(self) -> Any:
        return self._opener.open(self._obstore, conditional=True)

    def check(self) -> None:
        """Raise InvalidSettingError if an option cannot be read."""
        assert self._repeating is not None

    def _call(
        self, verb: str, key: str, request: Callable[[Any], T], *, conditional: bool = False, end: int = 0
    ) -> T:
        """Return the result of a request, or raise the typed error.

        The error is raised outside of the handler: its context would be obstore's error, whose text may have
        parts of a signature.
        """
        if self._closed:
            raise UsageError(f"{self.url} is closed", remedy="open it again", file=self.url)
        self._check_process()
        try:
            return request(self._single if conditional else self._repeating)
        except Exception as error:
            url = f"{self.url}/{key}" if key else self.url
            failure = translate(error, url, verb, self._opener.secrets, conditional=conditional, end=end)
        raise failure

    def _check_process(self) -> None:
        """Raise UsageError in a process that was forked after a request.

        obstore has one set of threads for the program. A fork does not copy them, so that a request of the
        forked process would never end. The store in memory needs no threads.
        """
        global _first_process
        process = os.getpid()
        _first_process = _first_process or process
        if process != _first_process and not self.url.startswith("memory:"):
            raise UsageError(
                f"{self.url}: this process was forked from one that had sent requests to object storage",
                remedy='start processes with "spawn" or "forkserver" (multiprocessing.get_context), or send '
                "the first request after the fork",
                file=self.url,
            )

    def get(self, key: str, *, unless: ObjectVersion | None = None) -> StoredObject | None:
        """Read a whole object; None if it still has the version `unless`."""
        options = {"if_none_match": unless.etag} if unless is not None and unless.etag is not None else None

        def request(store: Any) -> StoredObject | None:
            try:
                result = self._obstore.get(store, self._folder + key, options=options)
            except self._obstore.exceptions.NotModifiedError:
                return None
            facts = result.meta
            version = ObjectVersion(facts["e_tag"], facts["version"])
            if version == unless:  # a store that ignores If-None-Match
                return None
            return StoredObject(result.bytes().to_bytes(), version, _milliseconds(facts["last_modified"]))

        return self._call("read", key, request)

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """Read exactly `size` bytes from position `start`."""
        if size == 0:
            return b""
        cache = self._cache if size <= cached.MOST_RANGE_BYTES else None
        name = f"{self.url}/{key} {start} {size}"
        if cache is not None and (kept := cache.get(name, size)) is not None:
            return kept

        def request(store: Any) -> memoryview:
            buffer = self._obstore.get_range(store, self._folder + key, start=start, length=size)
            return memoryview(buffer)

        try:
            data = self._call("read", key, request, end=start + size)
        except UncertainRequestError as error:
            if "partial response" not in error.message:
                raise
            facts = self.facts(key)
            if facts is not None and facts.size < start + size:  # Azurite answers so for an empty object
                raise TruncatedObjectError.of(f"{self.url}/{key}", start + size, facts.size) from None
            why = "it answers a read with Range with the whole object"
            raise UnconditionalStoreError.reads(self.url, why) from None
        if len(data) != size:
            raise TruncatedObjectError.of(f"{self.url}/{key}", start + size, start + len(data))
        if cache is not None:
            cache.keep(name, data)
        return data

    def put(self, key: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write an object under a name that was never used; buffers of a list or tuple are joined."""
        buffers = [_flat(buffer) for buffer in data] if isinstance(data, list | tuple) else [_flat(data)]
        content = buffers[0] if len(buffers) == 1 else buffers
        self._put(key, content, sum(len(buffer) for buffer in buffers))

    def put_file(self, key: str, path: str) -> None:
        """Write an object from a local file, as `put` does, in bounded memory."""
        file = Path(path)
        try:
            size = file.stat().st_size
            content = file.read_bytes() if size <= SINGLE_BYTES else file
        except OSError as error:
            reason = error.strerror or str(error)
            raise StorageError(f"cannot read {path}: {reason}", file=path, errno=error.errno) from error
        self._put(key, content, size)

    def _put(self, key: str, content: Any, size: int) -> None:
        self._call(
            "write",
            key,
            lambda store: self._obstore.put(
                store,
                self._folder + key,
                content,
                use_multipart=size > SINGLE_BYTES,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_TOGETHER,
            ),
        )

    def create(self, key: str, data: Buffer) -> ObjectVersion:
        """Write an object only if there is none of this name. Sends one request, without a repetition."""
        return self._conditional(key, data, "create")

    def swap(self, key: str, data: Buffer, version: ObjectVersion) -> ObjectVersion:
        """Replace an object only if it has `version`. Sends one request, without a repetition."""
        mode = {"e_tag": version.etag, "version": version.version}
        return self._conditional(
            key, data, {name: value for name, value in mode.items() if value is not None}
        )

    def _conditional(self, key: str, data: Buffer, mode: str | dict[str, str]) -> ObjectVersion:
        content = _flat(data)
        result = self._call(
            "write",
            key,
            lambda store: self._obstore.put(
                store, self._folder + key, content, mode=mode, use_multipart=False
            ),
            conditional=True,
        )
        return ObjectVersion(result["e_tag"], result["version"])

    def facts(self, key: str) -> ObjectFacts | None:
        """Return the facts of an object; None if there is none."""
        try:
            facts = self._call("read", key, lambda store: self._obstore.head(store, self._folder + key))
        except ObjectVanishedError:
            return None
        return ObjectFacts(key, facts["size"], _milliseconds(facts["last_modified"]))

    def list(self, prefix: str = "") -> Iterator[ObjectFacts]:
        """Return the objects below a folder, with or without a slash at its end, in no certain order."""
        folder = (self._folder + prefix).rstrip("/")
        start = len(self._folder)
        pages = self._call(
            "list", prefix, lambda store: iter(self._obstore.list(store, folder or None, chunk_size=1000))
        )
        while True:
            page = self._call("list", prefix, lambda _: next(pages, None))
            if page is None:
                return
            for facts in page:
                yield ObjectFacts(facts["path"][start:], facts["size"], _milliseconds(facts["last_modified"]))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. A missing object is no error."""
        paths = [self._folder + key for key in keys]
        if not paths:
            return
        try:
            self._call("delete", keys[0], lambda store: self._obstore.delete(store, paths))
        except ObjectVanishedError:
            # GCS and Azure answer so for each missing object, and the others may not be deleted yet.
            for key in keys if len(keys) > 1 else ():
                self.delete([key])

    def close(self) -> None:
        """Close the connections; a second close does nothing."""
        self._closed = True
        self.__dict__.pop("_repeating", None)
        self.__dict__.pop("_single", None)


def _flat(data: Buffer) -> Any:
    """Return the bytes of a buffer without a copy."""
    if isinstance(data, bytes):
        return data
    view = memoryview(data)
    return view.cast("B") if view.nbytes else b""


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
