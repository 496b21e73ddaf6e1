"""Helpers for tests of the command line."""

import sys

QUICK = ["--rounds", "4", "--seeds", "2", "--minibatch", "5", "--eval-every", "2"]
QUICK += ["--model", "softmax", "--device", "cpu", "--quiet"]
COMMAND = [sys.executable, "-m", "fedmaba"]


class Answer:
    """What a command gave back."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err
