"""What the components of a project know about each other."""

from typing import TypeVar

import dagster as dg

from ..project.consumers import AssetConsumer

Found = TypeVar("Found")


class Consuming:
    """The interface of a component whose assets consume queues."""

    @property
    def asset_consumers(self) -> list[AssetConsumer]:
        """The consumers, with the keys of their assets if known."""
        raise NotImplementedError

    @property
    def sources(self) -> list[dg.AssetKey]:
        """The assets that send the events of the queue."""
        return []


def all_components(context: dg.ComponentLoadContext, of_type: type[Found]) -> list[Found]:
    """Returns the project's components of a type; none if the component is loaded alone."""
    if context.component_path.instance_key is None:
        return []
    found: list[Found] = context.component_tree.get_all_components(of_type)  # type: ignore[type-var]
    return found
