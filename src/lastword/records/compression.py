"""The codecs of batches: bytes to bytes, never more than a given bound.

`CODECS[attributes & 7]` lists them. Each is framed so that Kafka can read it:

    gzip    one member, or several after each other; bytes that begin no member are ignored behind them
    snappy  raw blocks of 32 KiB under a header of 16 bytes: 82 "SNAPPY" 00 · i32 version 1 · i32 lowest
            reader 1, then per block: i32 compressed size · block. Both versions are ignored. Not the official
            snappy frames. A payload without the header is one raw block, as librdkafka writes it and Kafka
            reads it
    lz4     frame 04 22 4d 18 · FLG 60 · BD 40 · HC 82: independent blocks of 64 KiB, no sizes, no checksums.
            Kafka refuses linked blocks
    zstd    a frame without content size or checksum; the cut beginning of another frame behind it is ignored

A size that the data declares is never trusted: memory is reserved for the bytes that arrive. A payload that
exceeds its bound is `DecompressionLimitError`; one that contradicts itself is `CorruptBatchError`. Neither
names a file; `located` adds it.

The bound on the records of one batch is `lastword.decompression.max.bytes` of a log directory. Readers have
the path of a file but no settings, so the bound is registered with the directory and looked up by the path
of the file.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, cast

from lastword.errors import CorruptBatchError, DataError, DecompressionLimitError
from lastword.parse import parse_bytes
from lastword.units import format_bytes
from lastword.wire import (
    COMPRESSION_TYPES,
    GZIP,
    GZIP_GROWTH,
    LZ4,
    LZ4_GROWTH,
    SNAPPY,
    SNAPPY_GROWTH,
    ZSTD,
    ZSTD_BLOCK_BYTES,
)

CODEC_NAMES = ("none", *COMPRESSION_TYPES)

_XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 << 10

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEAD = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_BLOCKS = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
_LZ4_FAST = 9
"""Kafka's default level, which selects the fast compressor; every other level selects the thorough one."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_FRAME = 0xFD2FB528
_ZSTD_SKIPPED = 0x184D2A50

_U32 = struct.Struct("<I")
_I32 = struct.Struct(">i")
_FIRST_ROOM = 64 << 10
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
_GZIP_TRAILER = 18
"""Java looks for another member only behind this many bytes."""
_GZIP_STEP = 1 << 20
"""Bytes that the decompressor takes and returns at a time: what it holds beside the output."""
_local = threading.local()


class Codec(NamedTuple):
    """The functions of a codec.

    `compress(data, level)` and `decompress(data, limit)` return bytes; `decompress_into(data, view)` returns
    their number.
    """

    compress: Callable[[Any, int | None], bytes]
    decompress: Callable[[Any, int], bytes]
    decompress_into: Callable[[Any, memoryview], int]


def compress(codec: int, data: Any, level: int | None = None) -> bytes:
    """Return `data` compressed for the attribute bits `codec`, in a form that Kafka reads.

    `level` is as in Kafka's `compression.*.level`; by default the codec's own.
    """
    return _codec(codec).compress(data, level)


def decompress(codec: int, data: Any, limit: int) -> bytes:
    """Return the uncompressed bytes, at most `limit` of them."""
    return _codec(codec).decompress(data, limit)


def decompress_into(codec: int, data: Any, out: Any, out_position: int) -> int:
    """Write the uncompressed bytes into `out` from `out_position` on; return their number.

    If they do not fit: `DecompressionLimitError`, and an undefined part of `out` is written.
    """
    return _codec(codec).decompress_into(data, memoryview(out).cast("B")[out_position:])


@contextmanager
def located(file: str, position: int, offset: int | None) -> Iterator[None]:
    """Add the position of the batch to errors of this module."""
    try:
        yield
    except (CorruptBatchError, DecompressionLimitError) as error:
        if error.file is not None:
            raise
        raise located_error(error, file, position, offset) from None


