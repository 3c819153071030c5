"""The files beside the package run what the README promises."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)


def commands_of_the_readme() -> list[str]:
    return re.findall(r"^make [a-z]+", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_the_workflow_runs_the_commands_of_the_readme_on_the_oldest_python() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["commands"]["steps"]
    run = [each["run"] for each in steps if "run" in each]
    assert run == ["make quickstart", "make test"]
    assert set(run) <= set(commands_of_the_readme())
    [python] = [each["with"]["python-version"] for each in steps if "python-version" in each.get("with", {})]
    assert f'requires-python = ">={python}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_image_installs_and_runs_the_quickstart() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert lines[-1] == 'CMD ["make", "quickstart"]'
    assert "quickstart" in TARGETS
    made = [each for line in lines for each in re.findall(r"^RUN make (.+)", line)]
    assert made == [".venv/.studies"]
    rule = re.search(r"^quickstart: (.+)", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert rule is not None
    assert rule[1] == "$(VENV)/.studies"  # all that the command needs is in the image
