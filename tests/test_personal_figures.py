"""Every client under its own model beside every client under the server's, in all that is shown."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedmaba
from command_line import QUICK
from fedmaba.errors import InputError
from fedmaba.report import export, table, terminal
from fedmaba.report.data import source_of
from fedmaba.results.history import History
from fedmaba.simulation.engine import Run, simulate, start
from fedmaba.strategies.base import Local, Personal
from paper_loops import PaperLoop
from plain_loop import PLAN, apart, mlp, one, vector
from report_cases import evaluated, printed

pytestmark = pytest.mark.usefixtures("few_threads")


def measured(loop, w, rows):
    """Mean loss and accuracy of a model on some examples, by nn.Module."""
    torch.nn.utils.vector_to_parameters(w, loop.plain.worker.parameters())
    with torch.no_grad():
        out = loop.plain.forward(loop.plain.worker, loop.plain.examples(rows))
    y = loop.plain.y[rows]
    loss = loop.plain.criterion(out, y).mean()
    return float(loss), float((out.argmax(1) == y).double().mean())


def test_each_client_is_judged_by_its_own_model(held_fed):
    plan = replace(PLAN, rounds=2, finetune=3)
    specs = ["fedavg", "ditto:lam=0.5", "local"]
    batch = start([Run(one(s), 3, held_fed) for s in specs], plan, mlp)
    shots = list(simulate(batch))
    loop = PaperLoop(3, held_fed, plan, mlp)
    for spec, found, r in zip(specs, shots[-1].evaluations, range(3), strict=True):
        for suffix, part in (("", held_fed.split.test), ("_validation", held_fed.split.validation)):
            scores = found["personal" + suffix]
            for c, rows in enumerate(part):
                if spec == "fedavg":
                    w = fine_tuned(loop, vector(batch, batch.progress.deployed[r]), c, plan)
                else:
                    w = vector(batch, batch.progress.memory.columns[r]["personal"][c])
                want = measured(loop, w, rows)
                assert (scores.loss[c], scores.accuracy[c]) == pytest.approx(want, rel=1e-9)
            same = np.array_equal(scores.loss, found["deployed" + suffix].loss)
            assert same == (spec == "local")  # whose clients have no other model


def fine_tuned(loop, w, client, plan):
    """Three plain steps from a model, on minibatches of a stream of its own."""
    from fedmaba import rng

    key = torch.from_numpy(rng.key(3, "finetune", plan.rounds - 1, client).view(np.int64))
    loop.plain.plan = replace(plan, steps=plan.finetune)
    lr = plan.lr * plan.lr_decay ** (plan.rounds - 1)
    for k, rows in enumerate(loop.plain.minibatches(loop.fed.split.train[client], key)):
        w = w - lr * loop.gradient(w, rows, key + k)
    return w


def test_fine_tuning_changes_nothing_of_the_run(fed):
    plan, found = replace(PLAN, participants=3, dtype="float32"), []
    for finetune in (None, 4):
        batch = start([Run(one("fedmaba"), 3, fed)], replace(plan, finetune=finetune), mlp)
        list(simulate(batch))
        found.append(batch.progress.arrays())
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value, name)


def test_dittos_server_is_the_rule_underneath(fed):
    specs = ["fedmaba:alpha=0.8,eta_b=1", "ditto:lam=0.1,server=fedmaba:alpha=0.8;eta_b=1"]
    specs += ["ditto:server=scaffold", "scaffold"]
    batch = start([Run(one(s), 3, fed) for s in specs], replace(PLAN, participants=3), mlp)
    list(simulate(batch))
    at = batch.progress
    assert apart(at.model[1], at.model[0]) < 1e-12
    assert apart(at.model[2], at.model[3]) < 1e-12
    assert sorted(at.memory.columns[2]) == ["c", "personal"]
    assert one("ditto:server=afl").deploy == one("afl").deploy != one("ditto").deploy


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ("ditto:server=local", "its clients have models of their own already"),
        ("ditto:server=ditto", "its clients have models of their own already"),
        ("ditto:server=qffl:q=7;q=8", "given twice"),
        ("ditto:server=nothing", "strategy 'nothing'"),
        ("ditto:lam=-1", "lam=-1"),
    ],
)
def test_a_server_that_cannot_be_is_one_line(spec, line):
    with pytest.raises(InputError, match=line) as error:
        fedmaba.parse(spec)
    assert "\n" not in str(error.value)


def test_a_label_of_ditto_is_read_as_the_same_strategy():
    made = one("ditto:lam=0.1,server=fedmaba:alpha=0.8;eta_b=1")
    assert one(made.label()) == made


def test_models_of_their_own_travel_as_json():
    local = one("ditto:lam=0.25,server=feddyn").local()
    assert Local.from_json(local.to_json()) == local
    assert local.personal == Personal(0.25)
    with pytest.raises(InputError, match="this name is taken"):
        Local(keep={"personal": fedmaba.Keep()})


# --- figures ------------------------------------------------------------------------------------


def personal(scores):
    return {"personal__accuracy": [scores], "personal__loss": [scores]}


@pytest.fixture
def history():
    alone = [0.5, 0.6, 0.7]
    return History(
        [
            evaluated("fedavg", 0, [0.4, 0.6, 0.9]),
            evaluated("ditto", 0, [0.4, 0.6, 0.9], **personal([0.6, 0.7, 0.9])),
            evaluated("local", 0, alone, **personal(alone)),
        ]
    )


def test_the_share_of_clients_better_off_than_alone(history):
    """fedavg: -10, 0 and +20 points; Ditto's own models: +10, +10 and +20."""
    server = {row.label: row for row in history.incentives()}
    own = {row.label: row for row in history.incentives("personal")}
    assert list(server) == list(own) == ["fedavg", "ditto"]
    assert server["fedavg"][2:] == pytest.approx((1 / 3, 1 / 3, 10 / 3, -10))
    assert server["ditto"][2:] == pytest.approx((1 / 3, 1 / 3, 10 / 3, -10))
    assert own["fedavg"][2:] == pytest.approx((1 / 3, 1 / 3, 10 / 3, -10))
    assert own["ditto"][2:] == pytest.approx((1, 0, 40 / 3, 10))
    assert History(history.runs[:2]).incentives() == []


