"""python -m fedmaba: the command line."""

from fedmaba.cli import main

if __name__ == "__main__":
    main()
