"""Check the page by its requests: its numbers, who may read it, and what it reads. It changes nothing."""

from __future__ import annotations

import base64
import json
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import lastword
from lastword.api.logs import LogDir
from lastword.api.topics import create_topics
from lastword.cleaner.engine.cleaning import Steps
from lastword.clock import ManualClock
from lastword.console import app, reports
from lastword.console.app import BUCKET_POLL_SECONDS, POLL_SECONDS, Access, Guard
from lastword.console.reports import KEY_BYTES, VALUE_BYTES
from lastword.console.watch import MOST_SAMPLES, Samples, Watch
from lastword.files import OsFiles
from lastword.files.interface import Handle
from lastword.logdir import TopicPartition
from lastword.values import Progress
from tests.console import hostile, samples
from tests.console.http import PORT, ROUTES, TOKEN, Viewer, contents, rows, running, stream, viewing
from tests.fakes import RecordingFiles
from tests.server.client import Client, batch
from tests.support.exhaustive import stride

LOOKS = tuple(
    route
    for route in ROUTES
    if not route.startswith(("/api/t/users/", "/t/users/")) and "read=1" not in route
)
METHODS = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND")


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("console") / "data"
    samples.make(path)
    return path


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogDir]:
    """Yield an empty directory, open to append, without a background cleaner."""
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as opened:
        yield opened


def created(logs: LogDir, name: str, partitions: int = 1, **settings: Any) -> Any:
    """Make a topic of texts, compacted unless the settings say otherwise."""
    text = {"key_serializer": "str", "value_serializer": "str", "cleanup_policy": "compact"}
    return logs.create_topic(name, partitions, **{**text, **settings})


# ---------------------------------------------------------------- numbers


def same_as_json(viewer: Viewer, path: Path | str, capsys: Any, *, is_server: bool = False) -> None:
    """Compare the counted rows of each partition and segment with `ls --json`, and with --quick.

    The page of a server has the rewrites of segments from a garbage index that is not on disk yet.
    """
    index = dict.fromkeys(("generation", "survivorship")) if is_server else {}
    exact = {(row["topic"], row["partition"]): row for row in rows(capsys, "ls", str(path), kind="partition")}
    quick = rows(capsys, "ls", str(path), "--quick", kind="partition")
    quickly = {(row["topic"], row["partition"]): row for row in quick}
    for topic in viewer.get("/api/overview")["names"]:
        shown = viewer.get(f"/api/t/{topic}")
        sizes = [part["size_bytes"] for part in shown["partitions"]]
        assert (shown["row"]["partitions"], shown["row"]["size_bytes"]) == (len(sizes), sum(sizes))
        for part in shown["partitions"]:
            tp = topic, part["partition"]
            expected = exact[tp] if part["exact"] else quickly[tp]
            known = {name: part[name] for name in expected}
            if part["garbage_bytes"] is None:
                for name in ("live_bytes", "garbage_bytes", "records", "live_records", "tombstones"):
                    assert known[name] is None
                    known[name] = expected[name]
                known["exact"] = expected["exact"]
            assert known == expected
            segments = rows(
                capsys,
                *("ls", str(path), topic, "-p", str(tp[1]), "--segments"),
                *(() if part["exact"] else ("--quick",)),
                kind="segment",
            )
            if part["garbage_bytes"] is not None:
                assert [row | index for row in part["segment_rows"]] == [row | index for row in segments]
            else:
                sizes = [(row["base_offset"], row["size_bytes"]) for row in segments]
                shown = [(row["base_offset"], row["size_bytes"]) for row in part["segment_rows"]]
                assert shown == sizes


def test_every_number_is_that_of_json_beside_a_writer_and_a_cleaner(
    logs: LogDir, tmp_path: Path, capsys: Any
) -> None:
    draw, path = random.Random(1), tmp_path / "data"
    for name, policy in (("users", "compact"), ("events", "delete")):
        created(logs, name, 2, cleanup_policy=policy, segment_bytes="4KiB")
    with viewing(path) as viewer:
        for step in range(12):
            for name in ("users", "events"):
                logs[name].extend(
                    (f"k{draw.randrange(30)}", "v" * draw.randrange(90)) for _ in range(draw.randrange(60))
                )
            if step % 4 == 2:
                logs.clean("users")
            if step % 4 == 3:
                viewer.get("/api/t/users/count")
            same_as_json(viewer, path, capsys)
        viewer.get("/api/t/users/count")
        assert all(part["exact"] for part in viewer.get("/api/t/users")["partitions"])
        same_as_json(viewer, path, capsys)
        (row,) = [row for row in viewer.get("/api/overview")["topics"] if row["topic"] == "users"]
        (shown,) = rows(capsys, "ls", str(path), "users", "--by", "topic", kind="topic")
        assert {name: row[name] for name in shown} == shown
        logs["users"].append("k1", "newer")
        stale = viewer.get("/api/t/users")["row"]
        assert not stale["exact"] and stale["counted_ms"] <= stale["counted_ms"]


