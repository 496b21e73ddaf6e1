"""Table, report, export and watch of the state folder of a federation, without flwr and torch."""

import csv
import json
import shutil
import sys
import threading
import urllib.request

import numpy as np
import pytest
import safetensors.numpy

import federations
import fedmaba
from fedmaba.errors import InputError
from fedmaba.report import data, export, html, page_data, watch
from fedmaba.results import state_folder
from report_cases import call


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    return federations.finished(tmp_path_factory.mktemp("federation") / "clinics")


@pytest.fixture
def folder(ended, tmp_path):
    return shutil.copytree(ended, tmp_path / "clinics")


@pytest.fixture
def going(tmp_path):
    """A federation of three rounds, two of which have ended; its server holds the folder."""
    made = federations.server(tmp_path / "going")
    federations.play(made, 2)
    yield made
    made.close()


def test_its_rounds_are_a_history_of_one_run_whose_clients_are_the_sites(ended):
    (run,) = fedmaba.load_history(ended).runs
    assert (run.label, run.seed, run.deploy) == ("fedmaba:alpha=0.8", 0, "poly:8")
    lines = [json.loads(line) for line in (ended / "rounds.jsonl").read_text().splitlines()]
    weights = run.weights()
    for t, line in enumerate(lines[:3]):
        for c, site in enumerate(federations.NAMES):
            told = line["sites"].get(site, {"weight": None, "loss": None})
            for table, name in ((weights, "weight"), (run.column("reported_loss"), "loss")):
                expected = np.nan if told[name] is None else told[name]
                np.testing.assert_equal(table[t, c], expected)
    assert run.evaluated.tolist() == [1, 2, 3]
    nobody = [np.nan] * 3
    received = [[federations.accuracy(c, t) for c in range(3)] for t in (2, 3)]
    received[0][2] = np.nan  # west missed round 2
    np.testing.assert_equal(run.accuracy("last"), [*received, nobody])
    np.testing.assert_equal(run.accuracy("deployed"), [nobody, nobody, [0.5, 0.7, 0.9]])
    np.testing.assert_equal(run.column("info.kl"), [line["info"]["kl"] for line in lines[:3]])


def test_figures_are_of_the_sites_that_told_a_score_and_nothing_is_made_up(ended):
    history = fedmaba.load_history(ended)
    (run,) = history.runs
    (row,) = history.summary("deployed")
    assert row.mean.accuracy == pytest.approx(70)
    assert row.mean.variance == pytest.approx(1e4 * np.var([0.5, 0.7, 0.9]))
    first, *_ = run.fairness("last")  # without west
    assert first.accuracy == pytest.approx(57)
    assert (first.worst, first.best) == pytest.approx((52, 62))
    assert run.chosen("last", "last").tolist() == [1]  # the model after round 3 was not evaluated
    assert run.chosen("last5", "last").tolist() == [0, 1]
    assert run.judged("last", "last") == 3
    assert run.judged("last", "last5") == 2
    for unknown in (row.mean.by_sample, row.mean.loss_variance, row.test_noise, row.corrected):
        assert np.isnan(unknown)


def test_with_the_rule_last_both_models_are_one(tmp_path):
    path = federations.finished(tmp_path / "last", deploy="last")
    (run,) = fedmaba.load_history(path).runs
    np.testing.assert_equal(run.accuracy("deployed"), run.accuracy("last"))
    np.testing.assert_equal(run.accuracy("last")[-1], [0.5, 0.7, 0.9])


def test_a_site_that_joins_later_is_a_client_from_then_on(tmp_path):
    made = federations.server(tmp_path / "grow")
    made.finish_round([federations.reply(c, 1, 0.5) for c in (1, 2)])
    made.finish_round([federations.reply(c, 2, 0.5) for c in (0, 1, 2)])
    made.close()
    state = state_folder.load_state_folder(tmp_path / "grow")
    assert list(state.sites) == ["south", "west", "north"]
    weights = state.history().runs[0].weights()
    assert np.isnan(weights[0, 2])
    assert weights[1].sum() == pytest.approx(1)


