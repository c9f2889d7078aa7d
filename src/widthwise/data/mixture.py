"""Several prepared corpora that training reads in given proportions."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from widthwise.config_io import UserError
from widthwise.data.documents import ProgressCallback, ignore_progress
from widthwise.data.prepared import PreparedData
from widthwise.data.tokenizer import Tokenizer
from widthwise.data.windows import MixedWindows, TokenMixture


@dataclass(frozen=True)
class SourceUse:
    """How much of its training a run takes from one source, and how often it repeats it."""

    share: float
    """The share of the windows that training reads, between 0 and 1."""
    n_epochs: float
    """How often training reads each window of the source, on average."""


class MixedData:
    """The prepared data of several sources. `train` and `held_out` are mixtures of their token files."""

    def __init__(self, sources: Mapping[str, PreparedData], weights: Mapping[str, int]):
        """weights: whole numbers without a common divisor. Raises UserError naming two sources whose tokens differ."""
        self.sources = {name: sources[name] for name in sorted(sources)}
        self.weights = {name: weights[name] for name in self.sources}
        self._check_tokenizers()
        self.train = TokenMixture({name: data.train for name, data in self.sources.items()}, self.weights)
        self.held_out = TokenMixture({name: data.held_out for name, data in self.sources.items()}, self.weights)

    def _check_tokenizers(self) -> None:
        (first, expected), *others = ((name, data.manifest.tokenizer) for name, data in self.sources.items())
        for name, found in others:
            if found.id != expected.id:
                raise UserError(
                    f"data.mixture: {first} was tokenised by {expected.spec} ({expected.id[:12]}) and {name} by "
                    f"{found.spec} ({found.id[:12]}); all sources need one tokenizer, such as the tokenizer.json of one"
                )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Raises UserError if the tokenizer available now is not the one that made the data."""
        return next(iter(self.sources.values())).tokenizer

    def verify(self, progress: ProgressCallback = ignore_progress) -> None:
        """Compares the checksums of all files, source by source. Raises UserError naming a damaged file."""
        for data in self.sources.values():
            data.verify(progress)

    def use(self, seq_len: int, n_windows: int) -> dict[str, SourceUse]:
        """Source -> its use by a training that reads n_windows windows of seq_len tokens."""
        windows = MixedWindows(self.train, seq_len)
        counts = windows.counts(n_windows)
        return {
            name: SourceUse(counts[name] / n_windows, counts[name] / source.n_windows)
            for name, source in windows.sources.items()
        }


OpenedData = PreparedData | MixedData
"""What the data section of a recipe gives."""