def located_error(error: DataError, file: str, position: int, offset: int | None) -> DataError:
    """Return the error with the position of its batch, and with a remedy that names the log directory."""
    message, remedy = error.message, error.remedy
    if isinstance(error, DecompressionLimitError):
        message, remedy = f"offset {offset}: {message}", limit_remedy(file)
    return type(error)(message, code=error.code, remedy=remedy, file=file, position=position, offset=offset)


def _codec(codec: int) -> Codec:
    if not 0 <= codec < len(CODECS):
        raise CorruptBatchError(f"codec {codec} does not exist", code="bad-codec")
    return CODECS[codec]


def _corrupt(codec: str, text: object) -> CorruptBatchError:
    return CorruptBatchError(f"{codec} payload: {text}", code="bad-payload")


def too_large(codec: str, size: int, limit: int) -> DecompressionLimitError:
    """Return the error for a payload of `size` bytes that grows past `limit`."""
    return DecompressionLimitError(
        f"{codec} payload of {format_bytes(size)} grows past {format_bytes(limit)} ({limit} bytes)",
        remedy=limit_remedy(None),
    )


# ---------------------------------------------------------------- none


def _copy(data: Any, level: int | None) -> bytes:
    return bytes(data)


def _copied(data: Any, limit: int) -> Iterator[Any]:
    if len(data) > limit:
        raise too_large("uncompressed", len(data), limit)
    yield memoryview(data).cast("B")


# ---------------------------------------------------------------- gzip


def _gzip(data: Any, level: int | None) -> bytes:
    deflater = zlib.compressobj(-1 if level is None else level, wbits=31)
    return deflater.compress(data) + deflater.flush()


def _gunzip_parts(data: Any, limit: int) -> Iterator[bytes]:
    view = memoryview(data).cast("B")
    end, left = len(view), limit
    taken = _gzip_body(view, 0)
    if taken < 0:
        raise _corrupt("gzip", "no header" if end else "empty")
    while taken >= 0:
        member = zlib.decompressobj(wbits=31)
        member.decompress(_GZIP_HEADER)  # the flags of a header may have bits that zlib refuses
        rest = b""
        while not member.eof:
            if not rest:
                rest = bytes(view[taken : taken + _GZIP_STEP])
                taken += len(rest)
            try:
                part = member.decompress(rest, min(left + 1, _GZIP_STEP))
            except zlib.error as error:
                raise _corrupt("gzip", error) from None
            left -= len(part)
            if left < 0:
                raise too_large("gzip", end, limit)
            if part:
                yield part
            elif not rest and not member.eof:
                raise _corrupt("gzip", "cut short")
            rest = member.unconsumed_tail
        following = taken - len(member.unused_data)
        taken = _gzip_body(view, following) if end - following > _GZIP_TRAILER else -1


def _gzip_body(view: memoryview, position: int) -> int:
    """Return where the data of the member at `position` begins; -1 if Java reads no header."""
    end, at = len(view), position + len(_GZIP_HEADER)
    if at > end or view[position : position + 3] != _GZIP_HEADER[:3]:
        return -1
    flags = view[position + 3]
    if flags & 4:
        at += 2 + int.from_bytes(view[at : at + 2], "little")
    for flag in (8, 16):  # name and comment
        if flags & flag:
            while at < end and view[at]:
                at += 1
            at += 1
    if flags & 2:
        if zlib.crc32(view[position:at]) & 0xFFFF != int.from_bytes(view[at : at + 2], "little"):
            return -1
        at += 2
    return at if at <= end else -1


# ---------------------------------------------------------------- snappy


def _snappy(data: Any, level: int | None) -> bytes:
    import cramjam

    view = memoryview(data).cast("B")
    parts = [_XERIAL]
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (_I32.pack(len(block)), block)
    return b"".join(parts)


