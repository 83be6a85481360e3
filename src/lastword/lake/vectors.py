"""Deletion vectors of Delta: the rows of a data file that a reader leaves out.

    file of vectors   1 byte format (1), then for each vector: size, content, CRC-32 of the content
    content           magic 1681511377 (little-endian), a roaring bitmap with 64-bit values, portable form
    text              a UUID (the file's name) or the content itself, in Z85

Size and CRC are big-endian int32. Vectors are written to a file for each commit and read from a file or from
the log itself.
"""

from __future__ import annotations

import base64
import binascii
import struct
import uuid
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from lastword.errors import CorruptFileError, MissingError
from lastword.objects.interface import Buffer

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = 1681511377
FORMAT = b"\x01"
_RFC_1924 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85 = str.maketrans(_RFC_1924, _Z85)
_FROM_Z85 = str.maketrans(_Z85, _RFC_1924)
_UUID_TEXT = 20
"""Characters of a UUID in Z85."""


def bitmap_class() -> Any:
    """Return the class of 32-bit roaring bitmaps; MissingError without the package."""
    try:
        from pyroaring import BitMap
    except ImportError:
        raise MissingError.package("deletion vectors", "pyroaring", "pyroaring>=1") from None
    return BitMap


def bitmap_of(numbers: NDArray[Any]) -> Any:
    """Return the roaring bitmap of numbers below 2**32. A buffer of array.array is taken as a whole."""
    return bitmap_class()(array("I", np.ascontiguousarray(numbers, np.uint32).tobytes()))


def numbers_of(bitmap: Any) -> NDArray[np.uint32]:
    """Return the numbers of a roaring bitmap, in order."""
    return np.frombuffer(bitmap.to_array(), np.uint32)


