"""Modules of the program are told from those of Python and of installed libraries."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.auto import modeling_auto

import hpsearch
from hpsearch.executors.processes.program_modules import is_of_program


@pytest.mark.parametrize(
    "module", [json, json.decoder, sys, torch, torch.ops, torch.backends, transformers, modeling_auto, hpsearch, pytest]
)
def test_modules_of_python_and_of_libraries_are_not_the_programs(module: types.ModuleType) -> None:
    assert not is_of_program(module.__name__.replace("torch.backends.", "torch.backends"), module)


@pytest.mark.parametrize(
    ("name", "file", "expected"),
    [
        ("__main__", "/home/me/train.py", True),
        ("__main__", None, True),
        ("mylib", "/home/me/mylib.py", True),
        ("mylib.models", "/home/me/mylib/models.py", True),
        ("made_by_hand", None, True),
        ("_cython_3_1_4", None, False),
        ("transformers", "/home/me/transformers/src/transformers/__init__.py", False),
        ("transformers.made", None, False),
        ("yaml", "/usr/lib/python3/dist-packages/yaml/__init__.py", False),
        ("yaml.nodes", "/opt/python/lib/site-packages/yaml/nodes.py", False),
    ],
)
def test_a_module_is_the_programs_by_the_place_of_its_file(name: str, file: str | None, expected: bool) -> None:
    module = types.ModuleType(name)
    if file is not None:
        module.__file__ = file
    assert is_of_program(name, module) == expected


def test_a_folder_that_pip_has_filled_holds_libraries(tmp_path: Path) -> None:
    tmp_path.joinpath("yaml-6.0.dist-info").mkdir()
    places = {"yaml": "yaml/__init__.py", "yaml.nodes": "yaml/nodes.py", "one_file": "one_file.py"}
    for name, place in places.items():
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / place)
        assert not is_of_program(name, module), name
