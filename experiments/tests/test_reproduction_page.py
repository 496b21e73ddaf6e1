"""The numbers and tables that pages show are those of the results."""

import re

import pytest
from reproduction_cases import RESULTS, ROOT, fill, grid_named

import pages
from laboratory import archive, paper, targets
from laboratory import page as reproduction

TEXTS = {path: path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]}


@pytest.mark.parametrize("file", sorted(pages.QUOTED.glob("*.toml")), ids=lambda file: file.stem)
def test_quoted_numbers_are_those_of_the_files(file):
    assert pages.wrong(file, pages.load()) == []


def test_every_target_that_was_run_is_on_a_page():
    stems = {path.name.split(".")[0] for path in RESULTS.glob("*.npz")}
    quoted = "".join(file.read_text() for file in pages.QUOTED.glob("*.toml"))
    named = set(re.findall(r"[\w-]+", "".join(TEXTS.values()) + quoted))
    assert stems - named == set()


def test_a_quoted_number_is_compared_at_its_decimals_and_without_a_sign_it_lacks(tmp_path):
    batches = fill(tmp_path, "table2-fashion-mnist")
    said = "table2-fashion-mnist|fedsgd - fedavg|worst|last|last"
    found = pages.quoted_value(said, batches)
    table = grid_named(
        reproduction.document(targets.load_target("table2-fashion-mnist"), batches), "pairs-last"
    )
    assert found == pytest.approx(table.rows[0][4].value)
    for shown in (f"{found:+.2f}", f"{abs(found):.1f}", f"{found:+.0f}".replace("-", "−")):
        text = f"It differs by {shown} points."
        assert pages.fault(text, f"differs by {{{shown}}} points", said, batches) == ""
    right = f"{found:+.2f}"
    assert right in pages.fault("by +9.99 points", "by {+9.99} points", said, batches)
    assert "0 times" in pages.fault("a page", "by {1} point", said, batches)
    assert "2 times" in pages.fault("by 1 and by 1", "by {1}", said, batches)
    assert "2 numbers" in pages.fault("by 1 or 2", "by {1} or {2}", said, batches)
    speed = pages.quoted_value("speed reproduce-h200-bf16/seconds", [])
    assert pages.fault(f"in {speed:,.0f} s", f"in {{{speed:,.0f}}} s", said, batches) != ""


def test_a_target_is_shown_with_its_tables_or_as_not_run(tmp_path):
    batches = fill(tmp_path, "table2-fashion-mnist")
    text, drawn = pages.section("table2-fashion-mnist", ["last"], batches)
    assert "| FedAvg | 10 |" in text
    assert text.count("**Last server model, at the last round") == 1
    assert "fedmaba reproduce t" in text
    assert drawn == {}
    bare, _ = pages.section("table2-fashion-mnist", ["bare", "last"], batches)
    assert bare.startswith("**Last server model, at the last round")
    assert "not run yet" in pages.section("table2-fashion-mnist", [], [])[0]


def test_the_page_has_every_row_of_the_paper_and_every_statement_in_words(tmp_path):
    batches = fill(tmp_path, *pages.PAPERS.values())
    lines = pages.TABLES["glance"](batches).splitlines()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in lines[4:]]
    assert rows == [pages.name_of(row) for row in paper.load_paper()["table2-fashion-mnist"]]
    told = [line.split(" | ")[5].strip() for line in lines[4:]]
    assert [not text for text in told] == [  # the rows that Table III has not
        row not in paper.load_paper()["table3-cifar100"]
        for row in paper.load_paper()["table2-fashion-mnist"]
    ]
    shown = pages.TABLES["verdicts"](batches)
    assert shown.count("| 33 % | second best | table2-fashion-mnist | α=0.5 / α=0.8 |") == 1
    assert "| mean of the baselines, without TERM |" in shown
    assert "| figure2-alpha |" in shown
    counted = sum(len(claim["targets"]) for claim in paper.load_paper()["claim"])
    assert len(shown.splitlines()) == 4 + counted


def test_robust_rules_have_a_column_for_each_attack_and_share_of_both_data_sets(tmp_path):
    batches = fill(tmp_path, "attacks-fashion-mnist", "attacks-cifar10")
    levels = pages.TABLES["robust"](batches).split("\n\n")
    assert [title.split(",")[0] for title in levels[::2]] == ["**fashion-mnist"] * 3 + [
        "**cifar10"
    ] * 3
    (head, _, fedavg, *rows), last = (levels[k].splitlines() for k in (1, 11))
    shares = [f"{share}% {does}" for does in ("update=-3", "loss=x3", "labels=flip")
              for share in (10, 20, 30)]  # fmt: skip
    assert head.split(" | ")[1:-1] == ["nobody", *shares]
    assert (len(rows), len(last), "**" in fedavg) == (18, 11, False)
    differences = pages.TABLES["fair_weights"](batches).split("\n\n")
    assert [len(differences[k].splitlines()) - 2 for k in (1, 11)] == [7, 3]
    assert pages.TABLES["robust"]([]) == "Not run yet."


def test_the_table_of_robust_rules_names_runs_that_diverged():
    rows = pages.TABLES["robust"](pages.load()).splitlines()
    fedavg = next(line for line in rows if line.startswith("| fedavg |")).split(" | ")
    assert (fedavg[3], fedavg[4]) == ("30.59 (4 of 5)", "diverged")


def test_every_file_of_results_is_found_by_a_target():
    wanted = {job.digest for target in targets.every_target() for job in target.every_job()}
    for path in sorted(RESULTS.glob("*.npz")):
        assert archive.read_file(path).digest in wanted, path.name
