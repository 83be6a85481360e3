"""The machine code of kernels: their types, the folder that keeps it, and how Python calls it.

`Kernel` is what Python calls. Its first call looks for the kernel's object file in the cache folder, else
lets `compiler.py` make it, and links it with llvmlite. The code reads the headers of NumPy arrays by itself
and checks type, dimensions and order of each: that takes less time than to hand them over. It runs without
the GIL.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import importlib
import inspect
import logging
import os
import platform
import shutil
import stat
import struct
import tempfile
import threading
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import llvmlite.binding
import numpy

COMPILING = "compiling kernels for their first use (all: 30 to 60 s of CPU, by `lastword warm`)"
log = logging.getLogger("lastword.kernels")
"""Gets `COMPILING` as a warning before the first kernel that a process compiles: otherwise a first cleaning
would seem to hang. Without a configured log, Python prints warnings on stderr."""


# ---------------------------------------------------------------- types


@dataclass(frozen=True)
class Layout:
    """The type of an array in C order.

    Attributes:
        dtype: The name of its elements' type, one of `DTYPES`.
        dimensions: 1 or 2.
        writable: False: the kernel only reads it. Then read-only arrays are taken, too, and one that is not
            in C order is copied first.
    """

    dtype: str
    dimensions: int = 1
    writable: bool = True


DTYPES = ("uint8", "int32", "int64", "uint64", "bool")
_SINGLETONS = tuple(numpy.dtype(name) for name in DTYPES)

U8 = Annotated[numpy.ndarray, Layout("uint8")]
READ_U8 = Annotated[numpy.ndarray, Layout("uint8", writable=False)]
I32 = Annotated[numpy.ndarray, Layout("int32")]
READ_I32 = Annotated[numpy.ndarray, Layout("int32", writable=False)]
I64 = Annotated[numpy.ndarray, Layout("int64")]
READ_I64 = Annotated[numpy.ndarray, Layout("int64", writable=False)]
I64X2 = Annotated[numpy.ndarray, Layout("int64", 2)]
READ_I64X2 = Annotated[numpy.ndarray, Layout("int64", 2, writable=False)]
U64 = Annotated[numpy.ndarray, Layout("uint64")]
READ_U64 = Annotated[numpy.ndarray, Layout("uint64", writable=False)]
U64X2 = Annotated[numpy.ndarray, Layout("uint64", 2)]
READ_U64X2 = Annotated[numpy.ndarray, Layout("uint64", 2, writable=False)]
BOOLS = Annotated[numpy.ndarray, Layout("bool")]


@dataclass(frozen=True)
class Leaf:
    """An array or a number among the parameters of a kernel.

    Attributes:
        name: A name for it.
        type: A `Layout`, int, bool or numpy.uint64.
    """

    name: str
    type: Any


@dataclass(frozen=True)
class Bundle:
    """A named tuple among the parameters: its class, and what it has in it."""

    name: str
    type: type
    parts: tuple[Leaf | Bundle, ...]


def _parameter(name: str, hint: Any) -> Leaf | Bundle:
    if typing.get_origin(hint) is Annotated:
        return Leaf(name, typing.get_args(hint)[1])
    if isinstance(hint, type) and issubclass(hint, tuple):
        hints = typing.get_type_hints(hint, include_extras=True)
        return Bundle(name, hint, tuple(_parameter(f"{name}_{part}", kind) for part, kind in hints.items()))
    if hint in (int, bool, numpy.uint64):
        return Leaf(name, hint)
    raise TypeError(f"no type of a kernel's parameter: {name}: {hint}")


def leaves(parameters: tuple[Leaf | Bundle, ...]) -> Iterator[Leaf]:
    """Yield the arrays and numbers of `parameters`, in their order."""
    for parameter in parameters:
        if isinstance(parameter, Bundle):
            yield from leaves(parameter.parts)
        else:
            yield parameter


# ---------------------------------------------------------------- what the modules of this package define


class Inlined:
    """A function that LLVM puts into the kernels that use it; Python cannot call it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


