"""Groups of people in `fedmaba table --by group`, in the report, in CSV and in Python."""

import csv
import html as html_files

import numpy as np
import pytest

import fedmaba
from fedmaba.report import export, group_tables
from fedmaba.report import html as page
from fedmaba.report.data import load_run_folder, source_of
from fedmaba.report.group_tables import Names
from fedmaba.results import groups
from fedmaba.results.groups import Groups
from fedmaba.results.history import GrowingArray, History, RunHistory
from group_cases import compare, people


def history(counts, label="fedavg", seeds=1, names=("women", "men")):
    """A run at one evaluation with these counts (N, G, K)."""
    counts = np.array(counts)
    size = counts.sum((1, 2))
    right = counts[..., [0, 3] if counts.shape[2] == 4 else [1]].sum((1, 2)) / size
    tables = {"evaluated": np.array([1])}
    for model in ("deployed", "last"):
        tables |= {f"{model}.accuracy": right[None], f"{model}.loss": 1 - right[None]}
        tables[f"{model}.groups"] = counts[None].astype(np.int32)
    grown = {name: GrowingArray(table) for name, table in tables.items()}
    told = Groups(tuple(names), "ill")
    return History(
        [RunHistory(label, s, "last", size, tables=grown, groups=told) for s in range(seeds)]
    )


SITE = [[[9, 1, 1, 9], [9, 1, 1, 9]], [[5, 5, 5, 5], [5, 5, 4, 6]]]  # the second client is worse
GROUP = [[[9, 1, 1, 9], [5, 5, 5, 5]], [[9, 1, 1, 9], [5, 5, 5, 5]]]  # the second group is worse


def test_who_is_served_worst_a_client_or_a_group():
    said = group_tables.served_worst(history(SITE), "fedavg", "deployed", "last", Names(("A", "B")))
    assert said == (
        "fedavg: the worst served client is B with 52.50 %, the worst served group is women with "
        "70.00 %. Best and worst client lie 37.50 points apart, best and worst group 2.50: who is "
        "served worst depends more on the client. Of client and group together: women at B, 50.00 "
        "% of 20 test examples."
    )
    said = group_tables.served_worst(history(GROUP), "fedavg", "deployed", "last", Names())
    assert "the worst served group is men with 50.00 %" in said
    assert "best and worst group 40.00: who is served worst depends more on the group" in said
    assert "men at client 0" in said
    few = np.array(GROUP)
    few[0, 1] = [0, 2, 2, 0]  # four people, all wrong: too few to be called the worst
    said = group_tables.served_worst(history(few), "fedavg", "deployed", "last", Names())
    assert "men at client 1, 50.00 % of 20" in said
    many = group_tables.served_worst(history(GROUP, seeds=2), "fedavg", "deployed", "last", Names())
    assert "client has" in many  # another seed has other clients, which have no names
    assert "together" not in many


def test_the_tables_have_every_gap_and_every_group():
    made = group_tables.document(history(SITE))
    gaps, each = made.grids
    want = groups.figures(np.array(SITE))
    shown = dict(zip(gaps.head[2:], [cell.value for cell in gaps.rows[0][2:]], strict=True))
    assert shown == dict(zip((title for _, title in group_tables.GAP_FIGURES), want, strict=True))
    assert [row[0].text for row in each.rows] == ["fedavg: women", "fedavg: men"]
    assert [row[1].text for row in each.rows] == ["40", "40"]
    assert each.head[3] == "predicted ill %"
    assert each.rows[0][2].value == pytest.approx(70)
    assert "| fedavg: women | 40 | 70.00 |" in history(SITE).group_table()
    three = history(np.array(SITE)[..., :2])  # more than two classes: wrong, right
    three.runs[0].groups = Groups(("women", "men"))
    gaps, each = group_tables.document(three).grids
    assert gaps.head == ["row", "seeds", "worst group %", "accuracy gap", "accuracy gap within"]
    assert each.head == ["group", "test examples", "accuracy %"]


def test_the_command_shows_groups_and_says_where_there_are_none(tmp_path, call):
    compare(["fedavg", "fairfed"], out=tmp_path / "run")
    shown = call("table", tmp_path / "run", "--by", "group")
    assert "worst group %" in shown.out
    assert "fairfed: women" in shown.out
    assert "depends more on the" in " ".join(shown.out.split())
    form = call("table", tmp_path / "run", "--by", "group", "--to", "csv").out
    assert "gaps,fairfed,odds gap," in form
    wrong = call("table", tmp_path / "run", "--by", "group", "--against", "fedavg")
    assert "--by group has no --against" in wrong.err
    fedmaba.compare("fedavg", clients=4, rounds=1, seeds=1, out=tmp_path / "none")
    wrong = call("table", tmp_path / "none", "--by", "group")
    assert "these runs have no groups of people: name the column" in wrong.err


def test_csv_has_a_row_for_each_client_and_group(tmp_path):
    made = compare(given=people(lonely=(2,)), out=tmp_path / "run")
    files = export.write_export(tmp_path / "run", tmp_path / "csv")
    assert [file.name for file in files][-1] == "groups.csv"
    rows = list(csv.DictReader((tmp_path / "csv" / "groups.csv").read_text().splitlines()))
    assert len(rows) == 2 * 3 * 9  # models, evaluations, cells: client 2 has one group
    last = [r for r in rows if r["round"] == "3" and r["model"] == "last" and r["group"] == "women"]
    counts = made.runs[0].group_counts("last")[-1]
    for row in last:
        cell = counts[int(row["client"]), 1]
        assert int(row["examples"]) == cell.sum()
        assert float(row["accuracy"]) == pytest.approx((cell[0] + cell[3]) / cell.sum())
    without = compare(given=people(groups=1), out=tmp_path / "one")
    assert not without.runs[0].groups.names
    assert "groups.csv" not in {
        f.name for f in export.write_export(tmp_path / "one", tmp_path / "none")
    }


def test_the_page_has_a_section_with_cells_and_words(tmp_path):
    given = people(lonely=(2,))
    compare(["fedavg", "fairfed"], given, out=tmp_path / "run")
    text = html_files.unescape(page.page([load_run_folder(tmp_path / "run")]))
    section = text[text.index('<section id="groups">') : text.index('<section id="heterogeneity">')]
    assert "Who is served worst, a client or a group?" in section
    assert "depends more on the" in section
    assert "worst group %" in section
    assert section.count('class="plain cells"') == 2
    assert section.count('<tr><th scope="row">2</th>') == 2  # clients by the names in the data
    assert '<td class="n">–</td>' in section  # no test example of a group
    assert {f"shade{k}" for k in (0, 4)} <= set(section.replace('"', " ").split())
    plain = page.page([source_of(history(np.array(SITE)))])
    assert "client 1" in plain
    none = fedmaba.compare("fedavg", clients=4, rounds=1, seeds=1)
    assert 'id="groups"' not in page.page([source_of(none)])
