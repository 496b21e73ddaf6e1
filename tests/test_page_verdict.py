"""The verdict of a page: who is fairest, what is proven, of which model and round."""

import json
import re

import numpy as np
import pytest

import report_cases
from fedmaba.experiment import starting
from fedmaba.report import data, page_data, ranks, table, verdict
from fedmaba.report import html as report
from fedmaba.report.current_figures import CurrentFigures
from fedmaba.results.history import History, RunHistory
from fedmaba.results.metrics import Metric
from report_cases import Elements, one


def row(label, spreads, mean=0.6):
    """A run per seed whose two clients lie that far around the mean."""
    return [one(label, [mean - d, mean + d], seed) for seed, d in enumerate(spreads)]


def said(*runs) -> verdict.Verdict:
    (found,) = verdict.verdicts_of_sources([data.source_of(History(list(runs)))])
    return found


FEDAVG = row("fedavg", [0.20, 0.21, 0.22])


def standings(found: verdict.Verdict) -> dict[str, str]:
    """How each strategy stands against the reference, as the table says it."""
    return {line[0].text: line[2].text for line in found.table.rows}


def test_a_clear_winner_is_named_with_its_spread_and_its_interval():
    found = said(*FEDAVG, *row("afl", [0.04, 0.05, 0.06]), *row("term", [0.15, 0.16, 0.18]))
    assert found.headline == "afl is the fairest of 3 strategies"
    fedavg, afl = ([1e4 * d * d for d in ds] for ds in ((0.20, 0.21, 0.22), (0.04, 0.05, 0.06)))
    change = np.subtract(afl, fedavg)
    half = 4.303 * change.std(ddof=1) / np.sqrt(3)
    assert re.search(r"afl, .* 5\.1 points .* fedavg, 21\.0 points", found.sentence)
    assert "significant (corrected for 2 comparisons, p " in found.sentence
    assert "Also fairer: term." in found.sentence
    assert found.sentence.count(". ") + 1 <= 5  # sentences
    assert [r[0].text for r in found.table.rows] == ["afl", "term", "fedavg"]
    assert standings(found)["term"].startswith("fairer (p = 0.0")
    assert standings(found)["fedavg"] == "–"
    tile = found.tiles[0]
    assert tile.change == f"−{-change.mean():.2f}"
    assert (tile.half, tile.unit, tile.way) == (f"{half:.2f}", "%²", "better")
    assert (tile.now, tile.then) == (f"{np.mean(afl):.2f} %²", f"{np.mean(fedavg):.2f} %²")
    assert [t.name for t in found.tiles] == [
        "variance over clients", "worst 5 % of clients", "mean accuracy",
    ]  # fmt: skip


def test_of_two_near_one_another_the_fairest_is_not_said_to_be_proven_so():
    close = [*row("afl", [0.07, 0.075, 0.08], 0.55), *row("fedmaba", [0.06, 0.08, 0.10], 0.598)]
    found = said(*FEDAVG, *close)
    assert found.headline == "afl is fairer than fedavg, and looks fairest of 3 strategies"
    assert "Also fairer: fedmaba." in found.sentence


def test_the_fairest_of_all_and_the_fairest_at_nearly_the_best_mean_are_both_named():
    """A page on fairness must not hide the least variance because its mean is low."""
    flat = row("afl", [0.04, 0.06, 0.05], 0.3)
    found = said(*FEDAVG, *flat, *row("fedmaba", [0.05, 0.07, 0.06]))
    assert found.headline == (
        "afl is fairest of all; fedmaba is fairer than fedavg at nearly the best mean"
    )
    assert found.named == "fedmaba"
    assert "afl: fairer (p = 0.0" in found.sentence
    assert "), at a mean 30.00 points below the best." in found.sentence
    # undecided, both of them
    noisy = said(*FEDAVG, *row("afl", [0.04, 0.2, 0.12], 0.3), *row("term", [0.1, 0.21, 0.16]))
    assert noisy.headline == (
        "afl looks fairest of all, term at nearly the best mean, but 3 seeds are too few to be sure"
    )


def test_no_difference_is_called_none():
    found = said(*FEDAVG, *row("afl", [0.05, 0.30, 0.16]))
    assert found.headline == "No strategy is measurably fairer than fedavg"
    assert "could be chance, and more than 100 seeds" in found.sentence
    assert standings(found)["afl"] == "undecided (over 100 seeds)"
    assert found.tiles[0].way == "undecided"
    assert said(*FEDAVG, *row("afl", [0.3, 0.4, 0.5])).headline == (
        "fedavg has the lowest variance of 2 strategies"
    )


