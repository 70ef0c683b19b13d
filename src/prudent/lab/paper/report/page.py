"""The report page: what is proved, summary, tables, curves, attacks and settings."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import attrs

import prudent
from prudent.lab.experiment import Experiment
from prudent.lab.paper.figures.panels import Figure
from prudent.lab.paper.report import attack_sections, display_names, drawings, essay, networks
from prudent.lab.paper.report.cells import EVERY, Choice, datasets, groups
from prudent.lab.paper.report.document import (
    Block,
    Bullets,
    Cell,
    Document,
    Grid,
    Paragraph,
    Plots,
    Section,
    Tile,
    Tiles,
    Tone,
)
from prudent.lab.paper.report.frontier import Attacker, frontiers
from prudent.lab.paper.report.grids import passing_grid, spans, table_grid
from prudent.lab.paper.report.summary import Comparison, Count, Summary, summarise
from prudent.lab.paper.results import Reading, Results
from prudent.lab.paper.runs.jobs import published, settings

TABLES = {
    1: "random faults",
    2: "fine-tuning, frozen features",
    3: "severe faults",
    4: "with DP-SGD",
}
_NAMES = {"rdp": "RDP", "pld": "PLD"}
_TABLE_NOTES = {
    2: "The paper trains the last layer of networks pretrained on ImageNet. Of ResNet18 the "
    "weights at hand end after the third of four stages (`layer3`), so its features are those of a "
    "shallower network. The weights of VGG11 are not to be had: VGG16, a deeper network of the "
    "same family, stands in for it, with the average of its last convolutions as features, 512 in "
    "place of the 4,096 that the last layer of VGG11 gets. Its numbers are not those of VGG11. Its "
    "weights were rounded to half precision for these runs, which changes its features by 0.05 %.",
    4: "The other methods of this table are those of Table 1.",
}
_MOST_NAMED = 4  # exceptions on a data set that are named one by one


def document(results: Results, *, curves: bool = True, figures: Sequence[Figure] = ()) -> Document:
    """The report as a document.

    Args:
        results: The results to report.
        curves: Whether to draw accuracy over ε and the test over time.
        figures: The paper's figures to draw.
    """
    full = bool(results.readings) and not results.small
    attacked = frontiers(results)
    sections = [
        attack_sections.opening(attacked),
        _summary(results),
        *([essay.why()] if full else []),
        *_tables(results),
        *([_curves(results)] if curves else []),
        _test(results, curves),
        *(attack_sections.survived(results, attacked, attacker) for attacker in Attacker),
        *([essay.ideas()] if full else []),
        *([_figures(figures)] if figures else []),
        _runs(results),
        _choices(),
        essay.own_runs(),
    ]
    caveat = display_names.SMALL_NOTE if results.small else ""
    return Document(_title(results), _lead(results), tuple(sections), caveat)


def _title(results: Results) -> str:
    size = ", at small size" if results.small else ""
    return f"Rényi Differential Privacy of Propose-Test-Release, reproduced{size}"


def _lead(results: Results) -> str:
    seeds = len({reading.seed for reading in results.readings})
    made = (
        f"{results.runs():,} runs, {'one seed' if seeds == 1 else f'up to {seeds} seeds'}, "
        f"{len(results.readings):,} rows of results"
        if results.readings
        else "No run has been made yet"
    )
    return (
        f"Every number of the paper's tables beside ours: accuracy in percent on clean test data, "
        f"mean ± standard deviation over seeds. {made}; prudent {prudent.__version__}."
    )


def _summary(results: Results) -> Section:
    found = summarise(results)
    notes = (
        "Each cell of the paper counts once, though it prints some in two tables; means over "
        "seeds are compared, unrounded.",
        "By RDP a run stops where Rényi accounting reaches ε, by PLD where the exact accounting "
        "does, later: the same run, read at two steps.",
        *_substitutes(),
    )
    if results.small:
        blocks: tuple[Block, ...] = (
            Paragraph("Small runs are not counted against the paper's numbers."),
        )
    else:
        blocks = (Tiles(tuple(_tiles(found))), _by_dataset(found))
    exceptions = () if results.small else _exceptions(found)
    return Section("Summary", "summary", (*blocks, Bullets(notes), *exceptions))


def _tiles(found: Summary) -> Iterator[Tile]:
    """The counts over all data sets."""
    for name in ("pld", "rdp"):
        yield _tile(found.paper[name], f"TSGD+PTR ≥ the paper's, by {_NAMES[name]}")
    for name in ("pld", "rdp"):
        yield _tile(found.gain[name], f"TSGD+PTR > TSGD+Gaussian, by {_NAMES[name]}")
    yield _tile(found.best, "the tuned setting ≥ the paper's TSGD+PTR")
    yield _tile(found.rival, "the tuned setting > DP-SGD with the same tuning")


def _tile(count: Count, label: str) -> Tile:
    if not count.made:
        return Tile(display_names.NOT_RUN, label, Tone.MISSING)
    missing = f"; {len(count.missing)} {display_names.NOT_RUN}" if count.missing else ""
    tone = Tone.BAD if count.lost else Tone.GOOD
    return Tile(f"{len(count.won)} of {count.made}", label + missing, tone)


def _by_dataset(found: Summary) -> Grid:
    counts = {
        "PTR ≥ paper, PLD": found.paper["pld"],
        "PTR ≥ paper, RDP": found.paper["rdp"],
        "PTR > Gaussian, PLD": found.gain["pld"],
        "PTR > Gaussian, RDP": found.gain["rdp"],
        "best ≥ paper": found.best,
        "best > DP-SGD": found.rival,
    }
    return Grid(
        ("data set", *counts),
        tuple(
            (
                Cell(display_names.dataset(name)),
                *(_counted(count.on(name)) for count in counts.values()),
            )
            for name in dict.fromkeys(cell.dataset for cell in published())
        ),
        title="By data set",
    )


def _counted(count: Count) -> Cell:
    tile = _tile(count, "")
    return Cell(tile.value, tile.tone, tile.label.removeprefix("; "))


def _substitutes() -> Iterator[str]:
    for name in dict.fromkeys(cell.dataset for cell in published()):
        note = display_names.substitute_note(name)
        if note is not None:
            yield note
    yield (
        "VGG16: A substitute for VGG11, whose weights are not to be had. Results on it are not "
        "results on VGG11; the counts above include it."
    )


def _exceptions(found: Summary) -> Iterator[Block]:
    """The cells in which our result is lower, by data set, with their differences."""
    counts = {
        **{
            f"TSGD+PTR below the paper's, by {_NAMES[name]}": found.paper[name]
            for name in ("pld", "rdp")
        },
        **{
            f"TSGD+PTR not above TSGD+Gaussian, by {_NAMES[name]}": found.gain[name]
            for name in ("pld", "rdp")
        },
        "The tuned setting below the paper's TSGD+PTR": found.best,
        "The tuned setting not above DP-SGD with the same tuning": found.rival,
    }
    lost = {title: count for title, count in counts.items() if count.lost}
    if lost:
        yield Paragraph("Exceptions, with their differences in points, at an ε:")
        yield Bullets(tuple(f"{title} ({len(c.lost)}): {_lost(c)}." for title, c in lost.items()))


def _lost(count: Count) -> str:
    parts = []
    for dataset in dict.fromkeys(comparison.group.dataset for comparison in count.lost):
        here = count.on(dataset)
        if len(here.lost) <= _MOST_NAMED:
            shown = ", ".join(_by_corruption(here.lost))
        else:
            differences = [c.difference for c in here.lost if c.difference is not None]
            ends = map(display_names.difference, (max(differences), min(differences)))
            share = f"{len(here.lost)} of {here.made} cells" if here.won else "every cell"
            shown = f"{share}, {' to '.join(ends)}"
        parts.append(f"{display_names.short(dataset)}: {shown}")
    return "; ".join(parts)


def _by_corruption(lost: Sequence[Comparison]) -> Iterator[str]:
    for corrupt, same in itertools.groupby(lost, key=lambda c: c.group.corrupt):
        at = (f"{display_names.difference(c.difference)} at {c.group.epsilon:g}" for c in same)
        yield f"{display_names.corruption(corrupt)} ({', '.join(at)})"


def _tables(results: Results) -> Iterator[Section]:
    """The tables; after the first, what other networks give in its place."""
    for number in TABLES:
        yield _table(results, number)
        if number == 1 and (compared := networks.section(results)) is not None:
            yield compared


def _table(results: Results, number: int) -> Section:
    """The parts of a table that were run; one line names the others."""
    choice = Choice(methods=("dpsgd",)) if number == 4 else EVERY
    run = {group.dataset for group in groups(results, number) if group.is_run}
    missing = [display_names.dataset(name) for name in datasets(number) if name not in run]
    blocks: list[Block] = []
    if run and number in _TABLE_NOTES:
        blocks.append(Paragraph(_TABLE_NOTES[number]))
    blocks += [
        table_grid(results, number, name, choice=choice, standalone=False)
        for name in datasets(number)
        if name in run
    ]
    if missing:
        names = "; ".join(missing)
        told = (
            f"{display_names.NOT_RUN.capitalize()}: {names} (`prudent paper table {number} --run`)."
        )
        blocks.append(Paragraph(told))
    return Section(f"Table {number}: {TABLES[number]}", f"table-{number}", tuple(blocks))


def _curves(results: Results) -> Section:
    names = dict.fromkeys(cell.dataset for cell in published())
    found = (drawings.accuracy_over_epsilon(results, name) for name in names)
    return Section(
        "Accuracy against ε",
        "curves",
        (
            Paragraph(
                "Exact accounting (PLD). The paper's settings: one run of fixed noise, read as ε "
                "grows; ours: each point a run with its noise solved for that ε. Shaded: a "
                "standard deviation over seeds each way. Axes span what is reached at the paper's "
                "ε, so a curve may enter from below."
            ),
            *_or_not_run(found),
        ),
    )


def _test(results: Results, curves: bool) -> Section:
    names = dict.fromkeys(cell.dataset for cell in published())
    found = (drawings.passing_over_time(results, name) for name in names)
    return Section(
        "The private test",
        "test",
        (
            Paragraph(
                "A failed test raises F, a passed one lowers it, so equal steps hold the pass rate "
                "near one half (Errata 1, item 27), unless F meets its bound first. Where no test "
                "passes the method is DP-SGD, with the noise and the steps of TSGD+PTR."
            ),
            passing_grid(results),
            *(_or_not_run(found) if curves else []),
        ),
    )


def _or_not_run(found: Iterator[Plots | None]) -> list[Block]:
    blocks: list[Block] = [block for block in found if block is not None]
    return blocks or [Paragraph(f"{display_names.NOT_RUN.capitalize()}.")]


def _figures(figures: Sequence[Figure]) -> Section:
    return Section(
        "The figures",
        "figures",
        (
            Paragraph("The paper's curves with exact ones added; they need no training."),
            Plots(tuple(map(drawings.paper_figure, figures)), wide=True),
        ),
    )


def _runs(results: Results) -> Section:
    places: dict[tuple[str, str], list[Reading]] = defaultdict(list)
    for reading in results.readings:
        places[reading.dataset, reading.column].append(reading)
    names = spans([display_names.short(dataset) for dataset, _ in sorted(places)])
    rows = tuple(
        (
            next(names),
            Cell(display_names.method(column)),
            Cell(f"{Results(tuple(readings)).runs():,}"),
            Cell(str(len({reading.seed for reading in readings}))),
            Cell(_range([reading.noise_multiplier for reading in readings], "{:.3f}")),
            Cell(_range([reading.steps for reading in readings], "{:,}")),
        )
        for (dataset, column), readings in sorted(places.items())
    )
    header = ("data set", "method", "runs", "seeds", "σ", "steps")
    grid: Block = Grid(header, rows, words=2)
    return Section(
        "What was run", "runs", (grid if rows else Paragraph("Nothing has been run yet."),)
    )


def _range(values: Sequence[float], form: str) -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def _choices() -> Section:
    every = settings()
    default = attrs.fields_dict(Experiment)
    trim, up, down = (default[name].default for name in ("trim", "trim_up", "trim_down"))
    return Section(
        "What was chosen where the paper is silent",
        "choices",
        (
            Bullets(
                (
                    "Steps: a run of fixed noise goes on until the accountant says ε. The "
                    "paper's own accounting (Theorem 4.4) does not hold at its settings (Errata 0, "
                    "item 2).",
                    f"δ = {every['delta']:g}, as in the paper's figures.",
                    f"F of TSGD+PTR: starts at {trim:.0%} of the expected batch, where "
                    f"TSGD+Gaussian keeps it; a failed test adds {up:.0%}, a passed one takes "
                    f"{down:.0%} off, between 0 and `trim_most` of the batch. The paper says both "
                    "this and its opposite, which is unstable (Errata 1, items 27 and 28).",
                    "Sums are divided by the expected batch, never by the realised one (Errata 1, "
                    "item 31).",
                    "σ of DP-SGD: that of TSGD+Gaussian; the paper gives none (Errata 1, item 33).",
                    "EMNIST: the size and the balanced classes that the paper names are those of "
                    "Letters (Errata 1, item 33).",
                )
            ),
            _settings_grid(
                {
                    name: every["datasets"][name]
                    for name in dict.fromkeys(c.dataset for c in published())
                },
                "The paper's settings, completed",
            ),
            _settings_grid(
                {
                    f"{column}: {name}": values
                    for column, datasets in every["ours"].items()
                    for name, values in datasets.items()
                },
                "Ours: noise solved for ε by the exact accounting",
            ),
        ),
    )


def _settings_grid(parts: dict[str, dict[str, object]], title: str) -> Grid:
    """A table of settings read from their file, so that the page cannot differ from the runs."""
    flat = {name: dict(_flat(values)) for name, values in parts.items()}
    names = dict.fromkeys(name for values in flat.values() for name in values)
    return Grid(
        ("setting", *flat),
        tuple((Cell(name), *(Cell(v.get(name, "–")) for v in flat.values())) for name in names),
        title=title,
    )


def _flat(values: dict[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            shown = value if isinstance(value, list) else [value]
            yield (
                prefix + name,
                ", ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in shown),
            )
