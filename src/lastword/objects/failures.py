"""Typed errors for failed requests, without credentials."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lastword.errors import (
    BucketMissingError,
    ClockSkewError,
    CredentialsRefusedError,
    InvalidSettingError,
    LastwordError,
    NotPermittedError,
    ObjectTakenError,
    ObjectVanishedError,
    StorageError,
    SwapRefusedError,
    ThrottledError,
    TruncatedObjectError,
    UncertainRequestError,
    UnconditionalStoreError,
)

# Codes in the body of a reply: those of S3 first, then those of Azure, then reasons of GCS.
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"})
_BAD_CREDENTIALS = frozenset(
    {
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
        "TokenRefreshRequired",
        "AuthorizationHeaderMalformed",
        "MissingSecurityHeader",
        "AuthenticationFailed",
        "InvalidAuthenticationInfo",
        "NoAuthenticationInformation",
        "authError",
    }
)
_SKEW = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_THROTTLED = frozenset({"SlowDown", "RequestLimitExceeded", "Throttling", "ServerBusy", "rateLimitExceeded"})
_TAKEN = frozenset({"BlobAlreadyExists", "UnauthorizedBlobOverwrite"})  # Azure's answers to a second create

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>|\"reason\":\s*\"(\w{1,64})\"")
_QUERY = re.compile(r"\?\S*")  # a shared access signature is in the query of an address
# The hosts that give out credentials, in the first line of obstore's text.
_SOURCE_OF_CREDENTIALS = re.compile(
    r"performing token request|://(169\.254\.|sts[.-]|metadata\.|login\.microsoftonline|oauth2\.)"
)

# Why there is no connection, in the debug text of obstore's error.
_CAUSE = re.compile(r'(?:message|error): "([^"]{1,100})"|(Invalid(?:Certificate|Message))\(\s*(\w{1,40})')

WRITES = frozenset({"write", "delete"})


class Secrets:
    """The values that must not be in any text: the credentials of a store."""

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values = sorted((value for value in values if len(value) >= 4), key=len, reverse=True)

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)})"

    def hide(self, text: str) -> str:
        """Return `text` with **** in place of each secret and of the query of each address."""
        for value in self._values:
            text = text.replace(value, "****")
        return _QUERY.sub("", text)


def translate(
    error: BaseException, url: str, verb: str, secrets: Secrets, *, conditional: bool = False, end: int = 0
) -> LastwordError:
    """Return the typed error for a failed request.

    The text of obstore's error has the body of the reply, which may repeat parts of the signature. The
    message has only the status and the code of the reply.

    Args:
        error: The error that obstore raised.
        url: The address of the object or of the store.
        verb: "read", "write", "list" or "delete".
        secrets: The credentials.
        conditional: The request is a create or a swap.
        end: The last byte of the requested range.
    """
    kind, text = type(error).__name__, str(error)
    match = _STATUS.search(text)
    status = int(match[1]) if match else 0
    match = _CODE.search(text)
    code = (match[1] or match[2]) if match else ""
    why = f"{status} {code}".strip() if status else ""
    write = verb in WRITES
    first = text.partition("\n")[0]

    if _SOURCE_OF_CREDENTIALS.search(first) and status < 500:
        return CredentialsRefusedError.of(url, "there are none, or their source does not answer")
    if code in _NO_BUCKET:
        return BucketMissingError.of(url)
    if code in _SKEW:
        return ClockSkewError.of(url, f"the store refuses the time of this machine ({why})")
    if code in _BAD_CREDENTIALS or status == 401 or kind == "UnauthenticatedError":
        return CredentialsRefusedError.of(url, why or kind)
    if status == 403 or kind == "PermissionDeniedError":
        return NotPermittedError.verb(url, verb)
    if status == 429 or code in _THROTTLED:
        return ThrottledError.of(url, verb, why, write=write)
    if code == "RequestTimeout":  # S3's 400 for a body that did not arrive
        return UncertainRequestError.of(url, verb, why, write=write)
    if conditional and (status in (400, 405, 501) or kind in ("NotImplementedError", "NotSupportedError")):
        return UnconditionalStoreError.of(url, f"it answers {why or 'that it cannot'}")
    if status == 409 and code not in _TAKEN:
        # S3 answers 409 if two conditional writes of one object meet. It is no statement on the object.
        return UncertainRequestError.of(url, verb, why, write=write)
    if kind == "AlreadyExistsError":
        return ObjectTakenError.of(url)
    if kind == "PreconditionError" and conditional:
        return SwapRefusedError.of(url)
    if isinstance(error, FileNotFoundError) and (status == 404 or not status):
        return ObjectVanishedError.of(url)
    if status == 404:  # a list, or a store without a code in its reply
        return BucketMissingError.of(url) if verb == "list" else ObjectVanishedError.of(url)
    if status == 416 or "Invalid range" in text or "InvalidRange" in text:
        return TruncatedObjectError.of(url, end, None)
    if status >= 500:
        return UncertainRequestError.of(url, verb, why, write=write)
    if status:
        return StorageError(
            f"cannot {verb} {url}: the store answers {why}",
            remedy="check the URL and the options of the store",
            file=url,
        )
    if "kind: Timeout" in text:
        return UncertainRequestError.of(url, verb, "no answer within the timeout", write=write)
    if "kind: Connect" in text:
        cause = _CAUSE.search(text)
        why = f"no connection: {': '.join(filter(None, cause.groups()))}" if cause else "no connection"
        # Of a request that is sent once, nothing has reached the store.
        return UncertainRequestError.of(url, verb, secrets.hide(why), write=write and not conditional)
    if "BareRedirect" in text:
        return InvalidSettingError(
            f"{url}: the store redirects the request: the bucket is in another region",
            remedy="set the option region, or AWS_REGION",
            file=url,
        )
    first = secrets.hide(first)[:200]
    if kind == "GenericError" or isinstance(error, OSError):
        return UncertainRequestError.of(url, verb, first or kind, write=write)
    return StorageError(f"cannot {verb} {url}: {first or kind}", remedy="check the URL", file=url)
