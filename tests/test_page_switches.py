"""The page follows its switches everywhere: model, round, selection; groups and own models too."""

import pytest

import fedmaba
from fedmaba.report import data, group_tables, html, page_data, row_styles, table
from fedmaba.results import costs
from fedmaba.results.history import History
from group_cases import compare, people
from report_cases import one


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Groups, models of clients' own, and clients alone; and the report of it."""
    folder = tmp_path_factory.mktemp("own") / "run"
    compare(["fedavg", "ditto", "local"], people(), out=folder, seeds=2, finetune=3)
    out = folder.parent / "report.html"
    html.write_page([folder], out)
    return folder, out


def switches(folder):
    tree = page_data.tree([data.load_run_folder(folder)])
    return tree, [f"{model}.{at}" for model in tree["models"] for at in ("last", "best", "last5")]


def test_there_is_a_table_for_each_switch(own):
    tree, keys = switches(own[0])
    assert tree["models"] == ["deployed", "last", "personal"]
    for name in ("tables", "verdicts", "alone"):
        assert list(tree[name]) == keys
    history = fedmaba.load_history(own[0])
    for model in tree["models"]:
        rows = table.incentive_grids(history, model, "last")[0].rows
        shown = [row["cells"][3] for row in tree["alone"][f"{model}.last"]["rows"]]
        assert shown == [row[4].text.replace("-", "−") for row in rows]
        assert list(tree["groups"][0]["shown"]) == keys
        part = tree["groups"][0]["shown"][f"{model}.last"]["tables"][0]
        gaps = group_tables.gap_grid(history, history.group_summary(model), model, "last")
        assert [row["cells"][3] for row in part["rows"]] == [row[3].text for row in gaps.rows]
    assert tree["alone"]["deployed.last"] != tree["alone"]["personal.last"]
    assert not any("Incentive" in note for note in tree["notes"])  # the table says it


def test_curves_run_over_what_was_spent_where_it_is_recorded(own, tmp_path):
    assert "gigabytes" not in switches(own[0])[0]["runs"][0]["fair"]
    compare(["fedavg", "afl"], people(), out=tmp_path / "sent", available="always")
    compare(["fedavg", "afl"], people(), out=tmp_path / "timed", speed="100")
    for name, shown in (("sent", ["gigabytes"]), ("timed", ["gigabytes", "hours"])):
        history = fedmaba.load_history(tmp_path / name)
        tree, _ = switches(tmp_path / name)
        for run, drawn in zip(history.runs, (own["fair"] for own in tree["runs"]), strict=True):
            down, up, hours = costs.spent_until_evaluations(run).T
            assert [key for key in ("gigabytes", "hours") if key in drawn] == shown
            assert drawn["gigabytes"] == pytest.approx(down + up, rel=1e-5)
            assert "hours" not in shown or drawn["hours"] == pytest.approx(hours, rel=1e-5)


def test_without_models_of_their_own_there_is_no_such_switch():
    tree = page_data.tree([data.source_of(History([one("fedavg", [0.1, 0.9])]))])
    assert tree["models"] == ["deployed", "last"]
    assert 'data-model="personal"' not in html.page(
        [data.source_of(History([one("fedavg", [0.1, 0.9])]))]
    )


def test_rows_of_groups_are_named_as_everywhere_on_the_page(tmp_path):
    for name in "ab":
        compare(out=tmp_path / name)
    tree = page_data.tree([data.load_run_folder(tmp_path / name) for name in "ab"])
    labels = {strategy["label"] for strategy in tree["strategies"]}
    for part in tree["groups"]:
        for made in part["shown"]["deployed.last"]["tables"]:
            assert {row["label"] for row in made["rows"]} < labels


def test_an_algorithm_keeps_its_colour_among_many_rows():
    values = {"qffl": 5, "afl": 4, "term": 4, "fedmaba": 5}
    labels = [f"{name}:x={i}" for name, n in values.items() for i in range(n)]
    labels += ["fedavg", "fedmaba", "fedsgd", "fedprox", "fedmgda", "propfair", "fedfv"]
    found = dict(zip(labels, row_styles.hues(labels), strict=True))
    home = row_styles.HUES.index("fedmaba")
    assert found["fedmaba"] == (home, 0)  # the usual settings look as in every other figure
    for name in ("qffl", "afl", "term"):
        assert {found[label][0] for label in labels if label.startswith(name)} == {
            row_styles.HUES.index(name)
        }
    assert len({*found.values()}) == len(labels)
    sweep = row_styles.hues(
        [f"fedmaba:alpha={i}" for i in range(8)]
    )  # where hues are free, they differ
    assert len({hue for hue, _ in sweep}) == 7
