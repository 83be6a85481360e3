"""One word has one meaning in all that is public, and the number 1 is one second for each time."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lastword
import lastword.spark
import lastword.testing
from lastword import metrics
from lastword.api import open_dirs, reader, schema
from lastword.api.serializers import SERIALIZERS
from lastword.cli import clean as clean_command
from lastword.cli import records as read_command
from lastword.cli.main import command_tree, run
from lastword.config import TOPIC_SETTINGS
from lastword.config.tables import INSTANCE_SETTINGS, STRATEGIES
from lastword.errors import LogDirLockedError, UnknownSettingError, UsageError
from lastword.server import topics
from lastword.spark import options as spark_options
from lastword.testing import Broker, Clock, LogBuilder
from lastword.testing.broker import BrokerClock
from lastword.tools import duplication
from lastword.value_formats import FORMATS

VALUES = {
    "position": {"earliest", "latest"},  # also Spark's startingOffsets, and Kafka's
    "view": {*reader.VIEWS, *read_command.VIEWS, topics.NEWEST.removeprefix("@")},
    "isolation": set(reader.ISOLATIONS),
    "ack": {*open_dirs.ACKS, "store"},
    "form of keys and values": {*SERIALIZERS, *FORMATS},
    "partitioner": set(schema.PARTITIONERS),
    "strategy": set(STRATEGIES),
    "policy": {"compact", "delete"},
    "unit of a row": set(duplication.BY),
    "what a reader does with a wrong value": {"failfast", "permissive"},
}
"""The words that are values of parameters, options and settings, by what they mean."""

SAME = {
    "newest": "the method reads the view",
    "compact": "Kafka's policy",
    "delete": "Kafka's policy, and the method appends the record that deletes a key",
    "topic": "the unit is the object",
    "partition": "the unit is the object",
}
"""Values that are also the name of a method, a command or a parameter, because they mean the same thing."""

KINDS = {
    r"(Mode|Literal\['r', 'a'\])": "mode",
    r"(PathLike|str \| os\.PathLike\[str\])": "path",
    r"ProgressLike( \| bool)?": "progress",
    r"(SerializerLike|Topics|str)": "text",
    r"(K|V|Any)": "any",
    r"(Bounds|str \| Position|int \| datetime \| Literal\['latest'\])": "position",
}
OF_OTHERS = {
    "by": "State.incr(by=) is the amount; duplication and `ls --by` group by a unit",
    "default": "a dict's methods take a value, a defaultdict takes a function",
    "mode": "update_stream has Spark's output modes",
    "records": "`dump --records` is a flag",
    "files": "of open: for tests",
}
"""Parameters with a second meaning that Python or Spark has given them, or that is no value of a caller."""


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield (name, function) for each public function and method."""
    classes = []
    for module in (lastword, lastword.spark, lastword.testing):
        for name in module.__all__:
            known = getattr(module, name)
            if inspect.isclass(known):
                classes.append((name, known))
            elif inspect.isfunction(known):
                yield name, known
    for name, known in [*classes, ("Broker.clock", BrokerClock)]:
        for method, function in inspect.getmembers(known, inspect.isfunction):
            if not method.startswith("_"):
                yield f"{name}.{method}", function


def parameters() -> Iterator[tuple[str, inspect.Parameter]]:
    """Yield (name of the function, parameter)."""
    for name, function in functions():
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name != "self" and parameter.kind not in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            ):
                yield name, parameter


def commands() -> Iterator[tuple[str, Any]]:
    """Yield (name, option) for each option of each command."""
    tree = command_tree()
    for name in tree.list_commands(None):
        for option in tree.get_command(None, name).params:
            if any(spelled.startswith("-") for spelled in option.opts):
                yield name, option


def test_no_value_has_two_meanings() -> None:
    meanings = defaultdict(set)
    for meaning, words in VALUES.items():
        for word in words:
            meanings[word].add(meaning)
    assert {word: sorted(found) for word, found in meanings.items() if len(found) > 1} == {}
    names = {name.rpartition(".")[2] for name, _ in functions()}
    names |= {parameter.name for _, parameter in parameters()}
    names |= set(command_tree().list_commands(None))
    assert (names & set(meanings)) - set(SAME) == set()


