"""Each invariant, broken by hand, is found; sound logs have no problems."""

import struct
from pathlib import Path

import pytest

import lastword
from lastword.clock import SystemClock
from lastword.files import DEFAULT, OsFiles
from lastword.keys import index
from lastword.keys.run import BLOCK_BYTES
from lastword.segment import names
from lastword.tools.verify import verify
from lastword.wire import HEADER_BYTES
from tests.api.conftest import tree_digest
from tests.golden.loader import case

SETTINGS = {"index_interval_bytes": 200, "segment_bytes": 2000, "log_cleaner_enable": False}


@pytest.fixture
def data(tmp_path):
    with lastword.open(tmp_path / "data", "a", **SETTINGS) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        for number in range(60):
            topic.append(b"key %d" % (number % 7), b"v" * 50, timestamp=1000 + number)
    return tmp_path / "data"


def problems(data, **options):
    before = tree_digest(data)
    with lastword.open(data) as logs:
        verification = logs.verify(**options)
    assert tree_digest(data) == before
    assert verification.ok == (not verification.problems)
    return [(Path(p.file).name, p.code, p.repairable) for p in verification.problems]


def change(path, position, data):
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def files(data, extension):
    return sorted((data / "t-0").glob(f"*{extension}"))


def test_sound(data):
    assert problems(data) == []
    with lastword.open(data) as logs:
        verification = logs.verify()
        assert (verification.batches, verification.records) == (60, 60)
        assert verification.read_bytes == sum(path.stat().st_size for path in files(data, ".log"))
        assert logs.verify("t", quick=True).records == 60
    with lastword.open(data, "a") as logs:
        logs.clean()
        assert logs.verify().ok and logs.verify().records == 7


def test_a_bad_checksum_in_every_segment(data):
    for path in files(data, ".log"):
        change(path, 70, b"\xff")
    assert problems(data) == [(path.name, "bad-crc", False) for path in files(data, ".log")]
    assert problems(data, quick=True) == []


