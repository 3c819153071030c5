"""Distinguish the modules of the program from those of Python and of installed libraries."""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from pathlib import Path

_FOLDERS_OF_LIBRARIES = {"site-packages", "dist-packages"}
# Some install these in place (`pip install -e`). hpsearch has imported them, so no file of the program has these names.
_LIBRARIES = {"hpsearch", "torch", "transformers", "accelerate", "datasets", "huggingface_hub", "tokenizers"}
_LIBRARIES |= {"safetensors", "numpy", "optuna", "ray", "peft", "trl"}
# Cython puts these into `sys.modules`, shared by all modules that it has compiled.
_OF_CYTHON = ("_cython_", "cython_runtime")


def is_of_program(name: str, module: object) -> bool:
    """Return whether the program brings this module: it is neither Python's nor installed.

    A module without a file is of the same kind as its package. Without a package it is the program's if no loader has
    loaded it: the program has created it itself.
    """
    if name in ("__main__", "__mp_main__"):
        return True
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.builtin_module_names or top in _LIBRARIES:
        return False
    file = _file(module)
    if file:
        return not _is_installed(name, Path(file))
    if top != name:
        return top in sys.modules and is_of_program(top, sys.modules[top])
    values = getattr(module, "__dict__", {})
    return values.get("__spec__") is None and not name.startswith(_OF_CYTHON)


def _file(module: object) -> str | None:
    """Return the file of a module, or a path in the folder of a package without one."""
    values = getattr(module, "__dict__", {})  # a lazy module would import something if it were asked
    if values.get("__file__"):
        return str(values["__file__"])
    folders = list(values.get("__path__") or ())
    return f"{folders[0]}/__init__.py" if folders else None


def _is_installed(name: str, file: Path) -> bool:
    """Return whether a file is Python's, or in a folder of libraries: by its name, or because pip describes one there.

    `pip install --target` makes such folders, with other names.
    """
    if _FOLDERS_OF_LIBRARIES & {*file.parts}:
        return True
    if any(file.is_relative_to(sysconfig.get_path(each)) for each in ("stdlib", "platstdlib")):
        return True
    depth = name.count(".") + (file.stem == "__init__")
    return depth < len(file.parents) and _holds_descriptions(file.parents[depth])


@cache
def _holds_descriptions(folder: Path) -> bool:
    return any(folder.glob("*.dist-info"))
