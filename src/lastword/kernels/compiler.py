"""Kernels to machine code, by Numba. Imported only when a kernel is not in the cache folder.

Python calls the *entry* of a kernel: a generated function that reads the headers of the arrays, checks them,
and calls the kernel. Its arguments are words, so its code has the calling convention of C but for the first
two arguments, which are Numba's: where to write the results, and where to write an exception's address.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import numba
import numpy
from numba.core.compiler_lock import global_compiler_lock

from lastword.kernels import intrinsics
from lastword.kernels.native import (
    BOOLEAN,
    DTYPES,
    MOST_RESULTS,
    NUMBER,
    UNSIGNED,
    Bundle,
    Inlined,
    Intrinsic,
    Kernel,
    Layout,
    Leaf,
    leaves,
)

_OPTIONS = {
    "nogil": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    # No reference counting: kernels allocate nothing, and their callers hold the arrays. Numba would leave
    # some counting in inner loops, at several atomic operations a record.
    "_nrt": False,
}


_BYTES_HEAD = bytes.__basicsize__ - 1


def object_code(kernel: Kernel) -> bytes:
    """Compile a kernel.

    Returns:
        The name of its entry, a line feed, and the object file for this processor.
    """
    layouts = {leaf.type for leaf in leaves(kernel.parameters) if isinstance(leaf.type, Layout)}
    scope = {
        "kernel": dispatcher(kernel),
        "fits": _fits,
        "word_at": intrinsics.word_at,
        "int64": numpy.int64,
        "uint64": numpy.uint64,
        **{_maker(layout): _array_maker(layout) for layout in layouts},
        **{f"make_{bundle.name}": bundle.type for bundle in _bundles(kernel.parameters)},
    }
    exec(entry_source(kernel), scope)
    compiled = _compiled(scope["entry"], 1 + len(list(leaves(kernel.parameters))))
    return _serialized(compiled.library, compiled.fndesc.llvm_func_name)


def call_code() -> bytes:
    """Compile `_call`, as `object_code` a kernel, behind a function with the calling convention of C.

    Numba's own one calls functions of Numba on its way for exceptions, which only optimization removes.
    """
    compiled = _compiled(_call, 3)
    library = compiled.library.codegen.create_library("call")
    library.enable_object_caching()
    library.add_ir_module(intrinsics.plain_function("call", compiled.fndesc.llvm_func_name, 3))
    library.add_linking_library(compiled.library)
    with global_compiler_lock:
        library.finalize()
    return _serialized(library, "call")


def _compiled(function: Any, words: int) -> Any:
    entry = numba.njit(**_OPTIONS)(function)
    entry.compile((numba.int64,) * words)
    (compiled,) = entry.overloads.values()
    return compiled


def _serialized(library: Any, symbol: str) -> bytes:
    _, _, (code, _) = library.serialize_using_object_code()
    return symbol.encode() + b"\n" + bytes(code)


def _python(name: str, result: Any, words: int) -> Any:
    """Return a function of Python's interface for C; objects are their addresses."""
    return numba.types.ExternalFunction(name, result(*[numba.int64] * words))


_word_of = _python("PyLong_AsUnsignedLongLongMask", numba.int64, 1)
_is_true = _python("PyObject_IsTrue", numba.int32, 1)
_error = _python("PyErr_Occurred", numba.int64, 0)
_release = _python("PyEval_SaveThread", numba.int64, 0)
_take = _python("PyEval_RestoreThread", numba.void, 1)
_integer = _python("PyLong_FromLongLong", numba.int64, 1)
_unsigned = _python("PyLong_FromUnsignedLongLong", numba.int64, 1)
_boolean = _python("PyBool_FromLong", numba.int64, 1)
_tuple = _python("PyTuple_New", numba.int64, 1)
_set_item = _python("PyTuple_SetItem", numba.int32, 3)
_add_reference = _python("Py_IncRef", numba.void, 1)
_call_other = _python("PyObject_Vectorcall", numba.int64, 4)
_new_words, _put_word, _run_entry = intrinsics.new_words, intrinsics.put_word, intrinsics.run_entry
_word_at = intrinsics.word_at


def _call(facts, arguments, count):  # type: ignore[no-untyped-def]
    """Call a kernel's entry: a method of Python's fast calls (METH_FASTCALL), without the GIL meanwhile.

    `facts` is a bytes object that `native._caller` makes. Functions of Python get the
    arguments that do not fit.
    """
    entry, dtypes, corrected, outside, expected, made, is_tuple, none = _facts(facts + _BYTES_HEAD)
    kinds = facts + _BYTES_HEAD + 8 * _FACTS
    words, results, fault = _new_words(), _new_words(), _new_words()
    other = corrected
    if count == expected:
        for number in range(count):
            word = _word_at(arguments + 8 * number)
            kind = _word_at(kinds + 8 * (MOST_RESULTS + number))
            if kind == NUMBER:
                word = _word_of(word)
                if word == -1 and _error() != 0:
                    return 0
            elif kind == BOOLEAN:
                word = numpy.int64(_is_true(word))
                if word < 0:
                    return 0
            _put_word(words + 8 * number, word)
        thread = _release()
        status = _run_entry(entry, results, fault, dtypes, words)
        _take(thread)
        if status == 0 and _word_at(results) != 0:
            if made == 0:
                _add_reference(none)
                return none
            if is_tuple == 0:
                return _boxed(_word_at(kinds), _word_at(results + 8))
            values = _tuple(made)
            for number in range(made):
                value = _boxed(_word_at(kinds + 8 * number), _word_at(results + 8 + 8 * number))
                _set_item(values, number, value)
            return values
        if status != 0:
            other = outside
    return _call_other(other, arguments, count, 0)


