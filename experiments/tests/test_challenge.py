"""A strategy from outside enters a stored comparison under the rules of its rows."""

import pytest
from reproduction_cases import SMALL, command

from fedmaba import strategies
from fedmaba.errors import InputError
from laboratory import challenge, targets

MINE = '''
from dataclasses import dataclass
from typing import ClassVar
import fedmaba

@dataclass(frozen=True)
class Power(fedmaba.Strategy):
    """weights proportional to a power of the loss"""

    name: ClassVar[str] = "power"
    power: float = fedmaba.param(1.0, low=0)

    def needs(self):
        return fedmaba.Needs(loss="start")

    def weigh(self, state, replies):
        weight = replies.loss**self.power
        return fedmaba.Decision(weight / weight.sum(), state)
'''


@pytest.fixture
def entered(tmp_path, monkeypatch, capsys):
    """Type `fedmaba ...` where one small comparison is stored, and a strategy lies in a file."""
    where = tmp_path / "experiments"
    where.mkdir()
    (where / "baselines-small.toml").write_text(SMALL.replace(', "ditto:lam=[0.1,1.0]"', ""))
    monkeypatch.setattr(targets, "folder", lambda: where)
    name = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(strategies, "REGISTRY", dict(strategies.REGISTRY))
    return name, command(monkeypatch, capsys, tmp_path)


@pytest.mark.parametrize(("spec", "at"), [("", (0, 1)), (":power=[1,2]", (0,))])
def test_an_entry_has_the_trials_of_a_row_like_it(entered, spec, at):
    name, _ = entered
    stored = challenge.load_setting("small")
    entry = challenge.enter(stored, f"{name}.Power{spec}")
    rates = [stored.jobs[i].experiment.train.lr for i in at]
    assert [job.experiment.train.lr for job in entry.jobs] == rates
    assert sum(len(job.runs) for job in entry.jobs) == 2  # as each row of the target
    assert {job.fresh for job in entry.jobs} == {(1, 2)}


def test_an_entry_with_more_trials_than_the_rows_is_refused(entered):
    name, _ = entered
    stored = challenge.load_setting("small")
    with pytest.raises(InputError, match=r"3 settings, but each row .* from 1 or 2 settings"):
        challenge.enter(stored, f"{name}.Power:power=[1,2,3]")
    with pytest.raises(InputError, match="has a row in baselines-small already"):
        challenge.enter(stored, "fedavg")
    with pytest.raises(InputError, match="choose one of small"):
        challenge.load_setting("large")


def test_other_code_has_another_folder(entered, tmp_path):
    name, _ = entered
    stored = challenge.load_setting("small")
    first = challenge.folder(tmp_path, challenge.enter(stored, f"{name}.Power"))
    other = f"other_{name}"
    (tmp_path / f"{other}.py").write_text(MINE.replace("self.power\n", "(2 * self.power)\n"))
    strategies.REGISTRY.pop("power")
    second = challenge.folder(tmp_path, challenge.enter(stored, f"{other}.Power"))
    assert first.parent == second.parent == tmp_path
    assert first != second


@pytest.mark.slow
def test_the_whole_challenge_ranks_the_entry_among_the_stored_rows(entered, tmp_path):
    name, run = entered
    made = run("baselines-small", "--out", "stored", "--device", "cpu", "--quiet")
    assert made[0] == 0, made[2]
    words = (f"{name}.Power", "--setting", "small", "--stored", "stored", "--device", "cpu")
    code, out, err = run(*words, of="challenge")
    assert code == 0, err
    assert "of 3 by variance" in out
    assert all(word in out for word in ("FedAvg", "FedMABA", "step size 0."))
    again = run(*words, of="challenge")
    assert again[:2] == (0, out)  # nothing ran again
    (folder,) = (tmp_path / "runs" / "challenge").iterdir()
    assert folder.name.startswith("small-power-")
