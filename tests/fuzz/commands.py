"""Every command with arguments that are right, and texts that take the place of their values."""

import contextlib
import functools
import io
import json
from collections.abc import Callable, Sequence

import attrs
import hypothesis.strategies as st

from tests.fuzz.files import TARGETS as FILES
from tests.fuzz.files import folder
from tests.fuzz.judging import FindingError, judge
from tests.tiers import CHARACTERS

STATUSES = (0, 2, 3, 4)
"""Done, bad input, refused by the test, over budget."""

ONE_LINE = ("release", "epsilon", "calibrate")
"""Commands that say nothing before they refuse: their refusal is one line."""

TEXTS = (
    *("", " ", "-", "--", "0", "1", "-1", "1e309", "1e-400", "nan", "inf", "-inf", "0x10", "1/0"),
    *("1/3", "9" * 5000, "1_0", "٣", "½", "1,2", ",", "2,1", "nan,nan", "none", "private", "true"),
    *("laplace", "laplace:", "laplace:nan", "gaussian:1e400", ":", "a=b", "0.5=1,0.5=2", "[red]x"),
    *("x", "who", "city", "Oslo", "'; DROP TABLE t; --", '"', "\\", "\n", "\r\n", "\x1b[2J"),
    *("\x9b1m", "\u202eabc", "[link=https://example.org]x[/link]", "{}", "%s", "../../nowhere/x"),
    *("/dev/null", "/dev/full", "/", ".", "a" * 5000, "é" * 200, "nowhere.csv", "x\x00y", "\ud800"),
    *("postgresql://me:hunter2@127.0.0.1:1/x", "host=127.0.0.1 port=1 password=hunter2"),
    *("x > 1", "x = (select 1)", "(" * 300, "npz:", "npz:/dev/null", "cuda:99", "mps", "pld"),
    *("2024-01-01,2024-02-30", "date", "decimal(99)", "count", "99999999999999999999", "1e18"),
)
VALUES: st.SearchStrategy[str] = st.one_of(
    st.sampled_from(TEXTS),
    st.text(CHARACTERS, max_size=20),
    st.floats().map(repr),
    st.integers().map(str),
)


@attrs.frozen
class Command:
    """A command of the command line.

    Attributes:
        name: Its words.
        make: Makes its right arguments, after its name.
        weight: Relative number of inputs.
        statuses: Exit statuses that are right.
    """

    words: tuple[str, ...]
    make: Callable[[], Sequence[str]]
    weight: float = 0.1
    statuses: tuple[int, ...] = STATUSES

    @property
    def name(self) -> str:
        return " ".join(("prudent", *self.words))

    def strategy(self) -> st.SearchStrategy[list[str]]:
        """The arguments with up to three values replaced, and perhaps one more or one less."""
        right = list(self.make())
        places = st.dictionaries(st.sampled_from(range(len(right))), VALUES, max_size=3)
        more = st.one_of(st.just(()), st.just(()), VALUES.map(lambda text: (text,)))
        return st.tuples(places, more).map(functools.partial(_replaced, right))

    def judge(self, arguments: Sequence[str]) -> BaseException | None:
        """Run the command in this process; see `judging`."""
        return judge(self.name, list(arguments), lambda: self.run(arguments))

    def run(self, arguments: Sequence[str]) -> object:
        self.make()  # what an earlier input may have changed
        status, out, err = answer(*self.words, *arguments)
        told = f"status {status}\n{out[-1500:]}\n{err[-1500:]}"
        if status not in self.statuses:
            raise FindingError(self.name, repr(arguments), told)
        if status == 2 and self.words[0] in ONE_LINE and err.count("\n") > 1:
            raise FindingError(self.name, repr(arguments), f"more than one line: {told}")
        if any(not (each.isprintable() or each == "\n") for each in out + err):
            raise FindingError(self.name, repr(arguments), f"control characters: {told!r}")
        if "hunter2" in out + err:
            raise FindingError(self.name, repr(arguments), f"a password: {told}")
        if status != 0 and not (out + err).strip():
            raise FindingError(self.name, repr(arguments), f"no message: {told}")
        if "--json" in arguments and not {"--help", "-h"} & set(arguments):
            json.loads(out)  # one document, also of an error
        return None


def _replaced(right: Sequence[str], changes: tuple[dict[int, str], tuple[str, ...]]) -> list[str]:
    replaced, more = changes
    found = []
    for place, argument in enumerate(right):
        if place in replaced and argument.startswith("--") and "=" in argument:
            argument = f"{argument.partition('=')[0]}={replaced[place]}"
        elif place in replaced and not argument.startswith("--"):
            argument = replaced[place]
        elif place in replaced:
            continue
        found.append(argument)
    return [*found, *more]


def answer(*arguments: str) -> tuple[int, str, str]:
    """Run the command line in this process, as a shell would see it."""
    from prudent.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    return status, out.getvalue(), err.getvalue()


