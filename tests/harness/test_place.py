"""The folder is fresh each time, and one program's at a time."""

from pathlib import Path

import pytest

from harness import HarnessError
from harness.place import Place


def test_each_program_finds_a_fresh_folder(tmp_path: Path) -> None:
    place = Place(tmp_path / "my place")
    with place.taken():
        (place.output / "old").touch()

    with place.taken():
        assert list(place.output.iterdir()) == []


def test_a_second_program_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path / "place")
    with place.taken():
        (place.output / "mine").touch()

        with (
            pytest.raises(HarnessError, match="another program"),
            Place(tmp_path / "place").taken(),
        ):
            pass

        assert (place.output / "mine").exists()
