"""The fakes have power: a missing sync makes a test fail, and a sync that is there makes it pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.errors import DiskFullError, LogDirLockedError, StorageError
from lastword.files import Files, OsFiles
from tests.fakes import Call, ForgetfulFiles, RecordingFiles, Stopped
from tests.fakes.forgetful import data_only, keep_all, leave_out, names_only, seeded, torn, zero_filled


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = tmp_path / "live"
    path.mkdir()
    return str(path)


def write(files: Files, path: str, data: bytes, *, sync: bool = True) -> None:
    with files.open_append(path, create=True) as handle:
        handle.append(data)
        if sync:
            handle.fsync()


def trees(files: ForgetfulFiles, **options: object) -> list[dict[str, bytes | None]]:
    return [image.tree for image in files.images(seeds=range(10), start=len(files.journal), **options)]  # type: ignore[arg-type]


class TestForgetful:
    def test_what_is_synced_is_in_every_image(self, root: str) -> None:
        files = ForgetfulFiles(root)
        write(files, f"{root}/a", b"hello")
        files.fsync_dir(root)
        assert trees(files) == [{"a": b"hello"}]

    def test_a_missing_fsync_loses_data(self, root: str) -> None:
        files = ForgetfulFiles(root)
        write(files, f"{root}/a", b"hello", sync=False)
        files.fsync_dir(root)
        contents = [tree["a"] for tree in trees(files)]
        assert b"" in contents and b"hello" in contents and bytes(5) in contents
        assert b"h" in contents and b"he" in contents and b"hell" in contents, "torn writes"

    def test_a_missing_fsync_dir_loses_the_name_of_synced_data(self, root: str) -> None:
        files = ForgetfulFiles(root)
        write(files, f"{root}/a", b"hello")
        assert {} in trees(files)

    def test_a_missing_fsync_dir_loses_a_rename(self, root: str) -> None:
        files = ForgetfulFiles(root)
        write(files, f"{root}/a", b"hello")
        files.fsync_dir(root)
        files.rename(f"{root}/a", f"{root}/b")
        assert sorted(map(repr, trees(files))) == ["{'a': b'hello'}", "{'b': b'hello'}"]
        files.fsync_dir(root)
        assert trees(files) == [{"b": b"hello"}]

    def test_a_removal_without_fsync_dir_may_come_back(self, root: str) -> None:
        Path(root, "a").write_bytes(b"old")
        files = ForgetfulFiles(root)
        files.unlink(f"{root}/a")
        assert trees(files) == [{}, {"a": b"old"}]

    def test_synced_bytes_follow_their_inode_through_renames(self, root: str) -> None:
        files = ForgetfulFiles(root)
        handle = files.open_append(f"{root}/a", create=True)
        handle.append(b"one")
        files.rename(f"{root}/a", f"{root}/b")
        files.fsync_dir(root)
        handle.fsync()
        handle.append(b"two")
        assert files.crash().tree == {"b": b"one"}

    def test_a_replaced_file_is_old_or_new_but_never_mixed(self, root: str) -> None:
        Path(root, "f").write_bytes(b"old")
        files = ForgetfulFiles(root)
        files.write_atomic(f"{root}/f", b"brand new")
        contents = {image.tree.get("f") for image in files.images(seeds=range(30))}
        assert contents == {b"old", b"brand new"}
        assert files.crash().tree == {"f": b"brand new"}

    def test_a_replacement_without_fsync_shows_an_empty_file(self, root: str) -> None:
        Path(root, "f").write_bytes(b"old")
        files = ForgetfulFiles(root)
        write(files, f"{root}/f.tmp", b"brand new", sync=False)
        files.rename(f"{root}/f.tmp", f"{root}/f")
        files.fsync_dir(root)
        assert files.crash().tree == {"f": b""}

    def test_a_rename_to_another_directory_may_leave_both_names_but_never_none(self, root: str) -> None:
        Path(root, "sub").mkdir()
        Path(root, "sub", "a").write_bytes(b"hello")
        files = ForgetfulFiles(root)
        files.rename(f"{root}/sub/a", f"{root}/a")
        names = {("a" in tree, "sub/a" in tree) for tree in trees(files)}
        assert names == {(True, False), (False, True), (True, True)}
        files.fsync_dir(root)
        assert {("a" in tree, "sub/a" in tree) for tree in trees(files)} == {(True, False), (True, True)}
        files.fsync_dir(f"{root}/sub")
        assert [("a" in tree, "sub/a" in tree) for tree in trees(files)] == [(True, False)]

    def test_syncing_only_the_source_directory_saves_the_whole_rename(self, root: str) -> None:
        Path(root, "sub").mkdir()
        Path(root, "sub", "a").write_bytes(b"hello")
        files = ForgetfulFiles(root)
        files.rename(f"{root}/sub/a", f"{root}/a")
        files.fsync_dir(f"{root}/sub")
        assert [("a" in tree, "sub/a" in tree) for tree in trees(files)] == [(True, False)]

    def test_a_directory_that_was_not_synced_takes_its_files_with_it(self, root: str) -> None:
        files = ForgetfulFiles(root)
        files.mkdir(f"{root}/p")
        write(files, f"{root}/p/a", b"hello")
        files.fsync_dir(f"{root}/p")
        assert {} in trees(files)
        files.fsync_dir(root)
        assert trees(files) == [{"p": None, "p/a": b"hello"}]

    def test_truncation_is_data(self, root: str) -> None:
        Path(root, "a").write_bytes(b"hello")
        files = ForgetfulFiles(root)
        files.truncate(f"{root}/a", 2)
        assert {tree["a"] for tree in trees(files)} == {b"hello", b"he"}
        with files.open_append(f"{root}/a") as handle:
            handle.fsync()
        assert trees(files) == [{"a": b"he"}]

    def test_a_sync_covers_only_what_came_before_it(self, root: str) -> None:
        files = ForgetfulFiles(root)
        with files.open_append(f"{root}/a", create=True) as handle:
            handle.append(b"one")
            handle.fsync()
            handle.append(b"two")
        files.fsync_dir(root)
        assert files.crash().tree == {"a": b"one"}
        assert files.crash(drop=keep_all).tree == {"a": b"onetwo"}
        assert files.crash(drop=zero_filled).tree == {"a": b"one" + bytes(3)}
        assert files.crash(drop=torn(3, 1)).tree == {"a": b"onet"}

    def test_later_changes_of_a_name_do_not_survive_an_earlier_one(self, root: str) -> None:
        files = ForgetfulFiles(root)
        write(files, f"{root}/a", b"hello")
        files.rename(f"{root}/a", f"{root}/b")
        create = next(n for n, op in enumerate(files.journal) if op.path == "create a")
        assert files.crash(drop=leave_out(create)).tree == {}

    def test_independent_names_may_survive_in_any_order(self, root: str) -> None:
        files = ForgetfulFiles(root)
        write(files, f"{root}/a", b"1")
        write(files, f"{root}/b", b"2")
        assert {"a": b"1"} in trees(files)
        assert {"b": b"2"} in trees(files)

    def test_names_without_data_and_data_without_names(self, root: str) -> None:
        files = ForgetfulFiles(root)
        write(files, f"{root}/a", b"1", sync=False)
        assert files.crash(drop=names_only).tree == {"a": b""}
        assert files.crash(drop=data_only).tree == {}

    def test_marks_tell_what_was_promised_before_the_moment(self, root: str) -> None:
        files = ForgetfulFiles(root)
        write(files, f"{root}/a", b"1")
        files.mark("acked")
        assert files.crash().marks == ["acked"]
        assert files.crash(upto=1).marks == []

    def test_images_are_real_directories_that_can_be_crashed_again(self, root: str, tmp_path: Path) -> None:
        files = ForgetfulFiles(root)
        files.mkdir(f"{root}/p")
        files.fsync_dir(root)
        write(files, f"{root}/p/a", b"hello")
        files.set_mtime(f"{root}/p/a", 1_700_000_000_000)
        files.fsync_dir(f"{root}/p")
        image = files.image(tmp_path / "crashed")
        assert image.tree == {"p": None, "p/a": b"hello"}
        again = ForgetfulFiles(tmp_path / "crashed")
        assert again.crash().tree == image.tree
        facts = again.stat(tmp_path / "crashed" / "p" / "a")
        assert facts is not None and facts.mtime_ms == 1_700_000_000_000
        again.unlink(tmp_path / "crashed" / "p" / "a")
        again.fsync_dir(tmp_path / "crashed" / "p")
        assert again.crash().tree == {"p": None}

    def test_seeds_repeat(self, root: str) -> None:
        files = ForgetfulFiles(root)
        for n in range(5):
            write(files, f"{root}/{n}", bytes([n]) * 10_000, sync=False)
        assert files.crash(drop=seeded(3)).tree == files.crash(drop=seeded(3)).tree
        assert len({files.crash(drop=seeded(seed)).identity for seed in range(20)}) > 5

    def test_it_sees_nothing_outside_its_root(self, root: str, tmp_path: Path) -> None:
        files = ForgetfulFiles(root)
        with pytest.raises(AssertionError, match="outside"):
            files.mkdir(tmp_path / "elsewhere")


class TestRecording:
    def work(self, files: Files, root: str) -> None:
        write(files, f"{root}/a", b"hello")
        files.rename(f"{root}/a", f"{root}/b")
        files.fsync_dir(root)

    def test_it_lists_calls_and_changes(self, root: str) -> None:
        files = RecordingFiles(OsFiles())
        self.work(files, root)
        assert [call.name for call in files.changes] == ["create", "append", "fsync", "rename", "fsync_dir"]
        assert files.count("append") == 1
        assert files.changes[1].detail == b"hello"

    @pytest.mark.parametrize("stop_at", range(5))
    def test_it_stops_before_the_nth_change_and_stays_dead(self, root: str, stop_at: int) -> None:
        files = RecordingFiles(OsFiles(), stop_at=stop_at)
        with pytest.raises(Stopped):
            self.work(files, root)
        assert len(files.changes) == stop_at
        with pytest.raises(Stopped):
            files.listdir(root)
        left = {path.name: path.read_bytes() for path in Path(root).iterdir()}
        assert left == [{}, {"a": b""}, {"a": b"hello"}, {"a": b"hello"}, {"b": b"hello"}][stop_at]

    def test_a_torn_stop_leaves_half_the_bytes(self, root: str) -> None:
        with pytest.raises(Stopped):
            self.work(RecordingFiles(OsFiles(), stop_at=1, torn=True), root)
        assert Path(root, "a").read_bytes() == b"he"

    def test_the_dead_hold_no_locks(self, root: str) -> None:
        files = RecordingFiles(OsFiles(), stop_at=1)
        files.lock(f"{root}/.lock")
        with pytest.raises(LogDirLockedError):
            OsFiles().lock(f"{root}/.lock")
        with pytest.raises(Stopped):
            files.mkdir(f"{root}/x")
        OsFiles().lock(f"{root}/.lock").release()

    def test_chosen_calls_fail(self, root: str) -> None:
        def full(call: Call) -> StorageError | DiskFullError | None:
            return DiskFullError("full", needed_bytes=5, free_bytes=0) if call.name == "append" else None

        files = RecordingFiles(OsFiles(), fail=full)
        with pytest.raises(DiskFullError):
            self.work(files, root)
        assert Path(root, "a").read_bytes() == b""

    def test_it_wraps_the_forgetful_one(self, root: str) -> None:
        forgetful = ForgetfulFiles(root)
        with pytest.raises(Stopped):
            self.work(RecordingFiles(forgetful, stop_at=4), root)
        assert forgetful.crash(drop=keep_all).tree == {"b": b"hello"}
        assert forgetful.crash().tree == {}
