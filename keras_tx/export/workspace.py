"""Folders that appear whole or not at all: temporaries, syncing, version numbers."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path

PREFIX = ".tmp-keras_tx-"


@contextlib.contextmanager
def workspace(parent: Path):
    """Yields `(folder, descriptor)`: a new temporary folder in `parent`, gone afterwards.

    The folder is locked through `descriptor` for as long as a process holds that open, so what a
    killed process left behind is known by its lock being free, and goes when the next one begins.
    A process that works in the folder for this one inherits the descriptor.
    """
    _remove_abandoned(parent)
    folder, descriptor = _locked_folder(parent)
    try:
        yield folder, descriptor
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked_folder(parent):
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        descriptor = _lock(folder)
        # Another process may have taken the new folder for an abandoned one before it was locked.
        if descriptor is not None and folder.exists():
            return folder, descriptor
        if descriptor is not None:
            os.close(descriptor)


def _remove_abandoned(parent):
    for folder in parent.glob(f"{PREFIX}*"):
        descriptor = None
        with contextlib.suppress(OSError):
            descriptor = _lock(folder, must_lock=True)
        if descriptor is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)


def _lock(folder, must_lock=False):
    """An open descriptor that holds the folder's lock, or None when someone else holds it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        # A file system without locks: nothing can be known to be abandoned there, so nothing is.
        if must_lock:
            os.close(descriptor)
            raise
    return descriptor


def sync(folder: Path) -> None:
    """Forces every file and folder below `folder`, and itself, onto the disk."""
    for place, _, files in os.walk(folder, topdown=False):
        for file in files:
            _sync_one(os.path.join(place, file))
        _sync_one(place)


def _sync_one(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def next_version(base: Path) -> int:
    """One more than the greatest whole number among the names in `base`; 1 where there is none."""
    names = (entry.name for entry in base.iterdir())
    return 1 + max((int(name) for name in names if re.fullmatch("[0-9]+", name)), default=0)


def place_as_next_version(folder: Path, base: Path) -> Path:
    """Renames the finished `folder` to the next version of `base`, in one step."""
    while True:
        target = base / str(next_version(base))
        try:
            # A folder is never renamed onto one that holds anything: who comes second counts again.
            os.rename(folder, target)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                continue
            raise
        _sync_one(base)
        return target


def place_exactly(folder: Path, target: Path) -> None:
    """Renames the finished `folder` to `target`; what stood there before goes afterwards."""
    previous = target.with_name(f".previous-{target.name}")
    restore(target)
    if target.exists():
        os.rename(target, previous)
    os.rename(folder, target)
    _sync_one(target.parent)
    shutil.rmtree(previous, ignore_errors=True)


def restore(target: Path) -> None:
    """Ends what a process that was killed inside `place_exactly` had begun."""
    previous = target.with_name(f".previous-{target.name}")
    if previous.exists():
        if target.exists():
            shutil.rmtree(previous)
        else:
            os.rename(previous, target)
