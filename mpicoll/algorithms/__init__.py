"""The algorithms, one family a file.

Every module in this folder is imported, and so is every Python file in the folders that the environment
variable ``MPICOLL_ALGORITHMS`` names: to add an algorithm, add a file.
"""

import importlib
import importlib.util
import os
import pkgutil
import sys
import warnings
from pathlib import Path

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")


def _import_folder(folder: Path, number: int) -> None:
    """Import the files of a user's folder, under names of their own: one may be called as one of ours."""
    if not folder.is_dir():
        warnings.warn(f"MPICOLL_ALGORITHMS: {folder} is not a folder", stacklevel=2)
    for file in sorted(folder.glob("*.py")):
        specification = importlib.util.spec_from_file_location(f"{__name__}.user{number}_{file.stem}", file)
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        sys.modules[module.__name__] = module
        specification.loader.exec_module(module)


_FOLDERS = filter(None, os.environ.get("MPICOLL_ALGORITHMS", "").split(os.pathsep))
for _number, _folder in enumerate(_FOLDERS, 1):
    _import_folder(Path(_folder), _number)
