"""docs/reproduction*.md: every number is one of the files."""

import runpy

import numpy as np
import pytest
from reproduction_cases import RESULTS, ROOT, fill, grid_named

from laboratory import archive, paper, selection, targets
from laboratory import page as reproduction
from laboratory.selection import CHOICES


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


def test_every_file_of_results_is_found_by_a_target():
    wanted = {job.digest for target in targets.every_target() for job in target.every_job()}
    for path in sorted(RESULTS.glob("*.npz")):
        assert archive.read_file(path).digest in wanted, path.name
