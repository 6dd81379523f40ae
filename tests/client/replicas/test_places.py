"""Which columns the names in an event mean, after columns were added, dropped and renamed."""

import itertools

import pytest

from pgque_dagster.client.replicas.shape import Column, places_in

SAME = Column("id", "id", may_lack=False, first=None)


def written(now: str) -> Column:
    return Column(None, now, may_lack=False, first=None)


def added(now: str) -> Column:
    return Column(None, now, may_lack=True, first=None)


GONE = Column(None, None, may_lack=True, first=None)


@pytest.mark.parametrize(
    ("columns", "names", "places"),
    [
        ([SAME, written("b")], "id a", (0, 1)),
        ([SAME, written("b")], "id", None),
        ([SAME, written("b")], "a b", None),
        ([SAME, written("b"), written("a")], "id a b", (0, 1, 2)),
        ([SAME, added("a"), added("b")], "id x", (0, 1, None)),
        ([SAME, GONE], "id x", (0,)),
        ([SAME, GONE, GONE], "id x", (0,)),
        # Dropped and added under one name.
        ([SAME, GONE, added("a")], "id a", None),
        ([SAME, GONE, added("a")], "id a a", (0, 2)),
        ([SAME, GONE, added("a")], "id", (0, None)),
        ([SAME, GONE, written("b"), added("a")], "id a b", None),
        ([GONE, SAME, added("a")], "a id", (1, None)),
        ([GONE, SAME, added("a")], "id a", (0, 1)),
    ],
)
def test_names_mean_columns_if_there_is_one_way(
    columns: list[Column], names: str, places: tuple[int | None, ...] | None
) -> None:
    assert places_in(names.split(), columns) == places


def test_each_way_counts_that_columns_may_have_come_and_gone() -> None:
    """Compares with all ways, each of which is tried."""
    kinds = (SAME, written("b"), added("c"), GONE)
    for columns in itertools.product(kinds, repeat=4):
        for names in itertools.product(("id", "x"), repeat=3):
            found = {
                tuple(None if not there else sum(have[:nr]) for nr, there in enumerate(have))
                for have in itertools.product((True, False), repeat=4)
                if sum(have) == 3
                and all(there or each.may_lack for there, each in zip(have, columns, strict=True))
                and all(
                    names[sum(have[:nr])] == "id"
                    for nr in range(4)
                    if have[nr] and columns[nr].name
                )
                # Nothing is lacked before something that came later.
                and not any(columns[nr].now and not have[nr] and any(have[nr:]) for nr in range(4))
            }
            ways = {
                tuple(place for place, each in zip(way, columns, strict=True) if each.now)
                for way in found
            }
            expected = ways.pop() if len(ways) == 1 else None
            assert places_in(names, columns) == expected, (columns, names)
