"""The epsilon of private runs is dp-accounting's, from the plan to the record and a resume."""

import json
import math

import numpy as np
import pytest

import fedmaba
from fedmaba.errors import InputError
from fedmaba.privacy import accounting
from fedmaba.privacy.mechanism import Privacy, mechanism
from fedmaba.report import data, page_data, run_setup, table
from fedmaba.report.json_forms import json_table
from fedmaba.results import round_lines
from fedmaba.strategies import parse

dp = pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")
HEART = {"data": "heart", "model": "softmax", "rounds": 6, "seeds": 1, "eval_every": 3}
SETTINGS = [
    # strategy, epsilon, delta, rounds, clients, participants, loss_share
    *(("fedavg", e, 1e-5, 50, 4, 4, 0.1) for e in (0.5, 1, 2, 4, 8)),
    *(("fedmaba", e, 1e-5, 50, 10, 10, 0.1) for e in (0.5, 1, 2, 4, 8)),
    ("fedmaba:rho=0.1", 3.0, 1e-6, 200, 20, 20, 0.3),
    ("fedmaba", 8.0, 1e-5, 1000, 100, 10, 0.1),
    ("fedmaba", 8.0, 1e-5, 100, 100, 10, 0.5),
    ("fedmaba:loss_at=mean", 1.0, 1e-4, 10, 30, 3, 0.05),
    ("afl", 2.0, 1e-3, 30, 12, 5, 0.2),
    ("term", 6.0, 1e-8, 17, 12, 12, 0.9),
    ("fedavg:weights=uniform", 20.0, 1e-5, 3, 8, 2, 0.1),
    ("fedprox", 0.1, 1e-5, 40, 50, 50, 0.1),
    ("deltafl", 50.0, 1e-7, 60, 7, 6, 0.02),
    ("gifair", 1000.0, 1e-5, 1, 5, 5, 0.1),
]


