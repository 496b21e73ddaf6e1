"""Mistakes that people make with their own data: one line with the place, the rule, the remedy."""

import datetime

import numpy as np
import pytest

from fedmaba import Federation
from fedmaba.data import tables
from fedmaba.data.datasets import load
from fedmaba.errors import InputError

GOOD = """age,sex,site,weight,outcome
63,f,north,70.5,yes
41,m,north,,no
58,,south,81,yes
35,f,south,64,no
"""
ROLES = {"label": "outcome", "client": "site"}


def JOBS(*changed):
    """A table of 400 rows in which some lines end otherwise."""
    lines = [
        "a,b,client,y,job",
        *(f"{i % 17},0.5,{'pqr'[i % 3]},{i % 2},doctor" for i in range(400)),
    ]
    for line, end in zip(changed[::2], changed[1::2], strict=True):
        lines[line - 1] = lines[line - 1].replace(",doctor", end)
    return "\n".join(lines) + "\n"


N, RNG = np.arange(40), np.random.default_rng(0)


def TABLE(name, cells, client=True):
    """A table of 40 rows with one more column."""
    owner = [f"c{i % 4}" for i in N] if client else N % 3 / 2
    rows = zip(cells, owner, N % 7 / 2, N // 20, strict=True)
    head = f"{name},{'client' if client else 'b'},a,y\n"
    return head + "".join(",".join(map(str, row)) + "\n" for row in rows)


MANY = "a,y\n" + "1,b\n2,c\n" * 15
X, Y, OWNER = np.zeros((6, 2)), [0, 1, 0, 1, 0, 1], list("aabbcc")


def of_csv(text, **reading):
    def read(folder):
        path = folder / "t.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        data = load(str(path), reading=tables.reading(**reading))
        Federation.make(data, reading.get("client") and "given", test="local")

    return read


def of_frame(columns, **reading):
    return lambda _: Federation.from_frame(columns, **reading)


def of_arrays(x=X, y=Y, client=OWNER, **more):
    return lambda _: Federation.from_arrays(x, y, client, **more)


def of_clients(clients, **more):
    return lambda _: Federation.from_clients(clients, **more)


def parquet_of_bytes(folder):
    pytest.importorskip("pyarrow")
    (folder / "t.parquet").write_bytes(b"PAR1 no table PAR1")
    load(str(folder / "t.parquet"))


MISTAKES = {
    # the header
    "no label column": (of_csv(GOOD), "no column is called label or y among age, sex.*--label"),
    "label misspelt": (of_csv(GOOD, label="outcom"), "column for label 'outcom': .*'outcome'"),
    "client misspelt": (of_csv(GOOD, label="outcome", client="sites"), "did you mean 'site'"),
    "a number for the client": (
        of_csv(GOOD, label="outcome", client="20"),
        r"column for client '20'.*--clients says how many",
    ),
    "group misspelt": (of_csv(GOOD, **ROLES, group="sexx"), "column for group 'sexx'.*'sex'"),
    "split misspelt": (of_csv(GOOD, **ROLES, split="fold"), "column for split 'fold'"),
    "drop misspelt": (of_csv(GOOD, **ROLES, drop=["agee"]), "column to drop 'agee'.*'age'"),
    "categorical misspelt": (of_csv(GOOD, **ROLES, categorical=["sx"]), "categorical 'sx'.*'sex'"),
    "two label columns": (of_csv("label,y,a\n1,2,3\n"), "columns label and y: say which is"),
    "a column twice": (of_csv("a,a,y\n1,2,3\n"), "two columns are called 'a': rename"),
    "a saved index without a name": (of_csv(",a,y\n0,1,2\n"), "column 1 has no name.*index=False"),
    "a blank for a name": (of_csv(" ,a,y\n0,1,2\n"), "column 1 has no name.*'Unnamed: 0'"),
    "a saved index with a name": (
        of_csv("id,a,y\n0,1,a\n1,3,b\n2,2,a\n"),
        "column 'id' only numbers the rows: leave it out with --drop id",
    ),
    "a counter": (of_csv(TABLE("idx", N + 7)), "'idx' only numbers the rows: .*--feature idx"),
    "a counter that was shuffled": (of_csv(TABLE("k", RNG.permutation(N))), "'k' only numbers"),
    "even steps": (of_csv(TABLE("t", N * 0.5)), "column 't' only numbers the rows"),
    "an id": (of_csv(TABLE("patientId", N * N + 3)), "column 'patientId' only numbers the rows"),
    "a word for each row": (of_csv(TABLE("who", [f"p{i}" for i in N])), "'who' only numbers"),
    "words for train and test": (
        of_csv(TABLE("fold", ["train", "Test"] * 20)),
        "column fold has the words Test, train: .*--split fold",
    ),
    **{
        f"an owner called {name}": (
            of_csv(TABLE(name, cells, client=False)),
            f"column {name} looks as if it named the clients: say --client {name}, or --feature",
        )
        for name, cells in (
            ("hospital", ["n", "s"] * 20),
            ("schoolID", N // 10),
            ("site_name", list("abcd") * 10),
            ("device_id", N % 3 + 0.0),
            ("id", N % 8),
        )
    },
    "a frame with an owner": (
        of_frame({"school": list("ab") * 10, "a": [1.5, 2] * 10, "y": list("pqrs") * 5}),
        "no column is called client: .*client='school', which looks so",
    ),
    "a feature and dropped": (of_csv(GOOD, **ROLES, drop="age", feature="age"), "used and dropped"),
    "a feature and a label": (of_csv(GOOD, **ROLES, feature="outcome"), "'outcome' has two uses"),
    "semicolons": (of_csv("a;b;y\n1;2;3\n"), "the header is separated by ';'.*sep=';'"),
    "tabs": (of_csv("a\tb\ty\n1\t2\t3\n"), r"separated by '\\t': separate by commas"),
    "an empty file": (of_csv(""), "no column is called label or y"),
    "only a header": (of_csv("a,y\n"), "no rows below the header: add some"),
    "one column, two uses": (of_csv(GOOD, label="outcome", client="outcome"), "has two uses"),
    "used and dropped": (of_csv(GOOD, **ROLES, drop=["site"]), "'site' is used and dropped"),
    "nothing to learn from": (of_csv("site,y\na,b\n", label="y", client="site"), "no column left"),
    # quotes
    "an unclosed quote": (of_csv(JOBS(41, ',"nurse')), "line 41: the quote that opens in this row"),
    "a quote that is closed rows later": (
        of_csv(JOBS(41, ',"nurse', 301, ',nurse"')),
        "lines 41 to 301, column job: one cell has line breaks, and the lines after",
    ),
    "two unclosed quotes": (
        of_csv(JOBS(41, ',"nurse', 301, ',"nurse')),
        "line 41: text follows the closing quote of a cell",
    ),
    "an unclosed quote in the header": (of_csv('a,"b,y\n1,2,3\n'), "line 1: the quote that opens"),
    "a huge cell": (
        of_csv("y,a\n1," + "9" * 200_000 + "\n"),
        "line 2: a cell has more than 131,072",
    ),
    "the header twice": (of_csv(GOOD + GOOD, **ROLES), "line 6: the header again: remove"),
    # cells
    "too few cells": (of_csv(GOOD + "1,2\n", **ROLES), "line 6: 2 cells, but the header has 5"),
    "a letter in a number": (
        of_csv(MANY + "1O,b\n"),
        "line 32, column a: '1O' is no finite number, but 30 of 31 cells are: .*--categorical a",
    ),
    "a decimal comma": (of_csv(MANY + '"1,5",b\n'), "line 32, column a: '1,5' is no finite"),
    "a huge number": (of_csv(MANY + "1e99,b\n"), "line 32, column a: '1e99' is no finite"),
    "an infinite number": (of_csv(MANY + "inf,b\n"), "line 32, column a: 'inf' is no finite"),
    "an underscore": (of_csv(MANY + "1_0,b\n"), "line 32, column a: '1_0' is no finite"),
    "a label is missing": (
        of_csv(GOOD.replace("81,yes", "81,"), **ROLES),
        "line 4, column outcome: it is empty.*fill it or drop the row",
    ),
    "a client is missing": (
        of_csv(GOOD.replace("m,north", "m,NA"), **ROLES),
        "line 3, column site: it is empty.*NA, None",
    ),
    "a group is missing": (of_csv(GOOD, **ROLES, group="sex"), "line 4, column sex: it is empty"),
    "an empty column": (of_csv("a,b,y\n1,,c\n2,?,d\n"), "column b is empty: .*--drop b"),
    "gaps that are not allowed": (
        of_csv(GOOD, **ROLES, missing="refuse"),
        "line 4, column sex: the cell is empty.*--missing median",
    ),
    "an unknown way to fill gaps": (of_csv(GOOD, **ROLES, missing="mean"), "fill gaps 'mean'"),
    "too many words": (
        of_csv("name,y\n" + "".join(f"n{i},{i % 2}\n" for i in range(101))),
        "column name has 101 different words.*--drop name",
    ),
    "another word in the split": (
        of_csv("a,split,y\n1,train,b\n2,tset,c\n"),
        "line 3, column split: 'tset': write train, validation or test",
    ),
    "nobody trains": (of_csv("a,split,y\n1,test,b\n2,test,c\n"), "no training rows among 2"),
    "a label that measures": (
        of_csv("a,y\n" + "".join(f"1,{i}\n" for i in range(50))),
        "column y has 50 different labels in 50 rows: .*--task regress",
    ),
    "not UTF-8": (of_csv("a,y\n1,\xff\n".encode("latin-1")), "no CSV in UTF-8.*save it anew"),
    "a broken Parquet file": (parquet_of_bytes, "no Parquet file .*: save it anew"),
    # frames
    "a date": (of_frame({"a": [datetime.date(2020, 1, 1)], "y": [1]}), "row 0, column a.*dt.year"),
    "a list in a cell": (of_frame({"a": [[1, 2]], "y": [1]}), "row 0, column a: .*of type list"),
    "columns of unequal length": (of_frame({"a": [1, 2], "y": [1]}), "lengths a 2, y 1: give each"),
    "a frame with an infinite number": (
        of_frame({"a": [1.0, np.inf], "y": [1, 2]}),
        "row 1, column a: inf is no finite number",
    ),
    "a number as a column's name": (of_frame({0: [1], "y": [1]}), "column 0: names are text"),
    "numbers as text": (
        of_frame({"a": ["1", "2", "x"], "y": [1, 2, 1]}),
        "column a is text, but 2 of 3 cells are numbers; row 2 is 'x': .*to_numeric",
    ),
    "a list instead of a table": (of_frame([1, 2]), "a table of type list: give a data frame"),
    "a frame without clients": (of_frame({"a": [1, 2], "y": [1, 2]}), "no column is called client"),
    "yes or no": (of_frame({"a": [1], "y": [1]}, standardise="maybe"), "'maybe': say yes or no"),
    # arrays
    "bytes": (of_arrays(np.full((6, 8, 8), 200, np.uint8)), r"dtype uint8.*x / 255.*x\.astype"),
    "bytes to test on": (
        of_arrays(x_test=np.full((6, 2), 200, np.uint8), y_test=Y, client_test=OWNER),
        r"x_test has dtype uint8.*x_test / 255",
    ),
    "channels last": (of_arrays(np.zeros((6, 8, 8, 3))), r"channels last: give np.moveaxis"),
    "a gap in an array": (of_arrays(np.full((6, 2), np.nan)), "12 non-finite values, first at row"),
    "ragged rows": (of_arrays([[1.0], [1.0, 2.0]]), "x is ragged: give numbers"),
    "too few labels": (of_arrays(y=[0, 1]), r"y has shape \(2,\), but there are 6 examples"),
    "too few owners": (of_arrays(client=["a"]), r"client has shape \(1,\), but there are 6"),
    "owners as fractions": (of_arrays(client=[0.5] * 6), "client has dtype float64.*astype"),
    "an owner without a name": (of_arrays(client=[*"aabbc", " "]), "client is empty at row 5"),
    "words as objects": (of_arrays(y=np.array([*"ababab"], object)), r"for words use .astype\(str"),
    "tests without labels": (of_arrays(x_test=X), "x_test and y_test belong together"),
    "tests of another shape": (
        of_arrays(x_test=X[:, :1], y_test=Y, client_test=OWNER),
        r"examples of x_test have shape \(1,\), those of x \(2,\)",
    ),
    # client by client
    "no clients at all": (of_clients([]), "there are no clients: give at least one"),
    "a client of another form": (of_clients({"p": 7}), "client 'p' is of type int: give a pair"),
    "a client without examples": (of_clients({"p": []}), "client 'p' has no examples: leave it"),
    "a client with other features": (
        of_clients({"p": (X, Y), "q": (X[:, :1], Y)}),
        r"x of shapes \(1,\), \(2,\) per example: make them the same",
    ),
    "a client with too few labels": (
        of_clients({"p": (X, Y[:5])}),
        r"client 'p' has x of shape \(6, 2\) and y of shape \(5,\)",
    ),
    "clients with other columns": (
        of_clients({"p": {"a": [1], "label": [1]}, "q": {"b": [1], "label": [1]}}),
        "client 'q' and client 'p' differ in columns a, b",
    ),
    "three things in an example": (
        of_clients({"p": [(1, 2, 3)]}),
        r"client 'p', example 0 is of type tuple: each is a pair",
    ),
}


WITHOUT_A_FILE = ("an unknown way to fill gaps",)  # and questions of who owns the rows


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_named_by_its_place_and_remedy(what, tmp_path):
    make, words = MISTAKES[what]
    with pytest.raises(InputError, match=words) as caught:
        make(tmp_path)
    line = str(caught.value)
    assert "\n" not in line
    assert ": " in line  # what is wrong: what to do
    if (tmp_path / "t.csv").exists():
        assert (
            line.startswith(str(tmp_path / "t.csv")) or what in WITHOUT_A_FILE or "an owner" in what
        )
