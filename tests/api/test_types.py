"""The types of the package: mypy accepts a correct program, and reports every mistake in a wrong one."""

import ast
import asyncio
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import lastword
from lastword import Topic
from lastword.api import logs
from lastword.config import INSTANCE_SETTINGS, TOPIC_SETTINGS, keywords
from tests.api import typed_use

ROOT = Path(__file__).parents[2]


def test_it_runs(tmp_path):
    typed_use.run(str(tmp_path / "data"))
    asyncio.run(typed_use.run_in_a_loop(str(tmp_path / "data")))
    with lastword.open(tmp_path / "data") as logs:
        assert dict(logs.state("totals")) == {"a": 2}


def test_it_runs_in_a_bucket():
    pytest.importorskip("obstore")
    typed_use.run_in_a_bucket()


def test_the_keywords_are_the_settings():
    script = runpy.run_path(str(ROOT / "scripts" / "make_keywords.py"))
    assert Path(keywords.__file__).read_text(encoding="utf-8") == script["module"](), "run make_keywords.py"
    topic = {setting.keyword for setting in TOPIC_SETTINGS.values()}
    assert set(keywords.TopicKeywords.__annotations__) == topic
    instance = {setting.keyword for setting in INSTANCE_SETTINGS.values()}
    assert set(keywords.Keywords.__annotations__) == topic | instance


PROGRAM = """\
# mypy: disallow-any-generics, disallow-untyped-calls, warn-return-any, extra-checks
import lastword
from lastword import Topic
from lastword import LogDir

logs: LogDir = lastword.open("data", "a")
numbers = lastword.serializers("str", "int64")
topic = logs.topic("users", serializers=numbers)
totals = logs.state("totals", serializers=numbers)
{lines}
"""
MISTAKES = {
    'lastword.opne("data")': "attr-defined",
    "lastword.LogDri": "attr-defined",
    "lastword.errors.UsgeError": "attr-defined",
    "from lastword import Stat": "attr-defined",
    'lastword.open("data", "w")': "arg-type",
    'lastword.open("data", segment_byts=1)': "call-arg",
    'logs.topics("users")': "call-arg",
    'logs.create_topic("users", cleanup_polcy="compact")': "call-overload",
    'logs.state("users", partitons=2)': "call-overload",
    'logs.state("users", default=0)': "call-overload",
    'logs.state("totals", serializers=numbers, default=str)': "arg-type",
    'logs.topic("users", serializers=numbers, value_serializer="int64")': "call-overload",
    'logs.topic("users", serializers="str")': "call-overload",
    'lastword.serializers("str")': "call-overload",
    "lastword.serializers(str, int)": "call-overload",
    'logs.set_config("users", segment_byts="1MiB")': "call-arg",
    'logs.duplication(by="topics")': "arg-type",
    'topic.read(view="latest")': "arg-type",
    'topic.read(isolation="committed")': "arg-type",
    'topic.append("ada", 1, ack="all")': "arg-type",
    'topic.extend([("ada", 1)], ack="all")': "arg-type",
    'topic.append(b"ada", 1)': "arg-type",
    'topic.append("ada", "1")': "arg-type",
    "topic.appnd": "attr-defined",
    "totals[1] = 1": "index",
    'totals["ada"] = "1"': "assignment",
    'totals.change("ada", lambda value: value.upper())': "attr-defined",
    "totals.incr(1)": "arg-type",
    "for record in topic.read(): record.vlaue": "attr-defined",
}
NAMES = {"str": "str", "bytes": "bytes", "int32": "int", "int64": "int", "float64": "float", "json": "Any"}
KEYS = ("str", "bytes", "int32", "int64")


def checked(where):
    """Return line of the program -> mypy's output for it.

    mypy runs as in `make lint` and uses its cache: without a cache, one run takes 15 s of CPU.
    """
    types = [
        f'reveal_type(logs.{call}("x", serializers=lastword.serializers("{key}", "{value}")))'
        for call in ("state", "topic", "create_topic")
        for key in KEYS
        for value in NAMES
    ]
    program = PROGRAM.format(lines="\n".join([*MISTAKES, *types]))
    (where / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", str(where / "program.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    said = {}
    for line in done.stdout.splitlines():
        match = re.match(r".*program.py:(\d+): (.*)", line)
        assert match, done.stdout + done.stderr
        said.setdefault(program.splitlines()[int(match[1]) - 1], []).append(match[2])
    assert said, done.stdout + done.stderr
    return said


@pytest.mark.slow
def test_each_mistake_is_found_and_types_follow_the_names_of_serializers(tmp_path):
    """One run of mypy judges all lines."""
    said = checked(tmp_path)
    errors = [
        (line, text.rpartition("[")[2].rstrip("]"))
        for line, texts in said.items()
        for text in texts
        if "error:" in text
    ]
    assert set(errors) == set(MISTAKES.items())
    revealed = {line: texts for line, texts in said.items() if line.startswith("reveal_type")}
    assert len(revealed) == 3 * len(KEYS) * len(NAMES)
    for line, (text,) in revealed.items():
        call, key, value = re.match(r'reveal_type\(logs\.(\w+)\(.*\("(\w+)", "(\w+)"', line).groups()
        kind = "api.state.State" if call == "state" else "api.topic.Topic"
        expected = f'note: Revealed type is "lastword.{kind}[{NAMES[key]}, {NAMES[value]}]"'
        assert text.replace("builtins.", "") == expected, line


def test_the_class_of_a_log_stays_small():
    """Overloads count: a new pair of serializers is one more of `serializers`, not of three methods."""
    tree = ast.parse(Path(logs.__file__).read_text(encoding="utf-8"))
    (log_dir,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "LogDir")
    assert sum(isinstance(node, ast.FunctionDef) for node in log_dir.body) <= 46


def test_a_verb_is_in_one_place():
    """A topic has what needs its types or its partitions; the verbs are those of the log directory."""
    names = [{name for name in dir(kind) if not name.startswith("_")} for kind in (lastword.LogDir, Topic)]
    assert names[0] & names[1] == {"set_config", "get"}  # `get` of a mapping: of topics, and of keys


def test_few_modules_differ_between_a_directory_and_a_bucket():
    """What differs is an operation of `OpenDirs`. Five modules choose between two classes, or refuse one."""
    source = Path(lastword.__file__).parent
    asking = {
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if ".holds_logs" in path.read_text(encoding="utf-8")
    }
    assert asking == {
        "api/cleaner.py",
        "api/state_log.py",
        "api/states.py",
        "api/transaction.py",
        "server/transactions.py",
    }
