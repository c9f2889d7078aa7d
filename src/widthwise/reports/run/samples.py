"""What the models of runs wrote at their validations."""

from collections.abc import Mapping
from dataclasses import dataclass

from widthwise.records.run import Run
from widthwise.reports.page.formats import clean, shorten

N_SHOWN = 6
"""Texts of one prompt on the page, spread over the run; the file has all."""


@dataclass(frozen=True)
class PromptSamples:
    """The continuations of one prompt in the course of a run."""

    title: str
    prompt: str
    texts: list[tuple[int, str]]
    """Step and text, the latest first."""


def sample_groups(named: Mapping[str, Run]) -> list[PromptSamples]:
    """A group for each run and prompt, in the order of the recipe."""
    groups = []
    for name, run in named.items():
        for prompt in dict.fromkeys(record["prompt"] for record in run.samples):
            found = [(record["step"], record["text"]) for record in run.samples if record["prompt"] == prompt]
            title = f"“{shorten(prompt, 60)}”" if prompt else "The beginning of a document"
            title = title if len(named) == 1 else f"{clean(name)}: {title}"
            groups.append(PromptSamples(title, prompt, _spread(found)[::-1]))
    return groups


def _spread(texts: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """At most N_SHOWN of them, the first and the last included."""
    if len(texts) <= N_SHOWN:
        return texts
    return [texts[round(i * (len(texts) - 1) / (N_SHOWN - 1))] for i in range(N_SHOWN)]
