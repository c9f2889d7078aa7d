"""The modules of the norms, at the places where they stand in a sublayer."""

from torch import Tensor, nn

from widthwise.kernels.dispatch import compute_dtype
from widthwise.model.axes import LayerNorm, Norm, RMSNorm

NORM_MODULES: dict[str, type[Norm]] = {"rms": RMSNorm, "layer": LayerNorm}


class ActsBefore:
    """f(norm(x)), the usual order. Mixed into a norm."""

    def before(self, x: Tensor) -> Tensor:
        """x: (B, T, d_read), the stream -> what the sublayer works on."""
        return self(x)  # pyright: ignore[reportCallIssue]

    def after(self, update: Tensor) -> Tensor:
        """update: (B, T, d_write), what the sublayer made -> what joins the stream."""
        return update


class ActsAfter:
    """norm(f(x)). Mixed into a norm."""

    def before(self, x: Tensor) -> Tensor:
        """The stream in the compute type. Cast once: autocast would keep a copy for every matrix that reads x."""
        return x.to(compute_dtype(x))

    def after(self, update: Tensor) -> Tensor:
        """Normalises the update (B, T, d_write) before it joins the stream."""
        return self(update)  # pyright: ignore[reportCallIssue]


class PreNorm(ActsBefore, RMSNorm): ...


class PreLayerNorm(ActsBefore, LayerNorm): ...


class ReorderedNorm(ActsAfter, RMSNorm): ...


class ReorderedLayerNorm(ActsAfter, LayerNorm): ...


class NoNorm(nn.Module):
    """f(x), a sublayer without a norm."""

    def __init__(self, *unused: object):
        super().__init__()

    def before(self, x: Tensor) -> Tensor:
        """The stream in the compute type, cast once as in `ActsAfter`."""
        return x.to(compute_dtype(x))

    def after(self, update: Tensor) -> Tensor:
        """The update as it is."""
        return update


SublayerNorm = PreNorm | PreLayerNorm | ReorderedNorm | ReorderedLayerNorm | NoNorm
PLACED: dict[tuple[str, str], type[SublayerNorm]] = {
    ("pre", "rms"): PreNorm,
    ("pre", "layer"): PreLayerNorm,
    ("reordered", "rms"): ReorderedNorm,
    ("reordered", "layer"): ReorderedLayerNorm,
    ("none", "rms"): NoNorm,
    ("none", "layer"): NoNorm,
}
