"""`widthwise`, and `python -m widthwise` from a checkout that is not installed: the command line."""

from widthwise.cli.signals import leave_at_once


def main() -> None:
    """Run a verb; Ctrl-C prints one line at any time."""
    leave_at_once()
    from widthwise.cli.main import main as run_verb  # slow to import

    try:
        run_verb()
    finally:
        leave_at_once()


if __name__ == "__main__":
    main()
