"""Print the structural figures of the source: sizes, fragments, reaches, parameters, circles, doubled names.

    python scripts/figures.py            # text, with a list below each count
    python scripts/figures.py --json     # one object
    python scripts/figures.py PATH...    # other packages than those of src/

The figures come from the syntax trees alone; no module is imported. Definitions:

- Code lines: lines with a token other than a comment, without blank lines and docstrings.
- Fragment: a module of at most 40 code lines, or a module that exactly one other module imports. `__init__`
  and `__main__` are not fragments.
- Private reach: an attribute with one leading underscore that the module does not define and that another
  module defines, or an import of such a name. What `self` inherits within its package does not count.
- Parameters: all of a function except `self` and `cls`. Overloads are skipped.
- Circle: a strongly connected set of modules. Imports below `TYPE_CHECKING` count. Deferred imports, which
  stand inside functions, count in a second list.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "src" / "lastword", ROOT / "src" / "pyspark_lastword")
SMALL_MODULE = 40  # code lines
MANY_PARAMETERS = 11
KERNELS = (
    "kernels"  # Numba takes positional arrays; the limit on parameters does not apply below this package
)

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_NAMED_TUPLES = {
    "_make",
    "_replace",
    "_asdict",
    "_fields",
    "_field_defaults",
}  # public, in spite of the underscore
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """One source file with its syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module
    is_package: bool
    imports: set[str] = field(default_factory=set)
    deferred: set[str] = field(default_factory=set)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Return all nodes of the tree."""
        return list(ast.walk(self.tree))

    @property
    def package(self) -> str:
        """Return the package that relative imports start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]

    def place(self, node: ast.AST) -> str:
        """Return `file:line` of a node."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"


def parse(packages: Iterable[Path]) -> Iterator[Module]:
    """Parse the modules of the packages one after another: all trees together take seconds of collections."""
    for package in packages:
        for path in sorted(package.rglob("*.py")):
            parts = [package.name, *path.relative_to(package).with_suffix("").parts]
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            text = path.read_text(encoding="utf-8")
            shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
            yield Module(name, shown, text, ast.parse(text), is_package)


def load(packages: Iterable[Path]) -> dict[str, Module]:
    """Parse every module of the packages.

    Args:
        packages: Directories of top-level packages.

    Returns:
        The modules by dotted name, with their imports resolved.
    """
    modules = {module.name: module for module in parse(packages)}
    for module in modules.values():
        inside = {id(n) for f in functions(module) for n in statements(f)}
        imports = [(target, id(node) in inside) for target, _, node in imported(module, modules)]
        module.imports = {target for target, is_deferred in imports if not is_deferred} - {module.name}
        module.deferred = {target for target, _ in imports} - {module.name} - module.imports
    return modules


def imported(module: Module, modules: dict[str, Module]) -> Iterator[tuple[str, str | None, ast.stmt]]:
    """Yield (imported module, name taken from it or None, statement) for imports of the given modules."""
    for node in statements(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in modules:
                    yield alias.name, None, node
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.package.split(".")
                start = ".".join(parents[: len(parents) - node.level + 1])
                base = f"{start}.{base}" if base else start
            for alias in node.names:
                if f"{base}.{alias.name}" in modules:
                    yield f"{base}.{alias.name}", None, node
                elif base in modules:
                    yield base, alias.name, node


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a module or a statement. It has many more expressions, which are not met."""
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, name, ()):
            yield child
            yield from statements(child)


def functions(module: Module) -> Iterator[_Function]:
    """Yield every function and method, nested ones too."""
    for node in statements(module.tree):
        if isinstance(node, _Function):
            yield node


def code_lines(text: str) -> set[int]:
    """Return the line numbers that carry code. A string that is a statement, such as a docstring, is none."""
    lines: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NEWLINE:
            if any(part.type != tokenize.STRING for part in statement):
                for part in statement:
                    lines.update(range(part.start[0], part.end[0] + 1))
            statement = []
        elif token.type not in _NO_CODE:
            statement.append(token)
    return lines


def spread(values: list[int]) -> dict[str, int]:
    """Return median, 90th and 99th percentile and maximum (nearest rank)."""
    ordered = sorted(values) or [0]

    def rank(share: float) -> int:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {"median": rank(0.5), "p90": rank(0.9), "p99": rank(0.99), "max": ordered[-1]}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in _NAMED_TUPLES


def private_names(module: Module) -> set[str]:
    """Return the private names that a module defines, attributes and slots included."""
    names: set[str] = set()
    for node in module.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
            slots = (
                [s for s in node.body if isinstance(s, ast.Assign)] if isinstance(node, ast.ClassDef) else []
            )
            for statement in slots:
                if any(isinstance(t, ast.Name) and t.id == "__slots__" for t in statement.targets):
                    names.update(
                        n.value
                        for n in ast.walk(statement.value)
                        if isinstance(n, ast.Constant) and isinstance(n.value, str)
                    )
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("self", "cls")
        ):
            names.add(node.attr)
    return {name for name in names if _is_private(name)}


