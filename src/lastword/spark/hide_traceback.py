"""Show an error to a user of Spark as a sentence and its remedy.

Spark puts the traceback of any exception in its Python processes into its own exception. The message of an
error of this package names the problem, the place and the remedy. The frames between the method that Spark
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
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            result = method(*arguments, **keywords)
        except LastwordError as error:
            raise error.with_traceback(None) from None
        return _each(result) if isinstance(result, Iterator) else result

    return call  # type: ignore[return-value]


def _each(values: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from values
    except LastwordError as error:
        raise error.with_traceback(None) from None


def typed(error: Exception) -> Exception:
    """Return the error of this package with which a task failed, parsed from Spark's text, or `error`."""
    text = str(error)
    match = re.search(rf"(?:ModuleNotFound|Import)Error: ({MISSING} .*)(?:\n\s*fix: (.*))?", text)
    if match is not None:
        return MissingError(match[1], remedy=match[2])
    match = re.search(r"lastword\.errors\.(\w+): (.*)(?:\n\s*fix: (.*))?", text)
    kind = None if match is None else getattr(errors, match[1], None)
    if match is not None and isinstance(kind, type) and issubclass(kind, LastwordError):
        return kind(match[2], remedy=match[3])
    if "No module named 'lastword'" in text:
        return MissingError(
            "the Python that Spark starts beside its driver has no lastword",
            remedy="set PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON to one that has it",
        )
    return error
