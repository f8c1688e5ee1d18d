"""A Python with fewer packages than this one, like on the machines of a cluster."""

from __future__ import annotations

import shutil
import sys
import venv
from pathlib import Path

import pyspark

REPOSITORY = Path(__file__).resolve().parents[2]
SITE_PACKAGES = Path(pyspark.__file__).parents[1]
DEPENDENCIES = ("kafka", "kafka_python-*.dist-info", "crc32c", "crc32c-*.dist-info")
"""Dependencies of the package that PySpark does not need too. crc32c reads its own metadata."""


def bare_python(place: Path, *without: str) -> Path:
    """Creates a virtual environment with this Python's packages, except this package and those of the patterns.

    Skipping .pth files also leaves out an editable install of the package.
    """
    venv.create(place, symlinks=True, with_pip=False)
    site = site_packages(place)
    for each in SITE_PACKAGES.iterdir():
        if not any(each.match(pattern) for pattern in ("*.pth", "spark_group_source*", *without)):
            (site / each.name).symlink_to(each)
    return place


def site_packages(environment: Path) -> Path:
    """Returns the package directory of a virtual environment of this Python version."""
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def copy_package(place: Path) -> Path:
    """Copies the package and its dependencies into a directory, like ``pip install --target``."""
    place.mkdir(exist_ok=True)
    sources = [
        REPOSITORY / "spark_group_source",
        *(found for each in DEPENDENCIES for found in SITE_PACKAGES.glob(each)),
    ]
    for source in sources:
        shutil.copytree(source, place / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return place


def zipped_package(place: Path) -> str:
    """Returns the path of the package as a zip for ``--py-files``."""
    return shutil.make_archive(str(place / "package"), "zip", REPOSITORY, "spark_group_source")
