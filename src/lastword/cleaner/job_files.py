"""How the steps of a job pass files on: written aside and renamed, with checksums, and not synced. After a
power cut a job may have to begin again, and its checksums tell.
"""

from __future__ import annotations

import json
import os
import zipfile
from io import BytesIO
from typing import Any

import numpy as np

from lastword.errors import CorruptFileError
from lastword.files import Files


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


def read_json(files: Files, path: str) -> Any:
    try:
        return json.loads(files.read_bytes(path))
    except ValueError as error:
        raise unreadable(path) from error


def unreadable(path: str) -> CorruptFileError:
    return CorruptFileError(
        "a scratch file of a cleaning is not as it was written",
        remedy="clean again: it starts anew",
        file=path,
    )