WITNESSES = (".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "t-0/lastword/synced")


@pytest.mark.parametrize("left", [(), WITNESSES[:1], WITNESSES[1:2], WITNESSES[2:], WITNESSES[1:]])
@pytest.mark.parametrize(("segment", "position"), [(0, 8), (0, 90), (1, 90), (1, 8), (-1, 90)])
def test_the_remedy_says_if_an_opening_would_cut_the_log(data, left, segment, position):
    """Without a witness, invalid bytes are the torn end of a crash, and everything after them is cut off."""
    with lastword.open(data, "a", **SETTINGS) as logs:
        logs.sync()
    for name in {*WITNESSES} - {*left}:
        (data / name).unlink(missing_ok=True)
    path = files(data, ".log")[segment]
    change(path, position, b"\x7f\x7f\x7f\x7f")
    size = sum(path.stat().st_size for path in files(data, ".log"))
    with lastword.open(data) as logs:
        verification = logs.verify()
    announced = {cut.file: cut.left_bytes for cut in verification.cuts}
    warned = any("cuts off" in problem.remedy for problem in verification.problems)
    try:
        with lastword.open(data, "a", **SETTINGS) as logs:
            logs.topic("t").bounds()
    except lastword.errors.DataError:
        pass
    cut = sum(path.stat().st_size for path in files(data, ".log")) < size - 10
    assert warned == cut == bool(announced), (announced, size)
    for file, left in announced.items():
        assert left == (Path(file).stat().st_size if Path(file).exists() else None)


@pytest.mark.parametrize(
    ("extension", "place", "damage", "code", "repairable"),
    [
        (".log", -1, lambda path: path.write_bytes(path.read_bytes()[:-10]), "wrong-log-end", False),
        (".log", 0, lambda path: path.write_bytes(path.read_bytes()[:-10]), "incomplete-batch", False),
        (".log", 1, lambda path: change(path, 0, struct.pack(">q", 3)), "offsets-fall", False),
        (".log", 0, lambda path: path.write_bytes(path.read_bytes() * 2), "offsets-fall", False),
        *((".log", place, Path.unlink, "missing-log", False) for place in (0, 1, -1)),
        (".snapshot", 0, lambda path: change(path, 3, b"\xff"), "bad-snapshot", True),
    ],
    ids=[
        "the end of a log that was stopped cleanly is no torn tail",
        "the end of a closed segment",
        "an offset outside the checksum",
        "a segment twice",
        *("a log whose index is there, first", "second", "last"),
        "a snapshot",
    ],
)
def test_damage_of_a_segment(data, extension, place, damage, code, repairable):
    path = files(data, extension)[place]
    damage(path)
    assert (path.name, code, repairable) in problems(data)


def test_a_torn_tail_is_repaired_by_opening(data):
    """As after a kill: no marker of a clean stop, and no record that the last batch was synced."""
    for name in (names.CLEAN_SHUTDOWN, names.RECOVERY_POINTS):
        (data / name).unlink()
    (data / "t-0" / names.PRIVATE / names.SYNCED).unlink()
    path = files(data, ".log")[-1]
    path.write_bytes(path.read_bytes()[:-10])
    problem_rows = problems(data)
    assert (path.name, "incomplete-batch", True) in problem_rows and all(
        repairable for *_, repairable in problem_rows
    )
    with lastword.open(data, "a") as logs:
        logs.topic("t").append(b"k", b"v")
    assert problems(data) == []


def test_wrong_indexes(data):
    index, times = files(data, ".index")[0], files(data, ".timeindex")[0]
    offset, position = struct.unpack(">ii", index.read_bytes()[:8])
    change(index, 0, struct.pack(">ii", offset, position - 1))
    assert problems(data) == [(index.name, "bad-index", True)]
    change(index, 0, struct.pack(">ii", offset, position))
    timestamp, offset = struct.unpack(">qi", times.read_bytes()[:12])
    change(times, 0, struct.pack(">qi", timestamp - 1, offset))
    assert problems(data) == [(times.name, "bad-time-index", True)]
    change(times, 0, struct.pack(">qi", timestamp, offset))
    index.write_bytes(index.read_bytes() + b"\xff" * 8)
    assert problems(data) == [(index.name, "bad-index", True)]
    index.unlink()
    times.unlink()
    assert problems(data) == [(index.name, "missing-index", True), (times.name, "missing-index", True)]


@pytest.mark.parametrize("kernel_bytes", [-1, 1 << 40])
def test_records_that_do_not_decode(data, monkeypatch, kernel_bytes):
    from google_crc32c import value as crc32c

    path = files(data, ".log")[0]
    content = bytearray(path.read_bytes())
    size = struct.unpack_from(">i", content, 8)[0] + 12
    content[HEADER_BYTES] = 0x7F  # the first record's length
    struct.pack_into(">I", content, 17, crc32c(bytes(content[21:size])))
    path.write_bytes(content)
    monkeypatch.setattr("lastword.tools.verify_log.KERNEL_BYTES", kernel_bytes)
    assert problems(data) == [(path.name, "bad-record", False)]


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "cleaner-offset-checkpoint"])
def test_checkpoints(data, name):
    (data / name).write_text("0\n1\nt 0 61\n")
    assert problems(data) == [(name, "checkpoint-out-of-range", True)]
    (data / name).write_text("0\n2\nt 0 6\n")
    assert problems(data) == [(name, "bad-checkpoint", True)]
    (data / name).write_text("0\n1\nelsewhere 0 999\n")
    assert problems(data) == []


def repair(root):
    """Follow the remedies of the problems: remove the files that they name, then open the log to append."""
    with lastword.open(root) as logs:
        problems = logs.verify().problems
    assert problems and all(problem.repairable for problem in problems)
    for path in {problem.remove for problem in problems} - {None}:
        Path(path).unlink()
    with lastword.open(root, "a", **SETTINGS) as logs:
        for topic in logs.topics():
            logs.topic(topic.name).append(b"k", b"v", partition=0)


