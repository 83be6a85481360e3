"""Functions in LLVM's own terms: raw loads and stores, wide products, CRC instructions, array headers.

Only `compiler.py` imports this module: it needs Numba. Kernels name these functions as `native.Intrinsic`.
"""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import binding, ir
from numba import config
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from lastword.kernels.hashing import FOLD_BYTES, POLYNOMIAL, table_step1, table_step8
from lastword.kernels.native import MOST_WORDS

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


# ---------------------------------------------------------------- CRC-32C


def _hardware() -> str | None:
    """Return the family of the LLVM intrinsic on this machine: "x86", "aarch64" or None."""
    if config.CPU_NAME or config.CPU_FEATURES:  # the code is for another machine
        return None
    features = binding.get_host_cpu_features()
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64") and features.get("sse4.2"):
        return "x86"
    if machine in ("aarch64", "arm64") and features.get("crc"):
        return "aarch64"
    return None


HARDWARE = _hardware()


def _instruction(name, wide_state, data_bits):
    """Return a CRC instruction as a function (uint64 state, uint64 data) -> uint64 state."""

    def typing(typingctx, state, data):
        def codegen(context, builder, signature, args):
            state_type = ir.IntType(64 if wide_state else 32)
            data_type = ir.IntType(data_bits)
            function_type = ir.FunctionType(state_type, [state_type, data_type])
            function = cgutils.get_or_insert_function(builder.module, function_type, name)
            before = args[0] if wide_state else builder.trunc(args[0], state_type)
            operand = args[1] if data_bits == 64 else builder.trunc(args[1], data_type)
            after = builder.call(function, [before, operand])
            return after if wide_state else builder.zext(after, ir.IntType(64))

        return types.uint64(types.uint64, types.uint64), codegen

    typing.__name__ = "crc_step"
    return intrinsic(typing)


if HARDWARE == "x86":
    step8 = _instruction("llvm.x86.sse42.crc32.64.64", True, 64)
    step1 = _instruction("llvm.x86.sse42.crc32.32.8", False, 8)
elif HARDWARE == "aarch64":
    step8 = _instruction("llvm.aarch64.crc32cx", False, 64)
    step1 = _instruction("llvm.aarch64.crc32cb", False, 32)
else:
    step8 = table_step8
    step1 = table_step1


def _power(exponent: int) -> int:
    """Return x^exponent modulo the polynomial, with the bits in the order of a CRC."""
    value = 1 << 31
    for _ in range(exponent):
        value = (value >> 1) ^ (POLYNOMIAL if value & 1 else 0)
    return value


def _has_folds() -> bool:
    """Return whether this machine multiplies 512 bits without carries."""
    features = binding.get_host_cpu_features() if HARDWARE == "x86" and config.ENABLE_AVX else {}
    return bool(features.get("vpclmulqdq") and features.get("avx512f"))


FOLDS = _has_folds()
_LANES = 4


@intrinsic
def fold_crc(typingctx, state, data, position, folds):
    """Advance the CRC by FOLD_BYTES * `folds` bytes, for `folds` >= 4; only if FOLDS.

    A vector of 64 bytes stands for all bytes before its end: its CRC, from state 0, is theirs. To move it by
    n bits, each half of its 128-bit parts is multiplied by a power of x, and the bytes there are added. Four
    vectors side by side move by 256 bytes; then they are folded into one.
    """

    def codegen(context, builder, signature, args):
        vector = ir.VectorType(ir.IntType(64), 8)
        word, byte = ir.IntType(64), ir.IntType(8)
        start, data, position, folds = args
        step = ir.Constant(word, FOLD_BYTES)
        origin = element_pointer(
            context, builder, signature.args[1], data, position, builder.mul(folds, step)
        )
        multiply = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector, vector, byte]), "llvm.x86.pclmulqdq.512"
        )
        advance = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(word, [word, word]), "llvm.x86.sse42.crc32.64.64"
        )

        def load(block):
            place = builder.gep(origin, [builder.mul(block, step)])
            return builder.load(builder.bitcast(place, vector.as_pointer()), align=1)

        def moved(value, size, data):
            powers = ir.Constant(vector, [_power(8 * size + 31), _power(8 * size - 33)] * 4)
            low = builder.call(multiply, [value, powers, ir.Constant(byte, 0x00)])
            high = builder.call(multiply, [value, powers, ir.Constant(byte, 0x11)])
            return builder.xor(builder.xor(low, high), data)

        lanes = [cgutils.alloca_once_value(builder, load(ir.Constant(word, lane))) for lane in range(_LANES)]
        first = builder.load(lanes[0])
        number = ir.Constant(ir.IntType(32), 0)
        first_word = builder.xor(builder.extract_element(first, number), start)
        builder.store(builder.insert_element(first, first_word, number), lanes[0])
        rounds = builder.udiv(folds, ir.Constant(word, _LANES))
        with cgutils.for_range_slice(
            builder, ir.Constant(word, 1), rounds, ir.Constant(word, 1), intp=word
        ) as (number, _):
            for lane in range(_LANES):
                block = builder.add(builder.mul(number, ir.Constant(word, _LANES)), ir.Constant(word, lane))
                value = moved(builder.load(lanes[lane]), FOLD_BYTES * _LANES, load(block))
                builder.store(value, lanes[lane])
        for lane in range(1, _LANES):
            value = moved(builder.load(lanes[lane - 1]), FOLD_BYTES, builder.load(lanes[lane]))
            builder.store(value, lanes[lane])
        last = lanes[_LANES - 1]
        done = builder.mul(rounds, ir.Constant(word, _LANES))
        with cgutils.for_range_slice(builder, done, folds, ir.Constant(word, 1), intp=word) as (block, _):
            builder.store(moved(builder.load(last), FOLD_BYTES, load(block)), last)
        value, state = builder.load(last), ir.Constant(word, 0)
        for place in range(8):
            part = builder.extract_element(value, ir.Constant(ir.IntType(32), place))
            state = builder.call(advance, [state, part])
        return state

    return types.uint64(types.uint64, data, types.int64, types.int64), codegen


