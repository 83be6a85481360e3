"""`LogDir`: one or several log directories, their topics, and the verbs that work on them.

Mode "r" takes no lock and changes nothing; it works beside a running broker. Mode "a" appends and cleans: it
takes Kafka's lock, repairs the damage of a crash, and is the only writer until it is closed.

A type checker infers the types of keys and values from `serializers=lastword.serializers("str", "json")`.
Otherwise the types are those that are saved with the topic, or named in two words, which a type checker does
not see.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload
from weakref import WeakValueDictionary

from lastword.api.open_dirs import By, Mode, OpenDirs, PathLike, Topics
from lastword.api.record import K, V
from lastword.api.serializers import SerializerLike, Serializers, given_serializers, saved_serializer
from lastword.api.topic import Topic
from lastword.api.topics import create_topic, delete_topics, open_topic
from lastword.config import Settings, check_arguments
from lastword.errors import LastwordError, UsageError
from lastword.logdir import DirRecovery, SetAside
from lastword.parse import Duration, check_path, parse_duration_ms
from lastword.values import Closing, ProcessBound, ProgressLike, Results, table_html

if TYPE_CHECKING:
    from lastword.api.cleaner import Cleaner
    from lastword.api.open_transactions import OpenTransaction
    from lastword.api.reader import Bounds
    from lastword.api.restore import Restored
    from lastword.api.schema import PartitionerLike
    from lastword.api.state import State
    from lastword.api.states import SharedValues
    from lastword.api.transaction import Transaction
    from lastword.bucket.collect import Collection
    from lastword.cleaner.engine.report import CleanRound
    from lastword.cleaner.policy.plan import Plan
    from lastword.config.keywords import Keywords, TopicKeywords
    from lastword.retention import Deletion
    from lastword.tools.audit import Audit
    from lastword.tools.duplication import Duplication
    from lastword.tools.explain import Explanation
    from lastword.tools.simulate import Simulation
    from lastword.tools.verify import Verification

    class UntypedOptions(TypedDict, total=False):
        """Serializers without types."""

        key_serializer: SerializerLike | None
        value_serializer: SerializerLike | None

    class TopicOptions(UntypedOptions, total=False):
        """The options of `LogDir.topic` without types."""

        partitioner: PartitionerLike | None

    class CreateOptions(TopicKeywords, total=False):
        """The options of `LogDir.create_topic` besides the serializers, and settings of the topic."""

        partitioner: PartitionerLike | None
        exist_ok: bool

    class UntypedCreateOptions(UntypedOptions, CreateOptions, total=False):
        """All options of `LogDir.create_topic`, without types."""

    class StateOptions(TopicKeywords, total=False):
        """The options of `LogDir.state` besides serializers and default, and settings of the topic."""

        partitions: int | None
        end: Bounds
        snapshot: PathLike | None
        memory: int | str | None
        ttl: Duration | None
        progress: ProgressLike | bool | None

    class UntypedStateOptions(UntypedOptions, StateOptions, total=False):
        """All options of `LogDir.state`, without types."""

        default: Callable[[], Any] | None


class LogDir(ProcessBound, Closing, Mapping[str, Topic[Any, Any]]):
    """An open log directory: a context manager, and a mapping of its topics. Safe from any thread.

    `logs["users"]`, `"users" in logs`, `len(logs)`, `logs.items()` and all else of a mapping work as for a
    dict, but two objects are equal only if they are the same. After a fork, a `LogDir` of mode "a" is closed
    in the child: the parent holds the lock. The child opens the directory again after the parent has closed
    it.

    Attributes:
        paths: Its directories.
        mode: "r" or "a".
        dirs: The open directories below this object. For tools; it may change.
    """

    def __init__(self, dirs: OpenDirs) -> None:
        self.dirs = dirs
        self.paths = dirs.paths
        self.mode: Mode = dirs.mode
        states: WeakValueDictionary[str, SharedValues] = WeakValueDictionary()
        self._states = states
        self._state_locks: dict[str, threading.RLock] = {}
        kept: dict[str, State[Any, Any]] = {}
        self._kept_states = kept  # of transactions
        dirs.on_topic_deleted(lambda name, partitions: (states.pop(name, None), kept.pop(name, None)))

    def __repr__(self) -> str:
        return repr(self.dirs)

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # a mapping has none

    def __getitem__(self, topic: str) -> Topic[Any, Any]:
        """Return one topic, as `topic(name)` does."""
        return self.topic(topic)

    def __contains__(self, topic: object) -> bool:
        return isinstance(topic, str) and self.dirs.has_topic(topic)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the topics."""
        return iter(list(self.dirs.topics()))

    def __len__(self) -> int:
        """Return the number of topics."""
        return len(self.dirs.topics())

    def __bool__(self) -> bool:
        return True  # also without a topic

    def _repr_html_(self) -> str | None:
        if self.dirs.closed:
            return None  # a notebook shows the text
        rows = [
            (topic, str(len(numbers)), self.dirs.config(topic).policy_text or "not set")
            for topic, numbers in self.dirs.topics().items()
        ]
        return table_html(", ".join(self.paths), ("topic", "partitions", "cleanup.policy"), rows)

    @property
    def set_aside(self) -> list[tuple[str, SetAside]]:
        """Partition directories that are not served, each with its log directory.

        A broker renamed a directory that ends with `-stray`; `-future` marks an unfinished copy.
        """
        self.dirs.require_open()
        return [(log_dir.path, entry) for log_dir in self.dirs.directories for entry in log_dir.set_aside()]

    @property
    def recovery(self) -> tuple[DirRecovery, ...]:
        """The repairs at opening, a `DirRecovery` for each directory.

        Partitions are recovered at their first use. In mode "r" nothing is repaired, and `clean` is None.
        """
        return tuple(directory.recovery for directory in self.dirs.directories)

    @property
    def offline(self) -> dict[str, LastwordError]:
        """Directories that failed, by path, with the reason.

        Their partitions raise OfflineError; the other directories serve.
        """
        return self.dirs.offline

    @property
    def settings(self) -> Settings:
        """Every setting with its source."""
        return self.dirs.settings

    @cached_property
    def cleaner(self) -> Cleaner:
        """The background cleaner. In mode "a" it runs, unless `log_cleaner_enable=False`."""
        from lastword.api.cleaner import Cleaner

        return Cleaner(self.dirs)

    # -------------------------------------------------------------- topics

    def topics(self) -> list[Topic[Any, Any]]:
        """Return all topics, sorted by name, with their saved serializers."""
        self.dirs.require_open()
        return [open_topic(self.dirs, name, numbers=numbers) for name, numbers in self.dirs.topics().items()]

    @overload
    def topic(
        self, name: str, *, serializers: Serializers[K, V], partitioner: PartitionerLike | None = None
    ) -> Topic[K, V]: ...
    @overload
    def topic(self, name: str, **options: Unpack[TopicOptions]) -> Topic[Any, Any]: ...
    def topic(
        self,
        name: str,
        *,
        serializers: Serializers[Any, Any] | None = None,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[Any, Any]:
        """Return one topic.

        Args:
            name: The topic's name.
            serializers: Both serializers with their types: `lastword.serializers("str", "json")`.
            key_serializer: Without types. None: as saved with the topic. A name must be the saved name, or
                "bytes", which reads and writes the stored bytes; callables are the caller's responsibility.
            value_serializer: As `key_serializer`.
            partitioner: None: as saved.

        Raises:
            UnknownTopicError: There is no such topic; the message names the nearest. It is also a KeyError.
            InvalidSettingError: The name of a serializer contradicts the saved name.
        """
        key, value = given_serializers(serializers, key_serializer, value_serializer)
        return open_topic(
            self.dirs, name, key_serializer=key, value_serializer=value, partitioner=partitioner
        )

    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        serializers: Serializers[K, V],
        **options: Unpack[CreateOptions],
    ) -> Topic[K, V]: ...
    @overload
    def create_topic(
        self, name: str, partitions: int | None = None, **options: Unpack[UntypedCreateOptions]
    ) -> Topic[Any, Any]: ...
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        serializers: Serializers[Any, Any] | None = None,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        partitioner: PartitionerLike | None = None,
        exist_ok: bool = False,
        **config: Any,
    ) -> Topic[Any, Any]:
        """Create a topic. It is durable when the call returns.

        Args:
            name: The topic's name.
            partitions: Number of partitions; None: 1.
            serializers: Both serializers with their types: `lastword.serializers("str", "json")`.
            key_serializer: Without types. None: "bytes". A name is saved with the topic.
            value_serializer: As `key_serializer`.
            partitioner: None: "murmur2". A name is saved with the topic.
            exist_ok: Return the topic if it exists. The other arguments must match it.
            **config: Its settings: `cleanup_policy="compact"`, or "delete" with `retention_ms="7d"`. Without
                a cleanup_policy nothing is ever removed.

        Raises:
            TopicExistsError: The topic exists, and `exist_ok` is False.
            InvalidSettingError: A setting is invalid, or with `exist_ok` contradicts the topic.
            InvalidTopicError: Kafka would refuse the name.
        """
        check_arguments(config, self.create_topic)
        key, value = given_serializers(serializers, key_serializer, value_serializer)
        return create_topic(
            self.dirs,
            name,
            partitions,
            key_serializer=key,
            value_serializer=value,
            partitioner=partitioner,
            exist_ok=exist_ok,
            config=config,
        )

    @overload
    def state(
        self,
        name: str,
        *,
        serializers: Serializers[K, V],
        default: Callable[[], V] | None = None,
        **options: Unpack[StateOptions],
    ) -> State[K, V]: ...
    @overload
    def state(self, name: str, **options: Unpack[UntypedStateOptions]) -> State[Any, Any]: ...
    def state(
        self,
        name: str,
        *,
        serializers: Serializers[Any, Any] | None = None,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        default: Callable[[], Any] | None = None,
        end: Bounds = "latest",
        snapshot: PathLike | None = None,
        memory: int | str | None = None,
        ttl: Duration | None = None,
        progress: ProgressLike | bool | None = None,
        **new_topic: Any,
    ) -> State[Any, Any]:
        """Restore a compacted topic and return it as a dict; each change of the dict is a record.

        In mode "a" the states of one topic share their values and the serializers, `default` and `memory` of
        the first one: a later call may leave them out, and is refused with others, until all are closed. A
        state with `end` or `snapshot` has values of its own.

        Args:
            name: The topic. In mode "a" a missing topic is created, with `cleanup_policy="compact"`.
            serializers: Both serializers with their types: `lastword.serializers("str", "int64")`.
            key_serializer: Without types. None: as saved with the topic, else "str". A name that contradicts
                the saved name is refused, except that mode "r" accepts "bytes", which reads the stored bytes.
            value_serializer: As `key_serializer`, else "json".
            default: Returns the value of a missing key: `default=int` allows `totals[k] += 1`.
            end: Restore the values as of this end, read-only. The same values as for `Topic.read`.
            snapshot: A file that `restore` wrote. It is loaded, and the log is read from its end offsets on.
            memory: "values" keeps all values in memory, and restores them at opening. A size such as "1GiB"
                does so up to this size of keys and values; above it StateTooLargeError is raised. "none"
                keeps no values: each read is a lookup in the log, as of `Topic.get`. In a directory, as of
                now. None: as the open state of the topic, else "values".
            ttl: Time to live of the values that this state sets, as for `State.set`; a new topic gets
                `lastword_ttl_ms=0`. None: the topic's `lastword.ttl.ms`.
            progress: True, or a function of `Progress`.
            **new_topic: What a new topic gets: its number of partitions, `partitions=4` (otherwise 1), and
                settings, `segment_bytes="16MiB"`. An existing topic must match them; `LogDir.set_config`
                changes its settings.

        Raises:
            UnknownTopicError: In mode "r", there is no such topic.
            InvalidSettingError: Serializers, partitions or settings contradict the topic.
            UsageError: In mode "a", the topic has no cleanup.policy, or its policy would delete keys; or a
                state of the topic is open with other arguments.
            OffsetOutOfRangeError: The log was cleaned or trimmed beyond `end`.
            SnapshotRefusedError: The result could differ from that of a full restore.
            StateTooLargeError: Keys and values are larger than `memory`.
        """
        from lastword.api.states import open_state

        check_arguments(new_topic, self.state, "partitions")
        # One at a time: a topic is created once, and read once.
        with self._state_locks.setdefault(name, threading.RLock()):
            opened = partial(
                open_state,
                self.dirs,
                name,
                given_serializers(serializers, key_serializer, value_serializer),
                self._states,
                default=default,
                end=end,
                snapshot=snapshot,
                memory=memory,
                ttl=ttl,
                progress=progress,
                new_topic=new_topic,
            )
            try:
                return opened()
            except UsageError:
                kept = self._kept_states.pop(name, None)
                if kept is None:
                    raise
                kept.close()  # only transactions have it, and the next one opens it again
                return opened()

    def transaction(self, *, max_bytes: int | str = "64MiB") -> Transaction:
        """Change any keys, topics and positions as one: `with logs.transaction() as tx:`.

        Nothing is written before the block ends, and nothing if it raises. After the block all changes are
        in the log, and durable. In each partition they appear at once. In this process, after every opening
        to write, and in a bucket, those of all partitions do.

        Args:
            max_bytes: The most memory that the changes may take.

        Raises:
            ReadOnlyError: The directory was opened with mode "r".
            ConflictError: At the end of the block: another writer has changed a value that the block has read
                by its key from a `tx.state`. Nothing was written: run the block again.
            TransactionTooLargeError: The changes take more than `max_bytes`. Nothing was written.
            BusyError: An earlier transaction could not be ended: open the directory again.
        """
        from lastword.api.transaction import Transaction

        return Transaction(self.dirs, self.state, self._kept_states, max_bytes)

    def position(self, name: str) -> dict[int, int] | int | None:
        """Return the position that `Transaction.position` has saved last under a name; None: none."""
        from lastword.api.transaction import position_of

        return position_of(self.dirs, name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records.

        Damaged partitions are deleted, too. The files are removed after `file.delete.delay.ms`, or at
        closing.

        Raises:
            UnknownTopicError: There is no such topic.
            OfflineError: One of its partitions is in a directory that is offline. This error and the next two
                remove nothing.
            NotAPartitionError: The directory of a partition is a link or a file.
            InconsistentTopicIdError: A partition belongs to another topic of that name.
        """
        for error in delete_topics(self.dirs, [name]).values():
            raise error

    def transactions(self, topic: Topics = None, partition: int | None = None) -> list[OpenTransaction]:
        """Return the open transactions, with the transactional id and the age of each.

        Committed readers stay at the first offset of an open transaction, and nothing behind it is cleaned.

        Args:
            topic: One or several. None: every topic.
            partition: None: every partition.
        """
        from lastword.api.open_transactions import open_transactions

        return Results(open_transactions(self.dirs, topic, partition))

    def abort(
        self,
        transaction: int | str,
        topic: Topics = None,
        partition: int | None = None,
        *,
        dry_run: bool = False,
    ) -> list[OpenTransaction]:
        """End the open transaction of a producer: its records are never read.

        For a transaction that hangs: its producer is gone, and no coordinator ends it. If the coordinator
        still has it, its producer is fenced. Do not abort a transaction that its producer may yet commit, nor
        one of a directory that is being served: `kafka-transactions.sh abort` is for that.

        Args:
            transaction: Its producer id, or its transactional id.
            topic: One or several. None: in every partition in which the transaction is open.
            partition: None: every partition of the topic.
            dry_run: Change nothing.

        Returns:
            The transaction in each partition, as it was.

        Raises:
            UsageError: The producer has no open transaction, its commit is decided, or its coordinator has
                the transaction, and it is open in other partitions, too.
        """
        from lastword.api.open_transactions import abort

        if dry_run:
            return abort(self.dirs, topic, partition, transaction, dry_run=True)
        with self.dirs.commits:  # so that none of this process is open
            return self.dirs.transaction(lambda dirs: abort(dirs, topic, partition, transaction))

    def move(self, topic: str, partition: int, to: PathLike) -> None:
        """Move one partition into another of the directories. Reads and appends continue meanwhile.

        Raises:
            UsageError: `to` is none of the directories that serve, or the log is in a bucket.
            DiskFullError: There is no room for it. Nothing was moved.
        """
        self.dirs.move(topic, partition, check_path("to", to))

    def set_config(self, topic: str | None = None, **config: Unpack[Keywords]) -> None:
        """Change settings of one topic, or (None) of the directory and all topics.

        A value of None resets a setting. The change applies immediately.

        Raises:
            InvalidSettingError: A value is not allowed; UnknownSettingError names the nearest setting.
        """
        self.dirs.set_config(topic, config)

    # -------------------------------------------------------------- verbs

    def plan(
        self,
        topic: Topics = None,
        partition: int | None = None,
        *,
        due: bool = False,
        strategy: str | None = None,
        progress: ProgressLike | bool | None = None,
    ) -> list[Plan]:
        """Return the plans of `clean` with these arguments and of `expire`, with their reasons.

        The result has a `Plan` for each partition, and one more with the action `delete` where retention
        would remove segments.

        Args:
            topic: One or several. None: every topic.
            partition: None: every partition.
            due: Only what the settings make due.
            strategy: As for `clean`.
            progress: True, or a function of `Progress`.

        Raises:
            PartialFailure: Partitions are damaged. It is raised at the end, with the plans of the others in
                `results` and each error in `errors`. It is also an instance of the first error's class.
        """
        from lastword.api import cleaning

        chosen = self.dirs.select(topic, partition)
        return Results(cleaning.plan_chosen(self.dirs, chosen, due=due, strategy=strategy, progress=progress))

    def clean(
        self,
        topic: Topics = None,
        partition: int | None = None,
        *,
        due: bool = False,
        strategy: str | None = None,
        progress: ProgressLike | bool | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> list[CleanRound]:
        """Remove superseded records now. Return a `CleanRound` for each cleaning.

        A partition that is quarantined is skipped, unless its topic is named.

        Args:
            topic: One or several. None: every topic that may be compacted.
            partition: None: every partition.
            due: Clean only what the settings make due, in as many cleanings as needed (`generational`:
                until each drive is within its space target). Without it, the active segment is rolled and
                all garbage is removed, in one cleaning of each partition.
            strategy: How a cleaning chooses segments. None: the setting lastword.strategy.
            progress: True, or a function of `Progress`.
            stop: Called while it runs; True ends the call at the next safe point.

        Raises:
            PartialFailure: Partitions are damaged, or there is no room for them. It is raised at the end,
                with the results of the others in `results` and each error in `errors`.
            NoPolicyError: The named topic may not be compacted.
        """
        from lastword.api import cleaning

        return Results(
            self.dirs.transaction(
                lambda dirs: cleaning.clean(
                    dirs, topic, partition, due=due, strategy=strategy, progress=progress, stop=stop
                )
            )
        )

    def expire(
        self, topic: Topics = None, partition: int | None = None, *, stop: Callable[[], bool] | None = None
    ) -> list[Deletion]:
        """Apply retention by time, size and log start now, as far as `cleanup.policy` allows.

        Returns a `Deletion` for each partition that lost segments. A quarantine does not prevent retention.

        Args:
            topic: One or several. None: every topic.
            partition: None: every partition.
            stop: Called before each partition; True ends the call.

        Raises:
            PartialFailure: The files of partitions cannot be changed. It is raised at the end, with the
                deletions of the others in `results`.
            NoPolicyError: The cleanup.policy of the named topic is unknown.
        """
        from lastword.api import cleaning

        return Results(self.dirs.transaction(lambda dirs: cleaning.expire(dirs, topic, partition, stop)))

    def audit(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        delivered: Any,
        most_rows: int = 100_000,
        progress: ProgressLike | bool | None = None,
    ) -> Audit:
        """Compare, for each key, the newest delivered offset with the newest offset in the log.

        The result names keys that are missing, stale or phantom. Changes nothing.

        Args:
            topic: None: the only topic; against another `LogDir` every topic, which both must have.
            partition: None: every partition. A delivered key without a partition belongs to the partition
                that the topic's saved partitioner gives.
            delivered: A mapping of keys to offsets; a table with columns `key` and `offset` (Arrow, Polars,
                DuckDB), or the path of such a file (.parquet .arrow .jsonl); another `LogDir` or `Topic`.
            most_rows: The most keys to name; the counts include all.
            progress: True, or a function of `Progress`.
        """
        from lastword.api import checks

        return checks.audit(self.dirs, topic, partition, delivered, most_rows=most_rows, progress=progress)

    def restore(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        to: PathLike,
        end: Bounds = "latest",
        progress: ProgressLike | bool | None = None,
    ) -> list[Restored]:
        """Write the newest value of every key to a file, `.parquet`, `.arrow` or `.jsonl`.

        The file is a table for other tools, and a snapshot from which `state(snapshot=)` starts.

        Args:
            topic: None: the only topic. A file holds one topic.
            partition: None: every partition.
            to: The path. An existing file is replaced.
            end: The newest values as of this end. The same values as for `Topic.read`.
            progress: True, or a function of `Progress`.

        Raises:
            OffsetOutOfRangeError: The log was cleaned beyond `end`, so the newest values below it are lost.
        """
        from lastword.api.restore import restore

        topic = self.dirs.only_topic(topic)
        return restore(self.dirs, topic, partition, check_path("to", to), end, progress)

    def explain(
        self, topic: str | None = None, partition: int | None = None, *, key: Any = None
    ) -> Explanation:
        """Explain why a partition is or is not due.

        With `key`, explain which rule keeps or frees each record of the key. Takes no lock and changes
        nothing.

        Args:
            topic: None: the only topic.
            partition: None: the only partition, or the partition that holds the key.
            key: Encoded by the topic's saved serializer.

        Raises:
            UsageError: There are several topics or partitions; the message names them.
        """
        from lastword.api.explaining import explained

        topic = self.dirs.only_topic(topic)
        serializer = saved_serializer(self.dirs.config(topic).lastword_key_serializer)
        data = None if key is None else serializer.encode(key, "key")
        return explained(self.dirs, topic, partition, data)

    def simulate(
        self,
        topic: Topics = None,
        partition: int | None = None,
        *,
        strategy: str | None = None,
        progress: ProgressLike | bool | None = None,
        **config: Unpack[Keywords],
    ) -> list[Simulation]:
        """Simulate the cost of cleaning under the current and under other settings.

        Replays the overwrites since the last cleaning, and cleans as soon as a cleaning is due. Changes
        nothing.

        Args:
            topic: One or several. None: every topic.
            partition: None: every partition.
            strategy: `generational`, `kafka`, or `broker` for Kafka's own cleaner.
            progress: True, or a function of `Progress`.
            **config: Settings to try: `segment_bytes="64MiB"`, `lastword_space_target=1.25`.

        Returns:
            For each partition a `Simulation` with `settings` {} (the current ones), and one with the given
            settings, if there are any. Partitions of one directory share its space target; if several are
            simulated, a last `Simulation` for each directory and set of settings (topic "", partition -1)
            adds them up.
        """
        from lastword.api.inspections import simulations

        return simulations(self.dirs, topic, partition, strategy, progress, config)

    def duplication(
        self,
        topic: Topics = None,
        partition: int | None = None,
        *,
        by: By = "partition",
        progress: ProgressLike | bool | None = None,
    ) -> list[Duplication]:
        """Count superseded records: a `Duplication` for each topic, partition or segment.

        Exact, in the memory of a key map. Takes no lock and changes nothing.

        Args:
            topic: One or several. None: every topic.
            partition: None: every partition.
            by: The unit of a row: "topic", "partition" or "segment".
            progress: True, or a function of `Progress`.

        Raises:
            PartialFailure: Partitions are damaged. It is raised at the end, with the rows of the other topics
                in `results`.
        """
        from lastword.api.inspections import duplication

        return Results(duplication(self.dirs, topic, partition, by=by, progress=progress))

    def verify(
        self,
        topic: Topics = None,
        partition: int | None = None,
        *,
        quick: bool = False,
        md5: bool = False,
        progress: ProgressLike | bool | None = None,
    ) -> Verification:
        """Check every checksum, index, checkpoint and invariant. Changes nothing.

        Args:
            topic: One or several. None: every topic.
            partition: None: every partition.
            quick: Skip the records.
            md5: Also find different keys of one partition with the same MD5, which Kafka's cleaner treats as
                one key: `collisions` of the result. Exact, in the memory of a key map.
            progress: True, or a function of `Progress`.
        """
        from lastword.api import checks

        return checks.verify(self.dirs, topic, partition, quick=quick, md5=md5, progress=progress)

    def collect(self, *, retention: Duration | None = None, dry_run: bool = False) -> Collection:
        """Remove the objects of a log in a bucket that its newest version does not need.

        An object that a cleaning, retention or a dead writer left is first noted with the time, and removed
        by a later call when it was noted long enough ago. The background cleaner makes this call too.

        Args:
            retention: How long an object is kept for readers of older versions: "1h", seconds or a
                timedelta. None: the
                setting lastword.objects.retention.ms.
            dry_run: Return the result and change nothing.

        Raises:
            UsageError: The log is a directory, or `retention` is below 0.
        """
        retention_ms = None if retention is None else parse_duration_ms(retention)
        if retention_ms is not None and retention_ms < 0:
            raise UsageError(f"retention is {retention_ms} ms", remedy='give 0 or more: retention="1h"')
        return self.dirs.collect(retention_ms=retention_ms, dry_run=dry_run)

    def pin(self, *, max_age: Duration = "1d") -> AbstractContextManager[None]:
        """Keep every object of the newest version of a log in a bucket, in a `with` block.

        For reads that take longer than lastword.objects.retention.ms. Needs the right to write, also in mode
        "r".

        Args:
            max_age: Objects are kept for this long at most: "6h", seconds or a timedelta. So a reader that
                died holds nothing for ever.

        Raises:
            UsageError: The log is a directory, or `max_age` is not above 0.
        """
        max_age_ms = parse_duration_ms(max_age)
        if max_age_ms <= 0:
            raise UsageError(f"max_age is {max_age_ms} ms", remedy='give a duration above 0: max_age="6h"')
        return self.dirs.pin(max_age_ms)

    # -------------------------------------------------------------- lifetime

    def sync(self) -> None:
        """Make everything durable that was acknowledged at level "os"."""
        self.dirs.sync()

    def close(self) -> None:
        """Sync, write the checkpoints, and release the lock. A second close does nothing.

        A background cleaning ends at its next safe point and removes its unfinished files.
        """
        self.dirs.close()