def test_reports_are_the_rows_of_the_commands(sample: Path, capsys: Any) -> None:
    path = str(sample)
    with viewing(sample) as viewer:
        records = viewer.get("/api/t/users/0/records?offset=900&limit=200")["records"]
        printed = rows(capsys, "read", path, "users", "-p", "0", "--start", "900", "-n", "200", kind="record")
        assert [{name: row[name] for name in printed[0]} for row in records] == printed
        for view in ("newest", "changes"):
            shown = viewer.get(f"/api/t/users/0/records?view={view}&limit=200")["records"]
            printed = rows(capsys, "read", path, "users", "-p", "0", "--view", view, kind="record")
            assert [{name: row[name] for name in printed[0]} for row in shown] == printed
        last = viewer.get("/api/t/users/1/records?limit=7")["records"]
        assert [row["offset"] for row in last] == [
            row["offset"]
            for row in rows(capsys, "read", path, "users", "-p", "1", "--last", "7", kind="record")
        ]
        before = viewer.get(f"/api/t/users/1/records?limit=7&before={last[0]['offset']}")["records"]
        assert len(before) == 7 and before[-1]["offset"] < last[0]["offset"]
        (found,) = viewer.get("/api/t/users/get?key=user-003")["records"]
        (printed_one,) = rows(capsys, "get", path, "users", "user-003", kind="record")
        assert {name: found[name] for name in printed_one} == printed_one
        versions = viewer.get("/api/t/users/explain?key=user-003")["versions"]
        printed = rows(capsys, "explain", path, "users", "--key", "user-003", kind="version")
        assert versions and versions == [{name: row[name] for name in versions[0]} for row in printed]
        plans = viewer.get("/api/t/users/plan")["plans"]
        printed = rows(capsys, "clean", path, "users", "--dry-run", "--due", kind="plan")
        assert [{name: row[name] for name in printed[0] if name != "now_ms"} for row in plans] == [
            {name: value for name, value in row.items() if name != "now_ms"} for row in printed
        ]
        aging = ("age_ms", "lag_ms", "abort")
        for name, kind in (("groups", "group"), ("transactions", "transaction")):
            shown = viewer.get(f"/api/{name}?read=1")[name]
            printed = rows(capsys, name, path, kind=kind)
            assert len(printed) > 0
            for mine, theirs in zip(shown, printed, strict=True):
                assert {k: v for k, v in mine.items() if k not in aging} == {
                    k: v for k, v in theirs.items() if k not in aging
                }


def test_records_from_a_time_and_of_internal_topics(sample: Path, capsys: Any) -> None:
    with viewing(sample) as viewer:

        def shown(topic: str, request: str) -> list[dict[str, Any]]:
            found = viewer.get(f"/api/t/{topic}/0/records?limit=200&{request}")["records"]
            return [{name: row[name] for name in printed[0]} for row in found]

        (first,) = viewer.get("/api/t/users/0/records?offset=900&limit=1")["records"]
        for start in (f"@{first['timestamp']}", "90m"):
            printed = rows(
                capsys, "read", str(sample), "users", "-p", "0", "--start", start, "-n", "200", kind="record"
            )
            assert printed and shown("users", f"offset={start}") == printed
        printed = rows(capsys, "read", str(sample), samples.GROUPS, kind="record")
        assert shown(samples.GROUPS, "offset=0") == printed
        texts = [row["key_text"] for row in viewer.get(f"/api/t/{samples.GROUPS}/0/records")["records"]]
        assert len(texts) == 3 and any("billing" in text and "users" in text for text in texts)


