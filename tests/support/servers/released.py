"""The SQL of released versions, from which upgrades start: see tests/released/README.md."""

import gzip
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "released"


@dataclass(frozen=True)
class Release:
    version: str

    def sql(self, name: str = "pgque") -> bytes:
        """The file `sql/<name>.sql` of that version."""
        return gzip.decompress((_FOLDER / self.version / f"{name}.sql.gz").read_bytes())


RELEASES = [Release(folder.name) for folder in sorted(_FOLDER.iterdir()) if folder.is_dir()]
