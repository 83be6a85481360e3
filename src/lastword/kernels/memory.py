"""Raw loads, stores and copies on byte arrays, wide multiplies, and varints.

An array is always `uint8[::1]`, a position always a byte in it. Nothing here checks bounds, except with
`NUMBA_BOUNDSCHECK=1`; the kernels check lengths before they use them.

Varints are zig-zag: 32-bit (at most 5 bytes) and 64-bit (at most 10).
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import config
from numba.core import cgutils, types
from numba.extending import intrinsic

from lastword.kernels import inline

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_I128 = ir.IntType(128)


def element_pointer(context, builder, array_type, array, position, size):
    """Return the address of byte `position`.

    With the bounds check on: IndexError unless `size` bytes from there are inside the array.
    """
    view = context.make_array(array_type)(context, builder, array)
    if config.BOUNDSCHECK:
        (length,) = cgutils.unpack_tuple(builder, view.shape, 1)
        room = builder.sub(length, position)
        size_value = size if isinstance(size, ir.Value) else ir.Constant(_I64, size)
        bad = builder.or_(
            builder.icmp_signed("<", position, ir.Constant(_I64, 0)),
            builder.or_(
                builder.icmp_signed("<", size_value, ir.Constant(_I64, 0)),
                builder.icmp_signed("<", room, size_value),
            ),
        )
        with builder.if_then(bad, likely=False):
            context.call_conv.return_user_exc(builder, IndexError, ("raw access outside the array",))
    return builder.gep(view.data, [position])


def _load(bits, result, swap=False, name=""):
    def typing(typingctx, array, position):
        def codegen(context, builder, signature, args):
            pointer = element_pointer(context, builder, signature.args[0], args[0], args[1], bits // 8)
            kind = ir.IntType(bits)
            value = builder.load(builder.bitcast(pointer, kind.as_pointer()), align=1)
            if swap:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return builder.sext(value, _I64) if swap else builder.zext(value, _I64)

        return result(array, types.int64), codegen

    typing.__name__ = name
    return intrinsic(typing)


load8 = _load(8, types.int64, name="load8")
load16 = _load(16, types.int64, name="load16")
load32 = _load(32, types.int64, name="load32")
load64 = _load(64, types.uint64, name="load64")
load16_be = _load(16, types.int64, swap=True, name="load16_be")
load32_be = _load(32, types.int64, swap=True, name="load32_be")
load64_be = _load(64, types.int64, swap=True, name="load64_be")


def _store(bits, operand, swap=False, name=""):
    def typing(typingctx, array, position, value):
        def codegen(context, builder, signature, args):
            pointer = element_pointer(context, builder, signature.args[0], args[0], args[1], bits // 8)
            kind = ir.IntType(bits)
            value = args[2] if bits == 64 else builder.trunc(args[2], kind)
            if swap:
                value = builder.bswap(value)
            builder.store(value, builder.bitcast(pointer, kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(array, types.int64, operand), codegen

    typing.__name__ = name
    return intrinsic(typing)


store8 = _store(8, types.int64, name="store8")
store32 = _store(32, types.int64, name="store32")
store64 = _store(64, types.uint64, name="store64")
store16_be = _store(16, types.int64, swap=True, name="store16_be")
store32_be = _store(32, types.int64, swap=True, name="store32_be")
store64_be = _store(64, types.int64, swap=True, name="store64_be")


@intrinsic
def copy_exact(typingctx, target, target_position, source, source_position, size):
    """Copy `size` bytes between arrays that do not overlap."""

    def codegen(context, builder, signature, args):
        to = element_pointer(context, builder, signature.args[0], args[0], args[1], args[4])
        origin = element_pointer(context, builder, signature.args[2], args[2], args[3], args[4])
        cgutils.raw_memcpy(builder, to, origin, args[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), codegen


@inline
def copy_wide(target, target_position, source, source_position, size):
    """Copy `size` bytes; may read and write up to 7 bytes more, so both arrays need slack."""
    if size > 128:
        copy_exact(target, target_position, source, source_position, size)
    else:
        done = 0
        while done < size:
            store64(target, target_position + done, load64(source, source_position + done))
            done += 8


@intrinsic
def prefetch(typingctx, array, position):
    """Prefetch the cache line at `position`."""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], args[0], args[1], 1)
        function_type = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], function_type)
        builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@intrinsic
def not_negative(typingctx, value):
    """Return an index, which must not be negative, so that its uses do not test its sign.

    Numba counts a negative index from the end of the array: a test and a selection for each use of an index
    whose sign is not proved. With the bounds check on: IndexError for a negative value.
    """

    def codegen(context, builder, signature, args):
        good = builder.icmp_signed(">=", args[0], ir.Constant(_I64, 0))
        if config.BOUNDSCHECK:
            with builder.if_then(builder.not_(good), likely=False):
                context.call_conv.return_user_exc(builder, IndexError, ("negative index",))
        else:
            function_type = ir.FunctionType(ir.VoidType(), [ir.IntType(1)])
            function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.assume")
            builder.call(function, [good])
        return args[0]

    return types.int64(types.int64), codegen


def _wide_product(builder, args):
    product = builder.mul(builder.zext(args[0], _I128), builder.zext(args[1], _I128))
    high = builder.trunc(builder.lshr(product, ir.Constant(_I128, 64)), _I64)
    return builder.trunc(product, _I64), high


@intrinsic
def multiply_fold(typingctx, a, b):
    """Return the low half xor the high half of the 128-bit product of two uint64."""

    def codegen(context, builder, signature, args):
        low, high = _wide_product(builder, args)
        return builder.xor(low, high)

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def multiply_high(typingctx, a, b):
    """Return the high half of the 128-bit product of two uint64: a hash becomes one of b places."""

    def codegen(context, builder, signature, args):
        return _wide_product(builder, args)[1]

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def count_bits(typingctx, word):
    """Return how many bits of a uint64 are set."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