def test_a_noisy_smallest_variance_does_not_hide_one_that_is_measurably_fairer():
    noisy, sure = row("afl", [0.01, 0.21, 0.01]), row("term", [0.14, 0.15, 0.16])
    found = said(*FEDAVG, *noisy, *sure)
    assert found.headline == "afl looks fairest of all; term is fairer than fedavg"
    assert found.named == "term"
    few = said(*FEDAVG, *row("afl", [0.01]), *sure)  # one seed beside three
    assert few.headline == "term is fairer than fedavg, and looks fairest of 3 strategies"
    assert standings(few)["afl"] == "undecided (one seed)"


def test_one_seed_in_common_with_the_reference_is_no_ground_to_win():
    afl = [one("afl", [0.59, 0.61], seed) for seed in (2, 7, 8)]
    found = said(*FEDAVG, *afl, *row("term", [0.14, 0.15, 0.16]))
    assert found.headline == "term is fairer than fedavg, and looks fairest of 3 strategies"
    assert standings(found)["afl"] == "undecided (one seed)"
    alone = said(*FEDAVG, *afl)
    assert alone.headline == "afl looks fairest of 2 strategies, but one seed proves nothing"


def test_a_decided_difference_is_not_doubted():
    """The reference has the least variance, and the one at nearly the best mean is less fair."""
    low = [one("fedavg", [0.3 - d, 0.3 + d], seed) for seed, d in enumerate([0.01, 0.011, 0.012])]
    found = said(*low, *row("afl", [0.2, 0.21, 0.22]))
    assert found.headline == "fedavg is fairest of all, afl at nearly the best mean"
    assert "is significant" in found.sentence


def test_too_few_seeds_are_said_to_be_too_few_with_how_many_it_would_take():
    """A strategy with five times the variance is not "as fair" because seeds are few."""
    found = said(
        *row("fedavg", [0.200, 0.201, 0.202]),
        *row("fedmaba", [0.049, 0.060, 0.0515]),
        *row("term", [0.10, 0.17, 0.20]),
    )
    assert found.headline == "fedmaba is fairer than fedavg, and looks fairest of 3 strategies"
    assert "Undecided: term." in found.sentence
    (needed,) = re.findall(r"undecided \(about (\d+) seeds\)", standings(found)["term"])
    changes = [1e4 * np.subtract(np.square([0.10, 0.17, 0.20]), np.square([0.2, 0.201, 0.202]))]
    size = abs(changes[0].mean()) / changes[0].std(ddof=1)
    t = {n: size * np.sqrt(n) - ranks.CHANCE for n in range(4, 31)}  # likely at that many seeds
    enough = [n for n in t if ranks.t_tail(t[n], n - 1) < 0.05]
    assert int(needed) == min(n for n in ranks.SEED_STEPS if n >= enough[0])


def test_seeds_needed_counts_the_comparisons_and_knows_its_limits():
    clear, weak = np.array([5.0, 6.0, 4.0]), np.array([0.1, -3.0, 3.0])
    alone, many = ranks.seeds_needed([clear]), ranks.seeds_needed([clear] * 20)
    assert 3 < alone[0] < many[0] == many[-1] < 20
    assert ranks.seeds_needed([weak, clear])[0] == 0
    assert ranks.seeds_needed([np.array([2.0, 2.0]), np.zeros(2)]) == [3, 0]


def test_of_many_comparisons_one_may_look_like_a_difference():
    """Holm's correction, as in `fedmaba table --against`: the same difference, more strategies."""
    afl, base = [0.14, 0.175, 0.17], [0.20, 0.21, 0.22]
    changes = 1e4 * np.subtract(np.square(afl), np.square(base))
    raw = ranks.p_value(changes)
    assert 0.0125 < raw < 0.05  # significant as the only comparison, not as one of four
    alone = said(*FEDAVG, *row("afl", afl))
    assert alone.headline == "afl is the fairest of 2 strategies"
    assert alone.tiles[0].way == "better"
    assert "corrected" not in alone.text
    noise = [[0.19, 0.22, 0.21], [0.22, 0.20, 0.22], [0.21, 0.21, 0.23]]
    others = [run for i, ds in enumerate(noise) for run in row(f"term:t={i}", ds)]
    found = said(*FEDAVG, *row("afl", afl), *others)
    assert found.headline == "afl looks fairest of 5 strategies, but 3 seeds are too few to be sure"
    assert f"Corrected for 4 comparisons, p = {4 * raw:.3f}: " in found.sentence
    assert found.tiles[0].way == "undecided"
    assert "corrected for all 4" in found.table.title
    history = History([*FEDAVG, *row("afl", afl), *others])
    samples = table.differences_by_seed(history, "deployed", "last", "fedavg")
    shown = table.corrected_p_values(samples)
    assert shown["afl"][0] == pytest.approx(4 * raw)  # the table says the same


