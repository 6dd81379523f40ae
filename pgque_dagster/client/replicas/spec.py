"""The spec of a table: what is replicated of it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from ..errors import InvalidArgument

SHA256 = "sha256"
Arrays = Literal["text", "list"]
TEXT, LIST = get_args(Arrays)
Mode = Literal["merge", "append"]
MERGE, APPEND = get_args(Mode)
# Types whose values print differently, or can be guessed easily.
_NOT_MASKED = ("boolean", "real", "double precision")
# A part of a name: in quotes, or plain.
_PART = r'(?:"(?:[^"]|"")+"|[^".]+)'
_NAME = re.compile(rf"({_PART})\.({_PART})")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


@dataclass(frozen=True)
class TableSpec:
    """A table to replicate, possibly without some columns or with hashes in place of values.

    Attributes:
        source: schema and name, such as `public.customers`.
        exclude: columns that the replica does not have.
        mask: columns of which the replica only has a hash, each with the name of the hash, which is
            `sha256`: of the text that PostgreSQL prints, in hexadecimal digits.
        arrays: how the lake stores arrays: as the `text` that PostgreSQL prints, or as a `list` of
            elements, which must have one dimension.
        unstorable: columns with values the lake cannot hold, such as `infinity` in a date, each
            with what the lake stores instead: `text` stores what PostgreSQL prints.
        mode: `merge` finds rows by their key. `append` is for a table without a key, whose rows
            are only inserted: an update or a delete stops its replica.
    """

    source: str
    exclude: Sequence[str] = ()
    mask: Mapping[str, str] = field(default_factory=dict)
    arrays: Arrays = TEXT
    unstorable: Mapping[str, str] = field(default_factory=dict)
    mode: Mode = MERGE

    @staticmethod
    def of(table: "str | TableSpec") -> "TableSpec":
        """Returns the spec of a table that is given by its name only, or the given spec."""
        return table if isinstance(table, TableSpec) else TableSpec(table)

    @property
    def is_pattern(self) -> bool:
        """Whether the name has a `*` outside quotes, and so matches several tables."""
        return "*" in _QUOTED.sub("", self.source)

    @property
    def is_of_columns(self) -> bool:
        """Whether it has options for columns."""
        return bool(self.exclude or self.mask or self.unstorable)

    @property
    def path(self) -> tuple[str, str]:
        """The schema and the name without quotes.

        Raises:
            InvalidArgument: if the name does not have these two parts.
        """
        found = _NAME.fullmatch(self.source)
        if found is None:
            raise InvalidArgument(
                f"{self.source!r} is not a schema and a table",
                """Write them as in SQL: public.orders, or sales."Big One".""",
            )
        schema, name = (
            part[1:-1].replace('""', '"') if part.startswith('"') else part
            for part in found.groups()
        )
        return schema, name

    def shape(self) -> str:
        """Returns a text that identifies what is replicated of the table."""
        excluded, masked = ", ".join(sorted(self.exclude)), ", ".join(sorted(self.mask))
        appended = " by append" if self.mode == APPEND else ""
        left = f" without {excluded}; masked {masked}" if excluded or masked else ""
        texts = f" as text {', '.join(sorted(self.unstorable))}" if self.unstorable else ""
        return appended + left + (" arrays as lists" if self.arrays == LIST else "") + texts

    def check(self, table: str, kinds: Mapping[str, str], key: Sequence[str]) -> None:
        """Refuses columns that cannot be excluded, masked or stored as text.

        Args:
            table: the table's name.
            kinds: the type of each column.
            key: the columns of its key.

        Raises:
            InvalidArgument: if a column does not exist, is part of the key, is named twice, or
                cannot be masked or stored as text; or if the mode does not fit the key.
        """
        if self.mode not in get_args(Mode) or bool(key) == (self.mode == APPEND):
            raise InvalidArgument(
                f"table {table} has {f'a key, and mode {self.mode!r}' if key else 'no key'}",
                "Leave out the mode: it has a key."
                if key
                else "Give it a primary key, or a replica identity by a unique index; or write "
                "mode: append, if its rows are only inserted.",
            )
        if isinstance(self.exclude, str):
            raise InvalidArgument(
                f"exclude of {table} is the text {self.exclude!r}, not a list of columns",
                f"Write exclude: [{self.exclude}].",
            )
        if self.arrays not in get_args(Arrays):
            raise InvalidArgument(
                f"{table} cannot have arrays as {self.arrays!r}",
                f"It may be {', '.join(get_args(Arrays))}.",
            )
        named = [*self.exclude, *self.mask, *self.unstorable]
        for name in named:
            if name not in kinds:
                raise InvalidArgument(
                    f"table {table} has no column {name}, which is to be left out, masked or text",
                    f"It has: {', '.join(kinds)}.",
                )
            if name in key and name not in self.unstorable:
                raise InvalidArgument(
                    f"column {name} of {table} is part of the key, by which rows are found",
                    "Only other columns can be left out or masked.",
                )
            if named.count(name) > 1:
                raise InvalidArgument(
                    f"column {name} of {table} is named twice in exclude, mask and unstorable",
                    "Name it once.",
                )
        for name, hash_ in self.mask.items():
            if hash_ != SHA256:
                raise InvalidArgument(
                    f"no mask {hash_!r} for column {name} of {table}", f"The only mask is {SHA256}."
                )
            if kinds[name] in _NOT_MASKED:
                raise InvalidArgument(
                    f"column {name} of {table} is of type {kinds[name]}, which cannot be masked",
                    "Leave it out with exclude.",
                )
        for name, choice in self.unstorable.items():
            if choice != TEXT:
                raise InvalidArgument(
                    f"unstorable has {choice!r} for column {name} of {table}",
                    f"The only choice is {TEXT}: the text that PostgreSQL prints.",
                )
            if kinds[name] in _NOT_MASKED:
                raise InvalidArgument(
                    f"column {name} of {table} is of type {kinds[name]}, of which the lake holds "
                    "each value",
                    "Leave it out of unstorable.",
                )