class Offsets:
    """A set of offsets. It needs at most two bytes for each, and 8 KiB for 65,536 neighbours."""

    def __init__(self) -> None:
        self._by_high: dict[int, Any] = {}

    def add(self, offsets: NDArray[np.int64]) -> None:
        """Add offsets."""
        for high, low in _by_high(offsets):
            self._by_high[high] = self._by_high.get(high, bitmap_class()()) | bitmap_of(low)

    def discard(self, offsets: NDArray[np.int64]) -> None:
        """Remove offsets, which need not be there."""
        for high, low in _by_high(offsets):
            if high in self._by_high:
                self._by_high[high] -= bitmap_of(low)

    def keep(self, first: int, end: int, offsets: NDArray[np.int64]) -> None:
        """Remove from [first, end) all but these offsets."""
        kept = dict(_by_high(offsets))
        for high, low, above in self._within(first, end):
            known = self._by_high[high]
            both = known & bitmap_of(kept[high]) if high in kept else bitmap_class()()
            known.remove_range(low, above)
            known |= both

    def count(self, first: int, end: int) -> int:
        """Return how many offsets are in [first, end)."""
        return sum(
            self._by_high[high].range_cardinality(low, above) for high, low, above in self._within(first, end)
        )

    def copy(self) -> Offsets:
        """Return a copy."""
        result = Offsets()
        result._by_high = {high: bitmap.copy() for high, bitmap in self._by_high.items()}
        return result

    def minus(self, other: Offsets) -> Offsets:
        """Return the offsets that are not in another set."""
        result = self.copy()
        for high, bitmap in other._by_high.items():
            if high in result._by_high:
                result._by_high[high] -= bitmap
        return result

    def mask(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the offsets that are in the set."""
        result = np.zeros(offsets.size, np.bool_)
        for high, low in _by_high(offsets):
            known = self._by_high.get(high, bitmap_class()())
            known = known & bitmap_class()(range(int(low.min()), int(low.max()) + 1))
            if known:
                rows = slice(None) if low.size == offsets.size else offsets >> 32 == high
                result[rows] = np.isin(low, numbers_of(known))
        return result

    def _within(self, first: int, end: int) -> list[tuple[int, int, int]]:
        """Return the upper halves of offsets in [first, end), and the range of the lower halves."""
        starts = {high: high << 32 for high in self._by_high}
        ranges = [(high, max(first - start, 0), min(end - start, 1 << 32)) for high, start in starts.items()]
        return [(high, low, above) for high, low, above in ranges if low < above]


def _by_high(offsets: NDArray[np.int64]) -> list[tuple[int, NDArray[np.uint32]]]:
    if offsets.size and offsets.min() >> 32 == offsets.max() >> 32:
        return [(int(offsets[0] >> 32), offsets.astype(np.uint32))]
    highs = offsets >> 32
    return [(high, offsets[highs == high].astype(np.uint32)) for high in np.unique(highs).tolist()]


@dataclass(frozen=True, slots=True)
class Vector:
    """The descriptor of a vector, as the log has it.

    `kind` is "u" for a file with a relative name, "i" for a content within the text; `size` are the bytes of
    the content, `rows` the deleted rows.
    """

    kind: str
    text: str
    offset: int | None
    size: int
    rows: int

    @classmethod
    def of(cls, fields: Mapping[str, Any] | None) -> Vector | None:
        """Return the descriptor of an action; None if the file has no vector."""
        if fields is None or fields.get("storageType") is None:
            return None
        return cls(
            fields["storageType"],
            fields["pathOrInlineDv"],
            fields.get("offset"),
            fields["sizeInBytes"],
            fields["cardinality"],
        )

    @property
    def unique_id(self) -> str:
        """The text by which Delta tells the vectors of a file apart."""
        return self.kind + self.text + ("" if self.offset is None else f"@{self.offset}")

    @property
    def file(self) -> str | None:
        """The name of the file that holds the vector, or None."""
        if self.kind != "u":
            return None
        prefix, text = self.text[:-_UUID_TEXT], self.text[-_UUID_TEXT:]
        name = f"deletion_vector_{uuid.UUID(bytes=_decoded(text))}.bin"
        return f"{prefix}/{name}" if prefix else name

    def to_action(self) -> dict[str, Any]:
        """Return the fields of an action."""
        fields = {"storageType": self.kind, "pathOrInlineDv": self.text, "sizeInBytes": self.size}
        offset = {} if self.offset is None else {"offset": self.offset}
        return {**fields, **offset, "cardinality": self.rows}


class Ranges(Protocol):
    """Reads parts of objects; an `ObjectStore` is one."""

    url: str

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        """Return bytes of an object."""
        ...


def read_vector(store: Ranges, vector: Vector) -> Any:
    """Return the bitmap of a vector.

    Raises:
        CorruptFileError: The bytes are no vector, or not the one that the log describes.
    """
    place = f"{store.url}/{vector.file or '_delta_log'}"
    if vector.kind == "i":
        content = _decoded(vector.text)[: vector.size]
    else:
        assert vector.file is not None
        start = vector.offset or 0
        data = bytes(store.get_range(vector.file, start, vector.size + 8))
        content = data[4:-4]
        if len(data) != vector.size + 8:
            raise _damaged(place, "ends within a vector")
        size, checksum = struct.unpack(">i", data[:4])[0], struct.unpack(">I", data[-4:])[0]
        if size != vector.size or checksum != zlib.crc32(content):
            raise _damaged(place, "has another size or checksum than its vector")
    try:
        magic, count = struct.unpack_from("<IQ", content)
        if magic != MAGIC or count > 1:
            raise ValueError
        bitmap = bitmap_class()()
        if count:
            if struct.unpack_from("<I", content, 12)[0]:
                raise ValueError
            bitmap = bitmap_class().deserialize(content[16:])
    except (ValueError, struct.error):
        raise _damaged(place, "holds no deletion vector of a file below 2**32 rows") from None
    if len(bitmap) != vector.rows:
        raise _damaged(place, f"deletes {len(bitmap)} rows where the log says {vector.rows}")
    return bitmap


class VectorFile:
    """Collects the vectors of one commit. `name` is the name of their file, `data` its content."""

    def __init__(self, identity: uuid.UUID) -> None:
        self.name = f"deletion_vector_{identity}.bin"
        self.data = bytearray(FORMAT)
        self._text = base64.b85encode(identity.bytes).decode().translate(_TO_Z85)

    def __len__(self) -> int:
        return len(self.data) - len(FORMAT)

    def add(self, bitmap: Any) -> Vector:
        """Append the vector of a bitmap with at least one row; return its descriptor."""
        bitmap.run_optimize()
        content = struct.pack("<IQI", MAGIC, 1, 0) + bitmap.serialize()
        offset = len(self.data)
        self.data += struct.pack(">i", len(content)) + content + struct.pack(">I", zlib.crc32(content))
        return Vector("u", self._text, offset, len(content), len(bitmap))


def _decoded(text: str) -> bytes:
    try:
        return base64.b85decode(text.translate(_FROM_Z85))
    except (ValueError, binascii.Error):
        raise CorruptFileError(
            f"a deletion vector is named {text!r}, which is not Z85", remedy="restore the table's log"
        ) from None


def _damaged(place: str, why: str) -> CorruptFileError:
    return CorruptFileError(
        f"{place} {why}", remedy="restore the table to an older version, or choose another path", file=place
    )
