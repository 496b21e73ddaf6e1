"""Readings of the set-up: the right rows, and their distance to the paper's table."""

import numpy as np
import pytest
from reproduction_cases import grid_named, made, save

from fedmaba.report.paired import moments
from fedmaba.results.metrics import Fairness
from laboratory import archive, paper, reading_tables, selection, targets
from laboratory import page as reproduction

TABLE = "table2-fashion-mnist"
NOTHING = dict.fromkeys(Fairness._fields, 0.0)


def as_printed(row, **more):
    """The paper's own figures of a row, each moved by some."""
    known = paper.load_paper()[TABLE][row]
    told = {figure: known[figure][0] + more.get(figure, 0.0) for figure in reading_tables.FIGURES}
    return Fairness(**(NOTHING | told))


def test_the_distance_is_the_mean_of_absolute_differences_in_points():
    rows = ["fedavg", "fedmaba"]
    found = {row: {0: as_printed(row)} for row in rows}
    apart = reading_tables.distances_to_paper(found, rows, TABLE)
    assert reading_tables.score(apart) == {0: 0.0}
    sd = np.sqrt(paper.load_paper()[TABLE]["fedavg"]["variance"][0])
    wider = (sd + 2) ** 2 - sd**2  # a standard deviation two points larger
    found["fedavg"][0] = as_printed("fedavg", variance=wider, accuracy=-1, worst=3)
    apart = reading_tables.distances_to_paper(found, rows, TABLE)
    assert reading_tables.score(apart)[0] == pytest.approx((2 + 1 + 3) / 8)


def test_seeds_are_scored_by_themselves_and_only_where_every_row_is_there():
    rows = ["fedavg", "fedmaba"]
    found = {row: {s: as_printed(row, accuracy=s) for s in (0, 1, 2)} for row in rows}
    found["fedmaba"].pop(1)
    apart = reading_tables.distances_to_paper(found, rows, TABLE)
    assert reading_tables.score(apart) == {0: 0.0, 2: pytest.approx(0.5)}
    assert reading_tables.own_spread(found, rows) == pytest.approx(0.5)
    assert reading_tables.distances_to_paper({"fedavg": found["fedavg"]}, rows, TABLE) == {}


@pytest.mark.parametrize(
    ("label", "names", "want"),
    [
        ("afl:weights=new", ["weights"], "afl"),
        ("afl:lam=0.5,weights=new", ["weights"], "afl:lam=0.5"),
        ("fedmaba:alpha=0.8", ["loss_at"], "fedmaba:alpha=0.8"),
        ("fedavg", ["weights"], "fedavg"),
    ],
)
def test_a_row_is_known_by_the_papers_name(label, names, want):
    assert reading_tables.without(label, names) == want


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    """Made-up runs of three readings and of those that share theirs, and the page."""
    folder, target = tmp_path_factory.mktemp("readings"), targets.load_target("readings")
    titles = ("as taken", "one hidden layer", "10 local steps")
    digests = {job.digest for job in target.jobs if job.title.startswith(titles)}
    for job in target.every_job():
        if job.digest in digests:
            runs = [made(k.label, k.seed, np.full(20, 100), deploy=k.deploy) for k in job.runs]
            save(folder / f"{job.digest}.npz", job, runs)
    batches = archive.read_folder(folder)
    return batches, reproduction.document(target, batches)


def test_a_reading_of_the_whole_table_shows_fedmabas_row(some):
    batches, page = some
    job = next(j for j in targets.load_target("readings").jobs if j.title == "one hidden layer")
    assert [*job.strategies][1] == "fedsgd"
    row = next(r for r in grid_named(page, "last").rows if r[0].text == job.title)
    history = archive.deployed_history(batches, job)
    found = selection.fairness_by_seed(history, "last", selection.CHOICES["last"])
    for at, label in ((2, "fedavg"), (3, "fedmaba")):
        want = moments([*selection.by_seed(found, label, "variance").values()])[0]
        assert row[at].value == pytest.approx(want)
    shown = [r[0].text for r in grid_named(page, "last").rows]
    assert "10 local steps, as on CIFAR-10, instead of 12" in shown
    assert "10 local steps" not in shown  # the same runs once more
    assert not any("AFL weighs" in title for title in shown)  # has neither row of its own


def test_a_reading_with_few_rows_takes_the_others_from_another(some):
    batches, page = some
    target = targets.load_target("readings")
    names = [v.name for v in target.view.variant]
    taken, other = (
        reading_tables.found_rows(target, names.index(name), batches, "best")
        for name in ("as taken", "AFL, new lambda")
    )
    for row, same in (("fedavg", True), ("afl", False)):
        both = [selection.by_seed(found, row, "variance") for found in (other, taken)]
        assert (both[0] == both[1]) == same
    assert set(reading_tables.whole_rows(target)) <= set(other)
    rows = reading_tables.whole_rows(target)
    assert len(rows) == 12
    table = grid_named(page, "scores").rows
    scored = [row for row in table if row[2].value is not None]
    assert [row[2].value for row in scored] == sorted(row[2].value for row in scored)
    assert len(scored) == 5  # as taken, AFL's, FedMGDA+'s, one hidden layer, 10 steps
    line = next(row for row in table if row[0].text.startswith("AFL weighs a round"))
    ours, base = (
        reading_tables.score(reading_tables.distances_to_paper(found, rows, TABLE))
        for found in (other, taken)
    )
    assert line[2].value == pytest.approx(np.mean([*ours.values()]))
    assert line[3].value == pytest.approx(np.mean([ours[s] - base[s] for s in range(3)]))
    assert any(text.startswith("Nearest: ") for text in page.text)
    assert len(grid_named(page, "score-rows").rows) == 12


def test_a_cut_down_version_is_not_scored(tmp_path):
    target = targets.load_target("readings", targets.Scale(rounds=60))
    job, size = target.jobs[0], np.full(20, 100)
    save(tmp_path / "x.npz", job, [made(r, s, size) for r in job.strategies for s in (0, 1)])
    page = reproduction.document(target, archive.read_folder(tmp_path))
    assert [grid.name for grid in page.grids] == ["last", "last5"]


def test_a_reading_that_was_not_run_is_not_scored(tmp_path):
    target = targets.load_target("readings-cifar100")
    job, size = target.jobs[0], np.full(20, 100)
    save(tmp_path / "x.npz", job, [made(k.label, k.seed, size, deploy=k.deploy) for k in job.runs])
    page = reproduction.document(target, archive.read_folder(tmp_path))
    assert len(grid_named(page, "scores").rows) == 1
