"""Show errors to users of Spark as a sentence and its remedy.

Spark puts the traceback of any exception in its Python processes into its own exception. The message of an
error of this package says what is wrong, where, and what to do. The frames between the method that Spark
called and the line that raised the error would only hide that message.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from lastword import errors
from lastword.errors import LastwordError, MissingError
from lastword.spark.bootstrap import MISSING

Method = TypeVar("Method", bound=Callable[..., Any])


def hide_traceback(method: Method) -> Method:
    """Decorate a method that Spark calls, so that a LastwordError has no frames below this one.

    This includes errors of an iterator that the method returns.
    """

    @functools.wraps(method)
    def call(*given: Any, **named: Any) -> Any:
        try:
            answer = method(*given, **named)
        except LastwordError as error:
            raise error.with_traceback(None) from None
        return _each(answer) if isinstance(answer, Iterator) else answer

    return call  # type: ignore[return-value]


def _each(answer: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from answer
    except LastwordError as error:
        raise error.with_traceback(None) from None


def typed(error: Exception) -> Exception:
    """Return the error of this package that a task failed with, parsed from Spark's text; otherwise the error
    itself.
    """
    text = str(error)
    found = re.search(rf"(?:ModuleNotFound|Import)Error: ({MISSING} .*)(?:\n\s*fix: (.*))?", text)
    if found is not None:
        return MissingError(found[1], remedy=found[2])
    found = re.search(r"lastword\.errors\.(\w+): (.*)(?:\n\s*fix: (.*))?", text)
    kind = None if found is None else getattr(errors, found[1], None)
    if found is not None and isinstance(kind, type) and issubclass(kind, LastwordError):
        return kind(found[2], remedy=found[3])
    if "No module named 'lastword'" in text:
        return MissingError(
            "the Python that Spark starts beside its driver has no lastword",
            remedy="set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to one that has it",
        )
    return error