class Intrinsic:
    """A name of `intrinsics.py`: that module imports Numba, so only the compiler imports it."""

    def __init__(self, name: str) -> None:
        self.name = name


def inline(function: Callable[..., Any]) -> Any:
    """Mark a step of kernels."""
    return Inlined(function)


def kernel(function: Callable[..., Any]) -> Any:
    """Make a kernel of `function`, whose annotations are its types."""
    return Kernel(function)


class Kernel:
    """A function in machine code, compiled or loaded at its first call.

    Attributes:
        function: Its source.
        name: Module and name, for its file and for messages.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        self._call: Callable[..., Any] = self._first_call

    def __call__(self, *arguments: Any) -> Any:
        """Run it; the results are numbers of Python."""
        return self._call(*arguments)

    @functools.cached_property
    def parameters(self) -> tuple[Leaf | Bundle, ...]:
        """The parameters with their types."""
        hints = typing.get_type_hints(self.function, include_extras=True)
        names = inspect.signature(self.function).parameters
        return tuple(_parameter(name, hints[name]) for name in names)

    @functools.cached_property
    def results(self) -> tuple[type, ...]:
        """The types of its results: int, bool or numpy.uint64. None of them: the kernel returns nothing."""
        result = typing.get_type_hints(self.function)["return"]
        if result is types.NoneType:
            return ()
        return typing.get_args(result) if typing.get_origin(result) is tuple else (result,)

    @property
    def returns_tuple(self) -> bool:
        """Whether it returns a tuple."""
        return typing.get_origin(typing.get_type_hints(self.function)["return"]) is tuple

    def load(self) -> None:
        """Compile the kernel or load its file, unless that was done."""
        with _LOADING:
            if self._call == self._first_call:
                self._call = _caller(self, _address(self))

    def _first_call(self, *arguments: Any) -> Any:
        self.load()
        return self._call(*arguments)


# ---------------------------------------------------------------- calls


# Kinds of arguments and results, as compiled code reads them (`compiler._call`).
ARRAY, NUMBER, BOOLEAN, UNSIGNED = range(4)
_KINDS = {int: NUMBER, bool: BOOLEAN, numpy.uint64: UNSIGNED}
MOST_WORDS, MOST_RESULTS = 32, 8


class _Method(ctypes.Structure):
    """A `PyMethodDef`: a function of C as a function of Python."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_FAST_CALL = 0x80  # METH_FASTCALL: the arguments are an array of objects


def _caller(kernel: Kernel, address: int) -> Callable[..., Any]:
    """Return a function that calls the code at `address`, made as `compiler.entry_source` says."""
    every = [leaf.type for leaf in leaves(kernel.parameters)]
    kinds = [ARRAY if isinstance(kind, Layout) else NUMBER if kind is not bool else BOOLEAN for kind in every]
    results = [_KINDS[kind] for kind in kernel.results]
    assert len(kinds) <= MOST_WORDS and len(results) <= MOST_RESULTS, kernel.name

    def corrected(*values: Any) -> Any:
        return call(*_corrected(kernel, values))

    def outside(*values: Any) -> Any:
        raise IndexError(f"kernel {kernel.name}: an access outside an array")

    words = [
        *(address, ctypes.addressof(_DTYPES), id(corrected), id(outside), len(kinds)),
        *(len(results), kernel.returns_tuple, id(None)),
        *(results + [0] * (MOST_RESULTS - len(results))),
        *kinds,
    ]
    method = _Method(kernel.name.encode(), _call_address(), _FAST_CALL, None)
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    call: Callable[..., Any] = new(
        ctypes.addressof(method), struct.pack(f"={len(words)}q", *words), kernel.name
    )
    _LOADED.append((method, corrected, outside))
    if len(every) == len(kernel.parameters):
        return call
    given = ", ".join(parameter.name for parameter in kernel.parameters)
    lines = [f"def run({given}):", *_unpacked(kernel.parameters)]
    lines.append(f" return call({', '.join(leaf.name for leaf in leaves(kernel.parameters))})")
    scope: dict[str, Any] = {"call": call}
    exec("\n".join(lines), scope)
    run: Callable[..., Any] = scope["run"]
    return run