def _snappy_blocks(data: Any, limit: int) -> Iterator[tuple[memoryview, int]]:
    """Yield (raw snappy block, size of its content); the sizes sum up to at most `limit`."""
    view = memoryview(data).cast("B")
    position, end, left = len(_XERIAL), len(view), limit
    if not end or (view[:8] == _XERIAL[:8] and end < position):
        raise _corrupt("snappy", "cut short")
    if view[:8] != _XERIAL[:8]:
        content = _snappy_content(view)
        if content > limit:
            raise too_large("snappy", end, limit)
        yield view, content
        return
    # Java reads the version only of a stream behind the first one. Some writers store it in little endian.
    while end - position >= 4:  # fewer bytes are ignored, as in Kafka
        if view[position : position + 4] == _XERIAL[:4]:  # another stream follows
            if end - position < len(_XERIAL):
                raise _corrupt("snappy", "cut short")
            if view[position : position + 8] != _XERIAL[:8]:
                return
            if _I32.unpack_from(view, position + 8)[0] < 1:
                raise _corrupt("snappy", "a stream of a version below 1")
            position += len(_XERIAL)
            continue
        (size,) = _I32.unpack_from(view, position)
        position += 4
        if size < 0 or size > end - position:
            raise _corrupt("snappy", f"block of {size} bytes, {end - position} are there")
        block = view[position : position + size]
        content = _snappy_content(block)
        left -= content
        if left < 0:
            raise too_large("snappy", end, limit)
        yield block, content
        position += size


def _snappy_content(block: memoryview) -> int:
    """Return the size that a raw block claims for its content."""
    import cramjam

    try:
        content: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise _corrupt("snappy", error) from None
    if content > len(block) * SNAPPY_GROWTH:
        raise _corrupt("snappy", f"block of {len(block)} bytes claims {content}")
    return content


def _unsnappy(data: Any, limit: int) -> bytes:
    out = bytearray(sum(content for _, content in _snappy_blocks(data, limit)))
    _unsnappy_into(data, memoryview(out))
    return bytes(out)


def _unsnappy_into(data: Any, out: memoryview) -> int:
    import cramjam

    done = 0
    for block, content in _snappy_blocks(data, len(out)):
        if not content:
            continue
        try:
            written = cramjam.snappy.decompress_raw_into(block, out[done : done + content])
        except cramjam.DecompressionError as error:
            raise _corrupt("snappy", error) from None
        if written != content:
            raise _corrupt("snappy", f"block of {written} bytes claims {content}")
        done += content
    return done


# ---------------------------------------------------------------- lz4


def _lz4(data: Any, level: int | None) -> bytes:
    import lz4.frame

    packed: bytes = lz4.frame.compress(
        bytes(data) if isinstance(data, memoryview) else data,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
        compression_level=0 if level is None or level == _LZ4_FAST else max(level, 3),  # HC from 3 on
    )
    return packed


def _lz4_blocks(data: Any) -> Iterator[tuple[memoryview, bool, int]]:
    """Yield (block, whether it is compressed, its maximum size) up to the end mark.

    Bytes after the mark are ignored, as in Kafka.
    """
    view = memoryview(data).cast("B")
    end = len(view)
    if end < 7:
        raise _corrupt("lz4", "cut short")
    if view[:7] == _LZ4_HEAD:
        position, block_most, checksums = 7, 64 << 10, False
    else:
        position, block_most, checksums = _lz4_head(view)
    while True:
        if end - position < 4:
            raise _corrupt("lz4", "cut short: no end mark")
        (word,) = _U32.unpack_from(view, position)
        position += 4
        size = word & 0x7FFFFFFF
        if size == 0:
            return
        if size > block_most:
            raise _corrupt("lz4", f"block of {size} bytes in a frame of {block_most}")
        if size > end - position - (4 if checksums else 0):
            raise _corrupt("lz4", f"block of {size} bytes, {end - position} are there")
        block = view[position : position + size]
        position += size
        if checksums:
            if _U32.unpack_from(view, position)[0] != xxh32(block):
                raise _corrupt("lz4", "block with a wrong checksum")
            position += 4
        yield block, word < 0x80000000, block_most