def _seed(name: str, file: str) -> str:
    target = next(each for each in FILES if each.name == name)
    path = folder() / file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(target.seeds()[0])
    return str(path)


def _table() -> str:
    return _seed("parquet", "table.parquet")


def _large_table() -> str:
    """The table with each row a hundred times: enough records for a regression."""
    import pyarrow as pa
    from pyarrow import parquet

    path = folder() / "large.parquet"
    if not path.exists():
        parquet.write_table(pa.concat_tables([parquet.read_table(_table())] * 100), path)
    return str(path)


def _ledger() -> str:
    from prudent.release import Ledger

    path = folder() / "command.db"
    for each in folder().glob("command.db*"):
        each.unlink()
    Ledger.create(path, epsilon=10.0, delta=1e-3).close()
    return str(path)


def _release(*own: str) -> Callable[[], Sequence[str]]:
    return lambda: [_table(), "--column=x", "--epsilon=1", *own, "--json"]


def _run() -> str:
    _seed("metrics", "finished/metrics.jsonl")
    _seed("paid", "finished/paid.json")
    return str(folder() / "finished")


def _settings() -> str:
    path = folder() / "run.toml"
    path.write_text('method = "dpsgd"\nsteps = 1\nnoise_multiplier = 1.0\n')
    return str(path)


