"""A database's records of vectors: for each shard, its newest batch, and the failures in it.

The ledger has one row for each shard, which is written in the transaction that merges the rows. A
row only accepts a later batch of its incarnation. So of two vectors with the same batch, only the
first is stored, whether or not it is stale. The next run that claims that batch acks it.
"""

from psycopg import sql

from ....client.ledger import NAME, PURPOSE, prepare_ledger
from ....client.read_batch import ReadBatch
from ....client.rights import Connection, needing
from ..members import Stored, epochs_in, newest_in, refused_members
from ..publication import stored_meanwhile

_RIGHTS = "select, insert, update"


class MemberLedger:
    """The members of vectors that a sink has stored."""

    def __init__(self, schema: str, sink: str, claim: ReadBatch) -> None:
        self._schema = schema
        self._table = sql.Identifier(schema, NAME)
        self._sink = sink
        self._claim = claim
        self._keys = {
            shard: f"shard {shard} of {claim.queue}/{claim.consumer}" for shard in claim.members
        }

    def stored(self, connection: Connection) -> dict[str, Stored]:
        """Finds the members that are stored, and loads their failures.

        Creates the ledger if it is missing.

        Raises:
            PermissionDenied: if the role may not create it, or may not write to it.
        """
        members = self._claim.members
        prepare_ledger(connection, self._schema, _RIGHTS, for_consumers=True)
        query = sql.SQL(
            "select batch, incarnation::text, batch_id, fingerprint::bigint, failed from {}"
            " where sink = {} and batch = any({})"
        ).format(self._table, self._sink, list(self._keys.values()))
        with needing(connection, _RIGHTS, self._table.as_string(connection), PURPOSE):
            for shard in self._keys:
                # Checks the rights before Spark starts.
                connection.execute(sql.SQL("explain {}").format(self._insert(shard)))
            rows = {row[0]: row[1:] for row in connection.execute(query).fetchall()}
        found = {shard: rows[key] for shard, key in self._keys.items() if key in rows}
        newest = {
            members[shard].origin: (batch_id, vector)
            for shard, (incarnation, batch_id, vector, _) in found.items()
            if incarnation == members[shard].incarnation
        }
        stored = newest_in(self._sink, self._claim, newest)
        for shard, vector in stored.items():
            if isinstance(vector, int):
                members[shard].load_failures(found[shard][3])
        return stored | refused_members(
            self._sink,
            self._claim,
            {shard: row[0] for shard, row in found.items()},
            lambda shard, own: self._adopting(shard, own).as_string(connection),
        )

    def has(self, connection: Connection, batch: tuple[str, ...]) -> bool:
        """Returns False, as `Ledger.has` does for a batch that is not stored.

        Raises:
            InvalidArgument: if a member is stored, or a shard is refused.
            PermissionDenied: as for `stored`.
        """
        if epochs_in(self.stored(connection)):
            raise stored_meanwhile(self._claim)
        return False

    def record(self, connection: Connection, batch: tuple[str, ...]) -> None:
        """Records that the vector is stored. Call it in the transaction that stores it.

        Raises:
            InvalidArgument: if a member was stored in between; roll the transaction back.
        """
        # In one order, so that two vectors cannot deadlock.
        for shard in sorted(self._keys):
            if not connection.execute(self._insert(shard)).fetchall():
                raise stored_meanwhile(self._claim)

    # Values are literals: with parameters, psycopg would take a % in the schema's name for one.
    def _insert(self, shard: str) -> sql.Composed:
        member = self._claim.members[shard]
        values = (
            self._sink,
            self._keys[shard],
            member.incarnation,
            member.batch_id,
            str(self._claim.batch_id),
            member.dump_failures(),
        )
        return sql.SQL(
            "insert into {} as l (sink, batch, incarnation, batch_id, fingerprint, failed)"
            " values ({}) on conflict (sink, batch) do update set applied_at = now(),"
            " batch_id = excluded.batch_id, fingerprint = excluded.fingerprint,"
            " failed = excluded.failed"
            " where l.incarnation = excluded.incarnation and l.batch_id < excluded.batch_id"
            " returning 1"
        ).format(self._table, sql.SQL(", ").join(map(sql.Literal, values)))

    def _adopting(self, shard: str, incarnation: str) -> sql.Composed:
        """Returns the statement that assigns a shard to another incarnation, without batches."""
        return sql.SQL(
            "update {} set incarnation = {}, batch_id = 0 where sink = {} and batch = {};"
        ).format(self._table, incarnation, self._sink, self._keys[shard])
