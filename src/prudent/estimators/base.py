"""What all private estimators have in common: opening, price, charge, and scikit-learn's habits.

`fit` works in the order of every release: open the rows (which reads names and types), price the
model, charge the ledger, and only then read.

A guarantee is about the records that `fit` gets. Whoever chooses these records, fits again and
again, fits other steps to them or compares predictions with targets spends or reveals more, and
nothing of it passes through the model. What is on the stack when `fit` or `predict` is called tells
who it is. It does not show what a program does by itself: fits in a loop, `sklearn.utils.resample`
or a scaler outside of a pipeline, a metric that is called with predictions.
"""

import abc
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Self

import attrs
import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted, validate_data
from typing_extensions import override

from prudent import _extras, _validate
from prudent._rounding import exact, nearest, outward, rounded_up
from prudent._validate import ArgumentError
from prudent._warning import PrivacyWarning, warn_once
from prudent.accounting.relations import ADD_REMOVE
from prudent.accounting.robustness import Certifier
from prudent.estimators.engine import BudgetPart, Prices, SumEngine, calibrate
from prudent.estimators.formula import Formula, FormulaRows
from prudent.estimators.rows import ModelData, array_of, is_frame, is_table, queries_of
from prudent.receipts.making import ReceiptTarget
from prudent.release.charging import ChargedRelease, Preview, charge
from prudent.release.columns.column import redact_errors
from prudent.release.lattice import FloatArray, check_bounds
from prudent.release.noise import PartitionSelection, source_of
from prudent.release.outcome import Refused

_SELECTION = 0.1  # of ε and of δ, for the levels of all private categories
_MOST_COLUMNS = 4_096  # of a model of the products of columns, which take 2 GiB then
_ENOUGH = 15.0  # records, times ε of a quantile, below which it is no better than a guess
_SHARED = ("ledger", "noise")  # a copy of a ledger would be another budget

# Parts of scikit-learn that hand records on as they are; steps of pipelines are looked at.
_PLAIN = (
    "sklearn.base",
    "sklearn.pipeline",
    "sklearn.utils",
    "sklearn.compose._column_transformer",
)
_ALL = ((float, 1.0), (type(None), None))  # values of `max_samples`; a whole 1 is one record
_CONTAINERS = ("sklearn.pipeline", "sklearn.compose._column_transformer")