OVERLONG = 1 << 40
"""Result of `read_varint` for more than 5 bytes: larger than any length, count or offset delta."""


@inline
def read_varint(data, position):
    """Return (value, position after it); OVERLONG if the fifth byte is not the last.

    Reads at most 5 bytes, unchecked.
    """
    byte = load8(data, position)
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value = byte & 127
    byte = load8(data, position + 1)
    value |= (byte & 127) << 7
    if byte < 128:
        return (value >> 1) ^ -(value & 1), position + 2
    byte = load8(data, position + 2)
    value |= (byte & 127) << 14
    if byte < 128:
        return (value >> 1) ^ -(value & 1), position + 3
    byte = load8(data, position + 3)
    value |= (byte & 127) << 21
    if byte < 128:
        return (value >> 1) ^ -(value & 1), position + 4
    byte = load8(data, position + 4)
    if byte >= 128:
        return OVERLONG, position + 5
    value |= (byte & 15) << 28
    return (value >> 1) ^ -(value & 1), position + 5


@inline
def read_varlong(data, position):
    """Return (value, position after it, valid); not valid if the tenth byte is not the last.

    Reads at most 10 bytes, unchecked.
    """
    byte = load8(data, position)
    value = np.uint64(byte & 127)
    position += 1
    shift = np.uint64(7)
    while byte >= 128 and shift < np.uint64(70):
        byte = load8(data, position)
        value |= np.uint64(byte & 127) << shift
        shift += np.uint64(7)
        position += 1
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), position, byte < 128


@inline
def zigzag(value):
    """Return the unsigned form of a signed value, as uint64."""
    return np.uint64((value << 1) ^ (value >> 63))


@inline
def varint_size(value):
    """Return the bytes of `value` as a varint or varlong: for a value of 32 bits both forms are the same."""
    bits = zigzag(value)
    size = 1
    while bits >= np.uint64(128):
        bits >>= np.uint64(7)
        size += 1
    return size


@inline
def write_varint(data, position, value):
    """Write `value` and return the position after it; up to 10 bytes, unchecked."""
    bits = zigzag(value)
    while bits >= np.uint64(128):
        store8(data, position, np.int64(bits & np.uint64(127)) | 128)
        bits >>= np.uint64(7)
        position += 1
    store8(data, position, np.int64(bits))
    return position + 1