def _lz4_head(view: memoryview) -> tuple[int, int, bool]:
    """Return (position of the first block, maximum bytes of a block, whether blocks have checksums)."""
    if view[:4] != _LZ4_MAGIC:
        raise _corrupt("lz4", "no frame")
    flags, descriptor = view[4], view[5]
    if flags >> 6 != 1 or flags & 0x03:
        raise _corrupt("lz4", f"frame flags {flags:02x}")
    if not flags & 0x20:
        raise _corrupt("lz4", "linked blocks, which Kafka does not read")
    if descriptor & 0x8F or descriptor >> 4 not in _LZ4_BLOCKS:
        raise _corrupt("lz4", f"block descriptor {descriptor:02x}")
    position = 14 if flags & 0x08 else 6
    if len(view) <= position:
        raise _corrupt("lz4", "cut short")
    if view[position] != xxh32(view[4:position]) >> 8 & 0xFF:
        raise _corrupt("lz4", "header with a wrong checksum")
    return position + 1, _LZ4_BLOCKS[descriptor >> 4], bool(flags & 0x10)


def _unlz4_parts(data: Any, limit: int) -> Iterator[Any]:
    from lz4.block import LZ4BlockError
    from lz4.block import decompress as unpack

    left = limit
    for block, packed, most in _lz4_blocks(data):
        part: Any = block
        if packed:
            room = min(most, len(block) * LZ4_GROWTH, left + 1)
            try:
                part = unpack(block, uncompressed_size=room)
            except LZ4BlockError as error:
                if room == left + 1 and room < min(most, len(block) * LZ4_GROWTH):
                    raise too_large("lz4", len(data), limit) from None
                raise _corrupt("lz4", error) from None
        left -= len(part)
        if left < 0:
            raise too_large("lz4", len(data), limit)
        yield part


def xxh32(data: Any) -> int:
    """Return xxHash32 with seed 0: the checksum of lz4 frames.

    It is used for header bytes, and for the rare frame with block checksums.
    """
    p1, p2, p3, p4, p5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFFFFFF
    view = memoryview(data).cast("B")
    size, position = len(view), 0
    if size >= 16:
        lanes = [(p1 + p2) & mask, p2, 0, -p1 & mask]
        while position <= size - 16:
            for lane, word in enumerate(struct.unpack_from("<4I", view, position)):
                mixed = (lanes[lane] + word * p2) & mask
                lanes[lane] = ((mixed << 13 | mixed >> 19) & mask) * p1 & mask
            position += 16
        digest = 0
        for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True):
            digest += (lane << turn | lane >> (32 - turn)) & mask
    else:
        digest = p5
    digest = (digest + size) & mask
    while position <= size - 4:
        digest = (digest + _U32.unpack_from(view, position)[0] * p3) & mask
        digest = ((digest << 17 | digest >> 15) & mask) * p4 & mask
        position += 4
    for byte in view[position:]:
        digest = (digest + byte * p5) & mask
        digest = ((digest << 11 | digest >> 21) & mask) * p1 & mask
    digest = (digest ^ digest >> 15) * p2 & mask
    digest = (digest ^ digest >> 13) * p3 & mask
    return digest ^ digest >> 16


# ---------------------------------------------------------------- zstd


def _zstd(data: Any, level: int | None) -> bytes:
    packers = getattr(_local, "zstd", None)
    if packers is None:
        packers = _local.zstd = {}
    packer = packers.get(level)
    if packer is None:
        import zstandard

        # Reused, because a new one costs more than a small batch. One per thread: it must not be shared.
        packer = packers[level] = zstandard.ZstdCompressor(
            level=3 if level is None else level,
            write_content_size=False,
            write_checksum=False,
            write_dict_id=False,
        )
    packed: bytes = packer.compress(data)
    return packed


def _unzstd(data: Any, limit: int) -> bytes:
    room = max(_FIRST_ROOM, 8 * len(data))
    while True:
        out = bytearray(min(room, limit))
        try:
            return bytes(memoryview(out)[: _unzstd_into(data, memoryview(out))])
        except DecompressionLimitError:
            if room >= limit:
                raise
            room *= 4


