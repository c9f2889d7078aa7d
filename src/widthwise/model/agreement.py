"""What a component keeps when a model grows: fields of its config that are no sizes."""

from collections.abc import Iterable

from widthwise.config_io import Config, UserError, to_data


def must_agree(name: str, old: object, new: object) -> None:
    """Raises UserError where a growth would change something that is no size."""
    if old != new:
        raise UserError(f"{name}: got {_shown(new)} where it was {_shown(old)}, which would change the function")


def _shown(value: object) -> str:
    return repr(to_data(value)) if isinstance(value, Config) else repr(value)


def all_must_agree(names: Iterable[str], old: Config, new: Config) -> None:
    """`must_agree` for fields of two configs of one kind."""
    for name in names:
        must_agree(name, getattr(old, name), getattr(new, name))
