"""Names the packages; everything else about the project stands in pyproject.toml.

The generated SQL is kept in the top-level folder `sql`, where SQL users look for it, and is
installed as the data package `pgque_dagster.sql`. pyproject.toml cannot combine such a mapping with
automatic discovery of the other packages.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["pgque_dagster", "pgque_dagster.*"]), "pgque_dagster.sql"],
    package_dir={"pgque_dagster.sql": "sql"},
)
