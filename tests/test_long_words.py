"""What a user gave is told in errors, but never thousands of characters of it; nor does it hang."""

from pathlib import Path

import pytest

from fedmaba.errors import MAX_LINE, MAX_WORD, InputError, shortened, unknown

LONG = "x" * 5000
SPACED = "x y " * 1250
WORDS = [
    ["compare", LONG],
    ["compare", SPACED],
    ["compare", f"{LONG}.Rule"],
    ["compare", f"fedavg:{LONG}=1"],
    ["compare", f"fedmaba:alpha=[{LONG}"],
    ["compare", f"fedmaba:alpha=[{SPACED}"],
    ["compare", "fedavg", f"fedavg,{LONG}"],
    ["compare", "fedavg", "--model", LONG],
    ["compare", "fedavg", "--model", f"{LONG}:make"],
    ["compare", "fedavg", "--data", LONG],
    ["compare", "fedavg", "--partition", LONG],
    ["compare", "fedavg", "--deploy", LONG],
    ["compare", "fedavg", "--attack", LONG],
    ["compare", "fedavg", "--rounds", LONG],
    ["compare", "fedavg", "--rounds", "9" * 5000],
    ["compare", "fedavg", "--device", LONG],
    ["compare", "fedavg", "--seeds", LONG],
    ["compare", "fedavg", "--set", f"{LONG}=1"],
    ["compare", "fedavg", f"--{LONG}"],
    ["run", LONG],
    ["resume", LONG],
    ["table", LONG],
    ["table", "x" * 300],
    ["report", LONG],
    ["figure", LONG, ".", "-o", "a.pdf"],
    ["figure", "rounds", ".", "-o", LONG],
    ["export", LONG],
    ["watch", LONG],
    ["list", LONG],
    ["reproduce", LONG],
    ["data", "check", LONG],
    [LONG],
]


@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(words)[:40])
def test_five_thousand_characters_are_not_told_whole(refused, words):
    said = refused(*words)
    assert len(said) <= MAX_LINE
    assert max(map(len, said.split())) < MAX_WORD


@pytest.mark.parametrize(
    "text",
    [
        'strategies = ["fed\tavg"]\n',
        'strategies = ["fedavg"]\n[data]\nname = "a\tb.csv"\n',
        'strategies = ["\\t"]\nmodel = "\\tmlp"\n',
        'strategies = ["fedmaba:alpha=\t[0.1,\t"]\n',
        'strategies\t=\t["fedavg"]\n"a\tb" = 1\n',
        'strategies = ["fedavg"]\nseeds = "1\\t-\\t3"\n[train]\nlr = "0.1\\tx"\n',
        'strategies = ["fedavg"]\n[save]\nout = "runs/\\t"\n',
        'strategies = ["fedavg"]\nmodel = "mi\\tne:make"\n',
        "\t" * 100_000 + "x",
        'strategies = ["' + "\t" * 100_000 + '"]\n',
        "x = [" + "\t\n" * 50_000,
    ],
    ids=range(11),
)
def test_tabs_in_an_experiment_are_read_or_refused_at_once(refused, text):
    Path("tabs.toml").write_text(text)
    assert len(refused("run", "tabs.toml")) <= MAX_LINE


def test_what_is_short_is_told_whole_and_what_is_long_keeps_both_ends():
    assert shortened("a word") == "a word"
    whole = f"unknown {'y' * (MAX_WORD - 2)}: choose another"
    assert shortened(whole) == whole
    cut = shortened(f"unknown '{'y' * MAX_WORD}': choose another")
    assert cut.startswith("unknown 'yyy")
    assert cut.endswith("yyy': choose another")
    assert "characters left out" in cut
    told = str(unknown("strategy", LONG, ["fedavg", "afl"]))
    assert told.endswith("choose one of afl, fedavg")
    assert len(f"fedmaba: {InputError(SPACED)}") <= MAX_LINE
    assert InputError(LONG).args == (LONG,)  # a program can still have it