def _unzstd_into(data: Any, out: memoryview) -> int:
    uncompressed = _unzstd_whole(data, min(len(out), max(_FIRST_ROOM, 8 * len(data))))
    if uncompressed is not None:
        out[: len(uncompressed)] = uncompressed
        return len(uncompressed)
    import cramjam

    try:
        return int(cramjam.zstd.decompress_into(data, out))
    except cramjam.DecompressionError as error:
        if "write whole buffer" in str(error):
            raise too_large("zstd", len(data), len(out)) from None
        end = _end_of_zstd_frames(data)
        if 0 < end < len(data) and _begins_zstd(bytes(memoryview(data)[end : end + 4])):
            # Kafka's reader takes the cut beginning of another frame for the end.
            return _unzstd_into(memoryview(data)[:end], out)
        raise _corrupt("zstd", error) from None


def _unzstd_whole(data: Any, room: int) -> bytes | None:
    """Decompress one frame without a content size, as Kafka writes it, with a context that is reused.

    This is the path of nearly every batch. None for anything else, and if the bytes do not fit.
    """
    if room == 0 or not _is_plain_zstd(data):
        return None
    return plain_zstd_decompressor()(data, room)


def plain_zstd_decompressor() -> Callable[[Any, int], bytes | None]:
    """Return a function of a plain frame and a room; only for this thread, whose context it uses.

    The function returns the uncompressed bytes, or None if they do not fit the room or are not valid.
    """
    decompressor = getattr(_local, "unzstd", None)
    if decompressor is None:
        import zstandard

        context, error = zstandard.ZstdDecompressor(), zstandard.ZstdError

        def decompress(frame: Any, room: int) -> bytes | None:
            try:
                uncompressed: bytes = context.decompress(frame, room)
            except error:
                return None
            return uncompressed

        decompressor = _local.unzstd = decompress
    return cast("Callable[[Any, int], bytes | None]", decompressor)


def _is_plain_zstd(data: Any) -> bool:
    """Return whether this is one frame and nothing after it, without content size, checksum and dictionary.

    A reader would allocate a content size as declared. The blocks are read by their headers: last (1 bit),
    kind (2), size (21).
    """
    end = len(data)
    return end >= 9 and not data[4] and data[:4] == _ZSTD_MAGIC and _end_of_zstd_blocks(data, 6) == end


def _end_of_zstd_blocks(data: Any, position: int) -> int:
    """Return the position behind the last block of a frame, its first at `position`; -1 if it is cut."""
    end = len(data)
    while end - position >= 3:
        head = data[position] | data[position + 1] << 8 | data[position + 2] << 16
        position += 3 + (1 if head & 6 == 2 else head >> 3)  # a run of one byte stores only that byte
        if head & 1:
            return position if position <= end else -1
    return -1


def _begins_zstd(head: bytes) -> bool:
    """Return whether up to 4 bytes can be the first ones of a frame, or of a skippable one."""
    skipped = bytes([head[0] & 0xF0]) + head[1:]
    return _ZSTD_MAGIC.startswith(head) or _U32.pack(_ZSTD_SKIPPED).startswith(skipped)


def _end_of_zstd_frames(data: Any) -> int:
    """Return the position behind the last whole frame."""
    done, end = 0, len(data)
    while end - done >= 9:
        (magic,), flags = _U32.unpack_from(data, done), data[done + 4]
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPED:
            position = done + 8 + _U32.unpack_from(data, done + 4)[0]
        else:
            single = flags >> 5 & 1
            head = 6 - single + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
            blocks = _end_of_zstd_blocks(data, done + head)
            position = blocks + (flags & 4) if magic == _ZSTD_FRAME and blocks > 0 else end + 1
        if position > end:
            break
        done = position
    return done


