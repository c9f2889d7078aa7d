"""Rows that hold several documents: which document a token is of, and where in it.

A document ends in the end-of-text token, which `prepare` puts there and which belongs to it. A row begins anywhere in
the text, so its first document may be the end of one, and its last the beginning.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from widthwise.config_io import Config, UserError
from widthwise.data.mixture import MixedData, OpenedData
from widthwise.data.prepared import PreparedData
from widthwise.data.shards import TokenFile, bin_path

if TYPE_CHECKING:
    from torch import Tensor

N_CHECKED_DOCUMENTS = 1000


def document_ids(tokens: "Tensor", eos_id: int) -> "Tensor":
    """Which document of its row each token is of, from 0: how many end-of-text tokens stand before it.

    tokens: integers (B, T) -> (B, T).
    """
    ends = (tokens == eos_id).long()
    return ends.cumsum(dim=1) - ends


def document_positions(documents: "Tensor") -> "Tensor":
    """Where in its document each token stands, from 0 at the document's first token in the row: (B, T) -> (B, T)."""
    places = documents.new_ones(documents.shape).cumsum(dim=1) - 1
    begins = documents.diff(dim=1, prepend=documents[:, :1] - 1) != 0
    return places - (places * begins).cummax(dim=1).values


@dataclass(frozen=True)
class Boundaries:
    """What a model is told of the documents in rows of tokens; see `PackingConfig`."""

    eos_id: int
    masks: bool
    resets: bool

    def documents(self, tokens: "Tensor") -> "Tensor | None":
        """The documents that attention stays within, integers (B, T); None where it sees the whole row."""
        return document_ids(tokens, self.eos_id) if self.masks else None

    def positions(self, tokens: "Tensor") -> "Tensor | None":
        """The positions of the tokens, integers (B, T); None where they are those in the row."""
        return document_positions(document_ids(tokens, self.eos_id)) if self.resets else None


NO_BOUNDARIES = Boundaries(eos_id=-1, masks=False, resets=False)
"""Nothing is said, and a row is read as one document."""


class PackingConfig(Config):
    """How rows that hold several documents are read, in training and validation."""

    mask_documents: bool = False
    """Whether attention stays within a document: no token sees one of another document of its row."""
    reset_positions: bool = False
    """Whether positions, rotary and learned, begin at 0 in each document of a row."""

    def boundaries(self, data: OpenedData) -> Boundaries:
        """What these options need to know of opened data.

        Raises UserError if one is on and documents do not end in the tokenizer's end-of-text token, as far as
        N_CHECKED_DOCUMENTS of each file tell.
        """
        asked = [key for key in PackingConfig.model_fields if getattr(self, key)]
        if not asked:
            return NO_BOUNDARIES
        eos_id = data.tokenizer.eos_id
        for tokens in _files(data):
            if (index := unended(tokens, eos_id)) is not None:
                raise UserError(
                    f"data.{asked[0]}: got true, but document {index} of {bin_path(tokens.prefix)} does not end in the "
                    f"end-of-text token {eos_id}, so nothing tells documents apart; prepare the text, or adopt shards "
                    "that were made with --append-eod"
                )
        return Boundaries(eos_id, self.mask_documents, self.reset_positions)


AS_ONE_DOCUMENT = PackingConfig()
"""The default: a row is read as one document."""


def _files(data: OpenedData) -> Iterator[TokenFile]:
    sources: list[PreparedData] = list(data.sources.values()) if isinstance(data, MixedData) else [data]
    for source in sources:
        yield from (source.train, source.held_out)


def unended(tokens: TokenFile, eos_id: int) -> int | None:
    """A document without the end-of-text token at its end, of some that are spread over the file; None: none found."""
    indices = np.linspace(0, tokens.n_documents - 1, min(tokens.n_documents, N_CHECKED_DOCUMENTS), dtype=np.int64)
    return next((int(index) for index in indices if tokens.document(index)[-1:].tolist() not in ([], [eos_id])), None)