def test_each_is_called_undecided_against_the_reference_only():
    """Several may be undecided against the winner and yet differ from one another."""
    found = said(*FEDAVG, *row("afl", [0.05, 0.06, 0.07]), *row("term", [0.09, 0.05, 0.13]))
    assert "cannot be told apart" not in found.text
    assert "fairest" in found.headline
    assert "term" not in found.headline


def test_a_strategy_with_the_scores_of_the_reference_is_called_identical():
    found = said(*FEDAVG, *row("ditto", [0.20, 0.21, 0.22]), *row("afl", [0.04, 0.05, 0.06]))
    assert standings(found)["ditto"] == "identical"
    (remark,) = found.remarks
    assert "ditto and fedavg agree in every digit" in remark
    assert "personal models" in remark
    assert "ditto" not in found.sentence


def test_equal_figures_are_said_to_be_equal():
    ditto, afl = row("ditto", [0.20, 0.21, 0.22]), row("afl", [0.30, 0.31, 0.32])
    both = said(*FEDAVG, *ditto)
    assert both.headline == "No difference: fedavg and ditto have the same variance"
    among = said(*FEDAVG, *ditto, *afl)
    assert among.headline == "fedavg and ditto share the lowest variance of 3 strategies"
    assert among.named == "afl"  # of which there is something to say
    fairer = [*row("afl", [0.04, 0.05, 0.06]), *row("term", [0.04, 0.05, 0.06])]
    assert "share the lowest" in said(*FEDAVG, *fairer).headline
    assert "are fairer than fedavg" in said(*FEDAVG, *fairer).headline


def test_the_worst_served_client_is_named_and_gains_and_losses_are_counted():
    runs = [
        one(label, scores, seed)
        for seed in (0, 1)
        for label, scores in {"fedavg": [0.2, 0.6, 0.9], "afl": [0.5, 0.6, 0.8]}.items()
    ]
    source = data.source_of(History(runs))
    source.about = {"data": {"clients": ["Basel", "Bern", "Chur"]}}
    (found,) = verdict.verdicts_of_sources([source])
    assert "of 3 clients, 1 gains 30 points on average and 1 loses 10" in found.sentence
    assert "afl serves Basel worst: 50 %, where fedavg reaches 20 %." in found.sentence
    source.about = {}  # each seed may have clients of its own
    (found,) = verdict.verdicts_of_sources([source])
    assert "of 6 cases (3 clients under 2 seeds), 2 gain 30 points" in found.sentence
    assert "client 0 of seed 0 worst" in found.sentence
    alone = said(*runs[:1])
    assert "fedavg serves client 0 worst: 20 %." in alone.sentence


def test_strategies_that_keep_layers_at_clients_are_said_to_do_so():
    mixed = said(*FEDAVG, *row("fedper", [0.04, 0.05, 0.06]))
    assert mixed.remarks[-1].startswith("fedper keeps some layers at each client")
    assert not said(*FEDAVG, *row("afl", [0.04, 0.05, 0.06])).remarks


def test_one_seed_proves_nothing():
    found = said(one("fedavg", [0.4, 0.8]), one("afl", [0.5, 0.6]))
    assert found.headline == "afl looks fairest of 2 strategies, but one seed proves nothing"
    assert [(t.change, t.half, t.way) for t in found.tiles] == [
        ("−375.00", "", "undecided"),
        ("+10.00", "", "undecided"),
        ("−5.00", "", "undecided"),
    ]
    without = said(one("term", [0.4, 0.8]), one("afl", [0.5, 0.6]))
    assert without.headline == "afl looks fairest of 2 strategies, but one seed proves nothing"


def test_one_strategy_and_no_reference_and_nothing():
    alone = said(*row("afl", [0.1, 0.2]))
    assert alone.headline == "afl alone: nothing to compare it with"
    assert alone.sentence.startswith("Mean accuracy 60.00 %, variance over clients 250.00 %²")
    assert alone.tiles == []
    without = said(*row("afl", [0.1, 0.11, 0.12]), *row("term", [0.2, 0.21, 0.23]))
    assert without.headline == "afl is the fairest of 2 strategies"
    assert without.tiles == []
    assert said(RunHistory("afl", 0, "last", np.zeros(3))).text == "No run has been evaluated yet."
    nothing = [one(label, [np.nan, np.nan]) for label in ("fedavg", "afl")]
    assert said(*nothing).text == "No score of any run is a finite number."
    assert said(*nothing, one("term", [0.5, 0.7])).headline.startswith("term alone")