@pytest.mark.slow
def test_every_number_is_that_of_json_beside_a_server_under_load(tmp_path: Path, capsys: Any) -> None:
    """A page of another process and the page of the server; no record comes while they are compared."""
    path, ended, quiet = tmp_path / "data", threading.Event(), threading.Lock()
    text = {"key_serializer": "bytes", "value_serializer": "bytes", "segment_bytes": "16KiB"}
    with ExitStack() as stack:
        logs = stack.enter_context(lastword.open(path, "a", log_cleaner_enable=False))
        for name, policy in (("users", "compact"), ("events", "delete")):
            logs.create_topic(name, 2, cleanup_policy=policy, **text)
        server = stack.enter_context(lastword.serve(logs, "127.0.0.1:0"))
        beside, own = stack.enter_context(viewing(path)), stack.enter_context(viewing(logs))

        def produce(number: int) -> int:
            draw, count = random.Random(number), 0
            with Client(server) as client:
                while not ended.is_set():
                    records = [(b"k%d" % draw.randrange(200), draw.randbytes(90)) for _ in range(50)]
                    with quiet:
                        name = draw.choice(("users", "events"))
                        assert client.produce(name, batch(*records), partition=number % 2).error_code == 0
                    count += 1
                    time.sleep(0.005)  # else a thread that waits for the lock may not get it
            return count

        def clean() -> int:
            count = 0
            while not ended.wait(0.02):
                with quiet:
                    count += bool(logs.clean("users"))
            return count

        def look() -> int:
            count = 0
            with viewing(path) as viewer:
                while not ended.is_set():
                    assert len(viewer.get("/api/t/users")["partitions"]) == 2
                    assert viewer.get("/api/overview")["totals"]["topics"] == 2
                    count += 1
            return count

        with ThreadPoolExecutor(6) as pool, closing(SimpleNamespace(close=ended.set)):
            works = [*(pool.submit(produce, number) for number in range(4)), *map(pool.submit, (clean, look))]
            for _ in range(6):
                time.sleep(0.2)
                with quiet:
                    same_as_json(beside, path, capsys)
                    for name in ("users", "events"):
                        own.get(f"/api/t/{name}/count")
                    assert all(part["exact"] for part in own.get("/api/t/users")["partitions"])
                    same_as_json(own, path, capsys, is_server=True)
            ended.set()
            assert all(work.result(60) > 3 for work in works)


def test_the_server_cleans_and_the_page_shows_its_history(logs: LogDir, tmp_path: Path, capsys: Any) -> None:
    topic = created(logs, "users", segment_bytes="4KiB", lastword_strategy="kafka")
    topic.extend((f"k{i % 9}", "v" * 50) for i in range(600))
    with viewing(logs) as viewer:
        assert viewer.get("/api/t/users")["cleanings"] == []
        assert viewer.get("/api/overview")["mode"] == "a"
        logs.cleaner.background.scheduler.turn()
        (done,) = viewer.get("/api/t/users")["cleanings"]
        assert done["result"] == "ok" and done["round"]["freed_bytes"] > 0
        assert done == {**logs.cleaner.history()[0].to_dict()}
        assert len(viewer.get("/api/t/users")["samples"]) >= 2
        topic.extend((f"k{i % 9}", "newer") for i in range(50))
        (part,) = viewer.get("/api/t/users")["partitions"]
        (exact,) = rows(capsys, "ls", str(tmp_path / "data"), kind="partition")
        assert not part["exact"] and part["size_bytes"] == exact["size_bytes"]
        viewer.get("/api/t/users/count")
        (part,) = viewer.get("/api/t/users")["partitions"]
        assert {name: part[name] for name in exact} == exact