def test_no_parameter_has_two_meanings() -> None:
    kinds = defaultdict(set)
    for name, parameter in parameters():
        kind = re.sub(r" \| None$", "", str(parameter.annotation))
        kind = re.sub(r" \| (Sequence|Iterable)\[.*", "", kind)
        for known, meaning in KINDS.items():
            kind = meaning if re.fullmatch(known, kind) else kind
        if kind != "any":
            kinds[parameter.name].add((kind, name))
    two = {word: found for word, found in kinds.items() if len({kind for kind, _ in found}) > 1}
    assert {word: found for word, found in two.items() if word not in OF_OTHERS} == {}


def test_no_option_of_a_command_has_two_meanings() -> None:
    letters = defaultdict(set)
    for _, option in commands():
        for spelled in option.opts:
            letters[spelled].add(option.metavar)
    two = {word for word, found in letters.items() if len(found) > 1}
    assert not two


def test_no_metric_or_setting_has_the_word_of_a_position() -> None:
    names = [*TOPIC_SETTINGS, *INSTANCE_SETTINGS]
    names += [known.name for known in vars(metrics).values() if isinstance(known, metrics.Metric)]
    names += [name for name, _ in functions()] + [parameter.name for _, parameter in parameters()]
    names += [spelled for _, option in commands() for spelled in option.opts]
    names += [*spark_options.READ, *spark_options.STREAM, *spark_options.WRITE]
    assert len(names) == len(set(names)) or len(names) > 400
    assert [name for name in names if "latest" in name or "earliest" in name] == []


# -------------------------------------------------------------- wrong words


def test_the_log_end_is_no_start_of_a_bounded_read(tmp_path: Path) -> None:
    with LogBuilder(tmp_path / "d").put("a", 1).put("a", 2).open() as logs:
        users = logs.topic("users")
        with pytest.raises(UsageError, match=r"(?s)no records.*newest\(\).*follow=True"):
            users.read("latest")
        with pytest.raises(UsageError, match=r"newest\(\)"):
            users.read(start="latest", end="latest")
        assert list(users.read(2)) == list(users.read({0: "latest"})) == []
        assert list(users.read("latest", follow=True, timeout=0.001)) == []
        assert [(r.offset, r.value) for r in users.newest()] == [(1, 2)]
        assert list(users.newest(["b"])) == [] and [r.value for r in users.newest(end=1)] == [1]
        with pytest.raises(UsageError, match="unknown view 'latest'; nearest: newest"):
            users.read(view="latest")  # type: ignore[arg-type]  # once the name of the view


def test_a_misspelled_parameter_is_found_before_a_setting(tmp_path: Path) -> None:
    with lastword.open(tmp_path / "d", "a") as logs:
        calls: dict[str, Callable[[], Any]] = {
            "value_serializer": lambda: logs.create_topic("t", value_serialiser="json"),  # type: ignore[call-overload]
            "key_serializer": lambda: logs.state("t", key_serialiser="json"),  # type: ignore[call-overload]
            "partitions": lambda: logs.state("t", partition=4),  # type: ignore[call-overload]
            "timeout": lambda: lastword.open(tmp_path / "d", timout=1),  # type: ignore[call-arg]
            "ttl": lambda: logs.state("t", ttl_ms=1),  # type: ignore[call-overload]
            "lastword_ttl_ms": lambda: logs.create_topic("t", ttl_ms=1),  # type: ignore[call-overload]
            "retention_ms": lambda: logs.create_topic("t", retention_m=1),  # type: ignore[call-overload]
        }
        for near, call in calls.items():
            with pytest.raises(UnknownSettingError, match=f"nearest: {near}$|nearest: {near}\n"):
                call()
        assert list(logs) == []


# -------------------------------------------------------------- times


def _timeout_of_open(path: Path, one: Any) -> float:
    clock = Clock()
    with lastword.open(path, "a"):
        before = clock.monotonic()
        with pytest.raises(LogDirLockedError):
            lastword.open(path, "a", timeout=one, clock=clock)
        return clock.monotonic() - before


def _timeout(call: str, **options: Any) -> Callable[[Path, Any], float]:
    """Return a function that reads until nothing has come for a time, and returns how long it took."""

    def probe(path: Path, one: Any) -> float:
        clock = Clock()
        with LogBuilder(path, clock).topic().open() as logs:
            before = clock.monotonic()
            with getattr(logs.topic("users"), call)(timeout=one, **options) as records:
                assert list(records) == []
            return clock.monotonic() - before

    return probe


