"""The laws by which a loss falls with compute, parameters or width.

    power              y = a*x^-b                    a line in ln y over ln x
    power_irreducible  y = e + a*x^-b                the same above an irreducible loss
    log_linear         y = slope*log2(x)+intercept   a line in y over log2 x
    parabola           y = y_min + c*ln(x/x_min)^2   models of one compute budget (isoFLOP)
    chinchilla         y = E + A*x^-alpha + B*x2^-beta

The variable-width paper fits the first (arXiv:2606.18246, Fig. 4); the second is the usual form with an irreducible
loss (arXiv:2203.15556), the third the virtual-width paper's (arXiv:2511.11238, Fig. 8). The last two are approaches 2
and 3 of arXiv:2203.15556. A law fits many data sets at once: x and y are (..., n_points), parameters (..., n_symbols),
so that a bootstrap is one call.
"""

import itertools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.optimize import minimize
from scipy.special import huber

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
HUBER_DELTA = 1e-3
LARGEST_CORRELATION = 0.99
"""Largest correlation of the logarithms of two variables whose exponents can be separated."""
N_STARTS = 60
"""Number of grid points, those with the lowest objective, from which the joint law is fitted."""


class Law(ABC):
    """A form with two or three symbols. Its values are arrays whose last axis is in the order of `symbols`."""

    kind: ClassVar[LawName]
    form: ClassVar[str]
    formula: ClassVar[str]
    """The form with its numbers and the names of x and y, as a format string."""
    factors: ClassVar[tuple[str, ...]] = ()
    """Positive symbols whose ratios mean more than differences: their intervals are of logarithms."""
    steepness: ClassVar[str]
    """The parameter that measures how fast y falls."""
    n_variables: ClassVar[int] = 1
    residual_scale: ClassVar[np.ufunc] = np.positive
    """Maps y to the scale on which residuals are differences."""
    from_residual_scale: ClassVar[np.ufunc] = np.positive
    """The inverse of `residual_scale`."""

    @property
    def symbols(self) -> tuple[str, ...]:
        return SYMBOLS[self.kind]

    @property
    def fewest_points(self) -> int:
        """One more than the number of symbols, so that a degree of freedom remains."""
        return len(self.symbols) + 1

    def objection(self, group: "CurveGroup") -> str | None:
        """Return why the law cannot be fitted to a group; None if it can."""
        n_different = len(np.unique(group.x, axis=0))
        if n_different >= self.fewest_points:
            return None
        return f"needs points at {self.fewest_points} or more different x, and {group.name} has {n_different}"

    def leave_one_out_errors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return (n_points,) y of each point minus the curve through the remaining points.

        nan if the remaining points have fewer different x than the law needs: a curve with as many symbols as points
        goes through all of them.
        """
        rest = np.array([np.delete(np.arange(len(x)), i) for i in range(len(x))])
        if min(len(set(x[i])) for i in rest) < self.fewest_points:
            return np.full(len(x), np.nan)
        return y - self.y(self.fit(x[rest], y[rest]), x)

    @abstractmethod
    def fit(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Fit by least squares on the residual scale: y (..., n_points) -> parameters (..., n_symbols)."""

    @abstractmethod
    def y(self, parameters: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the curve at x; one parameter set for each x, or a single x or parameter set."""

    def warning(self, parameters: np.ndarray, x: np.ndarray) -> str | None:
        """Return why the parameters of one fit to points at x are unreliable; None if they are reliable."""
        return None


class MonotoneLaw(Law):
    """A law whose curve reaches each value of y at most once."""

    @abstractmethod
    def x(self, parameters: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return the x at which the curve reaches y; nan if it never does."""


class PowerLaw(MonotoneLaw):
    """ln y = ln a - b ln x, by least squares in ln y; no irreducible loss."""

    kind = "power"
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


class IrreduciblePowerLaw(MonotoneLaw):
    """y = e + a*x^-b with e >= 0 and a >= 0, by least squares in y.

    Variable projection (Golub and Pereyra 1973): for a given b, a linear fit gives the best e and a. So only b is
    searched, on a grid and then by golden sections around its best value. This needs no starting values, and avoids
    local minima farther apart than the grid.
    """

    kind = "power_irreducible"
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

    def warning(self, parameters: np.ndarray, x: np.ndarray) -> str | None:
        e, a, b = parameters
        if a <= 0:
            return "the points do not fall, so they determine no power of x"
        if e <= 0:
            return "e is at its bound 0: the points show no irreducible loss"
        if b < 1.01 * SMALLEST_EXPONENT or b > LARGEST_EXPONENT / 1.01:
            return f"b is at its bound {b:.3g}: the points do not determine it"
        return None


class LogLinearLaw(MonotoneLaw):
    """y = slope*log2(x) + intercept, by least squares in y."""

    kind = "log_linear"
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


class Parabola(Law):
    """y = y_min + c*ln(x/x_min)^2, by least squares in y, through models trained with one compute budget."""

    kind = "parabola"
    form = "y = y_min + c*ln(x/x_min)^2"
    formula = "{y} = {y_min:.5g} + {c:.4g}*ln({x}/{x_min:.5g})^2"
    factors = ("x_min",)
    steepness = "x_min"

    def fit(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        centre = np.log(x).mean(axis=-1)
        log_x = np.log(x) - centre[..., None]
        design = np.stack([np.square(log_x), log_x, np.ones_like(x)], axis=-1)
        c, slope, level = np.moveaxis((np.linalg.pinv(design) @ y[..., None])[..., 0], -1, 0)
        with np.errstate(all="ignore"):
            offset = -slope / (2 * c)
            return np.stack([np.exp(centre + offset), level + slope * offset / 2, c], axis=-1)

    def y(self, parameters: np.ndarray, x: np.ndarray) -> np.ndarray:
        x_min, y_min, c = np.moveaxis(parameters, -1, 0)
        return y_min + c * np.square(np.log(x / x_min))

    def warning(self, parameters: np.ndarray, x: np.ndarray) -> str | None:
        x_min, _, c = parameters
        return None if c > 0 and x.min() < x_min < x.max() else "no minimum within the points"


class ChinchillaLaw(Law):
    """y = E + A*x^-alpha + B*x2^-beta. x: (n_points, 2).

    Minimises the sum of Huber losses (delta 1e-3) of ln y with L-BFGS from the grid of starts of Hoffmann et al. 2022;
    the sum, not the mean, and to a tight tolerance, as in Besiroglu et al. 2024 (arXiv:2404.10102).
    """

    kind = "chinchilla"
    form = "y = E + A*x^-alpha + B*x2^-beta"
    formula = "{y} = {E:.5g} + {A:.5g}*{x}^-{alpha:.4g} + {B:.5g}*{x2}^-{beta:.4g}"
    factors = ("E", "A", "B")
    steepness = "alpha"
    n_variables = 2
    residual_scale = np.log
    from_residual_scale = np.exp

    def objection(self, group: "CurveGroup") -> str | None:
        is_varied = np.ptp(group.x, axis=0).all()
        is_varied = is_varied and abs(np.corrcoef(np.log(group.x).T)[0, 1]) <= LARGEST_CORRELATION
        problem = None if is_varied else f"needs x and x2 that vary separately in {group.name}"
        return super().objection(group) or problem

    def fit(self, x: np.ndarray, y: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
        """Fit one data set. start: initial parameters, in place of the grid."""
        centre = np.append(0, np.log(x).mean(axis=0))  # decouples the factors from the exponents
        log_x = np.insert(np.log(x), 0, 0, axis=-1) - centre
        log_y = np.log(y)

        def objective(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Return value and gradient at (ln E, ln A, ln B, alpha, beta), in units of delta^2."""
            terms = logs[:3] - np.append(0, logs[3:]) * log_x
            log_sum = np.logaddexp.reduce(terms, axis=-1)
            residual = (log_sum - log_y) / HUBER_DELTA
            value = huber(1, residual).sum()
            by_term = np.clip(residual, -1, 1)[:, None] * np.exp(terms - log_sum[:, None]) / HUBER_DELTA
            return value, np.concatenate([by_term, -by_term[:, 1:] * log_x[:, 1:]], axis=-1).sum(axis=0)

        if start is None:
            factors = np.arange(0, 30, 5)
            exponents = np.arange(0, 2.5, 0.5)
            grid = itertools.product(np.arange(-1, 1.5, 0.5), factors, factors, exponents, exponents)
            starts = np.array(list(grid))
        else:
            starts = np.concatenate([np.log(start[:3]), start[3:]])[None]
        starts[:, 1:3] -= starts[:, 3:] * centre[1:]
        starts = sorted(starts, key=lambda logs: objective(logs)[0])[:N_STARTS]
        options = {"maxiter": 2000, "ftol": 1e-13, "gtol": 1e-6}
        results = [minimize(objective, logs, jac=True, method="L-BFGS-B", options=options) for logs in starts]
        best = min(results, key=lambda result: result.fun).x
        factors = np.exp(best[:3] + np.append(0, best[3:]) * centre)
        return np.concatenate([factors, best[3:]])

    def y(self, parameters: np.ndarray, x: np.ndarray) -> np.ndarray:
        e, a, b, alpha, beta = np.moveaxis(parameters, -1, 0)
        return e + a * x[..., 0] ** -alpha + b * x[..., 1] ** -beta

    def warning(self, parameters: np.ndarray, x: np.ndarray) -> str | None:
        return None if min(parameters[3:]) > 0 else "the points do not fall with both variables"


LAWS: dict[LawName, MonotoneLaw] = {law.kind: law for law in (PowerLaw(), IrreduciblePowerLaw(), LogLinearLaw())}
"""Kind -> law; among laws with equal errors the first is chosen."""
PARABOLA = Parabola()
CHINCHILLA = ChinchillaLaw()
ALL_LAWS: dict[LawName, Law] = {**LAWS, PARABOLA.kind: PARABOLA, CHINCHILLA.kind: CHINCHILLA}
"""All laws, including those fitted only on request."""


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
