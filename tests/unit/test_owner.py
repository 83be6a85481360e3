"""Owner, group and permissions of new files in a log directory: as root, and as a user without rights."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastword
from lastword.errors import WrongUserError
from lastword.files import OsFiles
from lastword.ingest.staging import StagedWriter
from tests.support.exhaustive import stride
from tests.support.users import public_directory, run_as

NOBODY = pwd.getpwnam("nobody")
OTHER = 12_345

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def entries(root: Path) -> dict[str, tuple[int, int, int]]:
    """Return owner, group and permissions of the root and all below it, by relative path."""
    by_path = {}
    for path in (root, *root.rglob("*")):
        facts = path.lstat()
        by_path[str(path.relative_to(root))] = (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode))
    return by_path


def give_away(root: Path, uid: int, gid: int, *, folder: int, file: int) -> None:
    for path in (root, *root.rglob("*")):
        os.chown(path, uid, gid)
        path.chmod(folder if path.is_dir() else file)


def misfits(root: Path, uid: int, gid: int, *, folder: int, file: int) -> dict[str, tuple[int, int, int]]:
    return {
        name: facts
        for name, facts in entries(root).items()
        if facts != (uid, gid, folder if (root / name).is_dir() else file)
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a log directory with a topic that has garbage in several segments."""
    path = tmp_path / "data"
    with lastword.open(path, "a", log_cleaner_enable=False) as logs:
        users = logs.create_topic("users", 2, cleanup_policy="compact", segment_bytes=2_000)
        for number in range(60):
            users.append(f"key{number % 5}".encode(), b"x" * 150)
    return path


@as_root
@pytest.mark.parametrize(("folder", "file"), [(0o750, 0o640), (0o755, 0o600), (0o775, 0o664)])
def test_what_root_makes_belongs_to_the_owner(root: Path, folder: int, file: int) -> None:
    give_away(root, NOBODY.pw_uid, NOBODY.pw_gid, folder=folder, file=file)
    before = set(entries(root))
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        users = logs.topic("users")
        for number in range(60):
            users.append(f"key{number % 5}".encode(), b"y" * 150, producer="loader", sequence=number)
        users.set_config(min_cleanable_dirty_ratio=0.1)
        logs.create_topic("orders", 2, cleanup_policy="delete")
        assert logs.clean("users"), "something was rewritten"
        users.trim(3)
        users.lease("reader").advance({0: 5, 1: 5})
        logs.sync()
        assert misfits(root, NOBODY.pw_uid, NOBODY.pw_gid, folder=folder, file=file) == {}
    created = set(entries(root)) - before
    assert {"orders-0", "orders-0/partition.metadata", "lastword.toml"} & created
    assert misfits(root, NOBODY.pw_uid, NOBODY.pw_gid, folder=folder, file=file) == {}


@as_root
def test_what_root_stages_belongs_to_the_owner(root: Path) -> None:
    """A task of Spark stages files in the partition without the lock."""
    give_away(root, NOBODY.pw_uid, NOBODY.pw_gid, folder=0o750, file=0o640)
    files = OsFiles()
    writer = StagedWriter(files, str(root), "users", 0, "a" * 32, 0, 0)
    writer.write(b"x" * 100, 1)
    writer.close(sync=True)
    assert misfits(root, NOBODY.pw_uid, NOBODY.pw_gid, folder=0o750, file=0o640) == {}


