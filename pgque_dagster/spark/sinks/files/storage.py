"""The place where a sink stores files: a directory, or a URL of an object store.

obstore opens URLs without a jar, with the same options as Delta's library.
"""

import errno
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from ....client.errors import InvalidArgument, PgqueError, passes

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
# The schemes that obstore opens. Those of one store are interchangeable, except for Iceberg.
_SCHEMES = frozenset(("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss"))
# Options of the HTTP client; obstore takes them separately from the store's options.
_CLIENT_OPTIONS = """
allow_http allow_invalid_certificates connect_timeout proxy_url timeout user_agent
"""
# Makes an unreachable store cause an error within a minute.
_RETRIES = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_BUFFER_BYTES = 2**20
_SHORTEST_SECRET = 6
_LONGEST_TEXT = 500
# How stores report problems with credentials and rights.
_REFUSED = re.compile(
    r"\b40[13]\b|Access ?Denied|ACCESS_DENIED|SignatureDoesNotMatch|InvalidAccessKeyId|Forbidden"
    r"|Unauthorized|necessary privileges"
)
# How libraries, which have one error class, report a store that is unreachable or throttles.
_AWAY = re.compile(
    r"Generic \w+ error|error sending request|Connection ?(?:refused|reset|aborted)|timed? ?out"
    r"|SlowDown|\b(?:429|50[0234])\b|ServiceUnavailable|ServerError|No space left"
)
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


class StorageFailed(PgqueError):
    """A file could not be read or written: no access, no space, or the store is unreachable."""

    def __init__(self, message: str, hint: str = "", *, passing: bool = True) -> None:
        super().__init__(message, hint)
        self.passing = passing


class Unreadable(StorageFailed):
    """A file is not there, or is damaged."""


class ExtraMissing(PgqueError):
    """A package that a sink needs is not installed."""


@contextmanager
def written_for(table: str, batch: object) -> Iterator[None]:
    """Adds the table and the batch to an error about their files."""
    try:
        yield
    except StorageFailed as error:
        told = f"{table} did not take {batch}: {error.args[0]}"
        raise StorageFailed(told, error.hint, passing=error.passing) from None


