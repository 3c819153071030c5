"""Which addresses of a Ray cluster a search takes, and what it says of the others; without a cluster."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from hpsearch.backends.ray_backend import RayBackend
from hpsearch.errors import StudyError
from hpsearch.executors.ray_executor.address import check_address, check_is_node, is_same
from tests.support.small_trainer import small_trainer

SOURCES = Path(__file__).parents[2] / "hpsearch"


@pytest.mark.parametrize("address", [None, "auto", "host:6379", "10.0.0.1:6379", "[::1]:6379"])
def test_an_address_is_taken_without_looking_for_the_cluster(
    address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    RayBackend(address=address)


@pytest.mark.parametrize("address", ["somewhere", "host:port", "http://host:8265", "host:1/path", "host:0", "", 6379])
def test_what_is_not_an_address_is_refused(address: Any) -> None:
    with pytest.raises(StudyError, match="is not the address of a Ray cluster; allowed: host:port") as error:
        RayBackend(address=address)
    assert str(error.value).startswith(f"address={address!r} ")


def test_auto_means_the_variable_and_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "somewhere")
    with pytest.raises(StudyError, match=r"^RAY_ADDRESS='somewhere' is not the address of a Ray cluster"):
        check_address("auto")
    check_address(None)  # a local instance, whatever the variable says
    monkeypatch.setenv("RAY_ADDRESS", "localhost:1")
    with pytest.raises(StudyError, match=r"^RAY_ADDRESS='localhost:1': no node of a Ray cluster at localhost:1 runs"):
        check_is_node("auto")


@pytest.mark.parametrize("way", ["address", "RAY_ADDRESS"])
def test_ray_client_is_refused_before_any_work_with_the_command_to_use(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if way == "RAY_ADDRESS":
        monkeypatch.setenv("RAY_ADDRESS", "ray://host:10001")
    address = "auto" if way == "RAY_ADDRESS" else "ray://host:10001"
    trainer = small_trainer(tmp_path / "output")
    with pytest.raises(StudyError) as error:
        trainer.hyperparameter_search(n_trials=1, backend="ray", address=address, progress=False)
    why = str(error.value)
    assert why.startswith(f"{way}='ray://host:10001' uses Ray Client (ray://), which hpsearch does not support.")
    assert "`ray job submit --address http://HEAD:8265 --working-dir . -- python script.py`" in why
    assert "address='auto'" in why
    assert list(tmp_path.rglob("study.json")) == []


@pytest.mark.parametrize("address", ["localhost:1", "127.0.0.1:9", "no-such-host.invalid:6379", "192.0.2.77:6379"])
def test_a_cluster_without_a_node_on_this_machine_is_refused_at_once(address: str) -> None:
    start = time.monotonic()
    with pytest.raises(StudyError) as error:
        check_is_node(address)
    assert time.monotonic() - start < 10
    why = str(error.value)
    assert why.startswith(f"address={address!r}: no node of a Ray cluster at {address} runs on this machine.")
    assert f"`ray start --address={address}`" in why
    assert "`ray start --head`, 6379 by default" in why


def test_an_address_of_this_machine_is_the_same_by_each_of_its_names() -> None:
    assert is_same("localhost:6379", "127.0.0.1:6379")
    assert not is_same("localhost:6379", "localhost:6380")
    assert not is_same("localhost:6379", "192.0.2.77:6379")


def test_one_module_alone_uses_what_is_private_in_ray() -> None:
    private = re.compile(r"\bray\._(private|raylet)\b.*\bimport\b|\bimport ray\._")
    users = [path.name for path in SOURCES.rglob("*.py") if private.search(path.read_text(encoding="utf-8"))]
    assert users == ["ray_internals.py"]