@as_root
def test_a_new_directory_that_belongs_to_a_user(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    os.chown(root, OTHER, OTHER)
    root.chmod(0o700)
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        logs.state("users")["ada"] = 1
    by_path = entries(root)
    assert {facts[:2] for facts in by_path.values()} == {(OTHER, OTHER)}
    assert {facts[2] & 0o077 for facts in by_path.values()} == {0}


@as_root
def test_a_root_directory_of_roots_says_nothing_of_its_user(root: Path) -> None:
    """/var/lib/kafka often belongs to root and is writable for the broker's group."""
    give_away(root, NOBODY.pw_uid, NOBODY.pw_gid, folder=0o755, file=0o644)
    os.chown(root, 0, NOBODY.pw_gid)
    root.chmod(0o775)
    (root / ".lock").unlink()
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        logs.create_topic("orders", cleanup_policy="delete")
    owners = {name: facts[:2] for name, facts in entries(root).items() if name != "."}
    assert set(owners.values()) == {(NOBODY.pw_uid, NOBODY.pw_gid)}


@as_root
def test_a_replaced_file_keeps_owner_group_and_permissions(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_bytes(b"old")
    os.chown(path, OTHER, OTHER + 1)
    path.chmod(0o604)
    OsFiles().write_atomic(path, b"new")
    facts = path.stat()
    assert (facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode)) == (OTHER, OTHER + 1, 0o604)
    assert path.read_bytes() == b"new"


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_bytes(b"old")
    path.chmod(0o606)
    OsFiles().write_atomic(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o606


def test_outside_a_log_directory_files_are_made_as_the_system_makes_them(tmp_path: Path) -> None:
    (tmp_path / "private.txt").touch(0o600)
    before = os.umask(0o027)
    try:
        OsFiles().open_append(tmp_path / "new.txt", create=True).close()
        OsFiles().mkdir(tmp_path / "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new.txt").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o750


def test_an_append_makes_no_further_system_call(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only calls that create or rename a file check owners."""
    from lastword.files import owner

    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        users = logs.topic("users")
        users.set_config(segment_bytes=1 << 20)
        users.append(b"a", b"b", partition=0)

        def refuse(*arguments: object, **more: object) -> None:
            raise AssertionError("an append looked at owners")

        for name in ("assign_new", "assign_moved", "root_of", "check"):
            monkeypatch.setattr(owner, name, refuse)
        for _ in range(5):
            users.append(b"a", b"b", partition=0)
        monkeypatch.undo()


@pytest.fixture
def squashed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse changes of owners, as network drives do."""

    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)


@as_root
def test_root_of_a_file_system_that_refuses_changes_of_owner(root: Path, squashed: None) -> None:
    """Root has no special rights on a network drive or in a container: refused before anything is changed."""
    give_away(root, NOBODY.pw_uid, NOBODY.pw_gid, folder=0o755, file=0o644)
    before = entries(root)
    with pytest.raises(WrongUserError, match=r"belongs to nobody"):
        lastword.open(root, "a")
    assert entries(root) == before


@as_root
def test_root_that_may_not_give_a_file_to_a_neighbours_user(
    root: Path, monkeypatch: pytest.MonkeyPatch, squashed: None
) -> None:
    """In a directory of root's, a new file belongs to the user of the files there."""
    from lastword.files import owner

    (root / "users-0" / "partition.metadata").chmod(0o666)
    os.chown(root / "users-0" / "partition.metadata", OTHER, OTHER)
    before = entries(root / "users-0")

    monkeypatch.setattr(owner, "_root_gives_on", set())
    refused = pytest.raises(WrongUserError, match=f"belongs to #{OTHER}")
    with lastword.open(root, "a", log_cleaner_enable=False) as logs, refused:
        logs["users"].append(b"a", b"b", partition=0)
    assert entries(root / "users-0") == before


@as_root
def test_root_that_gives_files_away_looks_at_no_neighbour(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many partitions are opened together: a look at the files of each would take most of the time."""
    OsFiles().check_owner(root)
    monkeypatch.setattr(os, "scandir", None)
    OsFiles().check_owner(root / "users-0")


# ---------------------------------------------------------------- another user


def run_command_as(uid: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run_as(uid, "-m", "lastword", *arguments)


@pytest.fixture
def open_root(root: Path) -> Iterator[Path]:
    """Yield a root that every user can reach."""
    with public_directory() as above:
        yield Path(shutil.move(root, above / "data"))


@as_root
@pytest.mark.parametrize(
    "command",
    [
        ("clean", "users"),
        ("config", "users", "--set", "min.cleanable.dirty.ratio=0.2"),
        ("create", "orders"),
        ("append", "users", "ada", "1"),
        ("expire",),
        ("trim", "users", "--before", "3", "--yes"),
        ("drop", "users", "--yes"),
    ],
    ids=lambda command: command[0],
)
def test_another_user_is_refused_before_anything_changes(open_root: Path, command: tuple[str, ...]) -> None:
    root = open_root
    give_away(root, NOBODY.pw_uid, NOBODY.pw_gid, folder=0o777, file=0o666)
    content = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    before = entries(root)
    verb, *rest = command
    done = run_command_as(OTHER, verb, root, *rest)
    assert done.returncode == WrongUserError.exit_code == 6, done.stderr
    assert f"belongs to nobody, and this process runs as #{OTHER}" in done.stderr
    assert f"sudo -u nobody lastword {verb} {root}" in done.stderr
    assert entries(root) == before
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == content


@as_root
def test_a_directory_that_its_group_shares_takes_every_member(open_root: Path) -> None:
    root = open_root
    give_away(root, NOBODY.pw_uid, OTHER, folder=0o2775, file=0o664)
    done = run_command_as(OTHER, "create", root, "orders")
    assert done.returncode == 0, done.stderr
    created = {name: facts for name, facts in entries(root).items() if name.startswith("orders-0")}
    assert len(created) > 3
    for name, facts in created.items():
        assert facts == (OTHER, OTHER, 0o2775 if (root / name).is_dir() else 0o664), name


@as_root
def test_the_owner_himself_needs_nothing(open_root: Path) -> None:
    root = open_root
    give_away(root, OTHER, OTHER, folder=0o750, file=0o640)
    changes = [("append", root, "users", "a", "1"), ("trim", root, "users", "--before", "1", "--yes")]
    if stride(2) == 1:
        changes.append(("clean", root, "users"))  # compiles kernels: no cache of other users is trusted
    for command in changes:
        done = run_command_as(OTHER, *command)
        assert done.returncode == 0, done.stderr
    assert misfits(root, OTHER, OTHER, folder=0o750, file=0o640) == {}


@as_root
def test_a_writer_without_the_lock_is_refused_too(open_root: Path) -> None:
    root = open_root
    give_away(root, NOBODY.pw_uid, NOBODY.pw_gid, folder=0o777, file=0o666)
    before = entries(root)
    done = run_command_as(OTHER, "lease", root, "users", "reader", "--advance", "3")
    assert done.returncode == 6, done.stderr + done.stdout
    assert "sudo -u nobody lastword lease" in done.stderr
    assert entries(root) == before


@as_root
@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "DIR/../new", "t"),
        ("ls", "DIR"),  # compiles kernels: no cache of other users is trusted
        ("append", "DIR", "users", "a", "1"),
        ("restore", "DIR", "users", "DIR/out.jsonl"),
    ][:: stride(2)],
    ids=lambda arguments: arguments[0],
)
def test_permission_denied_is_one_exit_code(open_root: Path, arguments: tuple[str, ...]) -> None:
    """It was 2 for `.lock`, `create` and `restore`, and 6 for the other commands."""
    root = open_root
    give_away(root, NOBODY.pw_uid, NOBODY.pw_gid, folder=0o755, file=0o644)
    if arguments[0] == "ls":
        (root / "users-0").chmod(0o700)
    done = run_command_as(OTHER, *(word.replace("DIR", str(root)) for word in arguments))
    assert done.returncode == 6, (done.stdout, done.stderr)
    assert "belongs to" in done.stderr and "Traceback" not in done.stderr
