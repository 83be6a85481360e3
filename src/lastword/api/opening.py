"""`open`: open one or several log directories as a `LogDir`."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from lastword import files as storage
from lastword.api.logs import LogDir
from lastword.api.open_dirs import Mode, OpenDirs, PathLike, caller, writers
from lastword.clock import Clock, ShiftedClock, SystemClock
from lastword.config import Settings, check_arguments
from lastword.config.settings import FILE_NAME
from lastword.errors import LastwordError, LogDirLockedError, StorageError, UsageError
from lastword.files import Files
from lastword.logdir import LogDirectory, LogDirSet
from lastword.logdir.broker import BrokerSettings
from lastword.logdir.identity import check_same_cluster, read_ids
from lastword.logdir.topics import RootListing, check_writable
from lastword.parse import Duration, check_path, parse_seconds, stable_path
from lastword.segment import names

if TYPE_CHECKING:
    from lastword.config.keywords import Keywords

T = TypeVar("T")
LOCK_POLL_SECONDS = 0.1
SCHEMES = ("s3", "gs", "az", "memory")


def open(
    path: PathLike | Sequence[PathLike],
    mode: Mode = "r",
    *,
    config: PathLike | None = None,
    metadata: PathLike | None = None,
    timeout: Duration = 0,
    clock: Clock | None = None,
    files: Files | None = None,
    storage_options: Mapping[str, str] | None = None,
    **settings: Unpack[Keywords],
) -> LogDir:
    """Open a log directory, several directories as one log (Kafka's log.dirs), or a log in a bucket.

    If there are several directories and a drive fails, its directory is offline (`LogDir.offline`), and the
    other directories stay in service. Close a `LogDir` that was opened to append, best by `with`: an unclosed
    `LogDir` causes a ResourceWarning.

    Args:
        path: One directory, a list, or the URL of a log in a bucket: s3://, gs://, az:// or memory://. One
            directory stands for all directories of the setting log.dirs, if the caller gave that setting, or
            the file that has it. `~` is the home directory. A later change of the working directory has no
            effect.
        mode: "r" takes no lock and changes nothing; the directory must exist. "a" reads, appends and cleans;
            it takes the lock and creates a missing directory.
        config: Another settings file than those in the directory. It is never written, so
            it must have the settings of a topic before the topic is created.
        metadata: Of a broker whose metadata is in no directory of `path`: the directory that holds them
            (metadata.log.dir), or its server.properties, which has the defaults of topics, too. It is only
            read. Without it, nothing is removed from that broker's topics.
        timeout: How long to wait for a lock that another writer holds: seconds, "1m" or a timedelta.
        clock: For tests: another source of the time. The background cleaner then starts only with
            `logs.cleaner.start()`.
        files: For tests: another storage.
        storage_options: Options of a bucket: region, endpoint, credentials, as in docs/bucket.md. Without
            them, those of the environment.
        **settings: Kafka's names with _ for dots: `segment_bytes="64MiB"`. They override the file.

    Raises:
        NotALogDirError: There is no log directory. This error and the next four change nothing.
        ClusterDiffersError: The directories, or the metadata, are not those of one broker.
        LogDirLockedError: A broker or another writer has the directory open; the message names a writer in
            this process.
        WrongUserError: New files would belong to another user than the existing files.
        InvalidSettingError: A setting is invalid; UnknownSettingError names the nearest setting.
    """
    check_arguments(settings, open)
    if mode not in ("r", "a"):
        raise UsageError(
            f"mode {mode!r} is neither 'r' nor 'a'", remedy='"r" reads, "a" reads, appends and cleans'
        )
    if config is not None:
        config = stable_path(check_path("config", config))
    if isinstance(path, str) and "://" in path:
        if metadata is not None:
            raise UsageError("metadata is for a directory of a broker", remedy="leave it out for a bucket")
        return _open_bucket(path, mode, config, clock, storage_options, settings)
    if storage_options is not None:
        raise UsageError("storage_options are for a log in a bucket", remedy="leave them out for a directory")
    paths = _paths(path)
    if not paths:
        raise UsageError("no directory given", remedy='lastword.open("data")')
    if len(paths) > 1 and len({os.path.realpath(path) for path in paths}) != len(paths):
        raise UsageError("a directory is given twice", remedy="name each once")

    files = files or storage.DEFAULT
    if metadata is not None:
        metadata = stable_path(check_path("metadata", metadata))
    cluster = BrokerSettings(files, paths, metadata)
    check_same_cluster(files, paths, cluster.source)

    def load() -> Settings:
        return Settings.load(paths, config, arguments=settings).with_cluster(cluster.refresh())

    loaded = load()  # raises every mistake in the settings before a directory is opened
    if isinstance(path, (str, os.PathLike)):
        named = config is not None or loaded.instance.source("log.dirs") in ("argument", "environment")
        paths = _together(paths[0], loaded.instance.log_dirs, named=named)
        cluster = BrokerSettings(files, paths, metadata)
        check_same_cluster(files, paths, cluster.source)
    clock = clock or SystemClock()
    deadline = clock.monotonic() + parse_seconds("timeout", timeout)
    if mode == "a":
        present = [directory_path for directory_path in paths if files.is_dir(directory_path)]
        for directory_path in present:  # before the first is changed
            files.check_owner(directory_path)
        for directory_path in paths if len(present) < len(paths) else ():  # before one is made
            with suppress(StorageError):  # a drive that failed: the others serve
                check_writable(files, directory_path, RootListing(files, directory_path))
    opened: list[LogDirectory] = []
    offline: dict[str, LastwordError] = {}
    try:
        for directory_path in paths:
            try:
                left = deadline - clock.monotonic()
                beside = _ids_of_any(files, paths) if mode == "a" and len(paths) > 1 else None
                opened.append(
                    wait_for_lock(
                        partial(
                            _directory, directory_path, mode, files, clock, load, beside, itertools.count(1)
                        ),
                        left,
                        clock,
                        clock.sleep,
                    )
                )
            except StorageError as error:
                # A drive that failed, or is read-only: the other directories serve.
                offline[directory_path] = error
        if not opened:
            raise next(iter(offline.values()))
        dirs = OpenDirs(
            LogDirSet(opened, offline), mode, files, clock, config_file=config, opened_at=caller()
        )
    except BaseException:
        for directory in opened:
            directory.close()
        raise
    logs = LogDir(dirs)
    notes = [os.path.join(directory.path, names.TRANSACTION) for directory in opened]
    if mode == "a" and any(map(files.exists, notes)):
        from lastword.api.transaction import recover  # the transactions that an earlier process left open

        recover(dirs, notes)
    # With a clock of the caller, nothing starts in the background.
    if mode == "a" and isinstance(clock, SystemClock):
        from lastword.ingest.apply import Watch

        for directory in opened:  # ingests the commits of other processes until the directory is closed
            dirs.on_close(Watch(directory).close)
        if logs.settings.instance.log_cleaner_enable:
            logs.cleaner.start()
    return logs


def _open_bucket(
    url: str,
    mode: Mode,
    config: PathLike | None,
    clock: Clock | None,
    storage_options: Mapping[str, str] | None,
    settings: Mapping[str, Any],
) -> LogDir:
    """Open a log in a bucket."""
    from lastword.api.bucket_dirs import BucketDirs, merged_settings
    from lastword.bucket.collect import STORE_CLOCK_STEP_MS
    from lastword.bucket.commit import Bucket
    from lastword.objects import open_store, probe

    store = open_store(url, storage_options)
    starts_cleaner = mode == "a" and clock is None
    clock = clock or SystemClock()
    if mode == "a":
        ahead_ms = probe(store).ahead_ms
        if starts_cleaner and abs(ahead_ms) > STORE_CLOCK_STEP_MS:
            clock = ShiftedClock(ahead_ms)  # so that all writers agree on retention and tombstones
    bucket = Bucket(store, clock=clock)
    load = merged_settings(bucket.url, config, settings)
    try:
        dirs = BucketDirs(bucket, mode, load, clock, config_file=config, opened_at=caller())
    except BaseException:
        bucket.close()
        raise
    logs = LogDir(dirs)
    if starts_cleaner and logs.settings.instance.log_cleaner_enable:
        logs.cleaner.start()
    return logs


def wait_for_lock(
    attempt: Callable[[], T], seconds: float, clock: Clock, sleep: Callable[[float], None]
) -> T:
    """Return the result of `attempt`; repeat it for `seconds` while it raises LogDirLockedError."""
    deadline = clock.monotonic() + seconds
    while True:
        try:
            return attempt()
        except LogDirLockedError:
            left = deadline - clock.monotonic()
            if left <= 0:
                raise
        sleep(min(LOCK_POLL_SECONDS, left))


def _ids_of_any(files: Files, paths: Sequence[str]) -> dict[str, str]:
    """Return the properties of the first directory that has some: a new directory gets the same node."""
    for path in paths:
        with suppress(StorageError):
            ids = read_ids(files, path)
            if ids:
                return ids
    return {}


def _directory(
    path: str,
    mode: Mode,
    files: Files,
    clock: Clock,
    load: Callable[[], Settings],
    beside: Mapping[str, str] | None,
    attempts: Iterator[int],
) -> LogDirectory:
    """Open one directory. LogDirLockedError names the object of this process that has it open."""
    opens: Callable[..., LogDirectory] = partial(LogDirectory.open, path, mode)
    if mode == "a":
        from lastword.ingest.apply import open_to_append

        opens = partial(open_to_append, path, beside=beside)
    try:
        return opens(files, clock, load)
    except LogDirLockedError as error:
        if error.pid != os.getpid():
            raise
    attempt = next(attempts)
    if attempt & (attempt - 1) == 0:  # the attempts 1, 2, 4, 8 and so on: a collection takes long
        gc.collect()  # an unreferenced object that was not closed frees its lock
    try:
        return opens(files, clock, load)
    except LogDirLockedError as error:
        real = os.path.realpath(path)
        holder = next((dirs for dirs in writers() if real in map(os.path.realpath, dirs.paths)), None)
        if holder is not None and error.pid == os.getpid():
            raise LogDirLockedError(
                f"{path} is already open to append in this process ({error.pid}): {holder!r}, opened at "
                f"{holder.opened_at}",
                remedy=f"use that object, or close() it; to read beside it: lastword.open({path!r})",
                file=path,
                pid=error.pid,
                process="this process",
            ) from None
        raise


def _paths(given: PathLike | Sequence[PathLike]) -> list[str]:
    try:
        several = [given] if isinstance(given, (str, os.PathLike)) else list(given)
        paths = [os.fspath(item) for item in several]
        if any(isinstance(path, bytes) for path in paths):
            raise TypeError
    except TypeError:
        raise UsageError(
            f"{given!r} is not a path", remedy='lastword.open("data"), or a list of paths'
        ) from None
    for path in paths:
        if not path:
            raise UsageError("an empty path names no directory", remedy='lastword.open("data")')
        if "://" in path:
            raise UsageError(f"{path} is a URL", remedy="give a directory of a file system: /srv/log")
        scheme, slash, rest = path.partition(":/")
        if slash and scheme in SCHEMES:
            raise UsageError(
                f"{path} is a path, and no URL: it has one slash",
                remedy=f"give {scheme}://{rest} as a str (pathlib takes a slash away), or a directory of "
                f"that name as ./{path}",
            )
    paths = [os.path.expanduser(path) for path in paths]  # noqa: PTH111  paths are strings here
    for path in paths:
        if path.startswith("~"):
            raise UsageError(f"{path}: there is no such user", remedy=f"a directory of that name: ./{path}")
    return [stable_path(path) for path in paths]


def _together(path: str, log_dirs: Sequence[str], *, named: bool) -> list[str]:
    """Return the directories of the setting log.dirs, if it is set.

    Raises:
        UsageError: `path` is not in log.dirs (the settings file of a copy names the original directories), or
            the file lists more directories and the caller has not `named` the file.
    """
    if not log_dirs:
        return [path]
    relative = [directory for directory in log_dirs if not os.path.isabs(directory)]  # noqa: PTH117  pathlib takes 4 ms to load
    if relative:
        raise UsageError(f"log.dirs: {relative[0]!r} is not absolute", remedy="give the whole path")
    others = [directory for directory in log_dirs if os.path.realpath(directory) != os.path.realpath(path)]
    if len(others) == len(log_dirs):
        raise UsageError(
            f"{path} is not in log.dirs: {', '.join(log_dirs)}",
            remedy="open one of these, or remove log.dirs from its lastword.toml, if that is a copy",
        )
    if others and not named:
        file = os.path.join(path, FILE_NAME)
        raise UsageError(
            f"{file} lists more directories (log.dirs): {', '.join(others)}; they are opened only if named",
            remedy=f"name them with --dir, or the file with --config {file}, in Python a list of paths, or "
            f'config="{file}"; or remove log.dirs from the file',
            file=file,
        )
    return [path, *others]