def test_errors_are_shown_as_errors_where_lower_is_better(tmp_path):
    made = federations.server(tmp_path / "error")
    federations.play(made, 3, "error")
    made.close()
    history = fedmaba.load_history(tmp_path / "error")
    assert (history.unit.name, history.unit.lower, history.unit.mark) == ("error", True, "")
    (row,) = history.summary("last")
    assert row.mean.worst == pytest.approx(federations.accuracy(2, 3))
    assert "error" in html.page([data.load_run_folder(tmp_path / "error")])


def test_table_shows_figures_sites_and_who_was_left_out(ended, monkeypatch, capsys):
    shown = call(monkeypatch, capsys, "table", ended)
    assert "266.67" in shown
    assert any(line.split()[:4] == ["west", "2", "of", "3"] for line in shown.splitlines())
    assert "no answer within 90 seconds" in shown
    assert "Round 3 of 3: 3 of 3 sites answered." in shown
    marked = call(monkeypatch, capsys, "table", ended, "--model", "last", "--to", "markdown")
    assert "| north | 3 of 3 | 3 |" in marked
    told = json.loads(call(monkeypatch, capsys, "table", ended, "--json"))
    assert told["rows"][0]["mean"]["accuracy"] == pytest.approx(70)
    assert told["rows"][0]["mean"]["by_sample"] is None


def test_what_is_not_known_is_said_in_a_line(tmp_path, monkeypatch, capsys):
    made = federations.server(tmp_path / "off")
    federations.play(made)
    federations.end(made)
    monkeypatch.setattr(sys, "argv", ["fedmaba", "table", str(tmp_path / "off")])
    with pytest.raises(SystemExit):
        fedmaba.cli.main()
    said = capsys.readouterr().err.splitlines()
    assert "the deployed model was not evaluated (evaluate was off): --model last has" in said[0]
    assert "the last model's figures are as of round 2" in said[1]
    assert "no test losses and no numbers of test examples" in said[2]
    quiet = federations.server(tmp_path / "quiet")
    federations.play(quiet, 3, None)
    federations.end(quiet)
    state = state_folder.load_state_folder(tmp_path / "quiet")
    assert state.notes() == ["no site told any accuracy: none has test examples"]
    assert "evaluated" not in state.history().runs[0].tables
    assert "No run has been evaluated yet." in html.page([data.load_run_folder(tmp_path / "quiet")])


def test_export_has_a_row_for_each_answer_and_the_reasons(folder):
    export.write_export(folder, folder / "csv")
    rows = list(csv.DictReader((folder / "csv" / "weights.csv").read_text().splitlines()))
    assert [(r["round"], r["name"]) for r in rows if r["name"] == "west"] == [
        ("1", "west"),
        ("3", "west"),
    ]
    assert len(rows) == 8
    (left,) = csv.DictReader((folder / "csv" / "left_out.csv").read_text().splitlines())
    assert left == {"round": "2", "left_out": federations.LATE}


def test_its_models_are_those_of_the_history(ended):
    history = fedmaba.load_history(ended)
    for which in ("last", "deployed"):
        weights = history.trained.weights(history.runs[0], which)
        file = ended / "models" / f"{which}.safetensors"
        np.testing.assert_equal(weights, safetensors.numpy.load_file(file))
    with pytest.raises(InputError, match="a federation has no model 'best'"):
        history.trained.weights(history.runs[0], "best")


def test_two_federations_stand_in_one_report(ended, tmp_path):
    other = federations.finished(tmp_path / "plain", strategy="fedavg")
    text = html.page(data.load_all([ended, other]))
    assert "<h3>clinics</h3>" in text
    assert "<h3>plain</h3>" in text
    tree = page_data.tree(data.load_all([ended, other]))
    labels = [row["label"] for row in tree["tables"]["deployed.last"]["rows"]]
    assert labels == ["fedmaba:alpha=0.8", "fedavg"]