# ---------------------------------------------------------------- the header of a NumPy array


@intrinsic
def word_at(typingctx, address):
    """Return the int64 at an address."""

    def codegen(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], _I64.as_pointer()))

    return types.int64(types.int64), codegen


@intrinsic
def put_word(typingctx, address, value):
    """Store an int64 at an address."""

    def codegen(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], _I64.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def new_words(typingctx):
    """Return the address of `MOST_WORDS` words, which are there until the function returns."""

    def codegen(context, builder, signature, args):
        return builder.ptrtoint(cgutils.alloca_once(builder, _I64, size=_I64(MOST_WORDS)), _I64)

    return types.int64(), codegen


@intrinsic
def run_entry(typingctx, entry, results, fault, dtypes, words):
    """Call the entry at an address with `MOST_WORDS` words; return its status.

    An entry with fewer parameters does not read the others: the caller removes them.
    """

    def codegen(context, builder, signature, args):
        word = _I64.as_pointer()
        kind = ir.FunctionType(_I32, [word, word, *[_I64] * (1 + MOST_WORDS)])
        first = builder.inttoptr(args[4], word)
        each = [builder.load(builder.gep(first, [_I64(place)])) for place in range(MOST_WORDS)]
        outputs = [builder.inttoptr(address, word) for address in args[1:3]]
        status = builder.call(builder.inttoptr(args[0], kind.as_pointer()), [*outputs, args[3], *each])
        return builder.sext(status, _I64)

    return types.int64(*[types.int64] * 5), codegen


def plain_function(name: str, called: str, words: int) -> ir.Module:
    """Return a module with a function of C over int64 that calls one of Numba, which raises nothing."""
    module = ir.Module(name)
    kind = ir.FunctionType(_I32, [_I64.as_pointer()] * 2 + [_I64] * words)
    function = ir.Function(module, ir.FunctionType(_I64, [_I64] * words), name)
    builder = ir.IRBuilder(function.append_basic_block())
    result, fault = builder.alloca(_I64), builder.alloca(_I64)
    builder.call(ir.Function(module, kind, called), [result, fault, *function.args])
    builder.ret(builder.load(result))
    return module


def array_maker(element: Any, dimensions: int) -> Any:
    """Return a function that makes an array in C order of addresses: of its elements, and of its sizes."""
    array_type = types.Array(element, dimensions, "C")

    def typing(typingctx, elements, sizes):
        def codegen(context, builder, signature, args):
            array = context.make_array(array_type)(context, builder)
            first = builder.inttoptr(args[1], _I64.as_pointer())
            shape = [builder.load(builder.gep(first, [_I64(place)])) for place in range(dimensions)]
            size = _I64(context.get_abi_sizeof(context.get_data_type(element)))
            strides = [size]
            for length in reversed(shape[1:]):
                strides.insert(0, builder.mul(strides[0], length))
            data = builder.inttoptr(args[0], context.get_data_type(element).as_pointer())
            populate_array(array, data, shape, strides, size, None)
            return array._getvalue()

        return array_type(types.int64, types.int64), codegen

    return intrinsic(typing)
