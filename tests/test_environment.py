"""What a record says of the process that made it names no folder of its machine."""

from __future__ import annotations

import sys

import pytest

from transnormer.environment import describe_process, without_folder


@pytest.mark.parametrize(
    ("argument", "published"),
    [
        ("/home/me/runs/first", "first"),
        ("data.store=/data/stores/wiki", "data.store=wiki"),
        ("--out=/home/me/run", "--out=run"),
        ("/home/me/a=b/run", "run"),
        ("data.store=stores/wiki", "data.store=stores/wiki"),
        ("runs/first", "runs/first"),
        ("train.steps=10", "train.steps=10"),
        ("--prompt", "--prompt"),
    ],
)
def test_an_absolute_path_keeps_its_name_only(argument: str, published: str) -> None:
    assert without_folder(argument) == published


def test_the_command_is_what_can_be_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/transnormer", "train", "/home/me/r.yaml", "data.store=/data/wiki"])
    assert describe_process()["command"] == ["transnormer", "train", "r.yaml", "data.store=wiki"]