class TooFewRecordsError(ValueError):
    """The table has too few records for this model at this ε, as far as was released.

    What it rests on was released and paid for, so that the message may be published.

    Attributes:
        records: The noisy number of records; None if fewer than two labels were found.
        needed: The number of records that would be enough, or with which a label would be found.
    """

    def __init__(self, records: float | None, needed: float) -> None:
        self.records, self.needed = records, needed
        super().__init__(
            f"Fewer than two labels have enough records, too few for this model: at this ε a label "
            f"is found if it has about {needed:,}. Give the public list of labels as classes, or "
            "raise epsilon."
            if records is None
            else f"About {max(0, round(records)):,} records (a noisy count) are too few for this "
            f"model: at this ε it needs about {round(float(nearest(needed, 2))):,}. Raise epsilon, "
            "or use fewer columns: a row counts if all of its columns hold numbers. Texts are left "
            "out by features=[…], or become categories in a formula: 'y ~ x + C(text)'."
        )


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateEstimator(BaseEstimator, abc.ABC):
    """A model of a table, without bounds on the data.

    Guarantee:
        `fit` is (ε, δ)-DP for adding or removing one record, or one unit, whatever the data; see
        `event_`.

    Subclasses are data classes of their arguments, among them those below; say in `_parts` how they
    divide the budget; and read the rows in `_learn`, once they are found to be enough.

    Models take, by name:

    - `epsilon`: ε of the fit, from 0.01 to 50.
    - `delta`: δ of the fit.
    - `ledger`: charged by `fit` before any record is read.
    - `noise`: source of randomness; None uses the operating system's.
    - `bounds`, where quantiles of columns are released: public bounds (low, high) of columns, by
      name or place, if any are known: these columns need no quantiles.
    - `classes`, of a classifier: the public list of labels; a record of another label is absent.
      None: labels are those that a private choice finds to have enough records, which costs a part
      of ε and δ.

    Attributes:
        epsilon_: ε of the fitted model.
        delta_: δ of the fitted model.
        event_: The privacy event of the fitted model, for any accountant.
        n_records_: The noisy number of records.
        n_features_in_: The number of features.
        feature_names_in_: Their names, if they have any.
        terms_: The names of what the model multiplies by coefficients: the features, and the
            levels of categories.
    """

    _title: ClassVar[str] = "model"
    _supervised: ClassVar[bool] = True
    _quantiles: ClassVar[str] = "columns"  # the part whose quantiles need most records

    epsilon: float = 1.0
    delta: float = 1e-6
    ledger: Any = None
    noise: Any = None

    @abc.abstractmethod
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        """How the budget is divided, for a number of features."""

    @abc.abstractmethod
    def _learn(self, engine: SumEngine) -> None:
        """Ask the engine and set the fitted attributes."""

    def _needed(self, prices: Prices, features: int) -> float:
        """The number of records below which quantiles, and with them the answer, are guesses.

        Where all columns have bounds there are none; then the count need only exceed its noise.
        """
        part = self._quantiles
        asked = part in prices.parts
        return _ENOUGH / prices.choice_epsilon(part) if asked else prices.multiplier("count")

    def dry_run(self, records: int, features: int) -> Preview:
        """What a fit would cost, and about how good it would be; reads and charges nothing.

        Args:
            records: A guess at the number of records; what is known in public.
            features: The number of features.
        """
        records = _validate.count(1, records=records)
        prices = self._prices(_validate.count(1, features=features), self._classes() == [])
        needed = self._needed(prices, features)
        forecast = self._forecast(prices, records, features)
        if records < needed:
            forecast = f"With {records:,} it would refuse, after a noisy count."
        notes = f"It needs about {math.ceil(float(nearest(needed, 2))):,} records.", forecast
        return attrs.evolve(self._preview(prices), notes=tuple(filter(None, notes)))

    def _forecast(self, prices: Prices, records: int, features: int) -> str:
        """How good a fit to so many records would be, if that can be told."""
        return ""

    def _counted(self, engine: SumEngine) -> TooFewRecordsError | None:
        """Release the number of records, and learn if they are enough."""
        self.n_records_ = engine.count()
        needed = self._needed(engine.prices, len(engine.rows.names) - 1)
        if self.n_records_ < needed:
            return TooFewRecordsError(self.n_records_, needed)
        self._learn(engine)
        return None

    def _classes(self) -> Any:
        """The public list of labels; an empty one if they are private, None if there are none."""
        return None

    def _selection(self, columns: int) -> PartitionSelection | None:
        """What finds the labels or levels of each of so many columns; None if there are none."""
        if not columns:
            return None
        share = _SELECTION / columns
        return PartitionSelection(epsilon=share * self.epsilon, delta=share * self.delta)

    def _prices(self, features: int, private: int = 0, records: int = 1) -> Prices:
        """The prices of a fit to so many features of unknown scale, and private categories.

        A unit has at most so many records; it counts once in the choice of each category.
        """
        selection = self._selection(private)
        also = () if selection is None else (selection.event,) * private
        return calibrate(self.epsilon, self.delta, self._parts(features), also, records)

    def fit(
        self,
        X: Any = None,
        y: Any = None,
        *,
        features: Any = None,
        connect: str | None = None,
        table: str | None = None,
        where: Any = None,
        unit: Any = None,
        per_unit: int = 1,
        receipt: ReceiptTarget | None = None,
    ) -> Self:
        """Fit the model; charges the ledger before any record is read.

        Guarantee:
            (ε, δ)-DP for adding or removing one record or, with `unit`, all rows of one unit.

        Args:
            X: The features, as an array or a frame. Or the whole table: a frame, the path of a
                Parquet, CSV or DuckDB file, an ibis table or a Spark data frame.
            y: The targets, as an array; if X is a whole table, the name of their column, or a
                formula such as "salary ~ age + C(region)", see `prudent.estimators.formula`.
            features: The names of the columns that are features; None means all but the target.
            connect: The address of a database, instead of X.
            table: The name of the table in that database.
            where: Which rows to keep, as in `prudent.median`.
            unit: The privacy unit of each row: the name of a column of the table, which is then no
                feature; or an array, if y is one. A row without one is absent. None: every row is
                protected by itself.
            per_unit: The number of complete rows that are kept of a unit, evenly spaced in the
                order of their features. The noise grows with it; with more than one there are no
                intervals, as rows of one unit are not independent.
            receipt: Where to write the receipt, as in `prudent.median`.

        Raises:
            TooFewRecordsError: if the noisy count says that no useful model can be had.
            SourceError: if the records cannot be read; the message quotes none.

        Warns:
            PrivacyWarning: if scikit-learn does something around the fit that its price does not
                cover, such as a search by scores; see the module.
        """
        check_fit(self)
        if self._supervised and y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        labels = self._classes()
        most = 1 if unit is None else _validate.count(1, 10**4, per_unit=per_unit)
        options = {"connect": connect, "table": table, "where": where, "unit": unit, "most": most}
        # All that is charged, and noted.
        noted = (table if connect else X, connect, unit, most, receipt)
        if isinstance(y, str) and "~" in y:
            return self._fit_formula(y, X, labels, noted, features, **options)
        asked = ModelData(
            data=X,
            target=y if self._supervised else None,
            classes=labels,
            features=features,
            **options,
        )
        rows, names = asked.open()
        self._formula: Formula | None = None
        self._remember(asked, names)
        known, prices = self._priced(rows.names, len(names), most)
        noise = source_of(self.noise)
        paid = self._charge(prices, y, *noted)
        if selection := self._selection(labels == []):
            labels = redact_errors(asked.labels, selection, noise)
            if len(labels) < 2:
                return self._fitted(paid, TooFewRecordsError(None, selection.needed(0.95)), prices)
            rows, _ = attrs.evolve(asked, classes=labels).open()
        self._labels = labels
        return self._fitted(
            paid, redact_errors(self._counted, SumEngine(rows, prices, noise, known)), prices
        )

    def _fit_formula(
        self, text: str, source: Any, labels: Any, noted: Any, features: Any, **options: Any
    ) -> Self:
        """Fit a model to mixed columns; levels of categories are found and charged with it."""
        if features is not None or not self._supervised:
            what = "features" if self._supervised else "y"
            raise ArgumentError(what, "no other beside a formula", shown=text)
        if options["unit"] is not None:
            _validate.instance(str, "the name of a column of the table", unit=options["unit"])
        rows = FormulaRows(text, source, labels, **options)
        formula, private = rows.formula, len(rows.private)
        names = rows.names  # without those of levels, which are to be found
        bounded = {names[place]: each for place, each in self._bounded(names).items()}
        features = zip(formula.features, formula.known, strict=True)
        numbers = sum(not known and name not in bounded for name, known in features)
        prices, noise = self._prices(numbers, private, options["most"]), source_of(self.noise)
        paid = self._charge(prices, formula.target.features[0], *noted)

        def learn() -> TooFewRecordsError | None:
            selection = self._selection(private)
            self._labels = rows.choose(selection, noise)
            if self._labels is not None and len(self._labels) < 2 and selection is not None:
                return TooFewRecordsError(None, selection.needed(0.95))
            known = {list(rows.names).index(name): each for name, each in bounded.items()}
            return self._counted(SumEngine(rows, prices, noise, {**rows.known, **known}))

        refused = redact_errors(learn)
        self._formula, self._names = rows.formula, rows.formula.features
        self.n_features_in_ = len(formula.columns)
        self.feature_names_in_ = np.array(formula.columns, dtype=object)
        return self._fitted(paid, refused, prices)

    def _charge(
        self,
        prices: Prices,
        target: Any,
        source: Any,
        connect: str | None,
        unit: Any,
        most: int,
        receipt: ReceiptTarget | None,
    ) -> ChargedRelease:
        """Charge the ledger, if there is one; return what notes the outcome."""
        self._protected = "record" if unit is None else "unit"
        column = target if isinstance(target, str) else None
        given: dict[str, Any] = {"connect": connect, "receipt": receipt, "kind": "model"}
        if unit is not None:
            named = unit if isinstance(unit, str) else "unit"
            given |= {"unit": named, "more": {"per_unit": most}}
        return charge(self.ledger, self._preview(prices), source, column, **given)

    def _fitted(
        self, paid: ChargedRelease, refused: TooFewRecordsError | None, prices: Prices
    ) -> Self:
        """Note the outcome, and return the fitted estimator or raise the refusal."""
        self.epsilon_, self.delta_, self.event_ = prices.epsilon, prices.delta, prices.event
        self.terms_ = np.array(self._names, dtype=object)
        outcome = Refused(str(refused), prices.event) if refused else self
        given = self.get_params(deep=False)
        found = {
            name: each
            for name, each in vars(self).items()
            if name.endswith("_") and name not in ("event_", *given)
        }
        paid.note([outcome], outcome if refused else found)
        if refused is not None:
            self.__dict__.pop("n_records_", None)  # it is not fitted
            raise refused
        return self

    def _priced(self, names: Sequence[str], features: int, records: int = 1) -> tuple[Any, Prices]:
        """Public locations and scales, and the prices of a fit."""
        known = self._bounded(names)
        unknown = sum(place not in known for place in range(features))
        if unknown:
            _extras.require("A model that finds bounds", "duckdb", "ibis", "pyarrow", "sqlglot")
        return known, self._prices(unknown, self._classes() == [], records)

    @property
    def certifier_(self) -> Certifier:
        """What privacy itself proves of the fit about bad records; it costs nothing.

        `certifier_.certificate(accuracy=0.9, records=3)` is a lower bound on the expected accuracy,
        or on the expectation of any other function of the model in [0, 1], of fits to data that
        differ in three records.
        """
        check_is_fitted(self)
        return Certifier(self.event_)

    def _bounded(self, names: Sequence[str]) -> dict[int, tuple[float, float]]:
        """Public locations and scales of columns, by place, from the bounds that were given."""
        given, found = getattr(self, "bounds", None), {}
        if len(names) > _MOST_COLUMNS and "moment" in self._parts(1):
            shown = f"{len(names):,}, whose products take {115 * len(names) ** 2 / 2**30:,.0f} GiB"
            raise ArgumentError("features", f"at most {_MOST_COLUMNS:,} columns", shown=shown)
        if given is not None:
            _validate.instance(Mapping, "a mapping of columns to (low, high)", bounds=given)
        for column, bounds in (given or {}).items():
            if isinstance(column, int):
                place = int(_validate.between(0, len(names) - 1, bounds=column))
            else:
                place = list(names).index(_validate.column(names, bounds=column))
            low, high = check_bounds(bounds)
            if not 2.0**-500 <= high - low <= 2.0**500:  # slopes in their units may be no doubles
                raise ArgumentError("bounds", "from 1e-150 to 1e150 apart", got=bounds)
            found[place] = ((low + high) / 2, (high - low) / 4)
        return found

    def _preview(self, prices: Prices) -> Preview:
        return Preview(
            statistic=self._title,
            mechanism="noisy sums and private quantiles",
            epsilon=prices.epsilon,
            delta=prices.delta,
            event=prices.event,
        )

    def _remember(self, asked: ModelData, names: list[str]) -> None:
        """Keep the number and the names of the features, as scikit-learn does."""
        self._names = names
        # Of a whole table some columns are features; a query may hold the others as well.
        self._whole = asked.features is not None or isinstance(asked.target, str)
        self._whole |= asked.named and not is_frame(asked.data)
        if self._whole:
            self.feature_names_in_ = np.array(names, dtype=object)
        else:
            validate_data(self, asked.data, skip_check_array=True)
        self.n_features_in_ = len(names)

    def _queries(self, X: Any) -> FloatArray:
        """The features that a fitted model is asked about, as doubles, NaN where there is none."""
        check_is_fitted(self)
        check_query(self)
        if isinstance(X, list | tuple):  # its width is known by now
            X = np.array(X, dtype=object)  # noqa: N806
        if self._formula is not None:
            return self._formula.queries(X)
        if not self._whole:
            given = X if is_table(X) else array_of(X)
            validate_data(self, given, reset=False, skip_check_array=True)
        found = queries_of(X, self._names)
        if found.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {found.shape[1]} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input."
            )
        return found

    def __sklearn_clone__(self) -> Self:
        given = self.get_params(deep=False)
        return type(self)(
            **{k: v if k in _SHARED else clone(v, safe=False) for k, v in given.items()}
        )

    @override
    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """As scikit-learn writes it, but always with ε."""
        text = str(super().__repr__(N_CHAR_MAX))
        if "(epsilon=" in text or " epsilon=" in text:
            return text
        comma = "" if text.endswith("()") else ", "
        return text.replace("(", f"(epsilon={self.epsilon!r}{comma}", 1)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_records_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = True
        tags.target_tags.required = self._supervised
        return tags


