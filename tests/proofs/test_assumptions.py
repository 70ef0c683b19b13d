"""What rests on an axiom that is not allowed, or is not proved, is refused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROOFS = Path(__file__).resolve().parents[2] / "proofs"
pytestmark = pytest.mark.skipif(
    os.environ.get("PRUDENT_TEST_PROOFS") != "1", reason="needs Coq; run by `make proofs`"
)

FINE = "Theorem fine : 1 = 1.\nProof. reflexivity. Qed.\n"
REAL = "Require Import Reals.\nTheorem real : (0 < 1)%R.\nProof. apply Rlt_0_1. Qed.\n"
ASSUMED = "Hypothesis cheat : 1 = 2.\nTheorem bad : 1 = 2.\nProof. exact cheat. Qed.\n"
DECLARED = ASSUMED.replace("Hypothesis", "Axiom")
HIDDEN = ASSUMED.replace("Theorem bad", "{} bad")
PLACES = ["  Theorem", "Fact", "Proposition", "Remark", "Property", "Local Lemma", "#[local] Lemma"]
PLACES += ["Definition one := 1. Corollary"]
ADMITTED = "Theorem bad : 1 = 2.\nProof. Admitted.\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        *((FINE, 0), (REAL, 0), (FINE + ASSUMED, 1), (FINE + DECLARED, 1), (FINE + ADMITTED, 1)),
        *((FINE + HIDDEN.format(place), 1) for place in PLACES),
    ],
    ids=["no axiom", "those of the reals", "assumed", "declared", "admitted", *PLACES],
)
def test_only_proofs_pass(text: str, status: int, tmp_path: Path) -> None:
    for name in ("check_assumptions.py", "allowed-axioms.txt"):
        shutil.copy(PROOFS / name, tmp_path)
    (tmp_path / "Tiny.v").write_text(text)
    compile_it = ["coqc", "-q", "-Q", ".", "Prudent", "Tiny.v"]
    subprocess.run(compile_it, cwd=tmp_path, check=True, capture_output=True)
    check = [sys.executable, "check_assumptions.py", str(tmp_path)]
    done = subprocess.run(check, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
