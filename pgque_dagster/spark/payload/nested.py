"""Readers of structs, arrays and maps."""

from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .readers import Doubts, Reader


class StructReader(Reader):
    """Reads JSON objects by the names of their fields.

    Args:
        name: as for `Reader`.
        nullable: as for `Reader`.
        fields: the readers of the fields.
    """

    def __init__(self, name: str, nullable: bool, fields: dict[str, Reader]) -> None:
        super().__init__(name, nullable)
        self._fields = fields
        self.arrow = pa.struct([(key, reader.arrow) for key, reader in fields.items()])
        self.decoded = _msgspec_struct(fields)

    def column(self, values: list[Any]) -> tuple[pa.Array, Doubts]:
        """Makes the column."""
        nulls = _nulls(values)
        if nulls.any():
            nothing = self.decoded(**{f"f{n}": None for n in range(len(self._fields))})
            values = [nothing if value is None else value for value in values]
        doubts = np.zeros(len(values), bool)
        columns = []
        for n, reader in enumerate(self._fields.values()):
            column, some = reader.column(list(map(attrgetter(f"f{n}"), values)))
            columns.append(column)
            doubts |= False if some is None else some
        mask = pa.array(nulls | doubts)
        return pa.StructArray.from_arrays(columns, fields=list(self.arrow), mask=mask), doubts

    def fitted(self, value: Any, path: str, problems: dict[str, None]) -> Any:
        """Converts the raw fields of one object; a field that does not fit is null."""
        if not isinstance(value, dict):
            return self.misfit(path, problems)
        prefix = f"{path}." if path else ""
        result: dict[str, Any] = {}
        for name, reader in self._fields.items():
            found: dict[str, None] = {}
            if name in value:
                result[name] = reader.exact(value[name], f"{prefix}{name}", found)
            elif not reader.nullable:
                found[f"{prefix}{name} is missing"] = None
            if found:
                result[name] = None
                problems.update(found)
        return result


class ArrayReader(Reader):
    """Reads JSON arrays.

    Args:
        name: as for `Reader`.
        nullable: as for `Reader`.
        element: the reader of the elements.
    """

    def __init__(self, name: str, nullable: bool, element: Reader) -> None:
        super().__init__(name, nullable)
        self._element = element
        self.arrow = pa.list_(pa.field("element", element.arrow))
        self.decoded = list[element.annotation]  # type: ignore[name-defined]

    def column(self, values: list[Any]) -> tuple[pa.Array, Doubts]:
        """Makes the column."""
        given = [value for value in values if value is not None]
        column, doubts = self._element.column(list(chain.from_iterable(given)))
        offsets = _offsets(values)
        mask = pa.array(_nulls(values))
        array = pa.ListArray.from_arrays(pa.array(offsets), column, type=self.arrow, mask=mask)
        return array, _doubts_of_parents(doubts, offsets)

    def fitted(self, value: Any, path: str, problems: dict[str, None]) -> Any:
        """Converts one array."""
        if not isinstance(value, list):
            return self.misfit(path, problems)
        return [self._element.exact(element, f"{path}[]", problems) for element in value]


class MapReader(Reader):
    """Reads JSON objects with any names.

    Args:
        name: as for `Reader`.
        nullable: as for `Reader`.
        value: the reader of the values.
    """

    def __init__(self, name: str, nullable: bool, value: Reader) -> None:
        super().__init__(name, nullable)
        self._value = value
        self.arrow = pa.map_(pa.string(), pa.field("value", value.arrow))
        self.decoded = dict[str, value.annotation]  # type: ignore[name-defined]

    def column(self, values: list[Any]) -> tuple[pa.Array, Doubts]:
        """Makes the column."""
        given = [value for value in values if value is not None]
        keys = pa.array(list(chain.from_iterable(given)), pa.string())
        column, doubts = self._value.column(
            list(chain.from_iterable(value.values() for value in given))
        )
        offsets = _offsets(values)
        mask = pa.array(_nulls(values))
        array = pa.MapArray.from_arrays(pa.array(offsets), keys, column, type=self.arrow, mask=mask)
        return array, _doubts_of_parents(doubts, offsets)

    def fitted(self, value: Any, path: str, problems: dict[str, None]) -> Any:
        """Converts one object."""
        if not isinstance(value, dict):
            return self.misfit(path, problems)
        return [(key, self._value.exact(x, f"{path}[]", problems)) for key, x in value.items()]


def _msgspec_struct(fields: dict[str, Reader]) -> type[msgspec.Struct]:
    """Returns a class with the fields f0, f1, …, since some names are not valid in Python."""
    names = {f"f{n}": name for n, name in enumerate(fields)}
    annotated: list[Any] = []
    for attribute, reader in zip(names, fields.values(), strict=True):
        required = (attribute, reader.annotation)
        annotated.append((*required, None) if reader.nullable else required)
    return msgspec.defstruct("Payload", annotated, rename=names, kw_only=True, gc=False)


def _nulls(values: list[Any]) -> npt.NDArray[np.bool_]:
    return np.fromiter((value is None for value in values), bool, len(values))


def _offsets(values: list[Any]) -> npt.NDArray[np.int32]:
    """Returns where the elements of each value begin, and where those of the last value end."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([0 if value is None else len(value) for value in values], out=offsets[1:])
    return offsets


def _doubts_of_parents(doubts: Doubts, offsets: npt.NDArray[np.int32]) -> Doubts:
    """Returns which arrays or maps have a doubtful element."""
    if doubts is None:
        return None
    before = np.concatenate(([0], np.cumsum(doubts)))
    some: npt.NDArray[np.bool_] = before[offsets[1:]] > before[offsets[:-1]]
    return some