def private_reaches(modules: dict[str, Module]) -> list[str]:
    """List the uses of private members that another module defines, as `file:line name`."""
    own = {name: private_names(module) for name, module in modules.items()}
    owners: dict[str, set[str]] = defaultdict(set)
    for name, privates in own.items():
        for private in privates:
            owners[private].add(name)
    reaches: list[str] = []
    for name, module in modules.items():
        package = name.rpartition(".")[0]
        aliases: set[str] = set()
        for target, taken, statement in imported(module, modules):
            if taken is not None and _is_private(taken):
                reaches.append(f"{module.place(statement)} {target}.{taken}")
            elif taken is None and isinstance(statement, ast.ImportFrom):
                last = target.rpartition(".")[2]
                aliases.update(a.asname or a.name for a in statement.names if a.name == last)
        for node in module.nodes:
            if not isinstance(node, ast.Attribute) or not _is_private(node.attr):
                continue
            of = node.value.id if isinstance(node.value, ast.Name) else None
            others = set() if node.attr in own[name] else owners.get(node.attr, set())
            if of == "self" and package in {other.rpartition(".")[0] for other in others}:
                continue
            if of in aliases or others:
                reaches.append(f"{module.place(node)} {ast.unparse(node)}")
    return sorted(reaches, key=_by_place)


def _by_place(entry: str) -> tuple[str, int, str]:
    place, _, rest = entry.partition(" ")
    path, _, line = place.rpartition(":")
    return path, int(line), rest


