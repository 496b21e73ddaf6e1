"""python -m fedmaba: the command line."""

from fedmaba.cli import main

main()
