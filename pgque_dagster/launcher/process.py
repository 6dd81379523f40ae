"""The launcher's side of a warm process."""

import os
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import Pipe

from .liveness import Address, locked_file
from .source_files import Files, have_changed


@dataclass(frozen=True)
class Code:
    """The code that a process has loaded. A process serves only one code.

    Attributes:
        executable: the Python of the code location.
        origin: the code location, as Dagster writes it.
        server_id: the id of the code server, which changes when somebody reloads it.
    """

    executable: str
    origin: str
    server_id: str

    def replaces(self, other: "Code") -> bool:
        """Returns whether this is the same code location, loaded again."""
        return self.origin == other.origin and self != other


class WarmProcess:
    """A process that executes runs of one code location, one after another.

    Attributes:
        address: its address, for the tag of its runs.
        code: the code that it serves.
        run_id: the run to which it is lent; None while it is idle.
        is_executing: whether it has received this run.
        runs: how many runs it has received.
        files: the source files that it has loaded; None until it has said which.
    """

    def __init__(
        self,
        code: Code,
        on_idle: Callable[["WarmProcess", bool | None], None],
        on_end: Callable[["WarmProcess", int], None],
        files: Files | None,
    ) -> None:
        self.code = code
        self.run_id: str | None = None
        self.is_executing = False
        self.runs = 0
        self.files = files
        self._on_idle = on_idle
        self._on_end = on_end
        with ExitStack() as ours, ExitStack() as undo:
            lock, path = locked_file()
            ours.callback(os.close, lock)
            undo.callback(Address("", 0, path).forget)
            self._channel, theirs = Pipe()
            ours.enter_context(theirs)
            # Its own descriptor: the number of a closed one may be another file's.
            answers = undo.enter_context(socket.socket(fileno=os.dup(self._channel.fileno())))
            self._process = subprocess.Popen(
                [
                    *(code.executable, "-m", "pgque_dagster.launcher.serving"),
                    *(str(theirs.fileno()), str(lock), path),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), lock),
            )
            undo.callback(self._process.kill)
            self.address = Address(socket.gethostname(), self._process.pid, path)
            threading.Thread(target=self._listen, daemon=True).start()
            threading.Thread(target=self._wait, args=(answers,), daemon=True).start()
            undo.pop_all()

    def execute(self, reference: str) -> None:
        """Starts the run `run_id` of the instance of the reference.

        Raises:
            OSError: if the process has died, or others would take it for dead.
        """
        assert self.run_id is not None
        # It is gone before `_on_end`. Until then, some systems remove files that grow old.
        os.utime(self.address.lock)
        self._channel.send((self.run_id, reference))
        self.runs += 1
        self.is_executing = True

    def prepare(self) -> None:
        """Makes the process load the code and open its Spark session before it gets a run."""
        with suppress(OSError):
            self._channel.send((None, self.code.origin))

    def has_old_code(self) -> bool:
        """Whether a source file has changed since the process loaded it."""
        return have_changed(self.files or {})

    def retire(self) -> None:
        """Makes the process end, after its run if it has one."""
        with suppress(OSError):
            self._channel.send(None)

    def _wait(self, answers: socket.socket) -> None:
        """Ends `_listen` after the process, even if a child of it has its end of the socket."""
        with answers, suppress(OSError):
            self._process.wait()
            answers.shutdown(socket.SHUT_RD)

    def _listen(self) -> None:
        while (answer := self._receive()) is not None:
            succeeded, self.files = answer
            self._on_idle(self, succeeded)
        status = self._process.wait()
        self.address.forget()
        self._on_end(self, status)

    def _receive(self) -> tuple[bool | None, Files] | None:
        """Returns how a run ended, None for no run; or None when the process is gone."""
        try:
            answer: tuple[bool | None, Files] = self._channel.recv()
        except (EOFError, OSError):
            return None
        return answer
