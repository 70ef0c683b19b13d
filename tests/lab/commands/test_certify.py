"""`prudent certify`: what is printed and written, and one line for what is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest

from prudent.budget.ledger import Ledger
from prudent.certify import CertifiedClassifier
from prudent_lab.certifying import BrokenCertificateError
from tests.cli.conftest import prudent

pytest.importorskip("torch", reason="data sets need the extra `train`")

pytestmark = pytest.mark.usefixtures("same_draws")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    centres = draw.random((3, 10)) ** 3

    def part(size: int) -> tuple[np.ndarray, np.ndarray]:
        labels = draw.integers(3, size=size)
        rows = (centres[labels] + 0.1 * draw.standard_normal((size, 10))).clip(0)
        return (rows - centres.mean(axis=0)).astype(np.float32), labels  # by a public constant

    (x, y), (tx, ty) = part(3000), part(200)
    y[5], x[7, 2] = 99, np.nan  # a label that is no class, and a broken record
    path = tmp_path / "small.npz"
    np.savez(path, x_train=x, y_train=y, x_test=tx, y_test=ty, classes=3)
    return path


@pytest.mark.unhurried
def test_a_run_prints_its_certificates_and_keeps_the_classifier(
    archive: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    answer = prudent(
        *("certify", "--dataset", f"npz:{archive}", "--public", "--features", "vectors:10"),
        *("--epsilon", "1", "--out", str(out), "--attack", "--json"),
    )
    assert (answer.status, answer.err) == (0, "")
    found = json.loads(answer.out)
    assert set(found) >= {"accuracy", "certified", "median_radius", "epsilon", "delta"}
    assert list(found["certified"]) == ["0", "100", "500", "1000", "2000"]
    assert found["accuracy"] == found["certified"]["0"] > 90
    for k, certified in found["certified"].items():
        assert certified <= found["attacked"][k]
    assert found["attacked"]["2000"] < found["accuracy"]
    assert (out / "certified.png").stat().st_size > 10_000
    model = CertifiedClassifier.load(out / "classifier.npz")
    with np.load(archive) as data:
        assert 100 * model.score(data["x_test"], data["y_test"]) == pytest.approx(found["accuracy"])


def private(path: Path, out: Path, *flags: str) -> tuple[str, ...]:
    given = ("certify", "--dataset", f"npz:{path}", "--features", "vectors:10", "--epsilon", "1")
    return (*given, "--out", str(out), *flags)


def test_of_private_records_only_the_classifier_is_released(archive: Path, tmp_path: Path) -> None:
    out, ledger = tmp_path / "out", tmp_path / "b.db"
    with Ledger(ledger, epsilon=2.5, delta=1e-5) as opened:
        answer = prudent(*private(archive, out, "--ledger", str(ledger), "--json"))
        assert (answer.status, answer.err) == (0, "")
        assert json.loads(answer.out) == {"epsilon": 1.0, "delta": 0.0}
        assert len(opened.history()) == 1
        with np.load(archive) as data:
            given = {name: data[name] for name in data}
        model = CertifiedClassifier.load(out / "classifier.npz")
        assert model.score(given["x_test"], given["y_test"]) > 0.9
        assert [path.name for path in out.iterdir()] == ["classifier.npz"]
        # Whatever else the records are, the same words come out: also for odd ones of either part.
        given["y_test"][3], given["x_test"][0] = 77, np.nan
        given["y_train"][:100] = -5
        np.savez(archive, **given)
        (out / "classifier.npz").unlink()
        plain = prudent(*private(archive, out, "--ledger", str(ledger)))
        assert plain.status == 0
        assert "%" not in plain.out
        assert "Released at ε = 1, δ = 0" in plain.out
        assert len(opened.history()) == 2


def test_a_release_over_the_budget_has_a_status_of_its_own(archive: Path, tmp_path: Path) -> None:
    out, ledger = tmp_path / "out", tmp_path / "b.db"
    with Ledger(ledger, epsilon=0.5, delta=1e-5) as opened:
        told = prudent(*private(archive, out, "--ledger", str(ledger)))
        assert (told.status, told.out) == (4, "")
        assert "budget" in told.err
        document = prudent(*private(archive, out, "--ledger", str(ledger), "--json", "--quiet"))
        assert (document.status, json.loads(document.out)["status"]) == (4, 4)
        assert not opened.history()
        assert not list(out.glob("*"))


def test_an_attack_is_refused_on_private_records(archive: Path, tmp_path: Path) -> None:
    with Ledger(tmp_path / "b.db", epsilon=2.0, delta=1e-5) as opened:
        flags = private(archive, tmp_path / "out", "--ledger", str(tmp_path / "b.db"), "--attack")
        answer = prudent(*flags)
        assert (answer.status, answer.out) == (2, "")
        assert "--public" in answer.err
        assert not opened.history()
        assert not list((tmp_path / "out").glob("*"))


def test_an_experiment_claims_no_epsilon(archive: Path, tmp_path: Path) -> None:
    with Ledger(tmp_path / "b.db", epsilon=2.0, delta=1e-5) as opened:
        flags = private(archive, tmp_path / "out", "--public")
        refused = prudent(*flags, "--ledger", str(tmp_path / "b.db"))
        assert (refused.status, refused.out) == (2, "")
        assert not opened.history()
    told = prudent(*flags).out
    assert "nothing here is private" in " ".join(told.split())
    assert "δ = 0" not in told


def test_a_seed_repeats_and_says_that_it_is_not_private(archive: Path, tmp_path: Path) -> None:
    flags = private(archive, tmp_path / "out", "--public", "--seed", "3")
    one, two = prudent(*flags), prudent(*flags)
    assert one.status == 0
    assert one.out == two.out
    assert "predictable" in one.err


def test_a_certified_prediction_that_changes_ends_the_run(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prudent_lab import certifying as experiment

    def boastful(*scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        winners, radii = experiment_decided(*scores)
        return winners, 3 * radii + 500

    experiment_decided = experiment.decided
    monkeypatch.setattr(experiment, "decided", boastful)
    data = np.load(archive)
    with pytest.raises(BrokenCertificateError):
        experiment.run(
            lambda: ((data["x_train"], data["y_train"]), (data["x_test"], data["y_test"])),
            features="vectors:10",
            classes=3,
            epsilon=1.0,
        )


@pytest.mark.thorough
def test_a_table_of_unequal_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    (tmp_path / "census").mkdir()
    for name, count in (("data", 6000), ("test", 400)):
        lines = []
        for rich in draw.random(count) < 0.06:
            fields = ["0"] * 42
            fields[0] = str(draw.integers(20, 60) + 20 * rich)
            fields[4] = draw.choice(["Bachelors", "High school"], p=[0.8, 0.2] if rich else None)
            fields[16] = str(draw.integers(9000) * rich)
            fields[18], fields[19] = str(draw.integers(100)), str(draw.integers(10**9))
            fields[-1] = " 50000+." if rich else " - 50000."
            lines.append(", ".join(fields))
        (tmp_path / "census" / f"census-income.{name}").write_text("\n".join(lines))
    monkeypatch.setenv("PRUDENT_DATA", str(tmp_path))
    flags = ("certify", "--dataset", "census", "--epsilon", "1", "--seed", "1")
    found = json.loads(prudent(*flags, "--json").out)
    assert found["largest_class"] > 90
    assert found["balanced"]["0"] > 75
    assert found["balanced"]["100"] > 50  # what a constant answer gets
    told = prudent(*flags).out
    assert "of the test records are of one class" in told
    assert "mean over the classes" in told


def test_missing_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="needs the extra `huggingface`")
    monkeypatch.setenv("PRUDENT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    answer = prudent("certify", "--dataset", "imdb")
    assert answer.status == 2
    assert "reviews.json" in answer.err
    assert str(tmp_path / "imdb") in answer.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--features", "digits"), "--features"),
        (("--epsilon", "0"), "--epsilon"),
        (("--dataset", "nothing"), "--dataset"),
        (("--dataset", "npz:missing.npz"), "exists"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(flags: tuple[str, str], message: str) -> None:
    answer = prudent("certify", *flags)
    assert (answer.status, answer.out) == (2, "")
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_public_records_are_landmarks(archive: Path, tmp_path: Path) -> None:
    with np.load(archive) as data:
        np.save(tmp_path / "public.npy", data["x_test"][:50])
    flags = ("certify", "--dataset", f"npz:{archive}", "--features", "vectors:10")
    flags = (*flags, "--public", "--json")
    answer = prudent(*flags, "--landmarks", str(tmp_path / "public.npy"))
    assert json.loads(answer.out)["accuracy"] > 90
    (tmp_path / "wrong.npy").write_bytes(b"none")
    wrong = prudent(*flags[:-1], "--landmarks", str(tmp_path / "wrong.npy"))
    assert (wrong.status, wrong.out) == (2, "")
