"""Commits a snapshot that adds and removes data files and position deletes.

pyiceberg does not write position deletes, so this module combines its public parts. The commit
demands that the branch `main` is still at the snapshot that was read. Files that stay are not read
or rewritten: only manifests that list a removed file are rewritten, and small manifests when there
are many.
"""

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Literal

from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
    write_manifest_list,
)
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)
from pyiceberg.types import NestedField, StringType, StructType

from ....client.errors import InvalidArgument

# The format version whose tables can be written: pyiceberg cannot write newer ones.
_VERSION: Literal[2] = 2
_CODEC: Literal["deflate"] = "deflate"
# Manifests below this size are united once there are this many.
_SMALL_MANIFEST_BYTES = 4 * 2**20
_SMALL_MANIFESTS = 20
# The property that says whether commits delete metadata files that are no longer listed.
DELETES_OLD = "write.metadata.delete-after-commit.enabled"
# The column of positions' files that names the data file.
PATH_ID = 2147483546
_REFERENCED = NestedField(143, "referenced_data_file", StringType(), required=False)


def commit_snapshot(
    table: Table,
    wanted: TableMetadata,
    *,
    added: Sequence[Entry],
    gone: Collection[str],
    summary: dict[str, str],
) -> int:
    """Commits a snapshot, if the one that `table` has is still the newest. Returns its id.

    Args:
        table: the newest state of the table.
        wanted: the schema and the properties that the table then has.
        added: new data files, and new files of position deletes.
        gone: the paths of files that are removed; all of them must be in the table.
        summary: the properties of the snapshot; `operation` is among them if no row changes.

    Raises:
        CommitFailedException: if another snapshot was committed. Nothing is changed.
        InvalidArgument: as for `check_version`.
    """
    check_version(table)
    snapshot = _Snapshot(table, wanted, gone)
    try:
        return snapshot.commit(added, summary)
    except CommitFailedException:
        newest = table.catalog.load_table(table.name())
        if newest.snapshot_by_id(snapshot.id) is not None:
            return snapshot.id  # The catalog repeated a request whose answer was lost.
        for path in snapshot.written:
            with suppress(OSError):
                table.io.delete(path)
        raise


def check_version(table: Table) -> None:
    """Raises `InvalidArgument` if the table has another format version than 2."""
    if table.format_version != _VERSION:
        raise InvalidArgument(
            f"Iceberg table {'.'.join(table.name())} has format version {table.format_version}, "
            f"and only tables of version {_VERSION} are changed here",
            f"Upgrade an older table to version {_VERSION}. Move a newer one away, so that the "
            "next run creates it again.",
        )