def two_models() -> History:
    """The deployed model says one thing, the last one another, and so do their best rounds."""
    runs = [*row("fedavg", [0.2, 0.21, 0.22]), *row("afl", [0.05, 0.05, 0.06])]
    for run in runs:
        near = run.tables["deployed.accuracy"][0]
        far = near.mean() + 1.2 * (near - near.mean())
        last = near if run.label == "fedavg" else far
        run.tables["evaluated"] = [np.asarray(1), np.asarray(2)]
        for model, rows in (("deployed", [far + 0.1, near]), ("last", [near + 0.1, last])):
            run.tables[f"{model}.accuracy"] = rows
            run.tables[f"{model}.loss"] = rows
    return History(runs)


def test_each_model_and_round_has_its_own_verdict():
    history = two_models()
    tree = page_data.tree([data.source_of(history)])
    assert set(tree["verdicts"]) == {f"{m}.{a}" for m in data.MODELS for a in data.ATS}
    for model in data.MODELS:
        for at in data.ATS:
            (found,) = tree["verdicts"][f"{model}.{at}"]
            rows = {r.label: r.mean for r in history.summary(model, at)}
            tile = found["tiles"][0]
            assert tile["now"] == f"{rows[found['named']].variance:.2f} %²"
            assert tile["then"] == f"{rows['fedavg'].variance:.2f} %²"
    first, other = (tree["verdicts"][f"{m}.last"][0]["sentence"] for m in data.MODELS)
    assert first != other


def test_a_figure_has_the_same_digits_wherever_it_stands():
    """Verdict, tiles, table, curves and trade-off: one rounding."""
    history = report_cases.history(seeds=3, clients=13, rounds=6)
    source = data.source_of(history)
    tree = page_data.tree([source])
    table = {r["label"]: r for r in tree["tables"]["deployed.last"]["rows"]}
    (found,) = tree["verdicts"]["deployed.last"]
    for tile, column in zip(found["tiles"], (0, 2, 1), strict=True):
        for who, text in ((found["named"], tile["now"]), (found["base"], tile["then"])):
            shown = table[who]["cells"][column][0].split(" ±")[0]
            assert text.startswith(f"{shown} ")
            assert f"{table[who]['values'][column]:.2f}" == shown
    for run in tree["runs"]:
        ends = [run["fair"]["deployed"][name][-1] for name in ("variance", "accuracy", "worst")]
        assert ends == run["figures"]["deployed.last"][:3]
        assert all(v == round(v, 2) for v in ends)
    (mean,) = re.findall(r"The mean is (\S+) points", found["sentence"])
    assert len(mean.partition(".")[2]) == 2


@pytest.fixture
def going(tiny_npz, tmp_path):
    session = report_cases.session(tiny_npz, rounds=60, save={"every": 50})
    starting.open_run_folder(session, tmp_path / "live")
    rounds = session.rounds(stop=lambda: False)
    yield tmp_path / "live", rounds
    session.close()


def test_a_run_in_progress_is_judged_so_far_by_its_newest_lines(going):
    """Before its first checkpoint: verdict, facts and table are of one and the same round."""
    folder, rounds = going
    for _ in range(13):  # evaluated every second round
        next(rounds)
    source = data.load_run_folder(folder)
    assert not any(run.tables for run in source.history.runs)
    text = report.page([source])
    assert "No run has been evaluated yet" not in text.partition("<script")[0]
    tree = json.loads(Elements(text).content["script"][0])
    (found,) = tree["verdicts"]["deployed.last"]
    assert found["so_far"] == "so far, round 12 of 60"
    assert tree["tables"]["deployed.last"]["caption"].endswith("so far, round 12 of 60")
    assert "round 12 of 60" in report.overview([source], tree["live"])
    assert '<p class="so-far">so far, round 12 of 60</p>' in text
    lines = [line for line in source.lines if line["round"] == 12]
    for r in tree["tables"]["deployed.last"]["rows"]:
        own = [x["deployed"]["variance"] for x in lines if x["strategy"] == r["label"]]
        assert len(own) == 2
        assert r["cells"][0][0] == f"{np.mean(own):.2f} ± {np.std(own, ddof=1):.2f}"
    five = [x["last"]["accuracy"] for x in source.lines if "last" in x and x["round"] >= 4]
    want = np.mean(five[0::4] + five[1::4])  # runs 0 and 1 are fedavg's
    (fedavg, _) = tree["tables"]["last.last5"]["rows"]
    assert fedavg["values"][1] == pytest.approx(want, abs=0.005)


