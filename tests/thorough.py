"""The tests of the second tier, `make test-thorough`, read from `thorough.txt`.

A line names a test, or one of its cases with its parameters in brackets. What is listed takes more
than about a second, and a quicker test that is not listed covers the same promise. Only processor
seconds on a quiet machine decide:

    make test PRUDENT_TEST_TIMES=$PWD/build/times.txt && sort -rn build/times.txt | head -50
"""

from pathlib import Path

LIST = Path(__file__).with_name("thorough.txt")
THOROUGH = frozenset(
    line for line in LIST.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"
)