class _Snapshot:
    """A snapshot that is being written."""

    def __init__(self, table: Table, wanted: TableMetadata, gone: Collection[str]) -> None:
        self._table, self._wanted, self._gone = table, wanted, gone
        self.id = table.metadata.new_snapshot_id()
        self._parent = table.current_snapshot()
        self._name = uuid.uuid4().hex
        self.written: list[str] = []

    def commit(self, added: Sequence[Entry], summary: dict[str, str]) -> int:
        """Writes the manifests and commits them."""
        old, now, io = self._table.metadata, self._wanted, self._table.io
        manifests, rewritten = self._manifests()
        for entry in added:
            rewritten[_content(entry), now.default_spec_id].append(_status(entry, self.id))
        parent_id = None if self._parent is None else self._parent.snapshot_id
        number = old.next_sequence_number()
        written = [self._write(*key, entries) for key, entries in rewritten.items() if entries]
        path = self._path(f"snap-{self.id}-0-{self._name}.avro")
        with write_manifest_list(
            _VERSION, io.new_output(path), self.id, parent_id, number, _CODEC
        ) as to:
            to.add_manifests([*written, *manifests])
        entries = [entry for each in rewritten.values() for entry in each]
        # With the names in the format, under which pyiceberg's classes declare them.
        snapshot = {
            "snapshot-id": self.id,
            "parent-snapshot-id": parent_id,
            "manifest-list": path,
            "sequence-number": number,
            "summary": self._summary(entries, summary),
            "schema-id": now.current_schema_id,
        }
        head = {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot-id": self.id}
        updates = (
            *_updates(old, now),
            AddSnapshotUpdate(snapshot=Snapshot.model_validate(snapshot)),
            SetSnapshotRefUpdate.model_validate(head),
        )
        demands = (
            AssertTableUUID(uuid=old.table_uuid),
            AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": parent_id}),
            # The files have the ids of its columns.
            AssertCurrentSchemaId.model_validate({"current-schema-id": old.current_schema_id}),
        )
        done = self._table.catalog.commit_table(self._table, demands, updates)
        if now.properties.get(DELETES_OLD, "false").lower() == "true":
            # The catalog's list of metadata files has a limited length.
            logged = {each.metadata_file for each in done.metadata.metadata_log}
            for each in old.metadata_log:
                if each.metadata_file not in logged:
                    with suppress(OSError):
                        io.delete(each.metadata_file)
        return self.id

    def _manifests(
        self,
    ) -> tuple[list[ManifestFile], dict[tuple[ManifestContent, int], list[ManifestEntry]]]:
        """Returns the manifests that stay, and the entries of those that are written again."""
        io, missing = self._table.io, set(self._gone)
        kept: dict[tuple[ManifestContent, int], list[ManifestFile]] = defaultdict(list)
        entries: dict[tuple[ManifestContent, int], list[ManifestEntry]] = defaultdict(list)
        for manifest in self._parent.manifests(io) if self._parent else ():
            if not (manifest.has_added_files() or manifest.has_existing_files()):
                continue
            key = manifest.content, manifest.partition_spec_id
            found = manifest.fetch_manifest_entry(io) if missing else []
            if missing.isdisjoint(entry.data_file.file_path for entry in found):
                kept[key].append(manifest)
                continue
            missing -= {entry.data_file.file_path for entry in found}
            entries[key] += (self._kept(entry) for entry in found)
        for key, found_here in kept.items():
            small = [x for x in found_here if x.manifest_length < _SMALL_MANIFEST_BYTES]
            if len(small) >= _SMALL_MANIFESTS:
                kept[key] = [x for x in found_here if x not in small]
                for manifest in small:
                    entries[key] += map(self._kept, manifest.fetch_manifest_entry(io))
        if missing:
            raise CommitFailedException(f"{len(missing)} files are not in the table any more")
        return [each for group in kept.values() for each in group], entries

    def _kept(self, entry: ManifestEntry) -> ManifestEntry:
        """Returns an entry of the parent snapshot as it is in this one."""
        is_gone = entry.data_file.file_path in self._gone
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.DELETED if is_gone else ManifestEntryStatus.EXISTING,
            snapshot_id=self.id if is_gone else entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )

    def _write(
        self, content: ManifestContent, spec_id: int, entries: Iterable[ManifestEntry]
    ) -> ManifestFile:
        metadata = self._wanted
        kind = ManifestWriterV2 if content == ManifestContent.DATA else _DeletesWriter
        path = self._path(f"{self._name}-m{len(self.written)}.avro")
        output = self._table.io.new_output(path)
        spec = metadata.specs()[spec_id]
        with kind(spec, metadata.schema(), output, self.id, _CODEC) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _path(self, name: str) -> str:
        path = self._table.location_provider().new_metadata_location(name)
        self.written.append(path)
        return path

    def _summary(self, entries: Iterable[ManifestEntry], properties: dict[str, str]) -> Summary:
        changed, schema = SnapshotSummaryCollector(), self._wanted.schema()
        for entry in entries:
            if entry.status == ManifestEntryStatus.ADDED:
                changed.add_file(entry.data_file, schema)
            elif entry.status == ManifestEntryStatus.DELETED:
                changed.remove_file(entry.data_file, schema)
        # pyiceberg does not count rows for the operation REPLACE.
        counted = update_snapshot_summaries(
            Summary(Operation.OVERWRITE, **changed.build()),
            self._parent.summary if self._parent else None,
        )
        facts = {**counted.additional_properties, **properties}
        return Summary(Operation(facts.pop("operation", Operation.OVERWRITE)), **facts)


class _DeletesWriter(ManifestWriterV2):
    """Writes a manifest of position deletes, with the data file of each.

    pyiceberg's own schema of version 2 lacks the column of the data file.
    """

    def content(self) -> ManifestContent:
        """Returns the kind of the manifest."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        """Opens the file."""
        stored = data_file_with_partition(self._spec.partition_type(self._schema), 2)
        fields = StructType(*stored.fields, _REFERENCED)
        return AvroOutputFile[ManifestEntry](
            output_file=self._output_file,
            file_schema=manifest_entry_schema_with_data_file(2, fields),
            record_schema=self._with_partition(3),
            schema_name="manifest_entry",
            metadata=self._meta,
        )

    def prepare_entry(self, entry: ManifestEntry) -> ManifestEntry:
        """Returns an entry with the data file that it is about, if it is about only one."""
        entry, file = super().prepare_entry(entry), entry.data_file
        facts = {field.name: getattr(file, field.name) for field in DATA_FILE_TYPE[_VERSION].fields}
        named = Entry.from_args(3, **facts, referenced_data_file=referenced(file))
        return ManifestEntry.from_args(
            3,
            status=entry.status,
            snapshot_id=entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=named,
        )


def referenced(file: Entry) -> str | None:
    """Returns the data file that a file of position deletes is about; None if there are several."""
    low, high = ((x or {}).get(PATH_ID) for x in (file.lower_bounds, file.upper_bounds))
    return low.decode() if low is not None and low == high else None


def _content(file: Entry) -> ManifestContent:
    is_data = file.content == DataFileContent.DATA
    return ManifestContent.DATA if is_data else ManifestContent.DELETES


def _status(file: Entry, snapshot_id: int) -> ManifestEntry:
    """Returns the entry of a new file, whose sequence number is that of the snapshot."""
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=snapshot_id,
        sequence_number=None,
        file_sequence_number=None,
        data_file=file,
    )


def _updates(old: TableMetadata, new: TableMetadata) -> Iterable[TableUpdate]:
    """Yields the updates of the schema and the properties."""
    if new.current_schema_id != old.current_schema_id:
        known = {schema.schema_id for schema in old.schemas}
        for schema in new.schemas:
            if schema.schema_id not in known:
                yield AddSchemaUpdate(schema=schema)
        current = {"schema-id": new.current_schema_id}
        yield SetCurrentSchemaUpdate.model_validate(current)
    properties = {x: y for x, y in new.properties.items() if old.properties.get(x) != y}
    if properties:
        yield SetPropertiesUpdate(updates=properties)
