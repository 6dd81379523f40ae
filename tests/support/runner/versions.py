"""Which versions the tests run with, for what older ones cannot do."""

from importlib.metadata import version


def is_older(package: str, than: tuple[int, int]) -> bool:
    """Whether an installed package is older than a version, given as major and minor number."""
    major, minor = version(package).split(".")[:2]
    return (int(major), int(minor)) < than