@contextmanager
def needing_extra(extra: str) -> Iterator[None]:
    """Names the extra of this package for a module that the block cannot import."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            f"there is no Python module {error.name}",
            f"Install pgque-dagster[{extra}], here and where Spark's executors run.",
        ) from error


def object_stores() -> Any:
    """Returns the library of object stores."""
    with needing_extra("object-store"):
        import obstore.store
    return obstore


@dataclass(frozen=True)
class Storage:
    """A directory, or a URL of an object store with the options to access it.

    Attributes:
        location: a path, or a URL such as `s3://bucket/folder`.
        options: as named by obstore and Delta's library, such as `aws_access_key_id`. Other options
            come from the environment of each process, such as AWS_ACCESS_KEY_ID.
    """

    location: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, location: str | Path, options: Mapping[str, str] | None = None) -> "Storage":
        """Returns the storage of a location.

        Raises:
            InvalidArgument: if the URL cannot be opened, or a directory has options.
        """
        text = str(location).rstrip("/") or "/"
        found = _URL.match(text)
        scheme = found[1].lower() if found else "file"
        is_cut = found is not None and bool(set(text) & {"?", "#"})
        has_login = "@" in urlsplit(text).netloc and not scheme.startswith("ab")
        if is_cut or (found and scheme in _SCHEMES and has_login):
            raise InvalidArgument(
                f"{_shown(text)} has more than a bucket and a path",
                "Put credentials into the environment or into storage_options. A ? or # cannot be "
                "part of a URL's path.",
            )
        if found and scheme == "file":
            text = unquote(urlsplit(text).path)
        elif not found:
            text = str(Path(text).absolute())
        elif scheme not in _SCHEMES:
            raise InvalidArgument(
                f"{_shown(text)} cannot be written: there is no access to {scheme}: URLs",
                "Use s3:, gs: or abfss:. Mount other file systems, and use the path.",
            )
        if options and scheme == "file":
            raise InvalidArgument(
                f"{text} is a directory, which has no storage_options", "Leave them out."
            )
        return cls(text, dict(options or {}))

    @property
    def is_url(self) -> bool:
        """Whether the location is a URL."""
        return _URL.match(self.location) is not None

    def store(self) -> Any:
        """Opens the object store of a URL, through obstore."""
        plain = {key.lower(): value for key, value in self.options.items()}
        client: dict[str, Any] = {}
        for key, value in list(plain.items()):
            name = key.removeprefix("aws_")
            if name in _CLIENT_OPTIONS.split():
                client[name] = value.lower() == "true" if name.startswith("allow") else value
                del plain[key]
        if self.is_plain_http:
            client["allow_http"] = True
        with self.errors("cannot be opened"):
            settings: Any = {"config": plain, "client_options": client, "retry_config": _RETRIES}
            return object_stores().store.from_url(self.location, **settings)

    @property
    def is_plain_http(self) -> bool:
        """Whether the endpoint has no TLS, as test servers do."""
        given = {key.lower().removeprefix("aws_"): value for key, value in self.options.items()}
        endpoint = given.get("endpoint_url") or given.get("endpoint")
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT")
        return (endpoint or "").lower().startswith("http://")

    @contextmanager
    def create(self, path: str) -> Iterator[pa.NativeFile]:
        """Creates a file, which exists only once the block has ended.

        Raises:
            StorageFailed: if it cannot be written.
        """
        with self.errors("cannot be written"):
            if self.is_url:
                upload = object_stores().open_writer(self.store(), path)
                yield pa.PythonFile(_Open(upload), mode="w")
                # Skipped after a failure, because closing stores what has been written so far.
                upload.close()
                return
            new = Path(self.location, path)
            new.parent.mkdir(parents=True, exist_ok=True)
            try:
                with pa.output_stream(
                    str(new), compression=None, buffer_size=_BUFFER_BYTES
                ) as file:
                    yield file
                sync(new, *new.parents)
            except BaseException:
                new.unlink(missing_ok=True)
                raise

    def create_new(self, path: str, content: bytes) -> bool:
        """Creates a file with its content in one atomic step. Returns False if another exists.

        A request that is repeated may find the file that it created, so no two contents may be
        the same.

        Raises:
            StorageFailed: if it cannot be written.
        """
        with self.errors("cannot be written"):
            if self.is_url:
                try:
                    object_stores().put(self.store(), path, content, mode="create")
                except object_stores().exceptions.AlreadyExistsError:
                    return self.read(path) == content
                return True
            draft = f"{path.rpartition('/')[0]}/_{uuid.uuid4().hex}.tmp"
            with self.create(draft) as file:
                file.write(content)
            try:
                os.link(Path(self.location, draft), Path(self.location, path))
            except FileExistsError:
                return self.read(path) == content
            finally:
                Path(self.location, draft).unlink(missing_ok=True)
            sync(Path(self.location, path).parent)
            return True

    def list(self, folder: str, after: str = "") -> Iterator[tuple[str, datetime]]:
        """Yields the path, relative to the location, and the time of each file in a folder.

        Args:
            folder: the folder.
            after: only paths that come after this one.

        Raises:
            StorageFailed: if they cannot be listed.
        """
        with self.errors("cannot be read"):
            if self.is_url:
                listed = object_stores().list(
                    self.store(), folder, offset=after or None, chunk_size=1000
                )
                for found in listed:
                    yield from ((each["path"], each["last_modified"]) for each in found)
                return
            for path in Path(self.location, folder).rglob("*"):
                name = str(path.relative_to(self.location))
                # Other processes may remove files at the same time.
                with suppress(FileNotFoundError):
                    if name > after and path.is_file():
                        yield name, datetime.fromtimestamp(path.stat().st_mtime, UTC)

    def remove(self, paths: Iterable[str]) -> None:
        """Removes files if they exist.

        Raises:
            StorageFailed: if they cannot be removed.
        """
        listed = list(paths)
        with self.errors("cannot be changed"):
            if not self.is_url:
                for path in listed:
                    Path(self.location, path).unlink(missing_ok=True)
            elif listed:
                object_stores().delete(self.store(), listed)

    def read(self, path: str) -> bytes | None:
        """Returns the content of a file; None if the file does not exist.

        Raises:
            StorageFailed: if it cannot be read.
        """
        with self.errors("cannot be read"), suppress(FileNotFoundError):
            if self.is_url:
                return bytes(object_stores().get(self.store(), path).bytes())
            return Path(self.location, path).read_bytes()
        return None

    def source(self, path: str) -> Any:
        """Returns a file in the form that Arrow reads: its path, or an object to read in parts.

        Raises:
            StorageFailed: if an object cannot be read.
        """
        if not self.is_url:
            return f"{self.location}/{path}"
        with self.errors("cannot be read"):
            return pa.PythonFile(_Open(object_stores().open_reader(self.store(), path)), mode="r")

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Raises `StorageFailed`, without secrets, for an error of the file system or the store.

        Args:
            what: what the error says about the location, such as "cannot be written".
        """
        try:
            yield
        except PgqueError:
            raise
        except Exception as error:
            if not _is_of_storage(error):
                raise
            told = self.without_secrets(error)
            kind = Unreadable if isinstance(error, FileNotFoundError) else StorageFailed
            raise kind(f"{_shown(self.location)} {what}: {told}", way_out(told)) from None

    def without_secrets(self, error: BaseException) -> str:
        """Returns the text of an error on one line, without values of options."""
        text = _COLORS.sub("", str(error)).partition("Debug source:")[0]
        text = re.sub(r"(https?://[^\s?\"']*)\?[^\s\"')]*", r"\1", text)
        for value in self.options.values():
            if len(value) >= _SHORTEST_SECRET and not value.startswith("http"):
                text = text.replace(value, "***")
        return " ".join(text.split())[:_LONGEST_TEXT] or type(error).__name__

    def delta_options(self) -> dict[str, str]:
        """Returns the options in the form that Delta's library takes."""
        if not self.is_url:
            return {}
        plain_http = {"aws_allow_http": "true"} if self.is_plain_http else {}
        retries = {"max_retries": "4", "retry_timeout": "30s"}
        return {**retries, **plain_http, **self.options}


