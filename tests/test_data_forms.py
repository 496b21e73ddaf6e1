"""Each form in which people have data gives the same federation as the same data in arrays.

flwr_datasets and Hugging Face's datasets are not installed with the tests: small stand-ins have the
attributes that are used of them.
"""

import numpy as np
import pytest
import torch

from fedmaba import Federation

RNG = np.random.default_rng(2)
OWNER = np.repeat(["a", "b", "c"], [8, 12, 20])
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
WANT = Federation.from_arrays(X, Y, OWNER)


class Rows(torch.utils.data.Dataset):
    """A torch Dataset of one client."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return torch.from_numpy(self.x[row]), int(self.y[row])


class Arrow:
    """What a table of pyarrow has: names, columns with a type, and a schema."""

    def __init__(self, columns):
        self.column_names = list(columns)
        self.columns = [ArrowColumn(values) for values in columns.values()]
        self.schema = type("Schema", (), {"types": [column.type for column in self.columns]})

    def to_pydict(self):
        raise AssertionError("columns are read one by one")


class ArrowColumn:
    def __init__(self, values):
        self.values = values
        first = values[0]
        kinds = {str: "string", Picture: "struct<bytes: binary, path: string>"}
        self.type = (
            kinds.get(type(first)) or {"f": "double", "i": "int64"}[np.asarray(first).dtype.kind]
        )

    def to_numpy(self):
        return np.asarray(self.values)

    def to_pylist(self):
        return list(self.values)


class Table:
    """What a Dataset of Hugging Face has: rows by a slice, in the format that was asked for."""

    def __init__(self, columns, form=None):
        self.columns_, self.form = columns, form
        self.column_names = list(columns)
        self.features = dict.fromkeys(columns)

    def with_format(self, form):
        return Table(self.columns_, form)

    def __len__(self):
        return len(next(iter(self.columns_.values())))

    def __getitem__(self, rows):
        found = {name: values[rows] for name, values in self.columns_.items()}
        return Arrow(found) if self.form == "arrow" else found


class Partitioner:
    """What a partitioner of flwr_datasets has, of data in memory."""

    num_partitions = 3

    def __init__(self, parts):
        self.parts, self.partition_id_to_natural_id = parts, {}

    def load_partition(self, partition_id):
        self.partition_id_to_natural_id = dict(enumerate("abc"))
        return self.parts[partition_id]


class FederatedDataset:
    """What a FederatedDataset of flwr_datasets has."""

    def __init__(self, parts):
        self.parts = parts
        self.partitioners = {"train": type("Partitioner", (), {"num_partitions": len(parts)})()}

    def load_partition(self, partition_id, split=None):
        assert split == "train"
        return self.parts[partition_id]


class Picture:
    """What a picture of PIL has: a mode, and its pixels as an array."""

    mode = "RGB"

    def __init__(self, pixels):
        self.pixels = pixels

    def __array__(self, dtype=None, copy=None):
        return self.pixels


def mine(name):
    return X[name == OWNER], Y[name == OWNER]


def same(fed, want=WANT):
    assert fed.split.sha256() == want.split.sha256()
    np.testing.assert_array_equal(fed.data.x, want.data.x)
    np.testing.assert_array_equal(fed.data.y, want.data.y)


ARRAYS = {
    "pairs by name": lambda: {name: mine(name) for name in "abc"},
    "a list of pairs": lambda: [mine(name) for name in "abc"],
    "dicts": lambda: {name: dict(zip("xy", mine(name), strict=True)) for name in "abc"},
    "torch Datasets": lambda: {name: Rows(*mine(name)) for name in "abc"},
    "tensors": lambda: {name: tuple(map(torch.from_numpy, mine(name))) for name in "abc"},
    "lists of pairs": lambda: [list(zip(*mine(name), strict=True)) for name in "abc"],
}


@pytest.mark.parametrize("form", ARRAYS)
def test_clients_one_by_one(form):
    same(Federation.from_clients(ARRAYS[form]()))


def test_tensors_are_arrays():
    same(Federation.from_arrays(torch.from_numpy(X), torch.from_numpy(Y), OWNER))


def columns(name):
    x, y = mine(name)
    return {**{f"f{i}": x[:, i].astype(float) for i in range(3)}, "label": y}


@pytest.mark.parametrize(
    "form", ["columns", "pandas", "Hugging Face", "flwr_datasets", "partitioner"]
)
def test_tables_one_by_one(form):
    pd = pytest.importorskip("pandas")
    make = {"columns": dict, "pandas": pd.DataFrame}.get(form, Table)
    parts = [make(columns(name)) for name in "abc"]
    wrapped = {"flwr_datasets": FederatedDataset, "partitioner": Partitioner}
    clients = wrapped.get(form, list)(parts)
    same(Federation.from_clients(clients, standardise=False))


def test_pictures_are_scaled_and_their_channels_come_first():
    pixels = RNG.integers(0, 256, (12, 8, 8, 3), np.uint8)
    labels = np.arange(12) % 2
    parts = [
        Table({"img": [Picture(p) for p in pixels[rows]], "label": labels[rows].tolist()})
        for rows in (slice(0, 5), slice(5, 12))
    ]
    fed = Federation.from_clients(FederatedDataset(parts))
    x = np.moveaxis((pixels / 255).astype(np.float32), -1, 1)
    same(fed, Federation.from_arrays(x, labels, [0] * 5 + [1] * 7))
    assert fed.data.steps == ("images of img: pixels / 255, channels first",)


def test_a_partitioner_names_its_clients():
    fed = Federation.from_clients(Partitioner([Table(columns(name)) for name in "abc"]))
    assert fed.client_names() == ("a", "b", "c")


def test_a_part_of_each_client_is_for_tests():
    parts = {
        name: {"x": X[:4], "y": Y[:4], "x_test": X[4:6], "y_test": Y[4:6]} for name in ("p", "q")
    }
    fed = Federation.from_clients(parts)
    assert fed.train.size.tolist() == [4, 4]
    assert fed.test.size.tolist() == [2, 2]
    assert (fed.data.client[fed.test.of(1)] == 1).all()
