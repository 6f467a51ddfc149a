"""Temporaries, versions and renames: files only, so the same on every backend."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from keras_tx.export import workspace

HOLDER = """
import importlib.util, pathlib, sys, time
spec = importlib.util.spec_from_file_location("workspace", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
with module.workspace(pathlib.Path(sys.argv[2])) as (folder, _):
    (folder / "half").write_text("written")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds a workspace in `tmp_path`, and that workspace's path."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, workspace.__file__, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    folder = process.stdout.readline().strip()
    yield process, folder
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_workspace_is_gone_after_success_and_failure(tmp_path):
    with workspace.workspace(tmp_path) as (folder, _):
        assert folder.parent == tmp_path and folder.name.startswith(".tmp-")
    with pytest.raises(KeyError), workspace.workspace(tmp_path) as (folder, _):
        (folder / "half").write_text("written")
        raise KeyError
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_goes_with_the_next_workspace(tmp_path, holder):
    process, left = holder
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert os.path.exists(left)
    with workspace.workspace(tmp_path) as (folder, _):
        assert os.listdir(tmp_path) == [folder.name]


def test_the_workspace_of_a_living_process_stays(tmp_path, holder):
    _, held = holder
    with workspace.workspace(tmp_path) as (folder, _):
        assert sorted(os.listdir(tmp_path)) == sorted([folder.name, os.path.basename(held)])
    assert os.listdir(held) == ["half"]


def test_temporaries_of_other_programs_stay(tmp_path):
    (tmp_path / ".tmp-other").mkdir()
    with workspace.workspace(tmp_path):
        pass
    assert os.listdir(tmp_path) == [".tmp-other"]


@pytest.mark.parametrize(
    "names, expected",
    [
        ([], 1),
        (["1", "2"], 3),
        (["7"], 8),
        (["0012", "3"], 13),
        ([".tmp-9", "9x", "-9", "notes", "٩"], 1),
    ],
)
def test_the_next_version_is_one_more_than_the_greatest(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "readme").touch()
    assert workspace.next_version(tmp_path) == expected


def test_a_version_that_appears_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_text("the other's")
    (tmp_path / "2").write_text("a file")
    (tmp_path / "new").mkdir()
    counted = iter([1, 2, 3])
    monkeypatch.setattr(workspace, "next_version", lambda base: next(counted))
    assert workspace.place_as_next_version(tmp_path / "new", tmp_path) == tmp_path / "3"
    assert (tmp_path / "1" / "saved_model.pb").read_text() == "the other's"


def test_publishers_at_the_same_time_all_get_a_version(tmp_path):
    count = 24
    barrier = threading.Barrier(count)

    def place(index):
        folder = tmp_path / f"new{index}"
        folder.mkdir()
        (folder / "saved_model.pb").write_text(str(index))
        barrier.wait()
        workspace.place_as_next_version(folder, tmp_path)

    threads = [threading.Thread(target=place, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, os.listdir(tmp_path))) == list(range(1, count + 1))
    contents = {(path / "saved_model.pb").read_text() for path in tmp_path.iterdir()}
    assert len(contents) == count


def test_an_exact_place_is_replaced_whole_and_a_broken_off_replacement_restored(tmp_path):
    target, previous = tmp_path / "model", tmp_path / ".previous-model"
    for text in ("first", "second"):
        new = tmp_path / "new"
        new.mkdir()
        (new / "saved_model.pb").write_text(text)
        workspace.place_exactly(new, target)
        assert (target / "saved_model.pb").read_text() == text
    assert os.listdir(tmp_path) == ["model"]
    target.rename(previous)  # killed between the two renames
    workspace.restore(target)
    assert (target / "saved_model.pb").read_text() == "second" and not previous.exists()
    previous.mkdir()  # killed before the old one was removed
    workspace.restore(target)
    assert os.listdir(tmp_path) == ["model"]