def _in_parts(pack: Callable[[Any, int | None], bytes], unpack: Callable[[Any, int], Iterator[Any]]) -> Codec:
    """Return a codec whose decompressor yields the content in parts, together never above a limit."""

    def whole(data: Any, limit: int) -> bytes:
        return b"".join(unpack(data, limit))

    def into(data: Any, out: memoryview) -> int:
        done = 0
        for part in unpack(data, len(out)):
            out[done : done + len(part)] = part
            done += len(part)
        return done

    return Codec(pack, whole, into)


CODECS: tuple[Codec, ...] = (
    _in_parts(_copy, _copied),
    _in_parts(_gzip, _gunzip_parts),
    Codec(_snappy, _unsnappy, _unsnappy_into),
    _in_parts(_lz4, _unlz4_parts),
    Codec(_zstd, _unzstd, _unzstd_into),
)


def most_decompressed(codec: int, data: Any, limit: int) -> int:
    """Return a bound on the uncompressed bytes of a payload, at most `limit`: of its blocks, or of its codec.

    A size that the payload declares is not used. The bound of a damaged payload, which is refused later, may
    be wrong.
    """
    view = memoryview(data).cast("B")
    bound = limit
    with suppress(CorruptBatchError, DecompressionLimitError):
        if codec == GZIP:
            bound = len(view) * GZIP_GROWTH
        elif codec == SNAPPY:
            bound = sum(content for _, content in _snappy_blocks(view, limit))
        elif codec == LZ4:
            bound = sum(min(most, len(block) * LZ4_GROWTH) for block, _, most in _lz4_blocks(view))
        elif codec == ZSTD and _is_plain_zstd(view):
            position, last, bound = 6, 0, 0
            while not last:
                head = int.from_bytes(view[position : position + 3], "little")
                last, kind, size = head & 1, head >> 1 & 3, head >> 3
                bound += ZSTD_BLOCK_BYTES if kind == 2 else size
                position += 3 + (1 if kind == 1 else size)
    return min(bound, limit)


SETTING = "lastword.decompression.max.bytes"
VARIABLE = "LASTWORD_DECOMPRESSION_MAX_BYTES"
DEFAULT_BYTES = 256 << 20
"""256 times Kafka's default bound of a batch on disk (`max.message.bytes`, 1 MiB).

No log of text or JSON comes near it, and a process with 1 GiB of memory can still read such a batch.
"""

_MAX_CACHED = 10_000  # directories

_by_root: dict[str, int] = {}
_by_directory: dict[str, int | None] = {}
"""The bound by directory, as the directory is spelled: resolving links costs a system call for each level."""
_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))


def set_limit(root: str | os.PathLike[str], limit_bytes: int) -> None:
    """Set the bound of all files below a log directory, for this process."""
    with _lock:
        _by_root[os.path.realpath(root)] = limit_bytes
        _by_directory.clear()


def limit_of(file: str) -> int:
    """Return the bound for a file: of its log directory, else of the environment, else the default."""
    limit = _directory_limit(os.path.dirname(file)) if _by_root and file else None
    if limit is not None:
        return limit
    text = os.environ.get(VARIABLE)
    return parse_bytes(text) if text else DEFAULT_BYTES


def _directory_limit(directory: str) -> int | None:
    if directory in _by_directory:
        return _by_directory[directory]
    # A partition's directory is no link, so below a known root no link has to be followed.
    at = directory if os.path.dirname(directory) in _by_root else os.path.realpath(directory)
    while (limit := _by_root.get(at)) is None and at != os.path.dirname(at):
        at = os.path.dirname(at)
    with _lock:
        if directory.startswith(os.sep):  # a relative path depends on the working directory
            if len(_by_directory) >= _MAX_CACHED:
                _by_directory.clear()
            _by_directory[directory] = limit
    return limit


def limit_remedy(file: str | None) -> str:
    """Return how to raise the bound for the batch of a file."""
    if not file:
        return f"if the batch is genuine, raise {SETTING}"
    root = os.path.dirname(os.path.dirname(file)) or "."
    return (
        f"if the batch is genuine, and there is memory for three times its size, raise the bound: "
        f"`lastword config {root} --set {SETTING}=1GiB`, or {VARIABLE}=1GiB for one command"
    )
