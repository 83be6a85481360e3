"""A forked child has the locks of its parent, in any state: those of modules are made again."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import lastword
from lastword import metrics
from lastword.files import Files

LOCKS = type(threading.Lock()), type(threading.RLock())


def locks() -> Iterator[tuple[str, Any]]:
    """Yield the locks that exist once in a process, with their names: of modules, `Files` and metrics."""
    for module_name, module in sorted(sys.modules.items()):
        if module_name.partition(".")[0] == "lastword":
            for name, value in list(vars(module).items()):
                own = getattr(value, "__dict__", {}) if isinstance(value, Files) else {}
                for lock in value if isinstance(value, tuple) else (value, *own.values()):
                    if isinstance(lock, LOCKS):
                        yield f"{module_name}.{name}", lock
    for metric in metrics._all:
        yield metric.name, metric._lock


@pytest.mark.slow
def test_no_lock_of_a_module_is_held_in_a_child() -> None:
    """Another thread may hold each of them in the moment of the fork: the child would wait for ever."""
    for module in pkgutil.walk_packages(lastword.__path__, "lastword."):
        if not module.name.startswith(("lastword.spark", "lastword.__main__")):  # needs PySpark
            importlib.import_module(module.name)
    assert len(list(locks())) > 300
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        distinct = {id(lock): lock for _, lock in locks()}
        for lock in distinct.values():
            lock.acquire()
        held.set()
        forked.wait(60)
        for lock in distinct.values():
            lock.release()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        named = {id(lock): (name, lock) for name, lock in locks()}
        stuck = sorted(name for name, lock in named.values() if not lock.acquire(blocking=False))
        os.write(writing, " ".join(stuck).encode())
        os._exit(0)
    forked.set()
    holder.join(60)
    os.close(writing)
    with os.fdopen(reading) as answer:
        stuck = answer.read()
    os.waitpid(child, 0)
    assert stuck == ""