@pytest.mark.parametrize("case", SETTINGS, ids=lambda case: f"{case[0]}-{case[1]:g}-{case[3]}")
def test_epsilon_is_that_of_dp_accounting_for_the_same_mechanism(case):
    """Described anew from the noise that is drawn, as standard deviations over sensitivities."""
    spec, epsilon, delta, rounds, n, m, loss_share = case
    asked = Privacy(epsilon, delta, clip=0.7, loss=2.5, loss_share=loss_share)
    size = np.arange(3, 3 + n)
    found = mechanism(asked, parse(spec)[0], 5, rounds, m, size)
    weight = parse(spec)[0].max_weight(m, size.max() / (size.max() + size[: m - 1].sum()))
    events = [dp.GaussianDpEvent(found.sum_noise / (2 * 0.7 * weight))]
    if found.losses:
        events.append(dp.GaussianDpEvent(found.loss_noise / 2.5))
    ledger = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    for event in events:
        ledger.compose(event, int(found.taken[-1]))
    told = found.spent(rounds - 1)
    assert told == pytest.approx(ledger.get_epsilon(delta), rel=1e-9)
    assert epsilon * 0.999 < told <= epsilon
    # no less than the exact epsilon of these Gaussians together, and not much more
    z = sum(event.noise_multiplier**-2 for event in events) * found.taken[-1]
    exact = dp.get_epsilon_gaussian(z**-0.5, delta)
    assert exact <= told <= 1.25 * exact + 0.01
    so_far = [found.spent(t) for t in range(0, rounds, max(1, rounds // 4))]
    assert so_far == sorted(so_far)


def test_limits():
    spent, noise = accounting.spent_epsilon, accounting.noise_multiplier
    assert spent((1.0,), 0, 1e-5) == 0
    assert spent((1e6,), 1, 1e-5) < 1e-3
    assert spent((1e-3,), 1, 1e-5) > 1e5
    assert noise(1.0, 1e-5, (1.0,), 400) == pytest.approx(20 * noise(1.0, 1e-5, (1.0,), 1), 1e-4)
    # however the cost is divided, the releases cost the same together
    assert noise(1.0, 1e-5, (0.9, 0.1), 7) == pytest.approx(noise(1.0, 1e-5, (1.0,), 7), 1e-4)
    with pytest.raises(InputError, match="dp: no noise keeps to epsilon=1e-12 at delta=1e-30"):
        noise(1e-12, 1e-30, (1.0,), 10**6)


def test_without_a_limit_a_run_is_the_one_without_dp_bit_for_bit():
    plain = fedmaba.compare(["fedavg", "fedmaba"], progress=False, **HEART)
    limitless = fedmaba.compare(
        ["fedavg", "fedmaba"], dp="epsilon=inf,clip=0.01", progress=False, **HEART
    )
    for a, b in zip(plain.runs, limitless.runs, strict=True):
        assert a.of == b.of
        for name in a.tables:
            assert np.array_equal(a.column(name), b.column(name), equal_nan=True)
    for which in ("last", "deployed"):
        x, y = (h.trained.weights(h.runs[1], which) for h in (plain, limitless))
        assert all(np.array_equal(x[name], y[name]) for name in x)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished private run, and the one that was stopped after two rounds and resumed."""
    root = tmp_path_factory.mktemp("private")
    asked = HEART | {"dp": "epsilon=4,delta=1e-6,clip=0.5", "progress": False}
    fedmaba.compare(["fedavg", "fedmaba"], out=root / "whole", **asked)
    return root


def test_a_resumed_run_has_the_same_bits_and_counts_each_round_once(folder):
    from fedmaba.experiment import starting
    from fedmaba.experiment.config import build
    from fedmaba.experiment.experiment_file import read_toml
    from fedmaba.experiment.session import prepare

    asked = build(read_toml(folder / "whole" / "experiment.toml"))
    out = folder / "stopped"
    session = prepare(asked)
    starting.open_run_folder(session, out, [])
    for _ in session.rounds(lambda: session.batch.progress.round == 2):
        pass
    assert session.stopped
    meta = data.run_folder.load_checkpoint(out)[1]
    assert meta["privacy"]["fedmaba, seed 0"]["generator"].startswith("keyed")
    saved = data.run_folder.load_history(out).runs[1].column("info.dp_epsilon")
    again = starting.resume(out)
    for _ in again.rounds():
        pass
    whole, resumed = (fedmaba.load_history(folder / name) for name in ("whole", "stopped"))
    for a, b in zip(whole.runs, resumed.runs, strict=True):
        for name in a.tables:
            assert np.array_equal(a.column(name), b.column(name), equal_nan=True), name
    assert np.array_equal(resumed.runs[1].column("info.dp_epsilon")[:2], saved)
    lines = [(out / "rounds.jsonl").read_text(), (folder / "whole" / "rounds.jsonl").read_text()]
    assert lines[0] == lines[1]
    (first,) = (
        one
        for line in lines[0].splitlines()
        if (one := json.loads(line))["run"] == 1 and one["round"] == 1
    )
    assert first["dp_epsilon"] == saved[0]


def test_a_resume_with_other_noise_is_refused(folder, monkeypatch):
    from fedmaba.experiment import starting
    from fedmaba.experiment.config import build
    from fedmaba.experiment.experiment_file import read_toml
    from fedmaba.experiment.session import prepare

    asked = build(read_toml(folder / "whole" / "experiment.toml"))
    out, session = folder / "other", prepare(asked)
    starting.open_run_folder(session, out, [])
    for _ in session.rounds(lambda: True):
        pass
    usual = accounting.noise_multiplier
    monkeypatch.setattr(accounting, "noise_multiplier", lambda *asked: usual(*asked) / 2)
    with pytest.raises(InputError, match=r"begun with other noise of dp for fedavg, seed 0 \(dp-"):
        starting.resume(out)


def test_what_is_spent_is_in_the_record_the_table_the_report_and_the_live_page(folder):
    source = data.load_run_folder(folder / "whole")
    spent = source.history.runs[0].column("info.dp_epsilon")
    assert len(spent) == HEART["rounds"]
    assert 3.99 < spent[-1] <= 4
    note = table.privacy_note(source.history.runs)
    assert note == (
        "privacy of a client (its data replaced): epsilon spent 4 in every row, at delta 1e-06"
    )
    assert any(
        "Epsilon spent" in n or "epsilon spent" in n for n in table.document(source.history).foot
    )
    row = json.loads(json_table(source.history))["rows"][0]
    assert (row["epsilon"], row["delta"]) == (spent[-1], 1e-6)
    facts = dict(run_setup.setup_of(source)["facts"])
    assert facts["privacy: epsilon"] == "4"
    assert facts["privacy: accountant"].startswith("dp-accounting ")
    assert "seed and round" in facts["privacy: generator"]
    assert "noise on the sum" in facts["privacy of fedmaba, seed 0"]
    page = page_data.tree([source])
    assert page["numbers"][0]["title"] == "Privacy spent, ε"
    assert page["runs"][0]["info"]["numbers"][0]["values"][-1] == pytest.approx(4, abs=0.01)
    assert any("epsilon spent" in note for note in page["notes"])
    live = data.Source(
        "live",
        fedmaba.History([]),
        lines=round_lines.read_round_lines(folder / "whole"),
        finished=False,
    )
    assert "epsilon spent 4" in table.privacy_note([], live.lines)


def test_the_note_names_rows_that_spent_unequally():
    def run(label, epsilon):
        tables = {"info.dp_epsilon": [epsilon], "info.dp_delta": [1e-5]}
        found = fedmaba.RunHistory(label, 0, "", np.zeros(0, np.int64))
        found.tables = {k: np.array(v) for k, v in tables.items()}
        return found

    note = table.privacy_note([run("fedavg", 1.0), run("fedmaba", 2.5)])
    assert "epsilon spent fedavg 1, fedmaba 2.5, at delta 1e-05" in note
    assert table.privacy_note([]) == ""


def test_the_noise_of_a_run_is_what_the_plan_says(folder):
    told = fedmaba.load_history(folder / "whole")
    facts = data.load_run_folder(folder / "whole").about["privacy"]["fedmaba, seed 0"]
    assert facts["rounds of the busiest client"] == HEART["rounds"]
    weight = fedmaba.FedMABA().max_weight(4)
    assert facts["largest weight"] == pytest.approx(weight)
    assert facts["sensitivity"] == pytest.approx(2 * 0.5 * weight)
    assert told.runs[1].column("weight").max() <= weight
    assert math.isclose(
        facts["noise on the sum"],
        facts["noise multiplier"] / 0.9**0.5 * facts["sensitivity"],
    )
