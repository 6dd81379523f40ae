"""The demo's folder is fresh each time, and one demo's at a time."""

from pathlib import Path

import pytest

from demo.console import DemoError
from demo.place import Place


def test_each_demo_finds_a_fresh_folder(tmp_path: Path) -> None:
    place = Place(tmp_path / "my demo")
    with place.taken():
        (place.output / "old").touch()

    with place.taken():
        assert list(place.output.iterdir()) == []


def test_a_second_demo_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path / "demo")
    with place.taken():
        (place.output / "mine").touch()

        with pytest.raises(DemoError, match="another demo"), Place(tmp_path / "demo").taken():
            pass

        assert (place.output / "mine").exists()