_FACTS = 8


@numba.njit(forceinline=True, **_OPTIONS)
def _facts(at):  # type: ignore[no-untyped-def]
    """Return the first words of the facts of a kernel, as `native._caller` writes them."""
    return (
        _word_at(at),
        _word_at(at + 8),
        _word_at(at + 16),
        _word_at(at + 24),
        _word_at(at + 32),
        _word_at(at + 40),
        _word_at(at + 48),
        _word_at(at + 56),
    )


@numba.njit(forceinline=True, **_OPTIONS)
def _boxed(kind, word):  # type: ignore[no-untyped-def]
    """Return a new object of a result."""
    if kind == BOOLEAN:
        return _boolean(word)
    return _unsigned(word) if kind == UNSIGNED else _integer(word)


def entry_source(kernel: Kernel) -> str:
    """Return the source of the entry of a kernel.

    Its parameters: the address of the addresses of NumPy's types, as in `native.DTYPES`; then a word for each
    leaf: the address of an array object, or the number. Its results: 1, and those of the kernel; first 0,
    if an array does not fit.
    """
    every = list(leaves(kernel.parameters))
    arrays = [leaf for leaf in every if isinstance(leaf.type, Layout)]
    checks = [
        f"fits({leaf.name}, dtypes + {8 * DTYPES.index(leaf.type.dtype)}, {leaf.type.dimensions}, "
        f"{_ALIGNED | _WRITABLE if leaf.type.writable else _ALIGNED})"
        for leaf in arrays
    ]
    count = len(kernel.results)
    values = [f"int64({f'result[{n}]' if kernel.returns_tuple else 'result'})" for n in range(count)]
    return "\n".join(
        (
            f"def entry(dtypes, {', '.join(leaf.name for leaf in every)}):",
            f" if not ({' and '.join(checks) or 'True'}):",
            f"  return ({', '.join(['int64(0)'] * (1 + count))},)",
            f" result = kernel({', '.join(map(_argument, kernel.parameters))})",
            f" return ({', '.join(['int64(1)', *values])},)",
        )
    )


# The header of a NumPy array, behind that of a Python object: address of the elements, dimensions (int32),
# address of their sizes, of their strides, base, type, flags (int32). Code in C relies on it, too.
_HEAD = object.__basicsize__
_DIMENSIONS, _SIZES, _TYPE, _FLAGS = _HEAD + 8, _HEAD + 16, _HEAD + 40, _HEAD + 48
_ALIGNED = 0x0101  # in C order, aligned
_WRITABLE = 0x0400


def _argument(parameter: Leaf | Bundle) -> str:
    """Return the expression that makes an argument of the kernel out of words."""
    name = parameter.name
    if isinstance(parameter, Bundle):
        return f"make_{name}({', '.join(map(_argument, parameter.parts))})"
    if isinstance(parameter.type, Layout):
        return f"{_maker(parameter.type)}(word_at({name} + {_HEAD}), word_at({name} + {_SIZES}))"
    return {int: name, bool: f"{name} != 0", numpy.uint64: f"uint64({name})"}[parameter.type]


def _maker(layout: Layout) -> str:
    return f"{layout.dtype}_{layout.dimensions}"


@functools.cache
def _array_maker(layout: Layout) -> Any:
    element = numba.from_dtype(numpy.dtype(layout.dtype))
    return intrinsics.array_maker(element, layout.dimensions)


def _bundles(parameters: tuple[Leaf | Bundle, ...]) -> Iterator[Bundle]:
    for parameter in parameters:
        if isinstance(parameter, Bundle):
            yield parameter
            yield from _bundles(parameter.parts)


@numba.njit(forceinline=True, **_OPTIONS)
def _fits(array, dtype, dimensions, flags):  # type: ignore[no-untyped-def]
    """Return whether an array object has the type at the address `dtype`, dimensions and flags."""
    return (
        intrinsics.word_at(array + _TYPE) == intrinsics.word_at(dtype)
        and intrinsics.word_at(array + _DIMENSIONS) & 0xFFFFFFFF == dimensions
        and intrinsics.word_at(array + _FLAGS) & flags == flags
    )


_dispatchers: dict[Inlined | Kernel, Any] = {}


def dispatcher(source: Inlined | Kernel) -> Any:
    """Return Numba's function of a step or kernel; steps and intrinsics that it names are Numba's, too."""
    if source not in _dispatchers:
        function = source.function
        names = function.__code__.co_names
        scope = {name: _real(value) for name, value in function.__globals__.items() if name in names}
        scope["__name__"] = function.__module__
        copy = types.FunctionType(
            function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
        )
        _dispatchers[source] = numba.njit(forceinline=isinstance(source, Inlined), **_OPTIONS)(copy)
    return _dispatchers[source]


def _real(value: Any) -> Any:
    if isinstance(value, Intrinsic):
        value = getattr(intrinsics, value.name)
    return dispatcher(value) if isinstance(value, Inlined | Kernel) else value
