"""The laws by which a loss falls with compute, parameters or width.

    power              y = a*x^-b                    a line in ln y over ln x
    power_irreducible  y = e + a*x^-b                the same above an irreducible loss
    log_linear         y = slope*log2(x)+intercept   a line in y over log2 x

The variable-width paper fits the first (arXiv:2606.18246, Fig. 4); the second is the usual form with an irreducible
loss (arXiv:2203.15556), the third the virtual-width paper's (arXiv:2511.11238, Fig. 8). A law fits many data sets at
once: x and y are (..., n_points), parameters (..., n_symbols), so that a bootstrap is one call.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from widthwise.records.scaling import SYMBOLS, LawName

if TYPE_CHECKING:
    from widthwise.experiments.scaling_points import CurveGroup

SMALLEST_EXPONENT = 0.005
LARGEST_EXPONENT = 10.0
"""Bounds of the exponent of a law with an irreducible loss."""
FLATTEST = 1e-9
"""A curve that falls by a smaller share of y per e-fold of x, or doubling, is level except for rounding."""
N_EXPONENTS = 80
N_GOLDEN_STEPS = 55
"""Each step narrows the bracket of the exponent to 0.618; neighbours on the grid differ by a fifth."""
LARGEST_POWER = 600.0
"""Bound of |b ln x|, which keeps x^b below the largest float."""


class Law(ABC):
    """A monotone form with two or three symbols. Parameters are arrays whose last axis has the order of `symbols`."""

    kind: ClassVar[LawName]
    symbols: ClassVar[tuple[str, ...]]
    form: ClassVar[str]
    formula: ClassVar[str]
    """The form with its numbers and the names of x and y, as a format string."""
    factors: ClassVar[tuple[str, ...]] = ()
    """Positive symbols, whose intervals are computed for their logarithms."""
    steepness: ClassVar[str]
    """The parameter that measures how fast y falls."""
    residual_scale: ClassVar[np.ufunc] = np.positive
    """Maps y to the scale on which residuals are differences."""
    from_residual_scale: ClassVar[np.ufunc] = np.positive
    """The inverse of `residual_scale`."""

    def objection(self, group: "CurveGroup") -> str | None:
        """Return why the law cannot be fitted to a group; None if it can."""
        n_different = len(set(group.x))
        n_needed = len(self.symbols) + 1  # one degree of freedom remains
        if n_different >= n_needed:
            return None
        return f"needs points at {n_needed} or more different x, and {group.name} has {n_different}"

    def leave_one_out_errors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return (n_points,): the y of each point minus the curve fitted to the remaining points.

        All are nan if remaining points have too few different x: a curve with as many symbols as points goes through
        all of them.
        """
        rest = np.array([np.delete(np.arange(len(x)), i) for i in range(len(x))])  # (n_points, n_points - 1), indices
        if min(len(set(x[i])) for i in rest) <= len(self.symbols):
            return np.full(len(x), np.nan)
        return y - self.y(self.fit(x[rest], y[rest]), x)

    @abstractmethod
    def fit(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Fit by least squares on the residual scale: y (..., n_points) -> parameters (..., n_symbols)."""

    @abstractmethod
    def y(self, parameters: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the curve at x, (..., n_points); parameters and x broadcast."""

    @abstractmethod
    def x(self, parameters: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the x at which the curve reaches y; nan if it never does."""

    def warning(self, parameters: np.ndarray) -> str | None:
        """Return why the parameters of one fit are unreliable; None if they are reliable."""
        return None


class PowerLaw(Law):
    """ln y = ln a - b ln x, by least squares in ln y; no irreducible loss."""

    kind = "power"
    symbols = SYMBOLS["power"]
    form = "y = a*x^-b"
    formula = "{y} = {a:.5g}*{x}^{minus_b:.4g}"
    factors = ("a",)
    steepness = "b"
    residual_scale = np.log
    from_residual_scale = np.exp

    def fit(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        slope, intercept = _line(np.log(x), np.log(y))
        return np.stack([np.exp(intercept), -slope], axis=-1)

    def y(self, parameters: np.ndarray, x: np.ndarray) -> np.ndarray:
        a, b = np.moveaxis(parameters, -1, 0)
        return a * x**-b

    def x(self, parameters: np.ndarray, y: np.ndarray) -> np.ndarray:
        a, b = np.moveaxis(parameters, -1, 0)
        with np.errstate(all="ignore"):
            return _finite((a / y) ** (1 / b), np.abs(b) > FLATTEST)


class IrreduciblePowerLaw(Law):
    """y = e + a*x^-b with e >= 0 and a >= 0, by least squares in y.

    Variable projection (Golub and Pereyra 1973): for a given b, a linear fit gives the best e and a. So only b is
    searched, on a grid and then by golden sections around its best value. This needs no starting values, and avoids
    local minima farther apart than the grid.
    """

    kind = "power_irreducible"
    symbols = SYMBOLS["power_irreducible"]
    form = "y = e + a*x^-b"
    formula = "{y} = {e:.4g} + {a:.4g}*{x}^{minus_b:.4g}"
    factors = ("a",)
    steepness = "b"

    def fit(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = np.broadcast_arrays(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))
        log_x = np.log(x)
        centre = log_x.mean(axis=-1)  # powers of x relative to its geometric mean stay near 1

        def fit_at(exponent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Return the best parameters for a given b (...), and their squared error."""
            z = np.exp(-exponent[..., None] * (log_x - centre[..., None]))
            a, e = _line(z, y)
            a = np.where(e < 0, (z * y).sum(axis=-1) / np.square(z).sum(axis=-1), a)
            e = np.where(a < 0, np.mean(y, axis=-1), np.maximum(e, 0))
            parameters = np.stack([e, np.maximum(a, 0) * np.exp(exponent * centre), exponent], axis=-1)
            return parameters, np.square(self.y(parameters[..., None, :], x) - y).sum(axis=-1)

        largest = min(LARGEST_EXPONENT, LARGEST_POWER / np.abs(log_x).max())
        log_exponents = np.linspace(np.log(SMALLEST_EXPONENT), np.log(largest), N_EXPONENTS)
        best = np.argmin([fit_at(np.full(x.shape[:-1], b))[1] for b in np.exp(log_exponents)], axis=0)
        low = log_exponents[np.maximum(best - 1, 0)]
        high = log_exponents[np.minimum(best + 1, N_EXPONENTS - 1)]
        for _ in range(N_GOLDEN_STEPS):
            step = (high - low) * (np.sqrt(5) - 1) / 2
            lower = high - step
            upper = low + step
            is_lower = fit_at(np.exp(lower))[1] <= fit_at(np.exp(upper))[1]
            low = np.where(is_lower, low, lower)
            high = np.where(is_lower, upper, high)
        return fit_at(np.exp((low + high) / 2))[0]

    def y(self, parameters: np.ndarray, x: np.ndarray) -> np.ndarray:
        return parameters[..., 0] + LAWS["power"].y(parameters[..., 1:], x)

    def x(self, parameters: np.ndarray, y: np.ndarray) -> np.ndarray:
        above = y - parameters[..., 0]
        return LAWS["power"].x(parameters[..., 1:], np.where(above > FLATTEST * np.abs(y), above, np.nan))

    def warning(self, parameters: np.ndarray) -> str | None:
        e, a, b = parameters
        if a <= 0:
            return "the points do not fall, so they determine no power of x"
        if e <= 0:
            return "e is at its bound 0: the points show no irreducible loss"
        if b < 1.01 * SMALLEST_EXPONENT or b > LARGEST_EXPONENT / 1.01:
            return f"b is at its bound {b:.3g}: the points do not determine it"
        return None


class LogLinearLaw(Law):
    """y = slope*log2(x) + intercept, by least squares in y."""

    kind = "log_linear"
    symbols = SYMBOLS["log_linear"]
    form = "y = slope*log2(x) + intercept"
    formula = "{y} = {slope:.4g}*log2({x}) + {intercept:.5g}"
    steepness = "slope"

    def fit(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.stack(_line(np.log2(x), np.asarray(y, dtype=np.float64)), axis=-1)

    def y(self, parameters: np.ndarray, x: np.ndarray) -> np.ndarray:
        slope, intercept = np.moveaxis(parameters, -1, 0)
        return slope * np.log2(x) + intercept

    def x(self, parameters: np.ndarray, y: np.ndarray) -> np.ndarray:
        slope, intercept = np.moveaxis(parameters, -1, 0)
        with np.errstate(all="ignore"):
            return _finite(np.exp2((y - intercept) / slope), np.abs(slope) > FLATTEST * np.abs(y))


LAWS: dict[LawName, Law] = {law.kind: law for law in (PowerLaw(), IrreduciblePowerLaw(), LogLinearLaw())}
"""Kind -> law; among laws with equal errors the first is chosen."""


def _line(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return slope and intercept of a least-squares line over the last axis; slope 0 if x does not vary."""
    x, y = np.broadcast_arrays(x, y)
    x_mean = x.mean(axis=-1, keepdims=True)
    y_mean = y.mean(axis=-1, keepdims=True)
    spread = np.square(x - x_mean).sum(axis=-1)
    slope = ((x - x_mean) * (y - y_mean)).sum(axis=-1) / np.where(spread > 0, spread, 1)
    return slope, y_mean[..., 0] - slope * x_mean[..., 0]


def _finite(x: np.ndarray, is_determined: np.ndarray) -> np.ndarray:
    """Return x, or nan where it is not determined, as on a level curve, or not a number above 0."""
    return np.where(is_determined & np.isfinite(x) & (x > 0), x, np.nan)
