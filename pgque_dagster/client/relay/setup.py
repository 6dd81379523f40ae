"""Starts and ends the capture of a queue's tables from the WAL."""

import psycopg
from psycopg import sql

from ..connection import connect
from ..errors import InvalidArgument, PermissionDenied, translated
from ..rights import Connection, translated_with_role

IS_RELAYED = "select exists (select from pgque.relays(%s))"
_LEVEL = "select current_setting('wal_level'), current_setting('server_encoding')"
_SET = "select publication, slot from pgque.set_relay(%s, false)"
_HAS_PUBLICATION = "select exists (select from pg_publication where pubname = %s)"
_NO_SLOT = """
select pg_drop_replication_slot(slot_name) from pg_replication_slots
where slot_name = %s and database = current_database()
"""


def is_relayed(connection: Connection, queue: str) -> bool:
    """Returns whether the tables of a queue are captured from the WAL."""
    return connection.execute(IS_RELAYED, (queue,)).fetchall() == [(True,)]


def begin_relay(url: str, queue: str) -> None:
    """Starts capturing the tables of a queue from the WAL. It may be repeated.

    Raises:
        InvalidArgument: if tables are captured by triggers, or the server's WAL lacks changes.
        PermissionDenied: if the role may not create a slot or a publication.
    """
    with connect(url) as db, translated():
        ((level, encoding),) = db.execute(_LEVEL).fetchall()
        if level != "logical":
            raise InvalidArgument(
                f"the server's wal_level is {level}, so its WAL does not contain changes",
                "Run: alter system set wal_level = logical; and restart the server.",
            )
        if encoding == "SQL_ASCII":
            raise InvalidArgument(
                f"the encoding of database {db.info.dbname} is SQL_ASCII, so its WAL may have "
                "text that cannot be read",
                "Capture its tables by triggers.",
            )
        if not (is_begun := is_relayed(db, queue)):
            query = "select table_name from pgque.captured_tables(%s)"
            if found := [name for (name,) in db.execute(query, (queue,))]:
                raise InvalidArgument(
                    f"triggers capture tables into queue {queue}: {', '.join(found)}",
                    f"End their capture first: pgque uncapture {found[0]} {queue}",
                )
        with translated_with_role(db, _SET):
            ((publication, slot),) = db.execute(_SET, (queue,)).fetchall()
        try:
            _create(db, queue, publication, slot)
        except BaseException as error:
            if not is_begun:
                end_relay(url, queue)
            if not isinstance(error, psycopg.errors.InsufficientPrivilege):
                raise
            raise PermissionDenied(
                f'role "{db.info.user}" may not create a publication and a replication slot',
                f"It needs: alter role {db.info.user} replication; grant create on database "
                f"{db.info.dbname} to {db.info.user};",
            ) from error


def _create(db: Connection, queue: str, publication: str, slot: str) -> None:
    # A slot cannot read what was written before its publication.
    if db.execute(_HAS_PUBLICATION, (publication,)).fetchall() == [(False,)]:
        db.execute(_NO_SLOT, (slot,))
        more = ", publish_generated_columns = stored" if db.info.server_version >= 180000 else ""
        create = sql.SQL(
            "create publication {} with (publish = 'insert, update, delete, truncate'{})"
        )
        db.execute(create.format(sql.Identifier(publication), sql.SQL(more)))
    query = "select lsn is null from pgque.relays(%s)"
    if db.execute(query, (queue,)).fetchall() == [(True,)]:
        # Standbys that synchronize slots have it too.
        more = ", failover => true" if db.info.server_version >= 170000 else ""
        query = f"select pg_create_logical_replication_slot(%s, 'pgoutput'{more})"
        db.execute(query.encode(), (slot,))


def end_relay(url: str, queue: str) -> None:
    """Ends the capture from the WAL, and drops the slot and the publication.

    Raises:
        InvalidArgument: if the tables are not captured from the WAL.
    """
    with connect(url) as db, translated():
        query = "select publication, slot from pgque.relays(%s)"
        found = db.execute(query, (queue,)).fetchall()
        if not found:
            raise InvalidArgument(f"the tables of queue {queue} are not captured from the WAL")
        ((publication, slot),) = found
        # The server refuses this while a relay runs.
        db.execute(_NO_SLOT, (slot,))
        db.execute(sql.SQL("drop publication if exists {}").format(sql.Identifier(publication)))
        db.execute("select pgque.set_relay(%s, true)", (queue,))
