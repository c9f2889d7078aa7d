"""`python -m widthwise`: the command line, also from a checkout that is not installed."""

from widthwise.cli.main import main

main()
