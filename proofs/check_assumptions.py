"""Print the axioms of all theorems, file by file; fail if one is not allowed or a proof is missing.

The allowed ones are the axioms by which Coq's standard library defines the real numbers.
"""

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# A claim begins a sentence, wherever on its line, perhaps behind an attribute.
CLAIM = re.compile(
    r"(?:\A|(?<=[.{}\]*+-]))\s*(?:(?:Local|Global|Program|Polymorphic|Monomorphic)\s+)*"
    r"(?:Theorem|Lemma|Corollary|Example|Fact|Proposition|Property|Remark)\s+([\w']+)"
)
GAP = re.compile(r"\b(Admitted|admit|give_up|Axioms?|Parameters?|Conjecture|bypass_check|Unset)\b")
COMMENT = re.compile(r"\(\*.*?\*\)", re.DOTALL)


def claims() -> dict[str, list[str]]:
    """The names of everything that each file claims."""
    found = {}
    for file in sorted(HERE.glob("*.v")):
        text = COMMENT.sub("", file.read_text())
        if gap := GAP.search(text):
            sys.exit(f"{file.name}: {gap.group()} leaves something unproved.")
        if names := CLAIM.findall(text):
            found[file.stem] = names
    return found


def main(build: Path) -> None:
    """Ask Coq for the axioms of all claims of each file, and compare them with the allowed ones."""
    allowed = set((HERE / "allowed-axioms.txt").read_text().split())
    files = claims()
    lines = []
    for file, names in files.items():
        # All at once: Coq walks through what they have in common only once.
        every = ", ".join(f"@{file}.{name}" for name in names)
        lines += [f"From Prudent Require {file}.", f"Definition all_of_{file} := ({every})."]
        lines += [f"Print Assumptions all_of_{file}."]
    (build / "Assumptions.v").write_text("\n".join(lines) + "\n")
    command = ["coqc", "-q", "-Q", ".", "Prudent", "Assumptions.v"]
    asked = subprocess.run(command, cwd=build, capture_output=True, text=True, check=False)
    if asked.returncode:
        sys.exit(asked.stderr)
    answers = re.split(r"^(?:Closed under the global context|Axioms:)$", asked.stdout, flags=re.M)
    if len(answers) != len(files) + 1:
        sys.exit(f"Expected {len(files)} answers of Coq, got {len(answers) - 1}.")
    report = []
    for (file, names), rest in zip(files.items(), answers[1:], strict=True):
        axioms = sorted(re.findall(r"^([\w.']+)(?= :|$)", rest, re.MULTILINE))
        if unknown := sorted(set(axioms) - allowed):
            sys.exit(f"{file}.v rests on {', '.join(unknown)}, not in allowed-axioms.txt.")
        report.append(f"{file}: {len(names)} claims, {', '.join(axioms) or 'no axioms'}")
    text = "\n".join(report) + "\n"
    (build / "assumptions.txt").write_text(text)
    print(text, end="")


main(Path(sys.argv[1]).resolve())