def _timeout_of_an_asynchronous(call: str, **options: Any) -> Callable[[Path, Any], float]:
    def probe(path: Path, one: Any) -> float:
        LogBuilder(path).topic().open().close()

        async def timeout() -> Any:
            async with lastword.aopen(path, "a") as logs:
                return getattr(await logs.topic("users"), call)(timeout=one, **options)._timeout

        return float(asyncio.run(timeout()))

    return probe


def _age_of_the_lease(call: str, *positional: Any) -> Callable[[Path, Any], float]:
    def probe(path: Path, one: Any) -> float:
        with LogBuilder(path).topic().open() as logs:
            leasing = getattr(logs.topic("users"), call)(*positional, max_age=one)
            (lease,) = logs.topic("users").leases()
            if call == "watch":
                leasing.close()
            return (lease.lapses_ms - lease.advanced_ms) / 1000

    return probe


def _in_a_bucket(call: str, name: str) -> Callable[[Path, Any], float]:
    def probe(path: Path, one: Any) -> float:
        with lastword.open(path, "a") as logs, pytest.MonkeyPatch.context() as patch:
            given: list[int] = []
            method = "collect" if call == "collect" else "pin"
            patch.setattr(
                logs.dirs,
                method,
                lambda *positional, **named: given.extend((*positional, *named.values())),
                raising=False,
            )
            getattr(logs, call)(**{name: one})
            return given[0] / 1000

    return probe


def _remaining(call: str) -> Callable[[Path, Any], float]:
    """Return a function that gives a time to live to a value, and returns its rest in seconds."""

    def probe(path: Path, one: Any) -> float:
        with lastword.open(path, "a", clock=Clock(1_000_000)) as logs:
            state = logs.state("s", **({"ttl": one} if call == "state" else {"lastword_ttl_ms": 0}))
            state.set("a", 1, **({"ttl": one} if call == "set" else {}))
            if call == "touch":
                state.touch("a", ttl=one)
            return state.remaining("a") or 0

    return probe


def _remaining_of_an_asynchronous_state(call: str) -> Callable[[Path, Any], float]:
    async def remaining(path: Path, one: Any) -> float:
        async with lastword.aopen(path, "a", clock=Clock(1_000_000)) as logs:
            state = await logs.state("s", lastword_ttl_ms=0)
            await state.set("a", 1, **({"ttl": one} if call == "set" else {}))
            if call == "touch":
                await state.touch("a", ttl=one)
            return state.state.remaining("a") or 0

    return lambda path, one: asyncio.run(remaining(path, one))


def _timeout_of_the_cleaner(call: str, *positional: Any) -> Callable[[Path, Any], float]:
    def probe(path: Path, one: Any) -> float:
        with LogBuilder(path).topic().open() as logs, pytest.MonkeyPatch.context() as patch:
            given: dict[str, Any] = {}
            cleaner = logs.cleaner
            target = cleaner._scheduler if call == "stop" else cleaner._states
            patch.setattr(target, call, lambda *_, **named: given.update(named))
            getattr(cleaner, call)(*positional, timeout=one)
            return float(given["seconds"])

    return probe


def _delay_of_a_broker(path: Path, one: Any) -> float:
    with Broker(path) as broker:
        broker.delay("Fetch", one)
        return broker._interceptor._delays["Fetch"]


def _timeout_of_a_wait(path: Path, one: Any) -> float:
    with Broker(path) as broker, pytest.MonkeyPatch.context() as patch:
        now = iter((0.0, 0.999, 1.001))
        patch.setattr(
            "lastword.testing.broker.time", SimpleNamespace(monotonic=now.__next__, sleep=lambda _: None)
        )
        with pytest.raises(TimeoutError):
            broker.wait_for("users", 1, timeout=one)
        return 1.0 if next(now, None) is None else 0.0


def _time_of_a_broker(path: Path, one: Any) -> float:
    with Broker(path) as broker:
        broker.clock.advance(one)
        return broker.clock._ahead_ms / 1000


