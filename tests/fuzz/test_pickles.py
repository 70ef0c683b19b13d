"""No file that prudent reads can run code: nothing unpickles, nothing evaluates."""

import ast
import gzip
import io
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="half of the readers are torch's")

import prudent
from tests.fuzz.files import TARGETS, Target, folder
from tests.sources import dotted

SOURCE = Path(str(prudent.__file__)).parent
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
MODULES |= {"yaml", "jsonpickle", "code", "codeop"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
SHELLS = {"os.system", "os.popen"}
UNPACKING = {"extractall", "unsafe_load"}
OPTIONS = {"shell", "trust_remote_code"}
WORDS = MODULES | BUILTINS | SHELLS | UNPACKING | OPTIONS | {"load"}
SUSPECT = re.compile(rf"\b({'|'.join(map(re.escape, WORDS))})\b")
"""A source without any of these words has no fault; parsing all of them takes seconds."""
OWN = {
    "records/containers.py": "hashes the pickle of a value that it cannot describe otherwise",
    "training/parallel.py": "asks whether its own error can be sent to another process",
}
"""Sources that pickle what they made themselves, each with its reason."""

WRITTEN: dict[str, str] = {}
"""Sources that run a text that they wrote themselves, each with its reason."""


def given(call: ast.Call, name: str) -> object:
    values = [each.value for each in call.keywords if each.arg == name]
    return values[0].value if values and isinstance(values[0], ast.Constant) else None


def faults(text: str) -> list[str]:
    """Everything in a source that could run what a file says."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)) if SUSPECT.search(text) else ():
        match node:
            case ast.Import(names=aliases):
                names = [alias.name for alias in aliases]
                found += [name for name in names if name.partition(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                found.append(module)
            case ast.Call(func=function) if is_fault(name := dotted(function), node):
                found.append(name)
    return found


def is_fault(name: str, call: ast.Call) -> bool:
    return (
        name in BUILTINS | SHELLS
        or name.rpartition(".")[2] in UNPACKING
        or (name == "torch.load" and given(call, "weights_only") is not True)
        or (name in ("np.load", "numpy.load") and given(call, "allow_pickle") is not False)
        or any(given(call, option) is True for option in OPTIONS)
    )


@pytest.mark.unhurried
def test_no_source_unpickles_or_evaluates() -> None:
    paths = {str(path.relative_to(SOURCE)): path for path in SOURCE.rglob("*.py")}
    found = {name: faults(path.read_text("utf-8")) for name, path in paths.items()}
    assert {name for name, each in found.items() if each} == {*OWN, *WRITTEN}
    assert all(found[name] == ["pickle"] for name in OWN)
    assert all(found[name] == ["exec"] for name in WRITTEN)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from joblib import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
        "archive.extractall()",
        "import yaml",
    ],
)
def test_the_scan_finds_each(text: str) -> None:
    assert faults(text)


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> object:
        return Path.touch, (self.mark,)


def poisoned(mark: Path) -> Iterator[bytes]:
    """Files of every format that can hold a pickle, with one that touches `mark`."""
    import torch

    for protocol in (0, 2, 4):
        for content in (Evil(mark), {b"data": Evil(mark), b"labels": [Evil(mark)]}):
            yield pickle.dumps(content, protocol)
            yield gzip.compress(pickle.dumps(content, protocol), mtime=0)
    objects = np.array([Evil(mark)], object)
    names = ("train_features", "train_labels", "test_features", "test_labels", "classes")
    names += ("released", "header", "weights", "gains", "offsets", "centre", "direction")
    file = io.BytesIO()
    np.savez(file, **dict.fromkeys(names, objects))
    yield file.getvalue()
    file = io.BytesIO()
    np.save(file, objects, allow_pickle=True)
    yield file.getvalue()
    file = io.BytesIO()
    torch.save({"step": Evil(mark), "model": Evil(mark)}, file)
    yield file.getvalue()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_pickle_in_a_file_does_not_run(target: Target) -> None:
    mark = folder() / "was-here"
    for content in poisoned(mark) if target.weight >= 0.1 else list(poisoned(mark))[:1]:
        target.judge(content)
        assert not mark.exists()


def test_the_pickle_would_run() -> None:
    mark = folder() / "was-there"
    pickle.loads(next(poisoned(mark)))
    assert mark.exists()
