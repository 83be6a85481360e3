"""Write a wheel again with smaller streams: the same files in the same order, for every reader of zip files.

    python scripts/repack_wheel.py WHEEL    # with the package zopfli; about a minute

`scripts/release_check.py` runs it. hatchling writes with zlib, whose streams are longer.
"""

from __future__ import annotations

import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

ITERATIONS = 5
"""More of them take longer, and save less than 1 KB."""
VERSION_NEEDED, MADE_ON_UNIX, UTF_8 = 20, 3 << 8 | 20, 0x800


def repacked(path: Path, compress: Callable[[bytes], bytes]) -> bytes:
    """Return the bytes of an archive with these files.

    Args:
        path: A wheel of fewer than 65,536 files, each compressed.
        compress: Returns a raw deflate stream.
    """
    out, directory = bytearray(), bytearray()
    with zipfile.ZipFile(path) as wheel:
        files = wheel.infolist()
        for info in files:
            name, data = info.filename.encode(), wheel.read(info)
            stream = compress(data)
            year, month, day, hour, minute, second = info.date_time
            time, date = hour << 11 | minute << 5 | second // 2, year - 1980 << 9 | month << 5 | day
            sizes = info.CRC, len(stream), len(data), len(name), 0
            fields = struct.pack("<4H3L2H", UTF_8, zipfile.ZIP_DEFLATED, time, date, *sizes)
            entry = struct.pack("<3H2L", 0, 0, 0, info.external_attr, len(out))
            directory += struct.pack("<4s2H", b"PK\1\2", MADE_ON_UNIX, VERSION_NEEDED) + fields + entry + name
            out += struct.pack("<4sH", b"PK\3\4", VERSION_NEEDED) + fields + name + stream
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, len(files), len(files), len(directory), len(out), 0)
    return bytes(out + directory + end)


def main(path: Path) -> None:
    """Replace a wheel, after every file of the new one was read."""
    from zopfli import zlib  # in the environment of the release's tools

    new = path.with_suffix(".new")
    new.write_bytes(repacked(path, lambda data: zlib.compress(data, numiterations=ITERATIONS)[2:-4]))
    with zipfile.ZipFile(new) as wheel:
        assert wheel.testzip() is None
    new.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