@pytest.mark.parametrize("damage", ["overwritten", "cut", "longer"])
@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("extension", [".index", ".timeindex", ".snapshot"])
def test_small_files_are_repaired_as_the_problem_says(data, extension, place, damage):
    """Also for closed segments, which opening does not check."""
    path = files(data, extension)[place]
    content = path.read_bytes()
    damaged = {"overwritten": b"\xff" * len(content), "cut": content[:-3], "longer": content + b"xyz"}
    path.write_bytes(damaged[damage])
    repair(data)
    assert problems(data) == []


@pytest.mark.parametrize("damaged", [b"\xff" * 34, b""])
def test_the_transaction_index_of_a_closed_segment_is_repaired_as_the_problem_says(tmp_path, damaged):
    path = sorted(case("tx-compact-dr0").unpack(tmp_path).glob("round1-before/*/*.txnindex"))[0]
    path.write_bytes(damaged)
    repair(path.parent.parent)
    assert problems(path.parent.parent) == []


@pytest.mark.parametrize("name", ["log-start-offset-checkpoint", "recovery-point-offset-checkpoint"])
def test_a_damaged_checkpoint_is_repaired_by_opening(data, name):
    (data / name).write_text("0\n2\nt 0 6\n")
    repair(data)
    assert problems(data) == []


def test_one_topic_or_partition(data):
    with lastword.open(data, "a") as logs:
        logs.create_topic("other", 2).append(b"k", b"v", partition=1)
    change(files(data, ".log")[0], 70, b"\xff")
    with lastword.open(data) as logs:
        assert not logs.verify().ok
        assert logs.verify("other").ok and logs.verify("other", 1).records == 1
        assert not logs.verify("t", 0).ok


SOUND = [
    "compact-none-dr0",
    "compact-lz4-retain",
    "compact-logappend-dr0",
    "dir-clean",
    "dir-killed",
    "md5-collision",
    "offset-gap",
    "tx-compact-dr0",
    "tx-rolled-by-time",
    "v2-big",
    "v2-mixed",
    "v2-zstd",
]


@pytest.mark.parametrize("name", SOUND)
def test_what_kafka_wrote_is_sound(tmp_path, name):
    root = case(name).unpack(tmp_path)
    checked = 0
    for directory in sorted({path.parent for path in root.rglob("*.log")}):
        parsed = names.parse_partition_dir(directory.name)
        if parsed is not None and not parsed.marker:
            verification = verify(
                DEFAULT, [str(directory.parent)], [(parsed.topic, parsed.partition, str(directory))]
            )
            assert verification.problems == ()
            checked += verification.batches
    assert checked


class Beside(OsFiles):
    """Files that let `change` change the log just before the first operation for which `when` holds."""

    def __init__(self, when, change):
        super().__init__()
        self.when, self.change = when, change

    def _before(self, *operation):
        if self.when is not None and self.when(*operation):
            self.when = None
            self.change()

    def open_read(self, path):
        self._before("open", str(path))
        return super().open_read(path)

    def read_bytes(self, path):
        self._before("open", str(path))
        return super().read_bytes(path)

    def stat(self, path):
        self._before("stat", str(path))
        return super().stat(path)


class Writing(SystemClock):
    """A clock in whose pauses the writer of the log continues."""

    def __init__(self, work=lambda: None):
        self.work, self.pauses = work, 0

    def sleep(self, seconds):
        self.pauses += 1
        self.work()


def test_a_small_file_that_is_removed_in_every_attempt_is_no_problem(data):
    """A server writes and removes snapshots of its producers while the directory is verified."""
    epochs = data / "t-0" / names.LEADER_EPOCHS
    beside = Beside(None, lambda: epochs.unlink(missing_ok=True))
    for call in range(6):

        def again(call=call):
            epochs.write_text("0\n1\n0 0\n")
            left = iter(range(call))
            beside.when = lambda _, path: path == str(epochs) and next(left, None) is None

        again()
        assert verified(data, beside, Writing(again)).problems == ()


