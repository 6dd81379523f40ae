"""The cursor of the alert sensor: the open problems, and the newest dead letters."""

from datetime import datetime
from typing import NamedTuple, Self

from pydantic import BaseModel, ConfigDict, ValidationError


class Problem(NamedTuple):
    """Identifies a problem by queue and name.

    Attributes:
        queue: empty for a problem of the whole database.
        name: a health check or another problem, such as `rotation_health` or
            `held_batch:revenue:812`.
    """

    queue: str
    name: str


class AlertCursor(BaseModel):
    """The notified problems that are not over, with their start; queues' newest dead letters."""

    model_config = ConfigDict(extra="forbid")

    notified: list[tuple[Problem, datetime]] = []
    dead_letters: dict[str, int] = {}

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Reads what `model_dump_json` returned; any other text gives an empty cursor."""
        try:
            return cls.model_validate_json(text or "")
        except ValidationError:
            return cls()
