"""Errors as a user of Spark sees them: the sentence and its remedy.

Spark puts the traceback of whatever its Python processes raise into its own exception. Of an error of this
package the sentence says what is wrong, where, and what to do; the frames between the method that Spark
called and the line that noticed it would only hide it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from lastword import errors
from lastword.errors import LastwordError, MissingError
from lastword.spark import unpacking

Method = TypeVar("Method", bound=Callable[..., Any])


def hide_traceback(method: Method) -> Method:
    """For methods that Spark calls: a LastwordError comes out of it, or out of the iterator that it gives,
    as if it had been raised here."""

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
    """What a task failed with, out of Spark's words, if it is an error of this package; else as it is."""
    text = str(error)
    found = re.search(rf"(?:ModuleNotFound|Import)Error: ({unpacking.MISSING} .*)(?:\n\s*fix: (.*))?", text)
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