COMMANDS: tuple[Command, ...] = (
    Command(
        ("epsilon",),
        lambda: [
            *("--noise-multiplier=2", "--test=gaussian:4", "--delta=1e-5", "--sampling-rate=0.1"),
            *("--steps=3", "--propose=0.5", "--failure=1e-8", "--reveals=branch"),
            *("--relation=zero-out", "--records-per-person=1", "--accountant=pld", "--json"),
        ],
    ),
    Command(
        ("calibrate",),
        lambda: [
            *("--solve=noise-multiplier", "--epsilon=3", "--delta=1e-5", "--test=gaussian:4"),
            *("--sampling-rate=0.1", "--steps=3", "--accountant=rdp", "--json"),
        ],
        0.01,
    ),
    Command(
        ("train",),
        lambda: [
            *(_settings(), f"--dataset=npz:{_seed('npz', 'train.npz')}", "--batch=2", "--seed=0"),
            *("--clip=1", "--lr=0.1", "--momentum=0", "--corrupt=none", "--device=cpu", "--json"),
        ],
        0.02,
    ),
    Command(
        ("tune",),
        lambda: [
            *(f"--dataset=npz:{_seed('npz', 'train.npz')}", "--search=lr=0.1:1:log", "--steps=2"),
            *("--noise-multiplier=1", "--candidates=1", "--distribution=fixed", "--held-out=0.5"),
            *("--score-noise=1", "--batch=2", "--workers=1", "--dry-run", "--json"),
        ],
        0.02,
    ),
    Command(
        ("sample",),
        lambda: ["salaries", f"--out={folder() / 's.parquet'}", "--force", "--json"],
    ),
    Command(("demo",), lambda: ["--workers=0", "--steps=-1", "--seed=0", "--json"], 0.05),
    Command(("release", "median"), _release("--propose=5", "--delta=1e-6", "--where=x > 1")),
    Command(("release", "quantile"), _release("--p=0.5", "--bounds=0,100", "--read-as=number")),
    Command(("release", "quantile"), _release("--p=0.25,0.5", "--unit=who")),
    Command(("release", "iqr"), _release("--propose=5", "--delta=1e-6", "--certify=1")),
    Command(("release", "count"), _release("--by=city", "--groups=a,b")),
    Command(("release", "sum"), _release("--bounds=0,100", "--unit=who", "--per-unit=sum")),
    Command(("release", "mean"), _release("--bounds=0,100", "--table=x", "--connect=duckdb://")),
    Command(
        ("release", "variance"),
        lambda: [
            *(_table(), "--column=left.x", "--epsilon=1", f"--join={_table()}", "--on=who=who"),
            *("--unit=who", "--how=left", "--json"),
        ],
    ),
    Command(("release", "describe"), _release("--dry-run")),
    Command(("release", "histogram"), _release("--edges=0,10,20", "--bins=3"), 0.05),
    Command(("release", "trimmed-mean"), _release("--trim=5", "--propose=5", "--delta=1e-6")),
    Command(("release", "mode"), _release("--categories=1,2", "--delta=1e-6")),
    Command(("release", "count-distinct"), _release("--unit=who", "--per-unit=2")),
    Command(
        ("release", "proportion"),
        lambda: [_table(), "--column=x > 1", "--epsilon=1", "--by=city", "--groups=a,b", "--json"],
    ),
    Command(("release", "ratio"), _release("--other=who", "--other-bounds=0,50")),
    Command(("release", "covariance"), _release("--other=who", "--bounds=0,100")),
    Command(("release", "correlation"), _release("--other=who", "--unit=who")),
    Command(("release", "weighted-mean"), _release("--weights=who", "--largest-weight=50")),
    Command(("release", "deviation"), _release("--bounds=0,100")),
    Command(("release", "minimum"), _release("--by=city", "--groups=a,b", "--bounds=0,100")),
    Command(("release", "maximum"), _release("--unit=who", "--per-unit=max")),
    Command(
        ("release", "top-k"),
        lambda: [
            *(_table(), "--column=city", "--epsilon=1", "--delta=1e-6", "--k=2"),
            *("--categories=private", "--json"),
        ],
    ),
    Command(
        ("release", "table"),
        lambda: [
            *(_table(), "--columns=median(x),avg(who),count(*)", "--epsilon=1", "--where=x > 1"),
            *("--by=city", "--groups=a,b", f"--ledger={_ledger()}", "--json"),
        ],
    ),
    Command(
        ("sql",),
        lambda: [
            f"SELECT city, MEDIAN(x), COUNT(*) FROM '{_table()}' WHERE x > 1 GROUP BY city",
            *("--epsilon=1", "--delta=1e-6", "--groups=a,b", "--unit=who", "--per-unit=mean"),
            *(f"--ledger={_ledger()}", "--json"),
        ],
    ),
    Command(
        ("synth",),
        lambda: [
            *(_large_table(), "--epsilon=5", "--delta=1e-6", "--columns=x,city", "--rows=9000"),
            *("--unit=who", "--most-rows=2", "--constraint=x > 1", "--out=made.parquet"),
            *(f"--ledger={_ledger()}", "--dataset=default", "--json"),
        ],
        0.05,
    ),
    Command(
        ("regress",),
        lambda: [
            *("x ~ who + C(city)", _large_table(), "--epsilon=5", "--delta=1e-6", "--model=ridge"),
            *("--alpha=1", "--certify=0.5", "--r2", "--where=x > 1"),
            *(f"--ledger={_ledger()}", "--dataset=default", "--json"),
        ],
        0.05,
    ),
    Command(
        ("release", "quantile"),
        lambda: [
            *(_table(), "--column=x", "--epsilon=1", "--p=0.5", "--high=20"),
            *(f"--ledger={_ledger()}", "--dataset=default", "--dry-run"),
        ],
    ),
    Command(
        ("budget", "create"),
        lambda: [
            *(str(folder() / "created.db"), "--epsilon=1", "--delta=1e-6", "--dataset=d"),
            *("--relation=add-remove", "--records-per-person=1", "--data=d", "--another", "--json"),
        ],
    ),
    Command(("budget", "show"), lambda: [_ledger(), "--dataset=default", "--json"]),
    Command(("budget", "show"), lambda: [_ledger(), "--charges", "--dataset=default", "--json"]),
    Command(
        ("verify",),
        lambda: [
            *(_seed("receipt", "receipt.json"), f"--checklist={folder() / 'list.md'}", "--json"),
            *("--head=00", "--signer=00"),
        ],
        statuses=(*STATUSES, 1),
    ),
    Command(("budget", "report"), lambda: [_ledger(), "--dataset=default", "--json"]),
    Command(
        ("budget", "verify"),
        lambda: [_ledger(), "--dataset=default", "--digest=00", "--json"],
        statuses=(*STATUSES, 1),
    ),
    Command(
        ("audit", "train"),
        lambda: ["--epsilon=1", "--delta=1e-6", "--runs=200", "--confidence=0.9", "--json"],
        0.01,
        (*STATUSES, 1),
    ),
    Command(("paper", "figure"), lambda: ["9", "--out=figures"], 0.05),
    Command(("paper", "table"), lambda: ["1", "--seeds=1", "--json"], 0.05),
    Command(("paper", "table"), lambda: ["frontier", "--seeds=1", "--json"], 0.05),
    Command(
        ("paper", "table"),
        lambda: [
            "1",
            f"--results={_seed('results', 'given.csv')}",
            "--json",
        ],
        0.05,
    ),
    Command(
        ("paper", "report"),
        lambda: ["--no-figures", "--seeds=0", f"--results={_seed('results', 'given.csv')}"],
        0.02,
    ),
    Command(
        ("certify",),
        lambda: [
            *(f"--dataset=npz:{_seed('npz', 'train.npz')}", "--features=vectors:2", "--epsilon=1"),
            *(f"--landmarks={_seed('landmarks', 'public.npy')}", "--seed=0", "--public", "--json"),
        ],
        0.02,
    ),
    Command(
        ("certify",),
        lambda: [
            *(_run(), "--records=1,2", "--relation=add-remove", "--metric=accuracy"),
            *("--above=0.5", "--confidence=0.95", "--json"),
        ],
        0.05,
    ),
)

EXCLUDED: dict[str, str] = {
    "keys": "writes keys of the user's; its names are tried in tests/verification",
    "doctor": "takes no values; tests/cli/test_doctor.py",
    "explore": "takes no values; tests/lab/explore",
}
"""Commands that are no target, each with its reason."""
