"""docs/reproduction*.md: every number is one of the files."""

import re
import runpy
from types import SimpleNamespace

import numpy as np
import pytest
from reproduction_cases import RESULTS, ROOT, fill, grid_named

from fedmaba.results import selection
from fedmaba.results.selection import CHOICES
from laboratory import archive, paper, targets
from laboratory import page as reproduction


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(ROOT / "experiments" / "pages.py"))


@pytest.mark.slow
def test_the_numbers_of_the_page_are_those_of_the_files(tool):
    batches = tool["load"](tool["RESULTS"])
    for page in tool["PAGES"]:
        text = page.read_text(encoding="utf-8")
        made = tool["MADE"].search(text) or tool["BLOCK"].search(text)
        assert len(tool["VALUE"].findall(text)) > 3 or made
        assert text == tool["renew"](text, batches), "old: run python experiments/pages.py"
    shown_on = (
        "LOG_PAGE",
        "TABLE_PAGE",
        "FAIR_PAGE",
        "DATA_PAGE",
        "PRIVACY_PAGE",
        "BASELINES_PAGE",
    )
    text = "".join(tool[name].read_text(encoding="utf-8") for name in shown_on)
    shown = {m[2] for m in tool["BLOCK"].finditer(text)}
    assert shown == set(targets.names()) - {"all", "baselines"}  # which are others together


@pytest.mark.slow
def test_the_tool_puts_right_what_is_wrong(tool, tmp_path):
    batches = fill(tmp_path, "table2-fashion-mnist")
    text = (
        "Ours is 1.00<!-- table2-fashion-mnist|fedavg|variance|last|last5 --> %².\n\n"
        "<!-- reproduce table2-fashion-mnist last -->\n| wrong |\n<!-- end -->\nrest\n"
    )
    page = tool["renew"](text, batches)
    found = selection.fairness_by_seed(
        archive.collect(batches, targets.load_target("table2-fashion-mnist").jobs[0])[0],
        "last",
        CHOICES["last5"],
    )["fedavg"]
    assert f"Ours is {np.mean([f.variance for f in found.values()]):.2f}<!--" in page
    pair = "+1.00<!-- table2-fashion-mnist|fedsgd - fedavg|worst|last|last -->"
    table = grid_named(
        reproduction.document(targets.load_target("table2-fashion-mnist"), batches), "pairs-last"
    )
    assert f"{table.rows[0][4].value:+.2f}<!--" in tool["renew"](pair, batches)
    assert "wrong" not in page
    assert "| FedAvg | 10 |" in page
    assert page.count("**Last server model, at the last round") == 1
    assert "fedmaba reproduce t" in page
    assert page.endswith("<!-- end -->\nrest\n")
    assert tool["renew"](page, batches) == page
    assert "not run yet" in tool["renew"](text, [])
    assert "–<!--" in tool["renew"](text, [])


@pytest.mark.slow
def test_numbers_of_rounds_readings_floors_and_gains(tool, tmp_path):
    batches = fill(tmp_path, "readings")
    target = targets.load_target("readings")
    runs = {
        i: [r for r in archive.collect(batches, target.jobs[i])[0].runs if r.label == "fedavg"]
        for i in (0, 4)
    }

    def show(name, row, figure, model, at):
        text = tool["renew"](f"0<!-- {name}|{row}|{figure}|{model}|{at} -->", batches)
        return float(text.partition("<!--")[0])

    fifth = [r.accuracy("last") for r in runs[4]]
    want = 100 * np.mean([a[-1].mean() for a in fifth])
    assert show("readings#5", "fedavg", "accuracy", "last", "last") == pytest.approx(want, abs=0.01)
    done = int(runs[4][0].evaluated[1])
    want = 100 * np.mean([a[1].mean() for a in fifth])
    found = show("readings#5", "fedavg", "accuracy", "last", f"r{done}")
    assert found == pytest.approx(want, abs=0.01)
    shares = [r.accuracy("last")[-1] for r in runs[0]]
    spread = [np.mean(p * (1 - p) / 99) * (len(p) - 1) / len(p) for p in shares]
    found = show("readings", "fedavg", "floor", "last", "last")
    assert found == pytest.approx(1e4 * np.mean(spread), abs=0.01)
    gain = [r.accuracy("deployed")[-1].mean() - r.accuracy("last")[-1].mean() for r in runs[0]]
    found = show("readings", "fedavg", "accuracy", "gain", "last")
    assert found == pytest.approx(100 * np.mean(gain), abs=0.01)
    assert found != 0


def test_numbers_of_the_paper_and_shares_of_another_row(tool, tmp_path):
    batches = fill(tmp_path, "table2-fashion-mnist")
    name = "table2-fashion-mnist"

    def show(row, figure, model, at):
        text = tool["renew"](f"0<!-- {name}|{row}|{figure}|{model}|{at} -->", batches)
        return text.partition("<!--")[0]

    assert show("fedavg", "variance", "paper", "told") == "50.14"
    assert show("afl:lam=0.5", "best", "paper", "told") == "98.33"
    assert show("fedmaba % qffl", "variance", "paper", "told") == "28"  # 1 - 34.54 / 47.65
    assert show("fedmaba - fedavg", "accuracy", "paper", "told") == "+0.36"
    found = selection.fairness_by_seed(
        archive.collect(batches, targets.load_target(name).jobs[0])[0], "last", CHOICES["last"]
    )
    share = [1 - found["fedmaba"][s].variance / found["qffl"][s].variance for s in range(3)]
    assert show("fedmaba % qffl", "variance", "last", "last") == f"{100 * np.mean(share):.0f}"
    empty = tool["renew"](f"1<!-- {name}|fedmaba % qffl|variance|last|last -->", [])
    assert empty.startswith("–<!--")


