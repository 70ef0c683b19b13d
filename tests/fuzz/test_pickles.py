"""No file that prudent reads can run code: nothing unpickles, nothing evaluates."""

import ast
import gzip
import io
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="half of the readers are torch's")

import prudent
from tests.fuzz.files import TARGETS, Target, folder

SOURCE = Path(str(prudent.__file__)).parent
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
MODULES |= {"yaml", "jsonpickle", "code", "codeop"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
SHELLS = {"os.system", "os.popen"}
OWN = {
    "audit/auditing.py": "asks whether a mechanism can be sent to another process",
    "records/containers.py": "hashes the pickle of a value that it cannot describe otherwise",
    "training/parallel/processes.py": "asks whether its own error can be sent to another process",
    "tune/tuning.py": "asks whether a candidate can be sent to another process",
}
"""Sources that pickle what they made themselves, each with its reason."""


def calls_of(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def given(call: ast.Call, name: str) -> object:
    values = [each.value for each in call.keywords if each.arg == name]
    return values[0].value if values and isinstance(values[0], ast.Constant) else None


def faults(text: str) -> list[str]:
    """Everything in a source that could run what a file says."""
    tree, found = ast.parse(text), []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [name for name in names if name.partition(".")[0] in MODULES]
    for name, call in calls_of(tree):
        last = name.rpartition(".")[2]
        if name in BUILTINS or name in SHELLS or last in ("extractall", "unsafe_load"):
            found.append(name)
        if name in ("torch.load", "load") and given(call, "weights_only") is not True:
            found += [name] if name == "torch.load" else []
        if name in ("np.load", "numpy.load") and given(call, "allow_pickle") is not False:
            found.append(name)
        if given(call, "shell") is True or given(call, "trust_remote_code") is True:
            found.append(name)
    return found


@pytest.mark.unhurried
def test_no_source_unpickles_or_evaluates() -> None:
    paths = {str(path.relative_to(SOURCE)): path for path in SOURCE.rglob("*.py")}
    found = {name: faults(path.read_text("utf-8")) for name, path in paths.items()}
    assert {name for name, each in found.items() if each} == set(OWN)
    assert all(found[name] == ["pickle"] for name in OWN)


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
