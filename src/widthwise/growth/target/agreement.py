"""What a growth leaves as it is."""

from widthwise.config_io import Config, UserError, to_data


def must_agree(name: str, old: object, new: object) -> None:
    """Raises UserError where a growth would change something that is no size."""
    if old != new:
        raise UserError(f"{name}: got {_shown(new)} where it was {_shown(old)}, which would change the function")


def _shown(value: object) -> str:
    return repr(to_data(value)) if isinstance(value, Config) else repr(value)


def all_must_agree(where: str, names: tuple[str, ...], old: object, new: object) -> None:
    """The same of fields of two configs; of fields that neither has, nothing is asked."""
    for name in names:
        must_agree(f"{where}.{name}", getattr(old, name, None), getattr(new, name, None))