_DTYPES = (ctypes.c_int64 * len(DTYPES))(*map(id, _SINGLETONS))


def _unpacked(parameters: tuple[Leaf | Bundle, ...]) -> Iterator[str]:
    for parameter in parameters:
        if isinstance(parameter, Bundle):
            yield f" {', '.join(part.name for part in parameter.parts)}, = {parameter.name}"
            yield from _unpacked(parameter.parts)


def _corrected(kernel: Kernel, values: tuple[Any, ...]) -> list[Any]:
    """Return the values in the form that the code takes.

    NumPy has more than one object for some types (`longlong` and `int64`), and the code knows one by its
    address. An array that is only read may be a view with steps.

    Raises:
        TypeError: An array has another type or form; no array was the cause; the number of values is wrong.
    """
    every = list(leaves(kernel.parameters))
    if len(values) != len(every):
        raise TypeError(f"kernel {kernel.name}: {len(values)} values in place of {len(every)}")
    result, changed = [], False
    for leaf, value in zip(every, values, strict=True):
        if isinstance(leaf.type, Layout):
            known = numpy.dtype(leaf.type.dtype)
            if not _fits(leaf.type, value):
                found = (
                    f"{value.dtype}{list(value.shape)}" if isinstance(value, numpy.ndarray) else type(value)
                )
                raise TypeError(f"kernel {kernel.name}: {leaf.name} is {found}, and it must be {leaf.type}")
            if value.dtype is not known:
                value, changed = value.view(known), True
            if not value.flags.c_contiguous:
                value, changed = value.copy(), True
        result.append(value)
    if not changed:
        raise TypeError(f"kernel {kernel.name}: NumPy {numpy.__version__} has arrays of an unknown form")
    return result


def _fits(layout: Layout, value: Any) -> bool:
    return (
        isinstance(value, numpy.ndarray)
        and value.dtype == numpy.dtype(layout.dtype)
        and value.ndim == layout.dimensions
        and value.flags.aligned
        and (not layout.writable or (value.flags.writeable and value.flags.c_contiguous))
    )


# ---------------------------------------------------------------- loading


_LOADING = threading.RLock()
os.register_at_fork(after_in_child=lambda: globals().update(_LOADING=threading.RLock()))
_FAILED: dict[str, Exception] = {}  # by name of the code; LLVM takes no second code of a name
_LOADED: list[Any] = []  # linked code lives as long as the process: a thread may run it to the end


def _address(kernel: Kernel) -> int:
    """Return the address of a kernel's code."""
    ours = kernel.function.__module__.startswith(f"{__package__}.")
    return _linked(kernel.name, lambda: _compile("object_code", kernel), keeps=ours)


@functools.cache
def _call_address() -> int:
    """Return the address of the function that Python calls for every kernel."""
    return _linked("call", lambda: _compile("call_code"), keeps=True)


def _linked(name: str, compiled: Callable[[], bytes], *, keeps: bool) -> int:
    """Return the address of code that is in the folder under a name, or that is compiled now.

    `keeps`: The folder, which is named by the sources of this package, keeps the code. After a failed link
    each call raises its error.
    """
    if name in _FAILED:
        raise _FAILED[name].with_traceback(None)
    path = cache_folder() / f"{name}.o"
    code = _read(path) if keeps else None
    if code is None:
        code = compiled()
        if keeps:
            _keep(path, code)
    start, _, image = code.partition(b"\n")
    symbol = start.decode()
    builder = llvmlite.binding.JITLibraryBuilder().add_object_img(image).add_current_process()
    try:
        tracker = builder.export_symbol(symbol).link(_linker(), name)
    except RuntimeError as error:
        _FAILED[name] = error
        raise
    _LOADED.append(tracker)
    return int(tracker[symbol])


@functools.cache
def _linker() -> Any:
    binding = llvmlite.binding
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.create_lljit_compiler()


