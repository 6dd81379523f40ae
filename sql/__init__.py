"""The generated SQL files, as data of the package."""
