"""Bytecode for PySpark's own zip, once after each installation: ``python -m spark_group_source.spark.bytecode``.

Spark puts ``pyspark.zip`` before everything else on the path of the Python processes that it starts, and of what Python
imports from a zip it keeps no bytecode. So each of them compiles PySpark anew, 0.7 s of a core: at each start of a
streaming query, before its reader runs. Bytecode that stands in the zip beside its source is used instead.

It does no harm to other uses: another version of Python, or source that was changed, is compiled as before.
"""

from __future__ import annotations

import compileall
import os
import shutil
import sys
import tempfile
import warnings
import zipfile
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from py_compile import PycInvalidationMode

TESTS = "/tests/"
"""PySpark's own tests are half of the zip, and nothing imports them."""


def spark_zips() -> list[Path]:
    """The zips of Python modules that Spark brings: those of ``SPARK_HOME``, or else of the PySpark installed here.

    Raises:
        FileNotFoundError: there are none.
    """
    import pyspark

    place = Path(os.environ.get("SPARK_HOME") or pyspark.__path__[0], "python", "lib")
    if not (found := sorted(place.glob("*.zip"))):
        raise FileNotFoundError(f"There is no zip of PySpark in {place}: let SPARK_HOME name the directory of Spark.")
    return found


def add_bytecode(archive: Path) -> int:
    """Adds bytecode of the Python that runs this to a zip of modules; returns of how many, 0 if it was there already.

    What the zip held stays where it was: running processes go on reading it by the table of contents they know.

    Raises:
        OSError: the zip's directory may not be written.
    """
    with zipfile.ZipFile(archive) as source:
        held = source.namelist()
        if any(source.read(each)[: len(MAGIC_NUMBER)] == MAGIC_NUMBER for each in held if each.endswith(".pyc")):
            return 0
        with tempfile.TemporaryDirectory(dir=archive.parent) as place:
            modules, grown = Path(place, "modules"), Path(place, archive.name)
            source.extractall(modules, [each for each in held if each.endswith(".py") and TESTS not in each])
            compiled = _compile(modules, archive)
            shutil.copy(archive, grown)
            with zipfile.ZipFile(grown, "a", zipfile.ZIP_DEFLATED) as target:
                for each in compiled:
                    target.write(each, each.relative_to(modules))
            grown.replace(archive)
    return len(compiled)


def _compile(modules: Path, archive: Path) -> list[Path]:
    """The compiled modules, beside their sources. Tracebacks name the file in the zip, as without bytecode."""
    compileall.compile_dir(
        modules,
        stripdir=str(modules),
        prependdir=str(archive),
        quiet=2,
        legacy=True,
        # Times in a zip are local ones: in another time zone they would not fit.
        invalidation_mode=PycInvalidationMode.CHECKED_HASH,
    )
    return sorted(modules.rglob("*.pyc"))


def main() -> None:
    """Adds bytecode to each of Spark's zips, and says so."""
    # PySpark's source has some, and a second bytecode beside that of another Python is meant.
    warnings.simplefilter("ignore")
    try:
        for archive in spark_zips():
            added = add_bytecode(archive)
            print(f"{archive}: {f'bytecode of {added} modules added' if added else 'its bytecode is there'}")
    except OSError as error:
        sys.exit(f"No bytecode was added: {error}")


if __name__ == "__main__":
    main()