@dataclass(eq=False, repr=False, kw_only=True)
class BoundedEstimator(PrivateEstimator, abc.ABC):
    """A model for which public bounds of columns may be known; see `PrivateEstimator`."""

    bounds: Any = None


class CoefficientSummary(abc.ABC):
    """A fitted model with coefficients, as text and as a picture.

    Attributes:
        no_interval_: Why some interval is missing; empty if none is.
    """

    no_interval_: str

    @abc.abstractmethod
    def coefficients(self) -> Iterator[tuple[str, float, tuple[float, float]]]:
        """The name, the value and the ends of the interval of each, the intercept first."""

    def _facts(self) -> list[str]:
        """Further lines of the summary."""
        return []

    def summary(self) -> str:
        """The model as text: coefficients with intervals, what was clipped, and the price."""
        check_is_fitted(self)
        fitted: Any = self
        rows = [("", "coefficient", "95 % interval")]
        for term, value, (low, high) in self.coefficients():
            ends = "–" if math.isnan(low) else " to ".join(outward(low, high))
            rows.append((term, nearest(value), ends))
        first, second = (max(len(row[place]) for row in rows) for place in (0, 1))
        lines = [f"{a:<{first}}  {b:>{second}}  {c}".rstrip() for a, b, c in rows]
        clipped = ""
        if hasattr(self, "n_clipped_"):
            clipped = f", of which about {round(self.n_clipped_):,} were clipped"
        lines.append(f"about {max(0, round(fitted.n_records_)):,} records{clipped}")
        if self.no_interval_:
            lines.append(f"no interval (–): {self.no_interval_}")
        price = f"({rounded_up(fitted.epsilon_, 6)}, {rounded_up(fitted.delta_, 6)})-DP"
        neighbours = ADD_REMOVE.sentence(fitted._protected)
        return "\n".join([*lines, *self._facts(), f"{price} for {neighbours}"])

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the slopes with their intervals; one that has none is drawn without.

        Args:
            path: The file to write, SVG or PNG by its name; None only returns the figure, which a
                notebook shows.
        """
        from matplotlib.figure import Figure  # a heavy import, for pictures only

        check_is_fitted(self)
        fitted: Any = self
        slopes = [each for each in self.coefficients() if "(intercept)" not in each[0]]
        terms = [term for term, _, _ in slopes]  # there is none if no level of a category was found
        values, ends = (np.array([each[at] for each in slopes], np.float64) for at in (1, 2))
        errors = np.abs(np.nan_to_num(ends.reshape(-1, 2).T - values))
        figure = Figure(figsize=(7, 1 + 0.4 * len(terms)), layout="constrained")
        axes = figure.add_subplot()
        axes.axvline(0.0, color="#b0b0b0", linewidth=1)
        axes.errorbar(
            values, range(len(terms)), xerr=errors, fmt="o", color="#1f6f8b", ecolor="#b0b0b0"
        )
        axes.set_yticks(range(len(terms)), terms)
        axes.invert_yaxis()
        axes.set(xlabel=f"slope (bars: 95 % intervals), ε = {rounded_up(fitted.epsilon_, 6)}")
        if path is not None:
            figure.savefig(path)
        return figure


def check_fit(model: Any) -> None:
    """Refuse resampled records, and warn of what else is not part of the price of a fit."""
    outermost = ""
    for frame in _frames():
        name, local = frame.f_globals.get("__name__", ""), frame.f_locals
        if name == "sklearn.ensemble._bagging" and _repeats(
            local.get("ensemble", local.get("self"))
        ):
            _refuse("an ensemble with bootstrap=False and max_samples=1.0", "BaggingRegressor")
        if name == "sklearn.ensemble._weight_boosting":
            _refuse("an ensemble that does not resample records", "AdaBoostRegressor")
        if isinstance(pipeline := local.get("self"), Pipeline):
            _check_steps(pipeline)
        if name.startswith("sklearn.") and not name.startswith(_PLAIN):
            owner = frame.f_code.co_name if pipeline is None else type(pipeline).__name__
            outermost = name.rpartition(".")[0] if owner.startswith("_") else owner
    if outermost:
        budget = (
            "is charged to no budget, as no ledger was given"
            if model.ledger is None
            else "is charged to the ledger"
        )
        warn_once(
            f"{outermost} of scikit-learn fits {type(model).__name__} to records that it chooses. "
            f"Each of its fits costs (ε = {exact(model.epsilon)}, δ = {exact(model.delta)}) for "
            f"the records of that fit and {budget}; scores, and all else that {outermost} computes "
            "from records, are exact and not private.",
            PrivacyWarning,
        )


def check_query(model: Any) -> None:
    """Warn that a score is exact, if predictions are asked for by one."""
    for frame in _frames():
        name, function = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        own = name == "sklearn.base" or name.startswith("prudent.estimators.")
        if name == "sklearn.metrics._scorer" or (own and function == "score"):
            warn_once(
                f"The score of {type(model).__name__} is an exact function of the records that it "
                "is computed from: publish it only if they are public. A regression with r2=True "
                "releases a private R².",
                PrivacyWarning,
            )
            return


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _repeats(ensemble: Any) -> bool:
    """Whether a record may occur several times in a fit, or decide which others are in it."""
    most = getattr(ensemble, "max_samples", None)
    return bool(getattr(ensemble, "bootstrap", False)) or (type(most), most) not in _ALL


def _refuse(allowed: str, shown: str) -> None:
    raise ArgumentError(
        "X",
        f"records as they are: {allowed}",
        shown=f"a sample that {shown} drew",
        why="one record may be in it several times, and decide which others are",
    )


def _check_steps(pipeline: Pipeline) -> None:
    steps = pipeline.get_params(deep=True).values()  # also those of steps that consist of steps
    exact = dict.fromkeys(type(each).__name__ for each in steps if _is_exact(each))
    if exact:
        warn_once(
            f"Steps of a pipeline with a private model are fitted to the same records without "
            f"noise: {', '.join(exact)}. What they learn is not private, and the model's guarantee "
            "does not cover it. Use public constants, such as a FunctionTransformer's.",
            PrivacyWarning,
        )


def _is_exact(step: Any) -> bool:
    """Whether a step of a pipeline keeps what it computes from records, as far as can be told."""
    if isinstance(step, type) or not hasattr(step, "fit"):
        return False
    if type(step).__module__.startswith(("prudent.", *_CONTAINERS)):
        return False
    if type(step).__name__ == "PolynomialFeatures" or getattr(step, "strategy", "") == "constant":
        return False  # the first reads shapes alone
    if not isinstance(getattr(step, "categories", ""), str):
        return False  # an encoder of public categories
    return not hasattr(step, "__sklearn_tags__") or bool(get_tags(step).requires_fit)
