"""A Python that lacks packages this one has: those of a cluster's machines."""

from __future__ import annotations

import shutil
import sys
import venv
from pathlib import Path

import pyspark

REPOSITORY = Path(__file__).resolve().parents[2]
SITE_PACKAGES = Path(pyspark.__file__).parents[1]
DEPENDENCIES = ("kafka", "kafka_python-*.dist-info", "crc32c", "crc32c-*.dist-info")
"""What the package needs beside what PySpark needs too (pyarrow, numpy). crc32c reads its own metadata."""


def bare_python(place: Path, *without: str) -> Path:
    """Makes a virtual environment with all that this Python has but this package and those patterns; its directory.

    The package is not in it, however it was installed here: of an editable install there is but a .pth file.
    """
    venv.create(place, symlinks=True, with_pip=False)
    site = site_packages(place)
    for each in SITE_PACKAGES.iterdir():
        if not any(each.match(pattern) for pattern in ("*.pth", "spark_group_source*", *without)):
            (site / each.name).symlink_to(each)
    return place


def site_packages(environment: Path) -> Path:
    """Where a virtual environment of this version of Python has its packages."""
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def copy_package(place: Path) -> Path:
    """Lays the package and what it needs into a directory, as ``pip install --target`` does."""
    place.mkdir(exist_ok=True)
    sources = [
        REPOSITORY / "spark_group_source",
        *(found for each in DEPENDENCIES for found in SITE_PACKAGES.glob(each)),
    ]
    for source in sources:
        shutil.copytree(source, place / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def zipped_package(place: Path) -> str:
    """The package as ``--py-files`` takes it."""
    return shutil.make_archive(str(place / "package"), "zip", REPOSITORY, "spark_group_source")
