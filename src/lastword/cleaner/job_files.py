"""Files by which the steps of a job pass results on: written aside and renamed, with checksums, not synced.

A power cut may leave a damaged file. The next cleaning discards a job with a file that fails its checksum,
and starts a new one.
"""

from __future__ import annotations

import os
import zipfile
from io import BytesIO
from typing import Any

import numpy as np

from lastword.errors import CorruptFileError
from lastword.files import Files
from lastword.files.framed import Framed

FORM = Framed("job", 1, "bad-job-file", "clean the partition again: the job is discarded and starts again")


def name_aside(path: str) -> str:
    """A name beside it that no other attempt has."""
    return f"{path}.{os.urandom(6).hex()}"


def write_whole(files: Files, path: str, data: bytes) -> None:
    """All of it or nothing has the name."""
    aside = name_aside(path)
    with files.open_append(aside, create=True, exclusive=True) as out:
        out.append(data)
    files.rename(aside, path)


def write_arrays(files: Files, path: str, parts: dict[str, Any]) -> None:
    buffer = BytesIO()
    np.savez(buffer, **parts)
    write_whole(files, path, buffer.getvalue())


def read_arrays(files: Files, path: str) -> dict[str, Any]:
    """Its own checksums are looked at."""
    try:
        with np.load(BytesIO(files.read_bytes(path)), allow_pickle=False) as found:
            return dict(found)
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise unreadable(path) from error


def write_json(files: Files, path: str, value: Any) -> None:
    """Write a value of JSON, framed."""
    write_whole(files, path, FORM.encode({"value": value}))


def read_json(files: Files, path: str) -> Any:
    """Return what `write_json` wrote. CorruptFileError for anything else."""
    fields = FORM.decode(files.read_bytes(path), path)
    if "value" not in fields:
        raise unreadable(path)
    return fields["value"]


def unreadable(path: str) -> CorruptFileError:
    return CorruptFileError(
        "a scratch file of a cleaning is not as it was written",
        code=FORM.code,
        remedy=FORM.remedy,
        file=path,
    )
