"""The front door of the room: every public name is there, and none is loaded early."""

import subprocess
import sys

import pytest

import prudent.release


@pytest.mark.parametrize("name", prudent.release.__all__)
def test_every_public_name_exists(name: str) -> None:
    if name in ("open_column", "open_groups"):
        pytest.importorskip("ibis", reason="tables need ibis")
    assert getattr(prudent.release, name) is not None
    assert name in dir(prudent.release)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'mediann'"):
        _ = prudent.release.mediann  # type: ignore[attr-defined]


def test_the_room_opens_without_its_furniture() -> None:
    code = "import sys, prudent.release; print([m for m in ('ibis', 'opendp') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
