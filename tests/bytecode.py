"""Adds bytecode to the zip of the PySpark in a virtual environment, so that the tests in it take less time.

Spark puts ``pyspark.zip`` first on the path of the Python processes that it starts, and Python caches no bytecode of
modules in a zip. Each process therefore compiles PySpark: 0.7 s of a core at each start of a query, before its
reader runs. Python uses bytecode that lies in the zip beside its source. Users get that only if
PySpark's own build adds it, because one package must not change the installation of another.

Python also reads the zip's directory when it imports from the zip, up to 3.12 once for each package that it imported
so far. PySpark's own tests are half of the entries, so the new directory leaves them out.

Other uses are not affected: Python still compiles changed source, and other versions of Python compile as before.
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
"""PySpark's own tests are half of the zip, and no module imports them."""


def spark_zips() -> list[Path]:
    """The zips of Python modules in ``SPARK_HOME``, or else in the installed PySpark.

    Raises:
        FileNotFoundError: there is no such zip.
    """
    import pyspark

    directory = Path(os.environ.get("SPARK_HOME") or pyspark.__path__[0], "python", "lib")
    if not (archives := sorted(directory.glob("*.zip"))):
        raise FileNotFoundError(f"There is no zip of PySpark in {directory}. Set SPARK_HOME to the directory of Spark.")
    return archives


def add_bytecode(archive: Path) -> int:
    """Adds this Python's bytecode to a zip of modules. Returns the number of modules, 0 if it has bytecode already.

    Existing entries keep their position, so running processes can still read the zip by the directory they loaded. New
    processes do not find the tests.

    Raises:
        OSError: the zip's directory is not writable.
    """
    with zipfile.ZipFile(archive) as source:
        names = source.namelist()
        if any(source.read(name)[: len(MAGIC_NUMBER)] == MAGIC_NUMBER for name in names if name.endswith(".pyc")):
            return 0
        with tempfile.TemporaryDirectory(dir=archive.parent) as work:
            modules, enlarged = Path(work, "modules"), Path(work, archive.name)
            source.extractall(modules, [name for name in names if name.endswith(".py") and TESTS not in name])
            compiled = _compile(modules, archive)
            shutil.copy(archive, enlarged)
            # Not compressed: each process would decompress it again.
            with zipfile.ZipFile(enlarged, "a", zipfile.ZIP_STORED) as target:
                entries = target.infolist()
                entries[:] = [entry for entry in entries if TESTS not in entry.filename]
                for module in compiled:
                    target.write(module, module.relative_to(modules))
            enlarged.replace(archive)
    return len(compiled)


def _compile(modules: Path, archive: Path) -> list[Path]:
    """Compiles modules beside their sources. Tracebacks still name the file in the zip."""
    compileall.compile_dir(
        modules,
        stripdir=str(modules),
        prependdir=str(archive),
        quiet=2,
        legacy=True,
        # Not by timestamp: a zip has local times, which differ in another time zone.
        invalidation_mode=PycInvalidationMode.CHECKED_HASH,
    )
    return sorted(modules.rglob("*.pyc"))


def main() -> None:
    """Adds bytecode to each of Spark's zips, and prints the result."""
    # PySpark's source has warnings, and adding bytecode beside that of another Python is intended.
    warnings.simplefilter("ignore")
    try:
        for archive in spark_zips():
            added = add_bytecode(archive)
            print(f"{archive}: {f'bytecode of {added} modules added' if added else 'has bytecode already'}")
    except OSError as error:
        sys.exit(f"No bytecode was added: {error}")


if __name__ == "__main__":
    main()