def test_a_half_written_round_is_not_shown_yet(going):
    folder, rounds = going
    for _ in range(4):
        next(rounds)
    file = folder / "rounds.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-2]))  # of four runs two are there
    scores = CurrentFigures([data.load_run_folder(folder)], 0.05)
    assert (scores.progress[0].done, scores.progress[0].clock) == (3, 2)
    assert [row.seeds for row in scores.rows("deployed", "last")] == [2, 2]


def test_the_newest_lines_join_what_the_checkpoint_has(tiny_npz, tmp_path):
    session = report_cases.session(tiny_npz, rounds=8, save={"every": 5})
    starting.open_run_folder(session, tmp_path / "live")
    rounds = session.rounds(stop=lambda: False)
    for _ in range(7):
        next(rounds)
    source = data.load_run_folder(tmp_path / "live")
    assert [len(run.tables["evaluated"]) for run in source.history.runs] == [2] * 4
    tree = page_data.tree([source])
    (found,) = tree["verdicts"]["deployed.last"]
    assert found["so_far"] == "so far, round 6 of 8"
    now = session.history.summary()
    assert [r["cells"][0][0] for r in tree["tables"]["deployed.last"]["rows"]] == [
        f"{r.mean.variance:.2f} ± {r.sd.variance:.2f}" for r in now
    ]
    best = {r.label: r.mean.accuracy for r in session.history.summary(at="best")}
    for r in tree["tables"]["deployed.best"]["rows"]:
        assert r["values"][1] == pytest.approx(best[r["label"]], abs=0.005)
    for _ in rounds:
        pass
    assert (
        page_data.tree([data.load_run_folder(tmp_path / "live")])["verdicts"]["last.last"][0][
            "so_far"
        ]
        == ""
    )


def test_an_error_is_better_where_it_is_lower():
    """Name, unit and direction of a score come from its unit."""
    metric = Metric("mean squared error", lower=True, shares=False)

    def errors(label, mean, spreads):
        runs = [one(label, [mean - d, mean + d], seed) for seed, d in enumerate(spreads)]
        for run in runs:
            run.metric = metric
        return runs

    runs = [
        *errors("fedavg", 0.020, [0.010, 0.011, 0.012]),
        *errors("afl", 0.0204, [0.002, 0.0035, 0.004]),
        *errors("term", 0.5, [0.001, 0.001, 0.002]),
    ]
    (found,) = verdict.verdicts_of_sources([data.source_of(History(runs))])
    assert found.named == "afl"
    assert found.headline.startswith("term looks fairest of all; afl is fairer than fedavg at")
    assert "at a mean 0.480 above the best." in found.sentence
    ways = {tile.name: (tile.change[0], tile.way) for tile in found.tiles}
    assert ways["variance over clients"] == ("−", "better")
    assert ways["worst 5 % of clients"] == ("−", "better")  # a smaller error
    assert "0.00 " not in found.sentence  # as many digits as it takes
    assert "%" not in re.sub(r"(5|95) %", "", found.text)


def test_clients_alone_are_compared_only_where_every_client_has_its_own_model():
    """A row `local` has no model to hand out: its "deployed" scores are of the clients' own."""
    alone = row("local", [0.01, 0.011, 0.012], mean=0.9)
    for run in alone:
        for name in ("accuracy", "loss"):
            run.tables[f"personal.{name}"] = run.tables[f"deployed.{name}"]
    history = History([*FEDAVG, *row("afl", [0.04, 0.05, 0.06]), *alone])
    scores = CurrentFigures([data.source_of(history)], 0.05)
    for model in ("deployed", "last"):
        (found,) = verdict.verdicts_of(scores, model, "last")
        assert found.headline == "afl is the fairest of 2 strategies"
        assert found.remarks == ["Not compared: local, which hands out no shared model."]
    (found,) = verdict.verdicts_of(scores, "personal", "last")
    assert found.named == "local"
    assert not found.remarks
    (found,) = verdict.verdicts_of_sources(
        [data.source_of(History(alone))]
    )  # nothing else to speak of
    assert found.headline == "local alone: nothing to compare it with"


@pytest.mark.parametrize("rows", [("fedavg",), ("fedavg", "afl"), ("fedavg", "afl", "term")])
def test_scores_too_large_to_compare_are_said_to_be_so(rows):
    huge = [one(label, [1e308, 0.5], seed) for label in rows[:2] for seed in (0, 1)]
    finite = [run for label in rows[2:] for run in row(label, [0.1, 0.2])]
    found = said(*huge, *finite)
    if finite:
        assert found.headline.startswith("term")
    else:
        assert found.headline == "No score of any run is a finite number."