def _compile(function: str, *arguments: Kernel) -> bytes:
    global _announced
    if not _announced:
        _announced = True
        log.warning(COMPILING)
    # Imported by its name: it imports Numba, and all modules that it compiles, which import this one.
    code: bytes = getattr(importlib.import_module(f"{__package__}.compiler"), function)(*arguments)
    return code


_announced = False


def _read(path: Path) -> bytes | None:
    """Return the symbol and the object file that `_keep` wrote; None if there are none, or not whole."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, code = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return code if hashlib.blake2b(code, digest_size=_DIGEST_BYTES).digest() == digest else None


_DIGEST_BYTES = 16


def _keep(path: Path, code: bytes) -> None:
    """Keep compiled code for other processes; without room for it, each compiles by itself."""
    digest = hashlib.blake2b(code, digest_size=_DIGEST_BYTES).digest()
    with suppress(OSError):
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(digest + code)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink()


# ---------------------------------------------------------------- the folder of compiled kernels


def kernel_sources() -> list[Path]:
    """List the files that compiled code depends on: this package, and the constants of `lastword.wire`."""
    package = Path(__file__).parent
    return [*sorted(package.glob("*.py")), package.parent / "wire.py"]


_COMPILER_SETTINGS = (
    "BOUNDSCHECK",
    "CPU_FEATURES",
    "CPU_NAME",
    "ENABLE_AVX",
    "LOOP_VECTORIZE",
    "OPT",
    "SLP_VECTORIZE",
)


@functools.cache
def sources_digest() -> str:
    """Return 16 hex digits over every source file, the processor and what else the code depends on.

    The code is for this processor, and for the header that NumPy's arrays have here.
    """
    digest = hashlib.blake2b(digest_size=8)
    host = llvmlite.binding.get_host_cpu_name(), llvmlite.binding.get_host_cpu_features().flatten()
    versions = (platform.python_version(), llvmlite.__version__, numpy.__version__)
    settings = [os.environ.get(f"NUMBA_{name}", "") for name in _COMPILER_SETTINGS]
    digest.update(repr((host, versions, settings)).encode())
    for path in kernel_sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _private_folder(path: Path) -> bool:
    """Create `path` and check that only this user can write to it or replace it.

    The folder holds machine code: another user who writes it could run code as this user.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = path.lstat()
        ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o022
        return ours and os.access(path, os.W_OK | os.X_OK) and not _replaceable(path)
    except OSError:
        return False


def _replaceable(path: Path) -> bool:
    """Return whether another user can rename a directory on the way to `path`.

    The owner of a directory can, and anyone who may write to a directory that is not sticky. The user's own
    group is trusted.
    """
    for above in path.resolve().parents:
        facts = above.stat()
        if facts.st_uid not in (0, os.getuid()):
            return True
        foreign = 0o002 if facts.st_gid in (0, os.getgid()) else 0o022
        if facts.st_mode & foreign and not facts.st_mode & stat.S_ISVTX:
            return True
    return False


@functools.cache
def cache_folder() -> Path:
    """Return the folder for compiled kernels; create it if it is missing.

    It is below `LASTWORD_CACHE_DIR`, else the user's cache directory, else a folder of this user in the
    temporary directory. If none of them is private, a folder for this process alone.
    """
    name = f"kernels-{sources_digest()}"
    for root in _cache_roots():
        if _private_folder(root / name):
            return root / name
    own = Path(tempfile.mkdtemp(prefix="lastword-kernels-"))
    atexit.register(_remove, own, os.getpid())
    return own


def _cache_roots() -> Iterator[Path]:
    """Yield the folders to try. A temporary directory is needed only if the first is not private."""
    chosen, user = os.environ.get("LASTWORD_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    if chosen:
        yield Path(chosen)
    else:
        yield (Path(user) if user else Path("~/.cache").expanduser()) / "lastword"
    yield Path(tempfile.gettempdir()) / f"lastword-{os.getuid()}"


def _remove(folder: Path, process: int) -> None:
    """Remove a folder that no other process can use; not in a child that was forked."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
