"""The list of all steps: each is a function that a session runs, chosen by its weight."""

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from .sessions import Session
from .world import Choices, World

Body = Callable[[World, Choices, Session], Coroutine[Any, Any, None]]


class Step(NamedTuple):
    """A kind of step: which sessions take it, how often, and what it does."""

    name: str
    role: str
    weight: int
    body: Body


STEPS: dict[str, Step] = {}


def step(role: str, weight: int) -> Callable[[Body], Body]:
    """Adds a function to the steps that sessions take: those in this attribute of `World`."""

    def add(body: Body) -> Body:
        name = body.__name__
        STEPS[name] = Step(name, role, weight, body)
        return body

    return add


def take(world: World, name: str, seed: int) -> None:
    """Takes one step, unless all sessions that could are busy."""
    kind = STEPS[name]
    choices = Choices(seed)
    sessions = getattr(world, kind.role)
    free = world.free(sessions if isinstance(sessions, list) else [sessions])
    if free:
        session = choices.one(free)
        world.step(name, session, kind.body(world, choices, session))