def test_a_table_of_clients_own_models_says_who_has_none(history):
    rows = {row.label: row for row in history.summary("personal")}
    assert rows["ditto"].mean.accuracy == pytest.approx(100 * 2.2 / 3)
    assert rows["ditto"].note == ""
    assert rows["fedavg"].mean == history.summary("deployed")[0].mean
    assert rows["fedavg"].note == "the deployed model"
    shown = history.table(model="personal")
    assert "each client under its own model" in shown.lower()
    assert "better off" in shown
    assert "better off" not in History(history.runs[:2]).table()


def test_own_models_are_in_pandas_and_in_exports(history):
    pandas = pytest.importorskip("pandas")
    frame = history.to_pandas()
    own = frame[frame.strategy == "ditto"].personal_accuracy
    assert own.tolist() == [0.6, 0.7, 0.9]
    assert pandas.isna(frame[frame.strategy == "fedavg"].personal_accuracy).all()
    gained = frame[frame.strategy == "ditto"].gain_over_alone
    np.testing.assert_allclose(gained, [0.1, 0.1, 0.2])
    np.testing.assert_allclose(frame[frame.strategy == "fedavg"].gain_over_alone, [-0.1, 0, 0.2])
    assert pandas.isna(frame[frame.strategy == "local"].gain_over_alone).all()
    head, *lines = export.clients(source_of(history))
    assert "personal_accuracy" in head
    assert {row[1] for row in export.summary(history)[1:]} == {"deployed", "last", "personal"}
    assert [grid.name for grid in table.document(history).grids] == ["levels", "incentive"]
    assert len(lines) == 9


def test_a_note_of_several_rows_stands_once_and_80_columns_are_enough(history):
    more = [replace(run, label="afl") for run in history.runs if run.label == "fedavg"]
    text = printed(80, terminal.grid(History([*history.runs, *more]), "personal", "last", 0.05))
    assert "; * the deployed model strategy" in " ".join(text.split())  # the title's end
    assert text.count("deployed") == 1
    assert re.findall(r"^ +(fedavg|afl) \*", text, re.M) == ["fedavg", "afl"]
    one_only = printed(120, terminal.grid(history, "personal", "last", 0.05))
    assert "fedavg (the deployed model)" in " ".join(one_only.split())


def test_a_figure_shows_who_is_better_off_than_alone(history):
    pytest.importorskip("matplotlib")
    panels = history.plot("incentive", "personal").axes
    said = [axes.texts[0].get_text() for axes in panels]
    assert said == ["33 % better off", "100 % better off"]
    with pytest.raises(InputError, match="run the strategy local beside"):
        History(history.runs[:2]).plot("incentive")


def test_a_run_folder_keeps_the_figures(fed, tmp_path):
    """Recorded, saved, loaded, shown; the files hold the models of all clients."""
    options = {"rounds": 2, "seeds": 1, "minibatch": 4, "eval_every": 1, "device": "cpu"}
    specs = ["fedavg", "ditto", "local"]
    made = fedmaba.compare(specs, data=fed, model=mlp, out=tmp_path / "run", finetune=2, **options)
    again = fedmaba.load_history(tmp_path / "run")
    for run, other in zip(made.runs, again.runs, strict=True):
        assert run.has_personal
        np.testing.assert_array_equal(run.accuracy("personal"), other.accuracy("personal"))
    lines = (tmp_path / "run" / "rounds.jsonl").read_text()
    assert lines.count('"personal"') == 6
    names = sorted(path.name for path in (tmp_path / "run" / "models").glob("*personal*"))
    assert len(names) == 2


def test_a_screen_shows_each_table_once(call, tiny_npz):
    words = ["fedavg", "local", "--data", tiny_npz, *QUICK, "--out", "run"]
    assert call("compare", *words).code == 0
    for more, differences in (([], 0), (["--against", "local"], 1)):
        shown = call("table", "run", *more).out
        assert shown.count("Incentive: clients beside training alone") == 1
        assert shown.count("ifference to local") == differences
