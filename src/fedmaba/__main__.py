"""python -m fedmaba: the command line, and what must be settled before anything is imported.

`python -m` looks for every module in the working folder first, where somebody else's run folder
may hold an `enum.py`. Neither this file nor the package's imports anything before that is undone.
"""

import os
import sys


def _forget_here() -> None:
    """Take the working folder from the path, unless fedmaba itself lies there."""
    try:
        here = os.getcwd()
    except OSError:  # it was removed, so Python could not add it
        return
    home = os.path.dirname(os.path.dirname(__file__))
    if not sys.flags.safe_path and sys.path[0] == here != home:
        del sys.path[0]


def main() -> None:
    """The command line, with signals heeded while it is still being imported."""
    import atexit

    from fedmaba import stop

    atexit.register(stop.ignore)  # As the first, it is called last.
    try:
        with stop.at_once():
            from fedmaba import cli

            try:
                cli.main()
            except SystemExit as end:
                stop.answer_stands(end.code if isinstance(end.code, int) else 0)
                raise
    except KeyboardInterrupt:  # before it could hear of it
        sys.exit(130)


if __name__ == "__main__":
    _forget_here()
    main()