def _time_of_a_clock(path: Path, one: Any) -> float:
    clock = Clock(0)
    clock.advance(one)
    return clock.now_ms() / 1000


def _time_of_a_builder(path: Path, one: Any) -> float:
    clock = Clock(0)
    LogBuilder(path, clock).advance(one).open().close()
    return clock.now_ms() / 1000


TIMES: dict[str, Callable[[Path, Any], float]] = {
    "open timeout": _timeout_of_open,
    "Topic.read timeout": _timeout("read", follow=True),
    "AsyncTopic.read timeout": _timeout_of_an_asynchronous("read", follow=True),
    "Topic.lease max_age": _age_of_the_lease("lease", "reader"),
    "Topic.watch max_age": _age_of_the_lease("watch"),
    "Topic.watch timeout": _timeout("watch"),
    "AsyncTopic.watch timeout": _timeout_of_an_asynchronous("watch"),
    "LogDir.collect retention": _in_a_bucket("collect", "retention"),
    "LogDir.pin max_age": _in_a_bucket("pin", "max_age"),
    "State.set ttl": _remaining("set"),
    "State.touch ttl": _remaining("touch"),
    "LogDir.state ttl": _remaining("state"),
    "AsyncState.set ttl": _remaining_of_an_asynchronous_state("set"),
    "AsyncState.touch ttl": _remaining_of_an_asynchronous_state("touch"),
    "Cleaner.stop timeout": _timeout_of_the_cleaner("stop"),
    "Cleaner.pause timeout": _timeout_of_the_cleaner("pause", "users", 0),
    "Broker.delay time": _delay_of_a_broker,
    "Broker.wait_for timeout": _timeout_of_a_wait,
    "Broker.clock.advance time": _time_of_a_broker,
    "Clock.advance time": _time_of_a_clock,
    "LogBuilder.advance time": _time_of_a_builder,
}
"""For each public parameter that is a time: a function that returns the seconds of a given value."""

POINTS = {"timestamp", "date"}
"""Points in time: a datetime, or milliseconds since 1970, as in Kafka's records."""
OF_CLOCK = {
    "Clock.sleep seconds",
    "Clock.wait seconds",
    "Broker.clock.sleep seconds",
    "Broker.clock.wait seconds",
    "Broker.clock.move ms",
}
"""Methods that lastword calls."""


def test_each_time_is_in_the_table() -> None:
    times = set()
    for name, parameter in parameters():
        if "Duration" in str(parameter.annotation):
            times.add(f"{name} {parameter.name}")
        elif re.search(
            r"(?<!_per)(^|_)(ms|seconds?|minutes|timeout|age|delay|ttl|time|interval)$", parameter.name
        ):
            assert parameter.name in POINTS or f"{name} {parameter.name}" in OF_CLOCK, name
    assert times == set(TIMES)


@pytest.mark.usefixtures("frozen")  # `open` collects garbage before each attempt
@pytest.mark.parametrize("name", TIMES)
def test_one_is_one_second(tmp_path: Path, name: str) -> None:
    for number, one in enumerate((1, timedelta(seconds=1))):
        assert TIMES[name](tmp_path / str(number), one) == pytest.approx(1, abs=0.02), one


def test_one_is_one_second_in_commands_and_on_spark(tmp_path: Path) -> None:
    times = {
        spelled for _, option in commands() if option.metavar in ("TIME", "AGE") for spelled in option.opts
    }
    assert times == {"--timeout", "--every", "--max-age", "--retention", "--wait"}
    assert clean_command.interval_ms("1") == 1000
    root = str(tmp_path / "d")
    LogBuilder(root).put("a", 1).open().close()
    assert run(["lease", root, "users", "copy", "--advance", "0", "--max-age", "1"]) == 0
    with lastword.open(root) as logs:
        (lease,) = logs.topic("users").leases()
        assert lease.lapses_ms - lease.advanced_ms == 1000
    for name in ("leaseMaxAge", "commitTimeout"):
        assert {**spark_options.STREAM, **spark_options.WRITE}[name]("1") == 1000
    assert spark_options.STREAM["maxTriggerDelay"]("1") == 1, "Spark's unit"
    assert TOPIC_SETTINGS["retention.ms"].read("1") == TOPIC_SETTINGS["lastword.ttl.ms"].read(1) == 1