def test_watch_is_live_and_becomes_the_report(going, tmp_path):
    path = tmp_path / "going"
    with watch.serve(path) as served:
        threading.Thread(target=served.serve_forever, args=[0.05], daemon=True).start()

        def get(what=""):
            with urllib.request.urlopen(served.url + what, timeout=60) as answer:
                return answer.read().decode()

        before, page = get("version"), get()
        assert "<strong>going is running</strong>: round 2 of 3" in page
        assert "Sites of the federation" in page
        assert "Round 2 of 3: 2 of 3 sites answered, without west." in page
        assert "It ended at 20" in page
        assert "no answer within 90 seconds, when 2 of 3 had answered" in page
        assert "kill -INT" not in page  # it would end the server of all sites
        # the deployed one is not evaluated yet
        assert '<p class="intro" id="summary-caption">Last server model' in page
        federations.play(going, 1)
        assert get("version") != before
        assert "Round 3 of 3: 3 of 3 sites answered." in get()
        federations.end(going, {"north": 0.5, "south": 0.7})
        page = get()
        assert "is running" not in page
        assert "Deployed model (poly:8), at the last round; one seed; 2 of 3 clients" in page
        assert "Sites that told no accuracy are not in the figures." in page
        served.shutdown()


def test_a_server_that_waits_for_its_sites_can_be_watched(tmp_path):
    made = federations.server(tmp_path / "new")
    try:
        source = data.load_run_folder(tmp_path / "new")
        assert (source.finished, source.held, source.rounds) == (False, True, 3)
        assert "No round of 3 has ended yet." in html.page([source])
        with pytest.raises(InputError, match="no round of this federation has ended yet"):
            export.write_export(tmp_path / "new", tmp_path / "csv")
    finally:
        made.close()


def test_a_federation_that_was_killed_says_how_it_goes_on(tmp_path):
    made = federations.server(tmp_path / "cut")
    federations.play(made, 2)
    made.close()
    source = data.load_run_folder(tmp_path / "cut")
    assert not source.finished
    assert source.federation.notes()[0].startswith("unfinished, saved up to round 2 of 3: run it")
    where = json.dumps(str(tmp_path / "cut"))
    assert page_data.tree([source])["live"][0]["resume"] == (
        f"flwr run APP LINK --stream --run-config 'rounds=3 state={where}'"
    )


def test_a_run_that_goes_on_after_its_end_is_not_finished(folder):
    made = federations.server(folder, rounds=5)
    federations.play(made, 1)
    made.close()
    state = state_folder.load_state_folder(folder)
    assert (state.finished, state.done, state.asked) == (False, 4, 5)
    np.testing.assert_equal(state.history().runs[0].evaluated, [1, 2, 3])


def test_a_folder_of_an_older_version_is_read(folder):
    """Without about.json, timing.jsonl and the names of those asked."""
    (folder / "about.json").unlink()
    (folder / "timing.jsonl").unlink()
    text = (folder / "rounds.jsonl").read_text()
    old = text.replace('"asked": ["north", "south", "west"], ', "")
    assert old != text
    (folder / "rounds.jsonl").write_text(old)
    source = data.load_run_folder(folder)
    assert source.finished
    page = html.page([source])
    assert "When it ended was not recorded" in page
    assert "3 sites answered." in page


def test_lines_that_no_checkpoint_counts_are_not_shown(folder):
    """A server that was killed between both plays the round again."""
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "sites": {}, "refused": []}\n')
    assert len(state_folder.load_state_folder(folder).rounds) == 3


def test_how_many_test_examples_a_site_has_is_not_made_up(ended, monkeypatch, capsys):
    """Sites send no counts: "a single test example" would be an invention."""
    for words in ((), ("--by", "client"), ("--by", "client", "--to", "json")):
        said = call(monkeypatch, capsys, "table", ended, *words)
        assert "single test example" not in said
    assert [client["examples"] for client in json.loads(said)["clients"]] == [None] * 3
    assert "single test example" not in html.page([data.load_run_folder(ended)])
