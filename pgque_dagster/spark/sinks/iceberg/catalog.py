"""Opens the catalog of Iceberg tables: in the queue's own database, or another one."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from pyiceberg.catalog import Catalog, load_catalog
from sqlalchemy import URL
from sqlalchemy.exc import IntegrityError, ProgrammingError

from ....client.connection import connect
from ....client.errors import InvalidArgument, PermissionDenied
from ..files.storage import Storage

CATALOG = "pgque"
# obstore's names of options, and pyiceberg's.
_S3 = {
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "region": "s3.region",
    "endpoint_url": "s3.endpoint",
    "endpoint": "s3.endpoint",
}


@contextmanager
def open_catalog(
    url: str, schema: str, properties: Mapping[str, str], storage: Storage
) -> Iterator[Catalog]:
    """Opens the catalog in a schema of the queue's database, or another one given by properties."""
    of_files = _file_properties(storage)
    if properties:
        catalog = load_catalog(**{"name": CATALOG, **of_files, **properties})
    else:
        _create_schema(url, schema)
        in_schema = {"type": "sql", "uri": _engine_url(url, schema), **of_files}
        try:
            catalog = load_catalog(CATALOG, **in_schema)
        except (IntegrityError, ProgrammingError):
            # Another run has just created the catalog's tables.
            catalog = load_catalog(CATALOG, **in_schema)
    try:
        yield catalog
    finally:
        catalog.close()


def _file_properties(storage: Storage) -> dict[str, str]:
    """Returns the properties with which pyiceberg accesses the storage."""
    given = {key.lower().removeprefix("aws_"): value for key, value in storage.options.items()}
    # Older AWS libraries, which Arrow may contain, do not know this variable.
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and "endpoint_url" not in given:
        given["endpoint_url"] = endpoint
    own = {_S3[key]: value for key, value in given.items() if key in _S3}
    # Names with a dot belong to pyiceberg, such as gcs.oauth2.token.
    return {**own, **{key: value for key, value in storage.options.items() if "." in key}}


def _engine_url(url: str, schema: str) -> str:
    parts = {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
    path = f"-c search_path={schema}"
    parts["options"] = f"{parts['options']} {path}" if "options" in parts else path
    return URL.create("postgresql+psycopg", query=parts).render_as_string(hide_password=False)


def _create_schema(url: str, schema: str) -> None:
    """Creates the schema of the catalog's tables, or says which rights are missing."""
    if not schema.isidentifier() or schema != schema.lower():
        raise InvalidArgument(
            f"{schema!r} is not a name for the schema of a catalog",
            "Use lower-case letters, digits and underscores.",
        )
    name = sql.Identifier(schema)
    with connect(url) as connection:
        user, database = connection.info.user, connection.info.dbname
        exists = connection.execute(
            "select to_regnamespace(%s) is not null", (schema,)
        ).fetchone() == (True,)
        try:
            if not exists:
                # IF NOT EXISTS does not help if another run creates it at this moment.
                with suppress(psycopg.errors.UniqueViolation):
                    connection.execute(sql.SQL("create schema if not exists {}").format(name))
            may_use = connection.execute(
                "select has_schema_privilege(%(schema)s, 'usage') and"
                " (has_schema_privilege(%(schema)s, 'create')"
                "  or to_regclass(%(schema)s || '.iceberg_tables') is not null)",
                {"schema": schema},
            ).fetchone() == (True,)
        except psycopg.errors.InsufficientPrivilege:
            may_use = False
    if not may_use:
        needed = f"create schema {schema} authorization {user}"
        if exists:
            needed = f"grant usage, create on schema {schema} to {user}"
        raise PermissionDenied(
            f"the role {user} may not keep a catalog of Iceberg tables in schema {schema} of "
            f"database {database}",
            f"As an administrator: {needed};",
        )


def file_options(storage: Storage) -> dict[str, str]:
    """Returns the options of the storage that Spark's tasks need."""
    return {key: value for key, value in storage.options.items() if "." not in key}
