"""Compile every kernel."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator

from lastword import kernels
from lastword.kernels.native import Kernel, cache_folder

READY = "ready"
"""The file that marks a folder with every kernel."""
_NEED_NUMBA = {"compiler", "intrinsics"}


def every_kernel() -> Iterator[Kernel]:
    """Yield the kernels, by module."""
    for module in pkgutil.iter_modules(kernels.__path__):
        if module.name not in _NEED_NUMBA:
            found = vars(importlib.import_module(f"{kernels.__name__}.{module.name}")).values()
            yield from (
                value
                for value in found
                if isinstance(value, Kernel) and value.name.startswith(f"{module.name}.")
            )


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile every kernel, or load it from the cache folder.

    Call it on a Spark driver before tasks start. The folder is marked when all kernels are in it.

    Args:
        progress: Gets one line if kernels have to be compiled.
    """
    ready = cache_folder() / READY
    if progress is not None and not ready.exists():
        progress("compiling kernels (once)")
    for kernel in every_kernel():
        kernel.load()
    if not ready.exists():
        ready.touch(mode=0o600)
