"""Strategies by name: specifications, labels, descriptions and the errors of wrong ones."""

import pytest

from fedmaba import strategies
from fedmaba.errors import InputError
from fedmaba.strategies import QFFL as QFedAvg
from fedmaba.strategies import FedAvg, FedFV, FedMABA
from strategy_cases import NAMES, one


def test_labels_say_only_what_differs():
    assert FedMABA().label() == "fedmaba"
    assert FedMABA(alpha=0.8, sync="overwrite").label() == "fedmaba:alpha=0.8,sync=overwrite"


def test_description_has_a_line_for_each_strategy():
    rows = {name: (params, line) for name, line, params in strategies.describe_strategies()}
    assert set(NAMES) <= set(rows)
    assert all(line and "\n" not in line for _, line in rows.values())
    assert rows["fedprox"][0] == "mu=0.1"
    assert "ball=cohort|global|literal" in rows["fedmaba"][0]


def test_lists_are_a_grid():
    found = strategies.parse("fedmaba:alpha=[0.1, 0.5],eta_b=[1,0.5],sync=overwrite")
    assert [(s.alpha, s.eta_b, s.sync) for s in found] == [
        (a, e, "overwrite") for a in (0.1, 0.5) for e in (1.0, 0.5)
    ]
    assert strategies.parse("qffl:mode=[avg,sgd]") == [QFedAvg(mode="avg"), QFedAvg(mode="sgd")]
    assert strategies.parse("fedfv:tau=2") == [FedFV(tau=2)]
    assert type(one("qffl:q=1").q) is float


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fedmba", "unknown strategy 'fedmba': did you mean 'fedmaba'?"),
        ("zzz", "choose one of a"),
        ("", "unknown strategy ''"),
        ("DRFA", "the closest is scaffpd or afl"),
        ("Scaff-PD", "did you mean 'scaffpd'?"),
        ("FedEBA+", "strategy 'FedEBA+' is written fedebaplus"),
        ("fedmaba:alph=1", "did you mean 'alpha'?"),
        ("fedsgd:mu=1", "fedsgd has no hyper-parameters"),
        ("fedmaba:alpha=1.5", "alpha=1.5: give a finite number of at least 0 and at most 1"),
        ("fedmaba:alpha=[0.5,1.5]", "alpha=1.5"),
        ("fedmaba:alpha=-0.1", "at least 0"),
        ("fedmaba:alpha=nan", "alpha=nan: give a finite number"),
        ("fedmaba:eta_b=inf", "eta_b=inf: give a finite number"),
        ("fedmaba:eta_b=" + "9" * 400, "give a finite number"),
        ("fedmaba:eta_s=0", "above 0"),
        ("fedmaba:alpha=half", "alpha='half'"),
        ("fedmaba:alpha=true", "alpha='true'"),
        ("fedmaba:alpha", "is not key=value"),
        ("fedmaba:alpha=", "is not key=value"),
        ("fedmaba:=1", "is not key=value"),
        ("fedmaba:,", "is not key=value"),
        ("fedmaba:alpha=0.1,alpha=0.2", "given twice"),
        ("fedmaba:alpha=[0.1,0.2", "brackets do not match"),
        ("fedmaba:alpha=0.1]", "brackets do not match"),
        ("fedmaba:alpha=[[0.1]]", "brackets do not match"),
        ("fedmaba:alpha=[]", "alpha=''"),
        ("fedmaba:sync=half", "choose one of mass, overwrite"),
        ("fedmaba:sync=1", "choose one of mass, overwrite"),
        ("fedmaba:ball=global,sync=overwrite", "use sync=mass"),
        ("fedfv:tau=1.5", "give a whole number"),
        ("fedfv:tau=-1", "of at least 0"),
        ("propfair:M=0", "above 0"),
        ("deltafl:theta=0", "deltafl: theta="),
        ("deltafl:theta=1.1", "deltafl: theta="),
        ("gifair:lam=1.1", "gifair: lam="),
        ("fedgini:epsilon=1.1", "fedgini: epsilon="),
        ("adafed:gamma=-1", "adafed: gamma="),
        ("adafed:eta=0", "adafed: eta="),
        ("aaggff:form=both", "aaggff: form="),
        ("aaggff:cdf=uniform", "aaggff: cdf="),
        ("fedadam:tau=0", "fedadam: tau="),
        ("fedavgm:beta=1", "fedavgm: beta="),
        ("fedeba:tau=0", "fedeba: tau="),
        ("fedeba:a=1.1", "fedeba: a="),
        ("fedlf:tau=-1", "fedlf: tau="),
        ("fedlf:norms=both", "fedlf: norms="),
        ("fedmdfg:theta=91", "fedmdfg: theta="),
        ("fedmdfg:s=-1", "fedmdfg: s="),
        ("fedmaba:a\nb=1,a\nb=2", "given twice"),
    ],
)
def test_a_wrong_specification_is_one_line(spec, message):
    with pytest.raises(InputError) as caught:
        strategies.parse(spec)
    text = str(caught.value)
    assert message in text
    assert "\n" not in text


def test_a_taken_name_is_refused():
    class Mine(FedAvg):
        name = "fedavg"

    assert strategies.register(FedAvg) is FedAvg
    with pytest.raises(InputError, match="3 is no class of strategies"):
        strategies.register(3)
    with pytest.raises(InputError, match="registered already"):
        strategies.register(Mine)
