"""The formats of the files that the steps of a divided cleaning leave for each other (`spark.sharded`).

Files are written under another name and renamed, with checksums, not synced: a power cut may leave a damaged
file.
"""

from __future__ import annotations

import os
from io import BytesIO
from typing import Any

import numpy as np

from lastword.errors import CorruptFileError
from lastword.files import Files
from lastword.files.framed import Framed

FORM = Framed(
    "job",
    2,
    "bad-job-file",
    "clean the partition again: the job is discarded and starts again",
)


def name_aside(path: str) -> str:
    """Return a random name beside `path`, which no other attempt has."""
    return f"{path}.{os.urandom(6).hex()}"


def write_whole(files: Files, path: str, data: bytes) -> None:
    """Write atomically: temporary file, then rename."""
    aside = name_aside(path)
    files.write_new(aside, data, sync=False)
    files.rename(aside, path)


def write_arrays(files: Files, path: str, parts: dict[str, Any]) -> None:
    """Write arrays by name."""
    buffer = BytesIO()
    np.savez_compressed(buffer, **parts)
    write_whole(files, path, buffer.getvalue())


def read_arrays(files: Files, path: str) -> dict[str, Any]:
    """Return the arrays of a file, checked. CorruptFileError if it is damaged."""
    data = files.read_bytes(path)
    try:
        with np.load(BytesIO(data), allow_pickle=False) as arrays:
            parts = dict(arrays)
    except Exception as error:  # damaged bytes raise errors of many classes, RuntimeError among them
        raise unreadable(path) from error
    if not all(isinstance(part, np.ndarray) for part in parts.values()):
        raise unreadable(path)  # a member that does not begin as an array is returned as bytes
    return parts


def write_json(files: Files, path: str, value: Any) -> None:
    """Write a JSON value, framed."""
    write_whole(files, path, FORM.encode({"value": value}))


def read_json(files: Files, path: str) -> Any:
    """Return the value that `write_json` wrote. CorruptFileError if the file is damaged."""
    fields = FORM.decode(files.read_bytes(path), path)
    if "value" not in fields:
        raise unreadable(path)
    return fields["value"]


def unreadable(path: str) -> CorruptFileError:
    """Return the error for a damaged file of a job."""
    return CorruptFileError(
        "a scratch file of a cleaning is not as it was written", code=FORM.code, remedy=FORM.remedy, file=path
    )