class _Open:
    """A file of an object store, as Arrow needs it; Arrow does not close it."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, content: Any) -> Any:
        """Writes the content of a buffer, whose type obstore may not know."""
        return self._file.write(memoryview(content).cast("B"))

    def close(self) -> None:
        """Does nothing."""


def sync(*paths: Path) -> None:
    """Syncs the content of files and the names in directories to disk, if they can be opened."""
    for path in paths:
        with suppress(PermissionError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            except OSError as error:
                # Some file systems cannot sync directories.
                if error.errno not in (errno.EINVAL, errno.EBADF, errno.EROFS):
                    raise
            finally:
                os.close(descriptor)


def is_away(error: Exception, told: str) -> bool:
    """Returns whether a library's error is about the store, not about what is stored.

    Args:
        error: the error.
        told: its text without secrets.
    """
    text = f"{type(error).__name__} {told}"
    is_of_store = _AWAY.search(text) or _REFUSED.search(text)
    return isinstance(error, OSError) or passes(error) or is_of_store is not None


def way_out(told: str) -> str:
    """Returns what to do about an error of a store with this text."""
    repaired = "Once this is repaired, the next attempt at the batch can succeed."
    if _REFUSED.search(told):
        return (
            "Check the credentials in the environment or in storage_options, and whether they may "
            f"list, read, write and delete there. {repaired}"
        )
    return repaired


def _is_of_storage(error: Exception) -> bool:
    # A broken connection is the one to Spark's JVM: obstore has its own errors.
    is_of_files = isinstance(error, OSError) and not isinstance(error, ConnectionError)
    return is_of_files or type(error).__module__.startswith("obstore")


def _shown(location: str) -> str:
    """Returns a location without a possible password in it."""
    return re.sub(r"//[^/@]*:[^/@]*@", "//***@", location.partition("?")[0])
