"""The algorithms, one family a file.

Every module in this folder is imported, and so is every module in the folders that the environment
variable ``MPICOLL_ALGORITHMS`` names: to add an algorithm, add a file.
"""

import importlib
import os
import pkgutil

__path__.extend(filter(None, os.environ.get("MPICOLL_ALGORITHMS", "").split(os.pathsep)))

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")