def parameters(function: _Function) -> int:
    """Return the number of parameters without `self` and `cls`."""
    spec = function.args
    names = [a.arg for a in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
    extra = (spec.vararg is not None) + (spec.kwarg is not None)
    return len(names) + extra - (names[:1] in (["self"], ["cls"]))


def is_command(module: Module, function: _Function) -> bool:
    """Return whether the function is a command of the CLI: its parameters are options that typer fills in."""
    annotations = [ast.unparse(a.annotation) for a in function.args.args if a.annotation is not None]
    return ".cli." in module.name and any("typer." in annotation for annotation in annotations)


def many_parameters(modules: Iterable[Module]) -> list[str]:
    """List the functions outside kernels with more parameters than allowed, most first; without commands."""
    result: list[tuple[int, str]] = []
    for module in modules:
        if KERNELS in module.name.split("."):
            continue
        for function in functions(module):
            overload = any(ast.unparse(d).endswith("overload") for d in function.decorator_list)
            count = parameters(function)
            if count > MANY_PARAMETERS and not overload and not is_command(module, function):
                result.append((count, f"{module.place(function)} {function.name} ({count})"))
    return [text for _, text in sorted(result, key=lambda pair: (-pair[0], pair[1]))]


def graph(modules: dict[str, Module], *, deferred: bool) -> dict[str, list[str]]:
    """Return the modules that each module imports, in order of name."""
    return {n: sorted(m.imports | (m.deferred if deferred else set())) for n, m in modules.items()}


def circles(edges: dict[str, list[str]]) -> list[list[str]]:
    """List the strongly connected sets of modules, largest first (Tarjan's algorithm, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    result: list[list[str]] = []
    for start in edges:
        if start in index:
            continue
        work = [(start, iter(edges[start]))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            name, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(edges[target])))
                    break
                if target in on_stack:
                    low[name] = min(low[name], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    members: list[str] = []
                    while not members or members[-1] != name:
                        members.append(stack.pop())
                        on_stack.discard(members[-1])
                    if len(members) > 1:
                        result.append(sorted(members))
    return sorted(result, key=lambda members: (-len(members), members))


def shortest_circle(edges: dict[str, list[str]], members: list[str]) -> list[str]:
    """Return one shortest path of imports that leads back to its first module, within a connected set."""
    best: list[str] = []
    for start in members:
        paths = [[start]]
        seen = {start}
        while paths and (not best or len(paths[0]) < len(best) - 1):
            path = paths.pop(0)
            targets = [target for target in edges[path[-1]] if target in members]
            if start in targets:
                best = [*path, start]
                break
            for target in targets:
                if target not in seen:
                    seen.add(target)
                    paths.append([*path, target])
    return best


def described_circles(modules: dict[str, Module], *, deferred: bool) -> list[dict[str, list[str]]]:
    """List the circles, each with its modules and one shortest path around."""
    edges = graph(modules, deferred=deferred)
    return [{"modules": members, "shortest": shortest_circle(edges, members)} for members in circles(edges)]


def doubled_classes(modules: dict[str, Module]) -> list[str]:
    """List the names of top-level classes that more than one module defines, with their modules."""
    owners: dict[str, list[str]] = defaultdict(list)
    for name, module in modules.items():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                owners[node.name].append(name)
    doubled = [(len(names), cls, names) for cls, names in owners.items() if len(names) > 1]
    return [
        f"{cls}: {', '.join(names)}"
        for _, cls, names in sorted(doubled, key=lambda entry: (-entry[0], entry[1]))
    ]


def doubled_modules(modules: dict[str, Module]) -> list[str]:
    """List the file names that occur in more than one package, without `__init__` and `__main__`."""
    owners: dict[str, list[str]] = defaultdict(list)
    for name, module in modules.items():
        if not module.is_package and not name.endswith("__main__"):
            owners[name.rpartition(".")[2]].append(name)
    return [f"{last}: {', '.join(names)}" for last, names in sorted(owners.items()) if len(names) > 1]


def figures(packages: Iterable[Path] = PACKAGES) -> dict[str, Any]:
    """Compute every figure.

    Args:
        packages: Directories of top-level packages.

    Returns:
        Counts, spreads and lists, in the order in which they are printed.
    """
    modules = load(packages)
    code = {name: len(code_lines(module.text)) for name, module in modules.items()}
    importers: dict[str, set[str]] = defaultdict(set)
    for name, module in modules.items():
        for target in module.imports | module.deferred:
            importers[target].add(name)
    ordinary = [n for n, m in modules.items() if not m.is_package and not n.endswith("__main__")]
    small = [f"{modules[n].path} ({code[n]})" for n in sorted(ordinary) if code[n] <= SMALL_MODULE]
    single = [
        f"{modules[n].path} <- {next(iter(importers[n]))}" for n in sorted(ordinary) if len(importers[n]) == 1
    ]
    all_functions = [f for module in modules.values() for f in functions(module)]
    in_package: dict[str, int] = defaultdict(int)
    for module in modules.values():
        in_package[module.package] += 1
    return {
        "modules": len(modules),
        "lines": sum(len(m.text.splitlines()) for m in modules.values()),
        "code_lines": sum(code.values()),
        "classes": sum(isinstance(n, ast.ClassDef) for m in modules.values() for n in statements(m.tree)),
        "functions": len(all_functions),
        "module_lines": spread([len(m.text.splitlines()) for m in modules.values()]),
        "function_lines": spread([(f.end_lineno or f.lineno) - f.lineno + 1 for f in all_functions]),
        "largest_packages": [
            f"{name} ({count})" for name, count in sorted(in_package.items(), key=lambda e: (-e[1], e[0]))[:5]
        ],
        "small_modules": small,
        "imported_once": single,
        "private_reaches": private_reaches(modules),
        "many_parameters": many_parameters(modules.values()),
        "circles": described_circles(modules, deferred=False),
        "circles_deferred": described_circles(modules, deferred=True),
        "doubled_classes": doubled_classes(modules),
        "doubled_modules": doubled_modules(modules),
    }


def as_text(result: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the text form: one line for each figure, its list below."""
    titles = {
        "code_lines": "code lines (no blanks, comments, docstrings)",
        "module_lines": "lines of a module",
        "function_lines": "lines of a function",
        "largest_packages": "largest packages (modules)",
        "small_modules": f"modules of at most {SMALL_MODULE} code lines",
        "imported_once": "modules that exactly one other imports",
        "private_reaches": "reaches into private members of other modules",
        "many_parameters": f"functions with more than {MANY_PARAMETERS} parameters, outside kernels",
        "circles": "import circles, with type-only imports",
        "circles_deferred": "import circles, with type-only and deferred imports",
        "doubled_classes": "class names that more than one module defines",
        "doubled_modules": "file names in more than one package",
    }
    for key, value in result.items():
        title = titles.get(key, key)
        if isinstance(value, dict):
            yield f"{title}: " + ", ".join(f"{name} {number:,}" for name, number in value.items())
        elif isinstance(value, list):
            yield f"{title}: {len(value):,}"
            for entry in value:
                if isinstance(entry, dict):
                    yield f"  {len(entry['modules'])} modules: {' '.join(entry['modules'])}"
                    yield f"    shortest: {' -> '.join(entry['shortest'])}"
                else:
                    yield f"  {entry}"
        else:
            yield f"{title}: {value:,}"


def main(arguments: list[str] | None = None) -> None:
    """Print the figures of the packages that the command line names."""
    parser = argparse.ArgumentParser(description="Structural figures of the source, from its syntax trees.")
    parser.add_argument("packages", nargs="*", type=Path, help="package directories; default: those of src/")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(arguments)
    result = figures(options.packages or PACKAGES)
    text = json.dumps(result, indent=2) if options.json else "\n".join(as_text(result))
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit must not fail


if __name__ == "__main__":
    main()
