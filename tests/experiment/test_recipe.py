"""Recipes: what they make of columns, where their statistics come from, and what these cost."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pyarrow as pa
import pytest

import locksfl
from locksfl.data import npy_folder
from locksfl.data.importing import Request, import_table
from locksfl.data.origin import Preparation
from locksfl.data.recipe import Recipe, Release
from locksfl.experiment import own_data
from locksfl.experiment.config import config_of
from locksfl.experiment.folder import RunFolder
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.report import notes
from locksfl.experiment.run import run_experiment
from locksfl.privacy.population import PopulationJournal, Total
from locksfl.round.noise import SystemNoise
from small_runs import story

ROWS = 300


def table(**changes):
    rng = np.random.default_rng(5)
    columns = {
        "user": [f"u{i % 60}" for i in range(ROWS)],
        "age": rng.integers(18, 90, ROWS).astype(float),
        "city": rng.choice(["Oslo", "Rome"], ROWS),
        "y": rng.integers(0, 2, ROWS),
    }
    return pa.table({**columns, **changes})


def features(recipe, data=None, **options):
    """By row of the table: those of `a`, say, that a recipe makes."""
    made = locksfl.from_table(
        data if data is not None else table(), client="user", label="y", classes=2,
        recipe={"columns": recipe}, **options,
    )  # fmt: skip
    return made.features


def small(column, **recipe):
    """What a recipe makes of a few cells."""
    rows = len(column)
    data = pa.table({"user": [1] * rows, "c": column, "y": [0] * rows})
    held = pa.table({"user": [2] * rows, "c": column, "y": [0] * rows})
    both = pa.concat_tables([data, held])
    read = Recipe.read({"columns": {"c": recipe}})
    made = locksfl.from_table(both, client="user", label="y", classes=1, recipe=read)
    assert made.recipe == Preparation("numbers", {"c": recipe}, order=["c"])
    return made.features.astype(float).round(4).tolist(), read.names(["c"])


def test_what_is_made_of_a_column():
    assert small([1.0, None, 3.0], missing=7.0) == ([[1.0], [7.0], [3.0]], ["c"])
    assert small(["1", "NA", "3"], missing="flag")[0] == [[1, 0], [0, 1], [3, 0]]
    assert small([1.0, None], mean=3.0, std=2.0, missing=5.0)[0] == [[-1.0], [1.0]]
    assert small([-5, 0, 20], low=0.0, high=10.0)[0] == [[0.0], [0.0], [1.0]]
    assert small([-5, 20], low=0.0, high=10.0, mean=5.0, std=2.0)[0] == [[-2.5], [2.5]]
    made, names = small(["a", "b", None], categories=["b", "a"], missing="flag")
    assert (made, names) == ([[0, 1, 0], [1, 0, 0], [0, 0, 1]], ["c=b", "c=a", "c=missing"])
    assert small(["a", None], categories=["b", "a"], missing="b")[0] == [[0, 1], [1, 0]]
    assert small([2, 1], categories=["1"], other=True)[0] == [[0, 1], [1, 0]]
    days = ["2005-01-01", "2010-12-31 23:00:00"]
    made, names = small(days, date=["year", "month", "day", "weekday", "hour", "time"])
    assert made[0] == [0.5, 0.0, 0.0, 0.8333, 0.0, 0.5002]  # a Saturday
    assert made[1] == [1.0, 1.0, 1.0, 0.6667, 1.0, 1.1001]
    assert names[0] == "c.year"
    assert small(["31.12.2010", None], date=["month"], format="%d.%m.%Y", missing="flag")[0] == [
        [1, 0], [0, 1],
    ]  # fmt: skip
    assert small(["2005-06-01T00:00:00+02:00"], date=["month"])[0] == [[0.3636]]  # May, in UTC


def test_every_other_column_by_one_table_and_the_same_again_from_the_folder(tmp_path):
    data = table().drop_columns(["city"])
    request = Request("user", "y", recipe={"columns": {"*": {"low": 0.0, "high": 100.0}}})
    first = import_table(data, tmp_path / "a", request)
    assert npy_folder.read_header(first).recipe.columns == {"age": {"low": 0.0, "high": 100.0}}
    again = import_table(data, tmp_path / "b", Request("user", "y", recipe=first))
    assert npy_folder.read_header(again).files == npy_folder.read_header(first).files


def test_statistics_of_a_public_table(tmp_path):
    (tmp_path / "public.csv").write_text("age;city\n10;Rome\n30;Bern\n;Oslo\n20;Rome\n")
    (tmp_path / "recipe.toml").write_text(
        'public = "public.csv"\n[columns.age]\nscale = "public"\n'
        '[columns.city]\ncategories = "public"\n'
    )
    made = import_table(
        table(), tmp_path / "out", Request("user", "y", recipe=tmp_path / "recipe.toml")
    )
    recipe = npy_folder.read_header(made).recipe.columns
    assert recipe["age"]["mean"] == pytest.approx(20.0)
    assert recipe["age"]["std"] == pytest.approx(np.std([10, 30, 20]))
    assert recipe["city"]["categories"] == ["Bern", "Oslo", "Rome"]
    assert recipe["city"]["source"] == "from the public public.csv"


@pytest.fixture
def journal(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKS_POPULATIONS", str(tmp_path / "journals"))
    PopulationJournal.make("clinic", Total(2.0, 1e-6, order=20.0)).close()
    return lambda: PopulationJournal.find("clinic")


RELEASED = {
    "release": {"population": "clinic", "epsilon": 1.0},
    "columns": {"age": {"scale": "released", "low": 0.0, "high": 120.0}},
}


def many():
    """2,000 clients, the older the more records; their mean age is 50."""
    ages = np.random.default_rng(1).normal(50, 10, 2000).clip(20, 80)
    sizes = 1 + (ages > 50)
    users = np.repeat(np.arange(2000), sizes)
    return pa.table({"user": users, "age": np.repeat(ages, sizes), "y": users % 2})


def test_released_statistics_are_charged_and_near_the_truth(journal, tmp_path):
    place = import_table(
        many(), tmp_path / "out", Request("user", "y", recipe=RELEASED), release=own_data.release
    )
    recipe = npy_folder.read_header(place).recipe.columns["age"]
    # the noise on each sum is about 6 (epsilon 1): of 1,800 clients, a few thousandths of a range
    assert recipe["mean"] == pytest.approx(50, abs=1.5)  # each client counts once
    assert recipe["std"] == pytest.approx(10, rel=0.3)
    assert recipe["source"] == "released with epsilon 1, charged to 'clinic'"
    with journal() as book:
        (run,) = book.runs
        assert run.epsilon == pytest.approx(1.0, rel=1e-3)
        assert (run.arms[0].clients, run.arms[0].rounds) == (1800, 1)
    again = {**RELEASED, "release": {"population": "clinic", "epsilon": 1.9}}
    with pytest.raises(
        ValueError, match=r"would use .* of the total .epsilon 2, .*nothing was debited"
    ):
        locksfl.from_table(many(), client="user", label="y", recipe=again)
    with journal() as book:
        assert len(book.runs) == 1


def test_released_statistics_are_charged_before_noise_is_drawn(journal):
    class Watching:
        def steps(self, std, _, size):
            with journal() as book:
                assert len(book.runs) == 1
                multiplier = book.runs[0].arms[0].terms["PUBLIC"][0].event.noise_multiplier
            assert std >= multiplier * 1.5
            return np.zeros(size, np.int64)

    rows = np.full((3, 2), 0.25)
    found, _ = own_data.release(rows, 1.5, Release("clinic", 1.0), Watching())
    np.testing.assert_allclose(found, 0.75, atol=1e-4)


def test_an_import_that_fails_on_a_cell_releases_nothing(journal):
    broken = many().set_column(1, "age", pa.array([None] + [1.0] * (many().num_rows - 1)))
    with pytest.raises(ValueError, match="missing or not finite: 'age' in row 1"):
        locksfl.from_table(broken, client="user", label="y", recipe=RELEASED)
    with journal() as book:
        assert book.runs == []


def seeded(seed):
    """Bytes that a test can repeat."""
    count = iter(range(10**6))
    return lambda size: hashlib.shake_256(f"{seed} {next(count)}".encode()).digest(size)


def test_noise_on_statistics_has_the_std_that_is_charged(journal):
    """6,000 draws: the estimate of a std is off by 5 standard errors, 4.6%, once in 1.7 million."""
    columns = 2000
    sensitivity = math.sqrt(3 * columns)
    rows = np.random.default_rng(0).uniform(-1, 1, (40, 3 * columns))
    noise = SystemNoise(seeded("a"))
    released, _ = own_data.release(rows, sensitivity, Release("clinic", 1.0), noise)
    with journal() as book:
        multiplier = book.runs[0].arms[0].terms["PUBLIC"][0].event.noise_multiplier

    def as_charged(noise):
        return abs(noise.std() / (multiplier * sensitivity) - 1) < 5 / math.sqrt(2 * noise.size)

    noise = released - rows.sum(axis=0)
    assert as_charged(noise)
    assert not as_charged(noise * 0.94)  # a planted fault
    assert abs(noise.mean()) < 5 * multiplier * sensitivity / math.sqrt(noise.size)


def test_no_client_adds_more_than_is_charged_for():
    recipe = Recipe.read({**RELEASED, "columns": dict.fromkeys("ab", RELEASED["columns"]["age"])})
    rng = np.random.default_rng(0)
    extreme = [0.0, 120.0, 60.0, -1e300, 1e300, np.inf, -np.inf, np.nan]
    values = np.r_[rng.uniform(-10, 130, 2000), rng.choice(extreme, 2000)]
    batch = {"a": pa.array(values), "b": pa.array(rng.permutation(values))}
    lengths = np.linalg.norm(recipe.facts(batch, 1), axis=1)
    assert lengths.max() == pytest.approx(recipe.sensitivity)  # it is reached, ...
    assert lengths.max() <= recipe.sensitivity * (1 + 1e-12)  # ... and not exceeded


BAD = [
    ({"age": {"scale": "data"}}, "columns.age.scale = 'data': statistics of clients' records are "),
    ({"age": {"missing": "mean"}}, "columns.age.missing = 'mean': expected 'flag' or a number"),
    ({"city": {"categories": "all"}}, "columns.city.categories = 'all': statistics of clients'"),
    ({"city": {"categories": "released"}}, "does not hide that a category exists which one client"),
    ({"age": {"scale": "public"}}, "columns.age: 'public' needs a table: public = \"FILE\""),
    ({"age": {"scale": "released"}}, "expected low and high too: without a range one client could"),
    ({"age": {"scale": "released", "low": 0, "high": 9}}, "expected [release] with population and"),
    ({"age": {"mean": 1.0}}, "columns.age: expected mean and std together"),
    ({"age": {"mean": 1.0, "std": 0.0}}, "columns.age.std = 0.0: expected a number > 0"),
    ({"age": {"low": 9, "high": 3}}, "columns.age.high = 3.0: expected more than low = 9.0"),
    ({"age": {"date": ["yaer"]}}, "columns.age.date = 'yaer': expected one of time, year"),
    ({"age": {"categries": ["a"]}}, "unknown setting (did you mean 'categories'?)"),
    ({"age": {"categories": ["a"], "mean": 1.0, "std": 1.0}}, "categories and mean: expected only"),
    ({"age": {"scale": "public", "mean": 1.0, "std": 1.0}}, "mean and scale: expected only one"),
    ({"age": {"mean": math.nan, "std": 1.0}}, "columns.age.mean = nan: expected a finite number"),
    ({"agee": {"missing": 0}}, "columns.agee: no such feature column (did you mean 'age'?)"),
    ({"city": {"categories": ["Oslo", "Bern"]}}, "is 'Rome': expected one of its categories"),
    ({"age": {"date": ["year"]}, "city": {"categories": ["Oslo", "Rome"]}}, "expected a date like"),
    (
        {"city": {"date": ["year"]}},
        "expected a date like 2024-12-31 23:59:59 (columns.city.format)",
    ),
    ({"city": {"categories": ["Oslo"], "missing": "Rome"}}, "expected 'flag', or one of its cat"),
]


@pytest.mark.parametrize(("recipe", "expected"), BAD)
def test_recipes_that_are_refused(recipe, expected):
    with pytest.raises(ValueError, match=r".") as caught:
        features(recipe)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["columns = 3", "[columns", "[colums.a]\nmissing = 1", None])
def test_recipe_files_that_are_refused(text, tmp_path):
    path = tmp_path / "recipe.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=r"recipe|columns = 3|colums") as caught:
        import_table(table(), tmp_path / "out", Request("user", "y", recipe=path))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_spread_that_the_noise_hides_does_not_blow_a_column_up():
    """Of 1,000 clients and noise of 40, squares tell spreads only above sqrt(.08) of half a range;
    without the limit the column would be 1,000 times as wide."""
    recipe = Recipe.read(RELEASED)
    sums = np.array([1000.0, 100.0, 5.0])  # the mean square is below the square of the mean
    made = recipe.with_released(sums, 40.0, recipe.release).columns["age"]
    assert made.std == pytest.approx(60 * math.sqrt(0.08))
    assert made.source.endswith("; its noise hides a smaller std")
    assert recipe.with_released(sums, 4000.0, recipe.release).columns["age"].std == 60.0
    sure = recipe.with_released(np.array([1000.0, 100.0, 300.0]), 40.0, recipe.release)
    assert sure.columns["age"].std == pytest.approx(60 * math.sqrt(0.29))
    assert sure.columns["age"].source.endswith("charged to 'clinic'")


def test_the_table_itself_is_not_public(tmp_path):
    (tmp_path / "t.csv").write_text("user,age,y\n" + "".join(f"{i},{i},0\n" for i in range(9)))
    recipe = {"public": str(tmp_path / "t.csv"), "columns": {"age": {"scale": "public"}}}
    with pytest.raises(ValueError, match="it is the table that is imported"):
        import_table(tmp_path / "t.csv", tmp_path / "out", Request("user", "y", recipe=recipe))


@pytest.mark.usefixtures("journal")
def test_a_run_and_its_statement_say_that_statistics_were_released(tmp_path):
    """Their epsilon is in the population's journal, not in the run's own table."""
    place = import_table(
        many(), tmp_path / "t", Request("user", "y", recipe=RELEASED), release=own_data.release
    )
    config = config_of(
        {
            "data": {"name": str(place)},
            "train": {"rounds": 2},
            "privacy": {"trust": "central", "epsilon": 8.0},
            "arm": [{"name": "a", "rule": "uniform", "cohort": 100}],
        }
    )
    run_experiment(config, RunFolder.create(tmp_path / "run", config))
    told = "released with epsilon 1, charged to 'clinic'"
    assert any(told in line for line in notes(story(tmp_path / "run")))
    publish_folder(tmp_path / "run", tmp_path / "bundle")
    statement = (tmp_path / "bundle" / "STATEMENT.md").read_text()
    assert f"standard deviations of these data, {told}" in " ".join(statement.split())