def first_use_of_an_index(call, path):
    return path.endswith(".timeindex")


def verified(data, files, clock):
    return verify(files, [str(data)], [("t", 0, str(data / "t-0"))], clock=clock)


@pytest.mark.parametrize("change", ["roll and clean", "trim", "append and roll", "truncate"])
def test_a_writer_beside_it_raises_no_alarm(data, change):
    """The index of a segment is read after the segment was replaced or removed."""
    with lastword.open(data, "a", file_delete_delay_ms=0, **SETTINGS) as logs:
        topic = logs.topic("t")

        def changes():
            if change == "trim":
                logs.topic("t").trim(40)
                logs.dirs.log("t", 0).remove_deferred()
            elif change == "truncate":
                logs.dirs.log_dir("t", 0).truncate("t", 0, 3)
            else:
                topic.append(b"key 0", b"new")
                topic.append(b"key 1", None)
                logs.dirs.log("t", 0).roll()
                if "clean" in change:
                    logs.clean()

        def last_use_of_an_index(call, path):
            return path == str(files(data, ".timeindex")[-1])

        for when in (first_use_of_an_index, last_use_of_an_index):
            beside = Beside(when, changes)
            verification = verified(data, beside, Writing())
            assert beside.when is None and verification.problems == ()


@pytest.mark.parametrize("number", [0, 2])
def test_a_missing_index_is_named_beside_a_writer_that_rolls(data, number):
    index = files(data, ".index")[number]
    with lastword.open(data, "a", **SETTINGS) as logs:
        logs.topic("t").append(b"k", b"v")
        index.unlink()
        clock = Writing(lambda: [logs.topic("t").append(b"k", b"v" * 50) for _ in range(10)])
        verification = verified(data, OsFiles(), clock)
        assert [(Path(p.file).name, p.code) for p in verification.problems] == [(index.name, "missing-index")]
        assert clock.pauses > 1


def test_a_missing_index_of_a_log_without_a_writer_is_checked_twice(data):
    files(data, ".index")[0].unlink()
    clock = Writing()
    assert len(verified(data, OsFiles(), clock).problems) == 1
    assert clock.pauses == 1


# ---------------------------------------------------------------- identity, names, epochs, private files


def test_damaged_identity_files(data):
    meta, topic = data / "meta.properties", data / "t-0" / "partition.metadata"
    before = meta.read_bytes(), topic.read_bytes()
    for text in (b"", b"version=1\n", before[0].replace(b"node.id=1", b"node.id=x"), before[0][:20]):
        meta.write_bytes(text)
        assert problems(data) == [("meta.properties", "bad-properties", False)]
    meta.write_bytes(before[0])
    for text in (b"", b"version: 1" + before[1][10:], before[1][:-3]):
        topic.write_bytes(text)
        assert set(problems(data)) == {("partition.metadata", "bad-properties", False)}
    topic.write_bytes(before[1])
    assert problems(data) == []


def test_partitions_of_a_topic_with_different_ids(tmp_path):
    with lastword.open(tmp_path / "d", "a", log_cleaner_enable=False) as logs:
        logs.create_topic("t", partitions=3)
    path = tmp_path / "d" / "t-1" / "partition.metadata"
    text = path.read_bytes()
    path.write_bytes(text[:-1] + (b"A" if text[-1:] != b"A" else b"B"))
    with lastword.open(tmp_path / "d") as logs:
        problems = logs.verify().problems
    assert {p.file for p in problems if p.code == "topic-id"} == {str(path)}


def test_a_leader_epoch_that_the_log_contradicts(data):
    path = data / "t-0" / "leader-epoch-checkpoint"
    assert path.read_text() == "0\n1\n0 0\n"
    for text in ("0\n1\n1 0\n", "0\n1\n0 7\n", "0\n2\n0 0\n1 30\n", "0\n2\n1 0\n0 70\n"):
        path.write_text(text)
        assert [(name, code) for name, code, _ in problems(data)] == [(path.name, "bad-epochs")], text


