"""`widthwise generate`: text from a trained model."""

from pathlib import Path
from typing import Annotated

import typer

from widthwise.cli.step_option import StepOption
from widthwise.cli.terminal import remark, say_json, say_text
from widthwise.config_io import UserError


def generate(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    prompt: Annotated[list[str] | None, typer.Option(help="Text to continue; repeat for a batch.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=2**31 - 1, help="Tokens to add.")] = 128,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="0 takes the most probable token; default: 0.8, or 0 with --speculative."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Sample from the k most probable tokens.")] = None,
    top_p: Annotated[
        float, typer.Option(help="Sample from the fewest tokens that together reach this probability.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the sampling.")] = 0,
    speculative: Annotated[
        bool,
        typer.Option(
            "--speculative", help="Decode greedily with drafts from the heads of multi-token prediction (`model.mtp`)."
        ),
    ] = False,
    step: StepOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Continue texts with the model of a run; without a prompt, start a new document.

    Example: `widthwise generate runs/quickstart/runs/x-seed1 --prompt "def main("`
    """
    from widthwise.config_io import parse
    from widthwise.model.generate import SamplingConfig
    from widthwise.model.generate import generate as continue_prompts
    from widthwise.model.speculative import generate_drafted
    from widthwise.runs.trained import load_trained

    if temperature is None:
        temperature = 0.0 if speculative else 0.8
    if speculative and temperature != 0:
        raise UserError(
            f"--speculative: got --temperature {temperature:g}; drafts are checked greedily, so it must be 0"
        )
    sampling = parse(SamplingConfig, {"temperature": temperature, "top_k": top_k, "top_p": top_p}, "generate")
    trained, drafting = load_trained(run, step=step), {}
    for damage in trained.damages:
        remark(str(damage))
    tokenizer, texts = trained.tokenizer, prompt or [""]
    prompts = [tokenizer.encode(_utf8(text)) or [tokenizer.eos_id] for text in texts]
    if speculative:
        answers, counts = generate_drafted(trained.model, prompts, max_new_tokens, tokenizer.eos_id)
        drafting = {"speculative": counts.record()}
    else:
        answers = continue_prompts(trained.model, prompts, max_new_tokens, sampling, seed, tokenizer.eos_id)
    continuations = [tokenizer.decode(answer) for answer in answers]
    if as_json:
        rows = [{"prompt": text, "continuation": answer} for text, answer in zip(texts, continuations)]
        say_json({"run": str(run), "step": trained.step, "continuations": rows, **drafting})
        return
    say_text("\n\n".join(text + answer for text, answer in zip(texts, continuations)))
    if drafting:
        remark(_shown(drafting["speculative"]))


def _shown(drafting: dict[str, float | None]) -> str:
    rate = drafting["accept_rate"]
    accepted = "no drafts" if rate is None else f"{rate:.1%} of the drafts accepted"
    return f"{accepted}, {drafting['tokens_per_pass']:.2f} tokens a pass, {drafting['tokens_per_second']:,.1f} tokens/s"


def _utf8(prompt: str) -> str:
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise UserError(f"--prompt: {prompt!r} is not UTF-8 text") from None
    return prompt
