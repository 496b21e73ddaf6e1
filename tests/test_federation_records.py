"""What a server writes beside its state: when rounds ended, metrics, and the card of its models."""

import hashlib
import json
import os
import re
import stat
import sys

import pytest

import federations
from fedmaba import cli
from fedmaba.deploy import records
from fedmaba.errors import InputError, SaveFailed
from fedmaba.report import data, model_card
from fedmaba.report.escape import for_prometheus
from report_cases import call, finished_run

SAMPLE = re.compile(
    r'fedmaba_[a-z_]+(\{[a-z]+="(\\.|[^"\\])*"(,[a-z]+="(\\.|[^"\\])*")*\})? -?[0-9.e+-]+'
)


def metrics(made, report=None, running=True) -> str:
    told = (made.settings, made.round, made.sites, made.last_counted, made.clock)
    return records.metrics_text(*told, report, running)


def values(text: str) -> dict[str, float]:
    found = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in found}


@pytest.fixture
def played(tmp_path):
    made = federations.server(tmp_path / "state")
    federations.play(made, 1)
    said = [federations.reply(c, 2, federations.accuracy(c, 2)) for c in (0, 1)]
    report = made.finish_round(said, [federations.LATE], asked=federations.NAMES)
    yield made, report
    made.close()


def test_metrics_say_how_far_it_is_and_who_answered(played):
    text = metrics(*played)
    found = values(text)
    assert found["fedmaba_rounds"] == 2
    assert found["fedmaba_rounds_asked"] == 3
    assert found["fedmaba_running"] == 1
    assert found["fedmaba_sites_asked"] == 3
    assert found["fedmaba_sites_answered"] == 2
    assert found["fedmaba_replies_refused"] == 1
    assert found['fedmaba_site_answered{site="west"}'] == 0
    assert found['fedmaba_site_last_round{site="west"}'] == 1
    assert found['fedmaba_site_weight{site="north"}'] == pytest.approx(
        played[1]["sites"]["north"]["weight"]
    )
    assert found['fedmaba_accuracy{over="mean"}'] == pytest.approx(0.57)
    assert found["fedmaba_accuracy_variance"] == pytest.approx(0.0025)
    assert found["fedmaba_last_round_timestamp_seconds"] == pytest.approx(
        played[0].clock.ended.timestamp(), abs=1
    )
    assert 'fedmaba_site_weight{site="west"}' not in found  # not invented


def test_metrics_are_what_prometheus_reads(played):
    text = metrics(*played)
    assert text.endswith("\n")
    names = []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            names.append(line.split()[2])
            assert line.endswith(" gauge")
        elif not line.startswith("# HELP "):
            assert SAMPLE.fullmatch(line), line
            assert line.split("{")[0].split(" ")[0] == names[-1]  # one block for each name
    assert len(set(names)) == len(names)
    assert for_prometheus('a"b\\c\nd') == r"a\"b\\c d"


def test_before_the_first_round_nothing_is_said_of_rounds(tmp_path):
    made = federations.server(tmp_path / "state")
    found = values(metrics(made))
    made.close()
    assert found["fedmaba_rounds"] == 0
    started = made.clock.started.timestamp()
    assert found["fedmaba_start_timestamp_seconds"] == pytest.approx(started, abs=0.1)
    assert not [name for name in found if "last_round" in name or "sites_" in name]


def test_the_file_is_replaced_whole_and_a_collector_of_another_account_reads_it(tmp_path):
    target = tmp_path / "fedmaba.prom"
    before = os.umask(0o077)
    try:
        records.write_metrics(target, "fedmaba_rounds 1\n")
        records.write_metrics(target, "fedmaba_rounds 2\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert target.read_text() == "fedmaba_rounds 2\n"
    assert os.listdir(tmp_path) == ["fedmaba.prom"]
    with pytest.raises(SaveFailed, match="the federation goes on"):
        records.write_metrics(tmp_path / "fedmaba.prom" / "x.prom", "")


@pytest.mark.parametrize(
    ("name", "said"), [("m.txt", "end it in .prom"), ("none/m.prom", "is no folder: make it first")]
)
def test_a_file_that_no_collector_would_read_is_refused(tmp_path, name, said):
    with pytest.raises(InputError, match=said):
        records.check_metrics_path(tmp_path / name)


def test_rounds_have_an_end_and_a_length_apart_from_what_must_repeat(played, tmp_path):
    text = (tmp_path / "state" / "timing.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert all(line["ended"].endswith("+00:00") and line["seconds"] >= 0 for line in lines)
    assert "ended" not in (tmp_path / "state" / "rounds.jsonl").read_text()


def test_the_card_says_what_was_trained_by_whom_with_hashes(tmp_path):
    path = federations.finished(tmp_path / "clinics")
    text = (path / "models" / "card.md").read_text()
    for name in ("last", "deployed"):
        file = path / "models" / f"{name}.safetensors"
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert f"| {name}.safetensors | {file.stat().st_size} | {digest} |" in text
    assert "Models of a federation on Flower: fedmaba:alpha=0.8, 3 sites, 3 rounds" in text
    assert "| west | 2 of 3 | 3 |" in text
    assert "| terms.lr | 0.1 |" in text
    assert "| train.minibatch | 20 |" in text
    assert f"| fedmaba | {cli.commands.__version__} |" in text
    assert "| fedmaba:alpha=0.8 | 1 | 266.67 | 70.00 | 50.00 | 90.00 |" in text
    assert federations.LATE in text
    assert "unfinished" not in text
    assert "add that by hand" in text


def test_export_writes_the_card_of_a_federation_and_of_a_simulation(
    tmp_path, tiny_npz, monkeypatch, capsys
):
    path = federations.finished(tmp_path / "clinics")
    written = (path / "models" / "card.md").read_text()
    (path / "models" / "card.md").unlink()
    shown = call(monkeypatch, capsys, "export", path, "--to", "card")
    assert shown.strip() == str(path / "models" / "card.md")
    assert (path / "models" / "card.md").read_text() == written
    run = finished_run(tmp_path / "run", tiny_npz)
    call(monkeypatch, capsys, "export", run, "--to", "card", "-o", tmp_path / "out")
    text = (tmp_path / "out" / "card.md").read_text()
    for file in (run / "models").glob("*.safetensors"):
        assert hashlib.sha256(file.read_bytes()).hexdigest() in text
    assert "Models of a simulation: " in text
    assert "| train.rounds | " in text


def test_no_card_without_models(tmp_path, monkeypatch, capsys):
    made = federations.server(tmp_path / "state")
    federations.play(made, 1)
    made.close()
    monkeypatch.setattr(sys, "argv", ["fedmaba", "export", str(tmp_path / "state"), "--to", "card"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert "holds no models yet: wait until the run has ended" in capsys.readouterr().err
    with pytest.raises(InputError, match="has no folder, so no models"):
        model_card.card_text(data.source_of(data.load_run_folder(tmp_path / "state").history))
