"""`widthwise`, and `python -m widthwise` from a checkout that is not installed: the command line."""

from widthwise.cli.signals import leave_at_once


def main() -> None:
    """Runs a verb; Ctrl-C ends with one line from the first moment to the last."""
    leave_at_once()
    from widthwise.cli.main import main as run_verb  # takes a while

    try:
        run_verb()
    finally:
        leave_at_once()


if __name__ == "__main__":
    main()