def test_the_page_has_every_row_of_the_paper_and_every_statement_in_words(tool, tmp_path):
    batches = fill(tmp_path, *tool["PAPERS"].values())
    lines = tool["TABLES"]["glance"](batches).splitlines()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in lines[4:]]
    assert rows == [tool["name_of"](row) for row in paper.load_paper()["table2-fashion-mnist"]]
    told = [line.split(" | ")[5].strip() for line in lines[4:]]
    assert [not text for text in told] == [  # the rows that Table III has not
        row not in paper.load_paper()["table3-cifar100"]
        for row in paper.load_paper()["table2-fashion-mnist"]
    ]
    shown = tool["TABLES"]["verdicts"](batches)
    assert shown.count("| 33 % | second best | table2-fashion-mnist | α=0.5 / α=0.8 |") == 1
    assert "| mean of the baselines, without TERM |" in shown
    assert "| figure2-alpha |" in shown
    counted = sum(len(claim["targets"]) for claim in paper.load_paper()["claim"])
    assert len(shown.splitlines()) == 4 + counted


def test_the_papers_entries_tell_which_split_a_table_has():
    def on_grid(table):  # its rows once: TERM and PropFair stand beside two of ours
        rows = {tuple(row["worst"] + row["best"]) for row in paper.load_paper()[table].values()}
        entries = [round(100 * row[i]) for row in rows for i in (0, 2)]
        return sum(entry % 20 == 0 for entry in entries), len(entries)

    page = (ROOT / "docs" / "reproduction-log.md").read_text(encoding="utf-8")
    page = page[page.index("## Which split the tables have") :]
    (a, of), (b, same), (c, few) = map(
        on_grid, ("table2-fashion-mnist", "table2-cifar10", "table3-cifar100")
    )
    assert (of, same, few) == (24, 24, 12)
    assert f"Fashion-MNIST {a} are, of the 24 on CIFAR-10 {b}, of Table III's 12 one" in page
    assert c == 1


def test_rounds_between_which_rows_are_told_apart(tool, monkeypatch):
    def runs(by):  # three seeds, one point apart
        return [
            SimpleNamespace(
                seed=s,
                evaluated=10 * np.arange(1, 1 + len(by)),
                fairness=lambda kind, share, s=s: [SimpleNamespace(variance=v + s) for v in by],
            )
            for s in (-1, 0, 1)
        ], 0.05

    level = runs([0] * 7)
    for run in level[0]:
        run.fairness = lambda kind, share: [SimpleNamespace(variance=0)] * 7
    rows = {"ours": runs([9, 0, 9, 9, 9, 0, 9]), "same": runs([0] * 7), "base": level}
    stretch = tool["stretch"]
    monkeypatch.setitem(stretch.__globals__, "rows_of", lambda name, row, batches: rows[row])
    assert stretch("t", "ours", "base", "variance", "last", []) == (30, 50)
    with pytest.raises(ValueError, match="never told apart"):
        stretch("t", "same", "base", "variance", "last", [])


@pytest.mark.slow
def test_tables_over_many_targets(tool, tmp_path):
    batches = fill(tmp_path, "table2-cifar10-partial")
    shown = tool["renew"]("<!-- made summary -->\nold\n<!-- end -->", batches)
    assert "old" not in shown
    assert shown.count("| cifar10, shards:2, 10 | 3 | FedMABA") == 2
    assert "fashion" not in shown
    short = tool["renew"]("<!-- made brief -->\nold\n<!-- end -->", batches)
    assert short.count("| cifar10, shards:2, 10 | 3 |") == 1
    left = tool["renew"]("<!-- made missing -->\n<!-- end -->", batches)
    assert "`fedmaba reproduce table3-cifar100 --device cuda --dtype tf32`: 45 runs" in left
    assert "table2-cifar10-partial" not in left
    took = tool["TABLES"]["times"](tool["load"](tool["RESULTS"]))
    assert "| 94 | 9,400,000 |" in took
    bare = "<!-- reproduce table2-cifar10-partial bare gain-ema0.98 -->\n<!-- end -->"
    bare = tool["renew"](bare, batches)
    assert "Set-up" not in bare
    assert bare.count("| FedAvg | 3 |") == 1


@pytest.mark.slow
def test_nothing_but_searches_is_missing_once_every_target_was_run(tool, tmp_path):
    whole = [name for name in targets.names() if not name.startswith("baselines")]
    left = tool["TABLES"]["missing"](fill(tmp_path, *whole)).splitlines()
    assert len(left) == 5
    assert all("reproduce baselines-" in line for line in left)
    assert all(line.endswith("and fresh seeds of what they pick") for line in left)


def test_every_file_of_results_is_found_by_a_target():
    wanted = {job.digest for target in targets.every_target() for job in target.every_job()}
    for path in sorted(RESULTS.glob("*.npz")):
        assert archive.read_file(path).digest in wanted, path.name


def test_results_are_small_and_tell_no_paths():
    files = sorted(RESULTS.iterdir())
    assert {path.suffix for path in files} == {".npz"}
    assert sum(path.stat().st_size for path in files) < 14_000_000
    for path in files:
        assert not re.search(r"(^|[\s=])[/~]", archive.read_file(path).about["command"])
