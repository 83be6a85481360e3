"""The annotations of a kernel say which arrays it writes to: others may be read-only, or views with steps."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from lastword.kernels.native import Bundle, Inlined, Intrinsic, Kernel, Layout, leaves
from lastword.kernels.warming import every_kernel

WRITING = {"store8", "store32", "store64", "store16_be", "store32_be", "store64_be", "copy_exact"}


def written(function: Any) -> set[str]:
    """Return the parameters that a function writes to; members of a named tuple as parameter.position."""
    return set(_written(function))


@functools.cache
def _written(function: Any) -> frozenset[str]:
    (tree,) = ast.parse(inspect.getsource(function)).body
    assert isinstance(tree, ast.FunctionDef)
    names = {argument.arg: argument.arg for argument in tree.args.args}
    found = set()
    for node in ast.walk(tree):  # the names of a tuple's members, and of other names for a parameter
        if isinstance(node, ast.Assign):
            for target in node.targets:
                _name(names, target, node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(one, ast.Subscript):
                        found.add(_path(names, one.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found |= set(_written_by(function, names, node))
    return frozenset(found - {None})


def _name(names: dict[str, str], target: ast.expr, value: ast.expr) -> None:
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple):
        if isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=True))
        else:
            path = _path(names, value)
            for position, one in enumerate(target.elts):
                if path is not None and isinstance(one, ast.Name):
                    names[one.id] = f"{path}.{position}"
            return
    for one, given in pairs:
        path = _path(names, given)
        if path is not None and isinstance(one, ast.Name) and isinstance(given, ast.Name | ast.Attribute):
            names[one.id] = path


def _path(names: dict[str, str], node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        above = _path(names, node.value)
        return None if above is None else f"{above}.{node.attr}"
    return None


def _written_by(function: Any, names: dict[str, str], call: ast.Call) -> Iterator[str]:
    assert isinstance(call.func, ast.Name)
    step = function.__globals__.get(call.func.id)
    if isinstance(step, Intrinsic) and step.name in WRITING:
        yield from filter(None, [_path(names, call.args[0])])
    if isinstance(step, Inlined | Kernel):
        parameters = list(inspect.signature(step.function).parameters)
        for path in _written(step.function):
            parameter, _, rest = path.partition(".")
            above = _path(names, call.args[parameters.index(parameter)])
            if above is not None:
                yield f"{above}.{rest}" if rest else above


def paths(parameters: Any, above: str = "") -> Iterator[tuple[set[str], Any]]:
    """Yield the names of each leaf, by member and by position, and the leaf."""
    for position, parameter in enumerate(parameters):
        if isinstance(parameter, Bundle):
            names = list(parameter.type._fields)
            for place, (part, name) in enumerate(zip(parameter.parts, names, strict=True)):
                prefix = above + parameter.name
                if isinstance(part, Bundle):
                    for inner, leaf in paths(part.parts):
                        yield {f"{prefix}.{name}.{one}" for one in inner}, leaf
                else:
                    yield {f"{prefix}.{place}", f"{prefix}.{name}"}, part
        else:
            yield {str(position), parameter.name}, parameter


@pytest.mark.parametrize("kernel", list(every_kernel()), ids=lambda kernel: kernel.name)
def test_the_types_say_what_is_written(kernel: Kernel) -> None:
    """A member of a named tuple is writable if any kernel writes to it."""
    changed = written(kernel.function)
    every = [(names, leaf) for names, leaf in paths(kernel.parameters) if isinstance(leaf.type, Layout)]
    assert len(every) == sum(isinstance(leaf.type, Layout) for leaf in leaves(kernel.parameters))
    for names, leaf in every:
        is_written = bool(names & changed)
        is_member = any("." in name for name in names)
        assert leaf.type.writable == is_written or (is_member and not is_written), leaf.name


def test_the_analysis_would_notice() -> None:
    from lastword.kernels.batches import assign_offsets
    from lastword.kernels.offset_map import mark_due

    assert written(assign_offsets.function) == {"data", "table"}, "by a store and by an index"
    assert {"pages.slots", "state"} <= {*written(mark_due.function), "state"}, (
        "by a step, a member of a tuple"
    )
