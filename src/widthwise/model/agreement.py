"""Check the fields of a config that are no sizes, which growth must keep."""

from collections.abc import Iterable

from widthwise.config_io import Config, UserError, to_data


def must_agree(name: str, old: object, new: object) -> None:
    """Raises UserError where a growth would change something that is no size."""
    if old != new:
        raise UserError(f"{name}: got {_shown(new)} where it was {_shown(old)}, which would change the function")


def must_stay(names: Iterable[str], old: Config, new: Config) -> None:
    """Raises UserError for fields that could change without changing the function, but growth does not know how."""
    for name in names:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            raise UserError(
                f"{name}: got {_shown(after)} where it was {_shown(before)}; growth has no conversion for it"
            )


def may_be_added(name: str, old: object, new: object) -> None:
    """Raises UserError where a growth would take away what was there; what joins starts unheard."""
    if old and not new:
        raise UserError(f"{name}: got {_shown(new)} where it was {_shown(old)}; growth takes nothing away")


def _shown(value: object) -> str:
    return repr(to_data(value)) if isinstance(value, Config) else repr(value)


def all_must_agree(names: Iterable[str], old: Config, new: Config) -> None:
    """`must_agree` for fields of two configs of one kind."""
    for name in names:
        must_agree(name, getattr(old, name), getattr(new, name))
