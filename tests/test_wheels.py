"""The check that pinned versions have wheels: what it takes for one, and that it can fail."""

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from packaging.version import Version

pytest.importorskip("pip", reason="needs pip, which reads the index")

ROOT = Path(__file__).resolve().parents[1]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheels", ROOT / ".ci" / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("wheel", "requires", "python", "machine", "expected"),
    [
        ("a-1.0-py3-none-any.whl", None, (3, 14), "aarch64", True),
        ("a-1.0-py3-none-any.whl", ">=3.12", (3, 11), "aarch64", False),
        ("a-1.0-cp39-abi3-manylinux_2_17_x86_64.whl", None, (3, 13), "x86_64", True),
        ("a-1.0-cp314-cp314-manylinux2014_x86_64.whl", None, (3, 14), "x86_64", True),
        ("a-1.0-cp314-cp314-manylinux2014_x86_64.whl", None, (3, 14), "aarch64", False),
        ("a-1.0-cp313-cp313-manylinux2014_x86_64.whl", None, (3, 14), "x86_64", False),
        ("a-1.0-cp314-cp314t-manylinux2014_x86_64.whl", None, (3, 14), "x86_64", False),
        ("a-1.0-cp314-cp314-manylinux_2_39_x86_64.whl", None, (3, 14), "x86_64", False),
        ("a-1.0-cp314-cp314-win_amd64.whl", None, (3, 14), "x86_64", False),
    ],
)
def test_where_a_wheel_fits(
    wheel: str, requires: str | None, python: tuple[int, int], machine: str, expected: bool
) -> None:
    link = SimpleNamespace(filename=wheel, requires_python=requires)
    assert load().fits(link, python, machine) is expected


def test_a_wheel_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = load()
    built = [f"a-1.0-cp3{minor}-cp3{minor}-manylinux_2_28_x86_64.whl" for minor in range(11, 15)]
    built += [f"a-1.0-cp3{minor}-cp3{minor}-manylinux_2_28_aarch64.whl" for minor in range(11, 14)]
    offered = [SimpleNamespace(filename=name, requires_python=None) for name in built]
    monkeypatch.setattr(wheels, "Index", lambda: SimpleNamespace(files=lambda *_: offered))
    pins = wheels.pinned("# why\na==1.0  # so\n")
    assert pins == {"a": Version("1.0")}
    assert wheels.missing(pins) == ["a==1.0: no wheel for Python 3.14 on aarch64"]


def test_a_build_is_of_its_version_and_another_release_is_not() -> None:
    wheels = load()
    for name, expected in (
        ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("torch-2.13.1-cp311-cp311-manylinux_2_28_x86_64.whl", False),
        ("torchvision-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl", False),
        ("torch.whl", False),
    ):
        link = SimpleNamespace(filename=name)
        assert wheels._of(link, "torch", Version("2.13.0")) is expected, name
