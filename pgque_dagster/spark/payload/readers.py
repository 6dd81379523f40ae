"""Readers of Spark's scalar types: many values at once, or one value exactly."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from . import raw_json
from .values import Misfit

# A mask of the values of a column that need the exact reader; None if no value does.
Doubts = npt.NDArray[np.bool_] | None


class Reader(ABC):
    """Reads the values of a field, or the elements of an array or map, in two ways.

    `column` makes an Arrow array of the values that msgspec decoded, and marks the doubtful ones.
    `exact` reads one raw value and names what is wrong with it. For a value that `column` does not
    mark, both return the same.

    Args:
        name: the name of the Spark type, for reasons.
        nullable: whether null is allowed.
    """

    arrow: pa.DataType
    # The Python type that msgspec decodes a value to, if it is not null.
    decoded: Any

    def __init__(self, name: str, nullable: bool) -> None:
        self.name = name
        self.nullable = nullable

    @property
    def annotation(self) -> Any:
        """The type that msgspec decodes a value or null to. Raw JSON includes null."""
        is_plain = self.decoded is msgspec.Raw or not self.nullable
        return self.decoded if is_plain else self.decoded | None

    @abstractmethod
    def column(self, values: list[Any]) -> tuple[pa.Array, Doubts]:
        """Makes a column of the type `arrow`, with null for doubtful values, and their mask."""

    def exact(self, raw: msgspec.Raw, path: str, problems: dict[str, None]) -> Any:
        """Returns a JSON value as pyarrow takes it for `arrow`; None if it does not fit.

        Args:
            raw: the value.
            path: the path of the field.
            problems: each problem is added here, once.
        """
        value = raw_json.value(raw)
        if value is not None:
            return self.fitted(value, path, problems)
        if not self.nullable:
            problems[f"{path} is null"] = None
        return None

    @abstractmethod
    def fitted(self, value: Any, path: str, problems: dict[str, None]) -> Any:
        """Does what `exact` does for a value of `raw_json.value` that is not null."""

    def misfit(self, path: str, problems: dict[str, None]) -> None:
        """Records that a value is not of the type."""
        problems[f"{path} is no {self.name}"] = None


@dataclass
class ScalarReader(Reader):
    """Reads values that msgspec decodes exactly as pyarrow takes them.

    Args:
        name: as for `Reader`.
        nullable: as for `Reader`.
        arrow: the Arrow type.
        decoded: the type that msgspec decodes a value to.
        take: converts one value, or raises `Misfit`.
    """

    name: str
    nullable: bool
    arrow: pa.DataType
    decoded: Any
    take: Callable[[Any], Any]

    def column(self, values: list[Any]) -> tuple[pa.Array, Doubts]:
        """Makes the column."""
        return pa.array(values, self.arrow), None

    def fitted(self, value: Any, path: str, problems: dict[str, None]) -> Any:
        """Converts one value."""
        try:
            return self.take(value)
        except Misfit as misfit:
            if not misfit.args:
                return self.misfit(path, problems)
            problems[f"{path} {misfit}"] = None
            return None


class EachReader(ScalarReader):
    """Reads values one by one."""

    def column(self, values: list[Any]) -> tuple[pa.Array, Doubts]:
        """Makes the column."""
        taken = [None if value is None else self.fitted(value, "", {}) for value in values]
        doubts = [x is not None and y is None for x, y in zip(values, taken, strict=True)]
        return pa.array(taken, self.arrow), np.array(doubts, bool)


@dataclass
class TextReader(ScalarReader):
    """Reads values from texts that Arrow casts; texts that do not match a pattern are doubtful.

    They are decoded to str, or to `msgspec.Raw` for numbers, which may have quotes if the pattern
    has them.

    Args:
        pattern: matches only texts that Arrow either casts to the same value as `take` or refuses.
    """

    pattern: str

    def column(self, values: list[Any]) -> tuple[pa.Array, Doubts]:
        """Makes the column."""
        texts = self._texts(values)
        sure = pc.if_else(pc.match_substring_regex(texts, f"^(?:{self.pattern})$"), texts, None)
        if self.decoded is msgspec.Raw:
            sure = pc.ascii_trim(sure, '"')
        try:
            column = sure.cast(self.arrow)
        except pa.ArrowInvalid:
            # One text is a date such as 30 February, and Arrow does not say which one.
            column = pa.array([self._taken(text) for text in sure.to_pylist()], self.arrow)
        if column.null_count == texts.null_count:
            return column, None
        return column, pc.and_(texts.is_valid(), column.is_null()).to_numpy(zero_copy_only=False)

    def _texts(self, values: list[Any]) -> pa.Array:
        if self.decoded is str:
            return pa.array(values, pa.string())
        raw = [None if value is None else bytes(value) for value in values]
        texts = pa.array(raw, pa.binary()).cast(pa.string())
        return pc.if_else(pc.equal(texts, "null"), None, texts) if self.nullable else texts

    def _taken(self, text: str | None) -> Any:
        return None if text is None else self.fitted(text, "", {})


def bounded(bits: int) -> Any:
    """Returns the type that msgspec decodes an integer of so many bits to."""
    return Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]
