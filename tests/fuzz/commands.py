"""Every command with arguments that are right, and texts that take the place of their values."""

import contextlib
import functools
import io
import json
import shlex
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
        called: Its words.
        arguments: Its right arguments, as a shell takes them; `{…}` is something of `MADE`.
        statuses: Exit statuses that are right.
    """

    called: str
    arguments: str
    statuses: tuple[int, ...] = STATUSES

    @property
    def name(self) -> str:
        return f"prudent {self.called}"

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.called.split())

    def make(self) -> list[str]:
        """Make the files that the right arguments name, and return these."""
        return [word.format_map(_Made()) for word in shlex.split(self.arguments)]

    def strategy(self) -> st.SearchStrategy[list[str]]:
        """The arguments with up to three values replaced, and perhaps one more or one less."""
        right = self.make()
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


def _run() -> str:
    _seed("metrics", "finished/metrics.jsonl")
    _seed("paid", "finished/paid.json")
    return str(folder() / "finished")


def _settings() -> str:
    path = folder() / "run.toml"
    path.write_text('method = "dpsgd"\nsteps = 1\nnoise_multiplier = 1.0\n')
    return str(path)


MADE: dict[str, Callable[[], str]] = {
    "folder": lambda: str(folder()),
    "landmarks": lambda: _seed("landmarks", "public.npy"),
    "large": _large_table,
    "ledger": _ledger,
    "npz": lambda: _seed("npz", "train.npz"),
    "receipt": lambda: _seed("receipt", "receipt.json"),
    "results": lambda: _seed("results", "given.csv"),
    "run": _run,
    "settings": _settings,
    "table": _table,
}
"""What arguments name, and what makes it."""


class _Made(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return MADE[name]()


_OF_X = (
    ("median", "--propose=5 --delta=1e-6 '--where=x > 1'"),
    ("quantile", "--p=0.5 --bounds=0,100 --read-as=number"),
    ("quantile", "--p=0.25,0.5 --unit=who"),
    ("iqr", "--propose=5 --delta=1e-6 --certify=1"),
    ("count", "--by=city --groups=a,b"),
    ("sum", "--bounds=0,100 --unit=who --per-unit=sum"),
    ("mean", "--bounds=0,100 --table=x --connect=duckdb://"),
    ("describe", "--dry-run"),
    ("histogram", "--edges=0,10,20 --bins=3"),
    ("trimmed-mean", "--trim=5 --propose=5 --delta=1e-6"),
    ("mode", "--categories=1,2 --delta=1e-6"),
    ("count-distinct", "--unit=who --per-unit=2"),
    ("ratio", "--other=who --other-bounds=0,50"),
    ("covariance", "--other=who --bounds=0,100"),
    ("correlation", "--other=who --unit=who"),
    ("weighted-mean", "--weights=who --largest-weight=50"),
    ("deviation", "--bounds=0,100"),
    ("minimum", "--by=city --groups=a,b --bounds=0,100"),
    ("maximum", "--unit=who --per-unit=max"),
)
"""Releases of one column, and their own options."""

COMMANDS: tuple[Command, ...] = (
    Command(
        "epsilon",
        "--noise-multiplier=2 --test=gaussian:4 --delta=1e-5 --sampling-rate=0.1 --steps=3 "
        "--propose=0.5 --failure=1e-8 --reveals=branch --relation=zero-out "
        "--records-per-person=1 --accountant=pld --json",
    ),
    Command(
        "calibrate",
        "--solve=noise-multiplier --epsilon=3 --delta=1e-5 --test=gaussian:4 --sampling-rate=0.1 "
        "--steps=3 --accountant=rdp --json",
    ),
    Command(
        "train",
        "{settings} --dataset=npz:{npz} --batch=2 --seed=0 --clip=1 --lr=0.1 --momentum=0 "
        "--corrupt=none --device=cpu --json",
    ),
    Command(
        "tune",
        "--dataset=npz:{npz} --search=lr=0.1:1:log --steps=2 --noise-multiplier=1 --candidates=1 "
        "--distribution=fixed --held-out=0.5 --score-noise=1 --batch=2 --workers=1 --dry-run "
        "--json",
    ),
    Command("sample", "salaries --out={folder}/s.parquet --force --json"),
    Command("demo", "--workers=0 --steps=-1 --seed=0 --json"),
    *(
        Command(f"release {name}", f"{{table}} --column=x --epsilon=1 {own} --json")
        for name, own in _OF_X
    ),
    Command(
        "release variance",
        "{table} --column=left.x --epsilon=1 --join={table} --on=who=who --unit=who --how=left "
        "--json",
    ),
    Command(
        "release proportion", "{table} '--column=x > 1' --epsilon=1 --by=city --groups=a,b --json"
    ),
    Command(
        "release top-k",
        "{table} --column=city --epsilon=1 --delta=1e-6 --k=2 --categories=private --json",
    ),
    Command(
        "release table",
        "{table} '--columns=median(x),avg(who),count(*)' --epsilon=1 '--where=x > 1' --by=city "
        "--groups=a,b --ledger={ledger} --json",
    ),
    Command(
        "sql",
        "\"SELECT city, MEDIAN(x), COUNT(*) FROM '{table}' WHERE x > 1 GROUP BY city\" --epsilon=1 "
        "--delta=1e-6 --groups=a,b --unit=who --per-unit=mean --ledger={ledger} --json",
    ),
    Command(
        "synth",
        "{large} --epsilon=5 --delta=1e-6 --columns=x,city --rows=9000 --unit=who --most-rows=2 "
        "'--constraint=x > 1' --out=made.parquet --ledger={ledger} --dataset=default --json",
    ),
    Command(
        "regress",
        "'x ~ who + C(city)' {large} --epsilon=5 --delta=1e-6 --model=ridge --alpha=1 "
        "--certify=0.5 --r2 '--where=x > 1' --ledger={ledger} --dataset=default --json",
    ),
    Command(
        "release quantile",
        "{table} --column=x --epsilon=1 --p=0.5 --high=20 --ledger={ledger} --dataset=default "
        "--dry-run",
    ),
    Command(
        "budget create",
        "{folder}/created.db --epsilon=1 --delta=1e-6 --dataset=d --relation=add-remove "
        "--records-per-person=1 --data=d --another --json",
    ),
    Command("budget show", "{ledger} --dataset=default --json"),
    Command("budget show", "{ledger} --charges --dataset=default --json"),
    Command(
        "verify",
        "{receipt} --checklist={folder}/list.md --json --head=00 --signer=00",
        (*STATUSES, 1),
    ),
    Command("budget report", "{ledger} --dataset=default --json"),
    Command("budget verify", "{ledger} --dataset=default --digest=00 --json", (*STATUSES, 1)),
    Command(
        "audit train", "--epsilon=1 --delta=1e-6 --runs=200 --confidence=0.9 --json", (*STATUSES, 1)
    ),
    Command("paper figure", "9 --out=figures"),
    Command("paper table", "1 --seeds=1 --json"),
    Command("paper table", "frontier --seeds=1 --json"),
    Command("paper table", "1 --results={results} --json"),
    Command("paper report", "--no-figures --seeds=0 --results={results}"),
    Command(
        "certify",
        "--dataset=npz:{npz} --features=vectors:2 --epsilon=1 --landmarks={landmarks} --seed=0 "
        "--public --json",
    ),
    Command(
        "certify",
        "{run} --records=1,2 --relation=add-remove --metric=accuracy --above=0.5 "
        "--confidence=0.95 --json",
    ),
)

EXCLUDED: dict[str, str] = {
    "keys": "writes keys of the user's; its names are tried in tests/verification",
    "doctor": "takes no values; tests/cli/test_doctor.py",
    "explore": "takes no values; tests/lab/explore",
}
"""Commands that are no target, each with its reason."""