@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_a_cleaning_that_runs_is_shown_with_its_bytes(
    logs: LogDir, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    topic = created(logs, "users", segment_bytes="4KiB", lastword_strategy=strategy)
    topic.extend((f"k{i % 9}", "v" * 50) for i in range(600))
    with viewing(logs) as viewer:
        seen: list[dict[str, Any]] = []
        step = Steps.rewritten

        def stepped(steps: Steps, chunk_bytes: int) -> None:
            step(steps, chunk_bytes)
            [drive] = viewer.get("/api/overview")["drives"]
            assert drive["running"] == viewer.get("/api/t/users")["running"]
            seen.extend(drive["running"])

        monkeypatch.setattr(Steps, "rewritten", stepped)
        while logs.cleaner.background.scheduler.turn():
            pass
        assert viewer.get("/api/t/users")["running"] == []
        assert {(row["topic"], row["partition"]) for row in seen} == {("users", 0)}
        counted = [row for row in seen if row["total_bytes"]]
        assert counted and all(0 < row["done_bytes"] <= row["total_bytes"] for row in counted)


def test_a_generational_topic_is_due_if_a_drive_of_its_own_is_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of two directories is on a drive of its own; garbage is on the first."""
    monkeypatch.setattr(OsFiles, "device", lambda files, path: "second" in str(path))
    paths = [tmp_path / "first", tmp_path / "second"]
    with lastword.open(paths, "a", log_cleaner_enable=False, lastword_space_target=1.5) as logs:
        garbage = created(logs, "garbage", segment_bytes="4KiB")
        live = created(logs, "live", segment_bytes="4KiB")
        plain = created(logs, "plain", segment_bytes="4KiB", lastword_strategy="kafka")
        for topic, keys in ((garbage, 9), (live, 600), (plain, 9)):
            topic.extend((f"k{i % keys}", "v" * 50) for i in range(600))
        with viewing(logs) as viewer:
            for name in ("garbage", "live"):
                viewer.get(f"/api/t/{name}/count")
            found = viewer.get("/api/overview")
            assert [drive["is_above"] for drive in found["drives"]] == [False, False]  # one is not counted
            viewer.get("/api/t/plain/count")
            found = viewer.get("/api/overview")
            script = viewer.client.get("/static/console.js").text
    first, second = map(str, paths)
    above = {drive["drive"]: drive["is_above"] for drive in found["drives"]}
    assert above == {first: True, second: False}
    topics = {row["topic"]: row for row in found["topics"]}
    assert {name: row["drives"] for name, row in topics.items()} == {
        "garbage": [first],
        "live": [second],
        "plain": [first],
    }
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js to run the script of the page")
    rules = [line for line in script.splitlines() if line.startswith(("const isAbove =", "const rule ="))]
    shown = f"console.log(JSON.stringify({json.dumps(list(topics.values()))}.map(rule)))"
    program = "\n".join((f"const state = {{overview: {json.dumps(found)}}};", *rules, shown))
    printed = subprocess.run([node, "-e", program], capture_output=True, text=True, check=True).stdout
    assert dict(zip(topics, json.loads(printed), strict=True)) == {
        "garbage": "; due: the drive is above its space target",
        "live": "; due when the drive is above its space target",
        "plain": "",
    }


def test_a_step_that_the_cleaning_adds_while_the_page_reads_the_newest() -> None:
    class Steps(deque[Progress]):
        def __iter__(self) -> Iterator[Progress]:
            steps = super().__iter__()
            self.append(Progress.at("clean", 2, 9, 1.0))
            return steps

    tasks = {
        TopicPartition("users", 0): SimpleNamespace(
            steps=Steps([Progress.at("clean", 1, 9, 1.0)], maxlen=1), drive="/data"
        )
    }
    scheduler = SimpleNamespace(running=lambda: tasks)
    cleaner = SimpleNamespace(background=SimpleNamespace(scheduler=scheduler))
    watch = SimpleNamespace(logs=SimpleNamespace(mode="a", cleaner=cleaner))
    [row] = reports.running(cast("Watch", watch))
    assert (row["done_bytes"], row["total_bytes"]) == (1, 9)


def test_only_what_changed_is_sent(sample: Path, tmp_path: Path) -> None:
    shutil.copytree(sample, tmp_path / "data")
    with (
        viewing(tmp_path / "data") as viewer,
        lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs,
    ):
        first = viewer.get("/api/overview")
        again = viewer.get(f"/api/overview?since={first['version']}")
        assert again["topics"] == [] and again["names"] is None and again["version"] == first["version"]
        logs["events"].append("e", "more")
        changed = viewer.get(f"/api/overview?since={first['version']}")
        assert [row["topic"] for row in changed["topics"]] == ["events"]
        logs.delete_topic("events")
        assert "events" not in viewer.get(f"/api/overview?since={changed['version']}")["names"]
        assert viewer.get("/api/t/events", 404)["error"]


def test_a_log_in_a_bucket(capsys: Any) -> None:
    url = "memory://console/log"
    with lastword.open(url, "a", log_cleaner_enable=False) as logs:
        topic = created(logs, "users", 2)
        topic.extend((f"k{i % 9}", "v") for i in range(100))
        with lastword.open(url) as reading, viewing(reading) as viewer:
            assert viewer.page._seconds == BUCKET_POLL_SECONDS
            viewer.get("/api/t/users/count")
            same_as_json(viewer, url, capsys)
            topic.append("k1", "more")
            viewer.get("/api/overview")
            last = max(viewer.get(f"/api/t/users/{n}/records")["log_end"] for n in (0, 1))
            assert last == max(end for _, end in topic.bounds().values())
            assert viewer.get("/api/t/users/get?key=k1")["records"][0]["value"] == "more"


def test_samples_are_bounded_and_span_the_whole_time() -> None:
    kept = Samples()
    for number in range(10_000):
        kept.add(number, number, -1)
    times = [at for at, _, _ in kept]
    assert len(times) <= MOST_SAMPLES and times[0] == 0 and times[-1] == 9_999 and times == sorted(times)


# ---------------------------------------------------------------- nothing is changed, little is read


def test_no_request_changes_anything(sample: Path) -> None:
    before = contents(sample)
    with viewing(sample) as viewer:
        for route in ROUTES:
            assert viewer.client.get(route).status_code == 200, route
            assert viewer.client.head(route).status_code == 200, route
            for method in METHODS:
                answer = viewer.client.request(method, route, content=b"x")
                assert answer.status_code == 405 and answer.headers["allow"] == "GET, HEAD", (method, route)
    assert contents(sample) == before


class ReadFiles(OsFiles):
    """Files that count the bytes which are read of segments."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes_of_logs = 0

    def open_read(self, path: Any) -> Handle:
        handle = super().open_read(path)
        if str(path).endswith(".log"):
            pread = handle.pread

            def counted(*arguments: Any) -> bytes:
                data = pread(*arguments)
                self.read_bytes_of_logs += len(data)
                return data

            handle.pread = counted  # type: ignore[method-assign]
        return handle


def test_looking_reads_no_records(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with lastword.open(path, "a", log_cleaner_enable=False) as logs:
        created(logs, "users", segment_bytes="256KiB").extend((f"k{i}", "v" * 1000) for i in range(3000))
    files = ReadFiles()
    with lastword.open(path, files=files) as logs, viewing(logs) as viewer:
        for _ in range(3):
            for route in LOOKS:
                viewer.page._polled = -float("inf")
                assert viewer.client.get(route).status_code == 200
        looked = files.read_bytes_of_logs
        assert looked < 64 << 10
        viewer.get("/api/t/users/count")
        assert files.read_bytes_of_logs - looked > 2 << 20
        assert viewer.get("/api/t/users")["row"]["exact"]


@pytest.mark.slow
def test_the_page_beside_many_partitions(tmp_path: Path) -> None:
    """Counts, not a clock: calls of storage, Python functions, polls, and the bytes that are sent.

    500 partitions, and 2,000 in `make exhaustive`.
    """
    path, partitions = tmp_path / "data", 2_000 // stride(4)
    with lastword.open(path, "a", log_cleaner_enable=False) as logs:
        made = {f"t{name}": (100, {"cleanup.policy": "compact"}) for name in range(partitions // 100)}
        create_topics(logs.dirs, made)
        for name in made:
            value = bytes(20_000 if name == "t0" else 20)
            logs[name].extend((b"k%d" % (i % 300), value) for i in range(1000))
    clock, files = ManualClock(1_800_000_000_000), RecordingFiles(OsFiles())
    with lastword.open(path, files=files, clock=clock) as logs, viewing(logs) as viewer:
        get, watch = viewer.client.get, viewer.page.watch
        for turn in range(2):  # 50 viewers, twice
            clock.advance(int(2000 * POLL_SECONDS))
            answers = [get("/api/overview") for _ in range(50)]
            assert watch.polls == turn + 1
            assert {len(answer.content) for answer in answers} == {len(answers[0].content)}
        assert answers[0].json()["totals"]["partitions"] == partitions
        assert len(answers[0].content) < 64 << 10  # it has the rows of topics
        assert files.count("pread") <= 8 * partitions  # headers, no records: t0 alone has 20 MB
        read_bytes = sum(call.detail[0] for call in files.calls if call.name == "pread")
        assert read_bytes < 22_000 * 100 + 2_000 * (partitions - 100)  # each of t0 has 200 KB
        version, files.calls = watch.version, []
        called = calls_in(watch.poll)
        assert watch.version == version
        assert files.count("listdir") == files.count("pread") == files.count("open_read") == 0
        assert len(files.calls) <= 6 * partitions + 100
        assert called <= 80 * partitions
        files.calls = []
        assert len(get(f"/api/overview?since={version}").content) < 2_000
        assert calls_in(lambda: reports.overview(watch, version)) <= 5 * partitions
        assert len(files.calls) <= 20  # of the directory, and none of a partition


def calls_in(work: Callable[[], object]) -> int:
    """Return how many functions of Python a call calls, in this thread."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_fifty_viewers_are_one_poll_and_without_viewers_there_is_none(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastword.console.app.POLL_SHARE", 100.0)  # a slow machine would poll less often
    with lastword.open(sample) as logs, running(logs, 0.2, monkeypatch) as console:
        viewers = [stream(console) for _ in range(50)]
        for viewer in viewers:
            received = b""
            while b"data:" not in received:
                received += viewer.recv(4096)
        assert console._page is not None
        watch, begun, at = console._page.watch, console._page.watch.polls, time.monotonic()
        time.sleep(1.0)
        assert 1 <= watch.polls - begun <= (time.monotonic() - at) / 0.2 + 1
        for viewer in viewers:
            viewer.close()
        deadline = time.monotonic() + 30
        while console._page.viewers and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        begun = watch.polls
        time.sleep(0.7)
        assert watch.polls == begun and console._page.viewers == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "lastword-console"]


def test_a_long_read_shows_its_progress_and_ends_when_its_viewer_goes_away(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def count(self: Any, topic: str, partition: int | None, progress: Any) -> None:
        try:
            for done in range(1000):
                progress(Progress.at("count", done, 1000, 1.0))
                time.sleep(0.02)
        finally:
            ended.set()

    monkeypatch.setattr(Watch, "count", count)
    with lastword.open(sample) as logs, running(logs, 0.2, monkeypatch) as console:
        viewer, reader = stream(console), stream(console, "/api/t/users/count")
        received = b""
        while b'"total_bytes": 1000' not in received:
            received += viewer.recv(4096)
        assert not ended.is_set()
        reader.close()
        assert ended.wait(20)
        while not received.rstrip().endswith(b'"read": null, "poll_seconds": 0.2}'):
            received += viewer.recv(4096)
        viewer.close()


def wait_for_polls(watch: Watch, count: int) -> None:
    begun, deadline = watch.polls, time.monotonic() + 20
    while watch.polls < begun + count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_poll_that_fails_is_logged_once_and_polls_go_on(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data"
    shutil.copytree(sample, path)
    with lastword.open(path) as logs, running(logs, 0.05, monkeypatch) as console, stream(console) as viewer:
        received = viewer.recv(4096)
        assert console._page is not None
        path.rename(tmp_path / "elsewhere")
        wait_for_polls(console._page.watch, 3)
        while b"data does not exist" not in received:  # else viewers take old figures for live ones
            received += viewer.recv(4096)
        (tmp_path / "elsewhere").rename(path)
        while b'"failed": ""' not in received.partition(b"does not exist")[2]:
            received += viewer.recv(4096)
        wait_for_polls(console._page.watch, 2)
    warned = [record.getMessage() for record in caplog.records if record.name == "lastword.console"]
    assert len(warned) == len(set(warned)) >= 1 and "data" in warned[0]


def test_polls_take_a_share_of_a_core(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with viewing(sample) as viewer:
        viewer.get("/api/overview")
        monkeypatch.setattr(time, "thread_time", iter([0.0, 0.3]).__next__)
        viewer.get("/api/overview")
        assert viewer.page._seconds == pytest.approx(24.0)


# ---------------------------------------------------------------- who may read


def test_token(sample: Path) -> None:
    with viewing(sample, headers={}) as viewer:
        get = viewer.client.get
        assert (
            get("/").status_code
            == get("/api/overview").status_code
            == get("/static/console.js").status_code
            == 401
        )
        assert get("/?token=wrong").status_code == 401
        answer = get("/t/users?token=secret&offset=3")
        assert answer.status_code == 303 and answer.headers["location"] == "/t/users?offset=3"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "secret" in cookie
        assert get("/api/overview").status_code == 200  # the client keeps the cookie
        assert "secret" not in get("/").text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": f"localhost:{PORT}"}, 200),
        ({"host": f"127.0.0.1:{PORT}", "origin": f"http://127.0.0.1:{PORT}"}, 200),
        ({"host": f"[::1]:{PORT}"}, 200),
        ({"host": "evil.example"}, 421),
        ({"host": f"evil.example:{PORT}"}, 421),
        ({"host": f"127.0.0.1.evil.example:{PORT}"}, 421),
        ({"host": "127.0.0.1:1"}, 421),
        ({"host": ""}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": f"http://localhost:{PORT}"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
    ],
)
def test_host_and_origin(sample: Path, headers: dict[str, str], status: int) -> None:
    with viewing(sample) as viewer:
        assert viewer.client.get("/api/quarantine", headers=headers).status_code == status


def test_each_route_is_guarded_and_each_answer_has_the_headers(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "DENIED_SECONDS", 0.0)
    routes = (*ROUTES, "/api/events")
    refused = {
        401: {},
        403: {**TOKEN, "origin": "http://evil.example"},
        421: {**TOKEN, "host": f"evil.example:{PORT}"},
    }
    with viewing(sample, headers={}) as viewer:
        known = [cast(Route, route) for route in viewer.page.app.routes]
        assert [
            r.path for r in known if not any(r.path_regex.match(x.partition("?")[0]) for x in routes)
        ] == []
        for route in (*routes, "/nothing", "/static/nothing", "/api/t/nothing", "/api/t/users/9/records"):
            answers = {status: viewer.client.get(route, headers=given) for status, given in refused.items()}
            assert {answer.status_code for answer in answers.values()} == set(refused), route
            assert not any("users" in answer.text or "secret" in answer.text for answer in answers.values())
            answers[405] = viewer.client.post(route, headers=TOKEN)
            answers[200] = viewer.client.head(route, headers=TOKEN)  # events have no end
            for status, answer in answers.items():
                for name, value in app.SAFE_HEADERS.items():
                    assert answer.headers.get_list(name) == [value], (route, status, name)


def test_a_browser_leaves_out_the_default_port() -> None:
    client = TestClient(Guard(PlainTextResponse("page"), Access(token="secret"), 80), headers=TOKEN)
    for host, status in (("localhost", 200), ("[::1]", 200), ("127.0.0.1:80", 200), ("evil.example", 421)):
        answer = client.get("/", headers={"host": host})
        assert answer.status_code == status
    assert "ssh -L 80:127.0.0.1:80" in answer.text  # the remedy


def test_with_tls_the_certificate_names_the_server() -> None:
    access = Access(token="secret", tls={"ssl_certfile": "cert.pem"})
    client = TestClient(Guard(PlainTextResponse("page"), access, PORT), headers=TOKEN)
    for host in ("log.example", f"log.example:{PORT}", "proxy.example:443"):
        assert client.get("/", headers={"host": host}).status_code == 200
        assert client.get("/", headers={"host": host, "origin": f"https://{host}"}).status_code == 200
        assert client.get("/", headers={"host": host, "origin": "https://evil.example"}).status_code == 403


def test_users(sample: Path) -> None:
    calls = []

    def login(name: str, password: str) -> bool:
        calls.append(name)
        return (name, password) == ("ada", "a:b")

    def basic(text: str) -> dict[str, str]:
        return {"authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}

    with viewing(sample, Access(token="secret", login=login), {}) as viewer:
        get = viewer.client.get
        assert get("/").status_code == 401 and get("/").headers["www-authenticate"].startswith("Basic")
        assert get("/?token=secret").status_code == 401
        assert get("/", headers=basic("ada:wrong")).status_code == 401
        assert get("/", headers={"authorization": "Basic !"}).status_code == 401
        assert [get("/", headers=basic("ada:a:b")).status_code for _ in range(3)] == [200] * 3
        assert calls == ["ada", "ada"]  # a password that was right is not computed again


def test_headers_and_sizes(sample: Path) -> None:
    with viewing(sample) as viewer:
        parts = [viewer.client.get(path) for path in ("/", "/static/console.css", "/static/console.js")]
        page = parts[0]
        policy = page.headers["content-security-policy"]
        assert (
            "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        )
        assert (
            page.headers["x-content-type-options"] == "nosniff"
            and page.headers["referrer-policy"] == "no-referrer"
        )
        assert page.headers["cache-control"] == "no-store"
        assert (
            "style=" not in page.text
            and "onclick" not in page.text
            and "http" not in page.text.replace("http-equiv", "")
        )
        assert sum(len(part.content) for part in parts) < 100_000
        script = parts[2].text
        assert not any(
            word in script
            for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(")
        )


# ---------------------------------------------------------------- hostile records and requests


def test_hostile_records_are_text_and_cut(sample: Path) -> None:
    with viewing(sample) as viewer:
        answer = viewer.client.get("/api/t/hostile/0/records")
        assert len(answer.content) < 64 << 10 and answer.headers["content-type"] == "application/json"
        by_offset = {row["offset"]: row for row in answer.json()["records"]}
        assert by_offset[0]["key_text"] == "<script>alert(1)</script>"
        assert (
            by_offset[1]["key_text"] == "\\x00\\x1b[31m\\u202e\\u2066end"
            and by_offset[1]["key_text"].isprintable()
        )
        assert by_offset[2]["key_bytes"] == 1 << 20 and len(by_offset[2]["key_text"]) == KEY_BYTES + 1
        assert (
            by_offset[3]["value_bytes"] == (20 << 20) + 3
            and len(by_offset[3]["value_text"]) == VALUE_BYTES + 1
        )
        large = viewer.client.get("/api/t/hostile/get?key=large")
        assert len(large.content) < 16 << 10 and large.json()["records"][0]["value_bytes"] > 20 << 20


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/t/nothing", 404),
        ("/api/t/users/9/records", 400),
        ("/api/t/users/x/records", 400),
        ("/api/t/users/0/records?offset=x", 400),
        ("/api/t/users/0/records?view=oldest", 400),
        ("/api/t/users/0/records?limit=-1", 400),
        ("/api/t/users/0/records?offset=99999999999999999999", 200),
        ("/api/t/users/0/records?before=99999999", 200),
        ("/api/t/users/count?partition=9", 400),
        ("/api/overview?since=%00", 400),
        ("/api/t/..%2f..%2fetc/count", 404),
        ("/api/t/users/explain?key=%ff%00", 200),
        ("/static/..%2fapp.py", 404),
        ("/static/console.html", 404),
        ("/nothing", 404),
    ],
)
def test_wrong_requests(sample: Path, path: str, status: int) -> None:
    with viewing(sample) as viewer:
        answer = viewer.client.get(path)
        assert answer.status_code == status, answer.text
        assert "Traceback" not in answer.text


@pytest.mark.slow
def test_hostile_requests_beside_a_viewer() -> None:
    assert "300 requests" in hostile.run(300, seed=3)


def test_connections_without_a_request_do_not_shut_out_viewers(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "REQUEST_SECONDS", 0.5)
    with (
        lastword.open(sample) as logs,
        running(logs, 0.2, monkeypatch) as console,
        stream(console) as viewer,
        ExitStack() as stack,
    ):
        assert b"200 OK" in viewer.recv(100)
        at = "127.0.0.1", console._port
        idle = [stack.enter_context(socket.create_connection(at)) for _ in range(app.MOST_CONNECTIONS + 20)]
        for connection in idle[::2]:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.")
        answer, deadline = b"", time.monotonic() + 20
        while b" 200 OK" not in answer and time.monotonic() < deadline:
            with suppress(OSError), stream(console, "/api/quarantine") as connection:
                answer = connection.recv(100)
            time.sleep(0.1)
        assert b" 200 OK" in answer
        assert console._page is not None and console._page.viewers == 1  # its connection answers, and stays


def test_a_directory_that_goes_away_is_an_error_with_a_remedy(sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(sample, path)
    with viewing(path) as viewer:
        viewer.get("/api/overview")
        path.rename(tmp_path / "elsewhere")
        gone = viewer.get("/api/overview", 503)
        assert "data" in gone["error"]
        (tmp_path / "elsewhere").rename(path)
        assert viewer.get("/api/overview")["totals"]["topics"] == 7


def test_a_partition_that_goes_away_is_not_counted_any_more(sample: Path, tmp_path: Path) -> None:
    """A partition moves, or its drive fails: the others of its topic are as before."""
    path = tmp_path / "data"
    shutil.copytree(sample, path)
    with viewing(path) as viewer:
        before = viewer.get("/api/t/events")
        shutil.rmtree(path / "events-1")
        assert [part["partition"] for part in viewer.get("/api/t/events")["partitions"]] == [0, 2]
        (row,) = viewer.get(f"/api/overview?since={before['version']}")["topics"]
        left = before["row"]["size_bytes"] - before["partitions"][1]["size_bytes"]
        assert (row["topic"], row["partitions"], row["size_bytes"]) == ("events", 2, left)


def test_a_damaged_partition_is_named_and_the_others_are_shown(sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(sample, path)
    (path / "events-1" / "00000000000000000000.log").unlink()
    (path / "events-1" / "00000000000000000000.log").mkdir()
    with viewing(path) as viewer:
        damaged = [(row["topic"], row["partition"]) for row in viewer.get("/api/quarantine")["partitions"]]
        assert ("events", 1) in damaged and ("payments", 0) in damaged
        assert viewer.get("/api/overview")["totals"]["partitions"] == 10
        assert len(viewer.get("/api/t/events")["partitions"]) == 3
