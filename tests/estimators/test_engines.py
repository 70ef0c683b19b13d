"""The same model, bit for bit, from every engine that holds the table."""

from typing import Any

import numpy as np
import pandas as pd

from prudent.estimators import LinearRegression
from prudent.release.noise import ReproducibleNoise

FORMULA = (
    "pay ~ age * C(region, n, s) + missing(hours) + flag + log(age) + I(age ** 2) + sqrt(age):flag"
)


def frame() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    found = pd.DataFrame(
        {
            "age": generator.normal(40.0, 9.0, 300),
            "region": generator.choice(["n", "s", "w"], 300),
            "hours": np.where(generator.random(300) < 0.2, np.nan, generator.normal(40, 5, 300)),
            "flag": generator.random(300) < 0.5,
            "who": generator.integers(0, 120, 300),
        }
    )
    # One record whose products and logarithms no engine has.
    found.loc[300] = [-1e300, "n", 1e308, True, 121]
    found = found.astype({"flag": bool, "who": "int64"})
    return found.assign(pay=found.age + 4.0 * found.flag + generator.normal(size=301))


def fitted(source: Any, **options: Any) -> list[list[float]]:
    """The coefficients of rows by themselves, and of two rows of each unit."""
    found = []
    for units in ({}, {"unit": "who", "per_unit": 2}):
        model = LinearRegression(epsilon=50.0, noise=ReproducibleNoise(1))
        found.append(model.fit(source, FORMULA, **options, **units).coef_.tolist())
    return found


def test_postgres(postgres_url: str) -> None:
    import psycopg

    rows = frame().astype(object).where(frame().notna(), None).values.tolist()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE pay_of_models "
            "(age float8, region text, hours float8, flag boolean, who int8, pay float8)"
        )
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO pay_of_models VALUES (%s, %s, %s, %s, %s, %s)", rows)
    found = fitted(None, connect=postgres_url, table="pay_of_models")
    assert found == fitted(frame())


def test_spark(spark_session: Any) -> None:
    assert fitted(spark_session.createDataFrame(frame())) == fitted(frame())