def private(data, name, content):
    path = data / "t-0" / "lastword" / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "code", "repairable", "remedy"),
    [
        ("lease-replica", "bad-lease", False, "lease {data} t replica --release`"),
        ("dropped-tombstones", "bad-removal-log", False, "restore the file from a copy"),
        ("quarantine", "bad-quarantine", False, "clean {data} t -p 0 --retry"),
        ("survivorship", "bad-survivorship", True, "rm {path}, then open it to write"),
        ("garbage-summary", "bad-garbage-summary", True, "rm {path}, then open it to write"),
        ("log-start", "bad-note", True, "rm {path}, then open it to write"),
        ("moved-from", "bad-note", True, "rm {path}, then open it to write"),
        ("copied", "bad-note", True, "rm {path}, then open it to write"),
        ("accounts", "bad-accounts", True, "rm {path}, then open it to write"),
        ("keys", "bad-key-index", True, "rm {path}, then open it to write"),
        ("synced", "bad-synced", True, "rm {path}, then open it to write"),
    ],
)
def test_a_damaged_private_file_is_named_with_its_remedy(data, name, code, repairable, remedy):
    path = private(data, name, b"lastword 1 damaged\n{}")
    with lastword.open(data) as logs:
        (problem,) = logs.verify().problems
    assert (problem.file, problem.code, problem.repairable) == (str(path), code, repairable)
    assert remedy.format(data=data, path=path) in problem.remedy
    if repairable:
        repair(data)
        assert problems(data) == []


def test_a_run_of_the_key_index_is_checked_if_the_index_names_it(data, monkeypatch):
    """Another run may be unfinished: a merge of large runs takes longer than several checks."""
    monkeypatch.setattr(index, "WORTH_SAVING", 1)
    with lastword.open(data, "a", **SETTINGS) as logs:
        assert logs["t"].get(b"key 1") == b"v" * 50
    (run,) = (data / "t-0" / "lastword").glob("keys-*")
    private(data, "keys-0123456789abcdef", run.read_bytes()[:BLOCK_BYTES])
    assert problems(data) == []
    change(run, 10, b"damage")
    assert problems(data) == [(run.name, "bad-key-index", True)]


def test_a_key_index_that_cannot_be_read_hides_no_other_damage(data):
    private(data, "lease-replica", b"x")
    (data / "t-0" / "lastword" / "keys").symlink_to("keys")
    assert sorted(problems(data)) == [("keys", "unreadable", False), ("lease-replica", "bad-lease", False)]


def test_the_remedy_of_a_lease_and_of_a_quarantine(data):
    private(data, "lease-replica", b"x")
    private(data, "quarantine", b"x")
    assert {code for _, code, _ in problems(data)} == {"bad-lease", "bad-quarantine"}
    with lastword.open(data, "a", **SETTINGS) as logs:
        logs.cleaner.retry("t", 0)
    from lastword.cli.main import run

    assert run(["lease", str(data), "t", "replica", "--release"]) == 0
    assert problems(data) == []


def test_damaged_private_files_of_the_root(data):
    for name, code in (
        ("lastword.writers", "bad-writers"),
        ("lastword.partitions", "bad-partition-list"),
        ("lastword.producer-ids", "bad-producer-ids"),
        ("lastword.transaction", "bad-transaction-note"),
        (f"lastword.refused-{1:020d}-job", "bad-note"),
        (f"lastword.inbox-{1:020d}-job", "bad-commit"),
    ):
        path = data / name
        path.write_bytes(b"lastword 1 damaged\n{}")
        assert [(file_name, problem_code) for file_name, problem_code, _ in problems(data)] == [(name, code)]
        path.unlink()


def test_a_file_of_a_newer_version(data):
    from lastword.files.framed import Framed

    private(data, "survivorship", Framed("survivorship", 9, "", "").encode({"live_ratio": {}}))
    assert problems(data) == [("survivorship", "newer-version", False)]
