"""Columns that may be no features: what is asked about, and honest tables that are not."""

import numpy as np
import pytest

from fedmaba import Federation
from fedmaba.data import datasets, frames, tables
from fedmaba.errors import InputError

RNG = np.random.default_rng(3)
N = 60
ROWS = np.arange(N)
LABEL = np.where(ROWS < N // 2, "p", "q")  # sorted by label
OWNER = np.array(list("abc"))[ROWS % 3]


def table(columns, owned=True, **reading):
    owner = {"client": OWNER} if owned else {}
    read = frames.read_frame(
        {**owner, "x": RNG.normal(size=N), **columns, "y": LABEL}, tables.reading(**reading)
    )
    return datasets.from_table(read)


HONEST = {
    "ages": RNG.integers(18, 90, N),
    "years": 1990 + ROWS % 30,
    "a sorted measurement": np.sort(RNG.normal(size=N)),
    "sorted ages": np.sort(RNG.integers(18, 60, N)),
    "a grid": ROWS // 6,
    "a constant": np.ones(N),
    "counts": RNG.poisson(4, N),
    "flags": ROWS % 2,
    "incomes": RNG.integers(10_000, 99_999, N),
    "gaps": np.where(ROWS % 4 == 0, np.nan, ROWS),
    "school_years": RNG.integers(8, 14, N),
    "persons": ROWS % 3,
    "device": np.array(["phone", "tablet"])[ROWS % 2],
    "store_size": ROWS % 5,
    "patient age": RNG.integers(18, 40, N),
    "words": np.array(list("fghij"))[ROWS % 5],
    "test": np.array(["positive", "negative"])[ROWS % 2],
    "dose": 0.25 * (ROWS % 4),
    "hour": ROWS % 24,
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_column_causes_no_question(name):
    for client in (True, False):
        data = table({name: HONEST[name]}, client)
        assert data.doubts == ()
        assert (data.client is None) != client
        if not client:
            assert data.client_column == ""
            assert Federation.make(data, clients=3, test="local").n_clients == 3


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (3 * ROWS + RNG.integers(0, 3, N), "goes up or down with the rows"),
        (-2 * (ROWS // 2) - ROWS // 7, "goes up or down with the rows"),
        (1 + ROWS // 3, "numbers the rows of each client"),
    ],
)
def test_a_column_that_may_count_is_told_once(cells, words):
    data = table({"seen": cells})
    (doubt,) = data.doubts
    assert words in doubt
    assert "--drop seen, or say --feature seen" in doubt
    assert table({"seen": cells}, feature="seen").doubts == ()
    assert table({"seen": cells}, drop="seen").doubts == ()


def test_each_question_has_an_answer():
    with pytest.raises(InputError, match="looks as if it named the clients"):
        Federation.make(table({"Hospital": OWNER}, owned=False), clients=3, test="local")
    for words in ({"client": "Hospital"}, {"feature": "Hospital"}, {"drop": "Hospital"}):
        data = table({"Hospital": OWNER}, owned=False, **words)
        clients = None if "client" in words else 4
        fed = Federation.make(data, clients=clients, test="local")
        assert fed.n_clients == (clients or 3)
    assert Federation.make(table({"Hospital": OWNER}, False), "iid", 5, test="local").n_clients == 5
    with pytest.raises(InputError, match="only numbers the rows"):
        table({"t": ROWS})
    assert table({"t": ROWS}, feature="t").preparation.names() == ("x", "t")


def test_usual_names_may_have_capitals():
    columns = {"Client": OWNER, "Group": LABEL, "X": ROWS % 7, "Y": ROWS % 5}
    data = table(columns, owned=False)
    assert (data.client_column, data.group_names) == ("Client", ("p", "q"))
    assert data.preparation.names() == ("x", "X", "Y")


def test_a_run_warns_once_even_if_quiet(tmp_path, call):
    path = tmp_path / "t.csv"
    lines = [f"{3 * i + i % 2},{i % 5},{OWNER[i]},{LABEL[i]}" for i in ROWS]
    path.write_text("\n".join(["seen,a,client,y", *lines]) + "\n")
    words = ["compare", "fedavg", "--data", path, "--model", "softmax", "--rounds", 1]
    told = call(*words, "--seeds", 1, "--lr", "[0.1,0.2]", "--quiet", "--out", tmp_path / "a")
    assert told.code == 0
    assert told.err.count("warning: column seen goes up or down with the rows") == 1


def test_masked_cells_are_no_values():
    mask = np.zeros((N, 2), bool)
    mask[7, 1] = True
    x = np.ma.masked_array(RNG.normal(size=(N, 2)), mask)
    y = np.arange(N) % 2
    for wrong in (x, [*x], {"a": x}):
        with pytest.raises(InputError, match=r"has 1 masked value, the first at row 7: fill"):
            Federation.from_arrays(wrong, y, OWNER)
    masked = np.ma.masked_array(y, mask[:, 1])
    for arrays in ({"y": masked, "client": OWNER}, {"y": y, "client": masked}):
        with pytest.raises(InputError, match="has 1 masked value, the first at row 7"):
            Federation.from_arrays(x.data, **arrays)
    with pytest.raises(InputError, match="x has 1 masked value, the first at row 2"):
        Federation.from_clients({"p": (x[5:], y[5:])})
    fine = Federation.from_arrays(np.ma.masked_array(x.data), y, OWNER)
    same = Federation.from_arrays(x.data, y, OWNER)
    assert fine.data.sha256() == same.data.sha256()
    columns = {"a": x[:, 1], "w": np.ma.masked_array(LABEL, mask[:, 1])}
    gaps = Federation.from_frame({**columns, "client": OWNER, "label": y})
    assert gaps.data.shape == (1 + 2 + 2,)
    assert any("marks the gaps of a, w" in step for step in gaps.data.steps)
