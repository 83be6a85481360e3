"""What stopped a log from taking more: the first failure after which memory and files may differ."""

from __future__ import annotations

from collections.abc import Callable

from lastword.errors import LastwordError
from lastword.files import Files


class Health:
    """Of one open log. `failure` is final: the log is opened again, and recovery makes it sound."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self.failure: LastwordError | None = None

    def failed(self, error: LastwordError) -> None:
        self.failure = self.failure or error

    def guarded(self, change: Callable[[], None]) -> None:
        """A change that leaves the log as it was when it fails, unless the drive went offline."""
        try:
            change()
        except LastwordError as error:
            if self._files.offline(self._directory) is not None:
                self.failed(error)
            raise

    def fatal(self, change: Callable[[], None]) -> None:
        """A change that may leave a half of itself."""
        try:
            change()
        except LastwordError as error:
            self.failed(error)
            raise
