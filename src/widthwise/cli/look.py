"""Verbs that look at what was trained: its losses and answers, activations, texts, pages."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from widthwise.cli.options import JsonOption, RunArgument, RunsArgument, StepOption
from widthwise.cli.progress import LineObserver, shown_progress
from widthwise.cli.terminal import progress_console, remark, say, say_json, say_result, say_text
from widthwise.config_io import Config, UserError
from widthwise.files import write_atomic
from widthwise.records.evaluation import EvaluationTable
from widthwise.records.record import SealedFile
from widthwise.run_dir import RunDir
from widthwise.runs.environment import command_line
from widthwise.runs.scoring import EvaluationConfig


def _check_there(models: Sequence[Path]) -> None:
    """Raise UserError for a path without a model, before the seconds that it takes to import torch."""
    for model in models:
        if not (model / "config.json").is_file():
            RunDir(model).config_yaml()


class CheckpointOptions(Config):
    """The checkpoints of each run."""

    step: NonNegativeInt | None = None
    """Step of each run's checkpoint; default: its newest good one."""
    every_checkpoint: bool = False
    """All checkpoints of each run, first to last."""

    @model_validator(mode="after")
    def _check(self) -> "CheckpointOptions":
        if self.every_checkpoint and self.step is not None:
            raise ValueError(f"step: got {self.step}; conflicts with --every-checkpoint; give one of them")
        return self


class EvalOptions(CheckpointOptions):
    """The checkpoints that are evaluated, what each is compared with, and where the answers go."""

    out: Path | None = None
    """One JSON file for all, instead of one in each run's evaluations/; of folders nothing else is kept."""
    report: Path | None = None
    """Folder for a page, CSV and LaTeX with a row for each run, and what is significantly better marked."""
    baselines: tuple[str, ...] = ()
    """Model that a run is compared with, as RUN=BASELINE; default: the first; repeat for several."""


def eval_(
    runs: RunsArgument,
    config: Annotated[EvaluationConfig, "Texts and tasks"],
    options: EvalOptions,
    as_json: JsonOption = False,
) -> None:
    """Perplexity and bits per byte of texts, and accuracy on tasks; by default on the run's held-out text.

    Of several runs, each is compared with the first, or with its --baseline.

    Example: `widthwise eval runs/quickstart/runs/uniform-seed1 runs/quickstart/runs/x-seed1 --text README.md`
    """
    _check_there(runs)
    from widthwise.evaluation.differences import all_differences, baselines_of
    from widthwise.evaluation.models_table import models_table
    from widthwise.reports.evaluation import answer
    from widthwise.reports.evaluations import evaluation_tables, tables_by_checkpoint
    from widthwise.reports.writing import check_kind, write_report
    from widthwise.runs.evaluate import evaluate_run, save_evaluation
    from widthwise.runs.trained import kept_steps

    step, every_checkpoint, out, report = options.step, options.every_checkpoint, options.out, options.report
    if wrong := [each for each in options.baselines if not all(each.rpartition("="))]:
        raise UserError(f"--baseline: got {wrong[0]!r}; expected RUN=BASELINE")
    given = {each.rpartition("=")[0]: each.rpartition("=")[2] for each in options.baselines}
    beside = baselines_of([str(run) for run in runs], given)
    if report is not None:
        check_kind(report, EvaluationTable.file_name)
    evaluations, files, answers, console = [], [], [], progress_console()
    # The harness shows bars, which would tear ours.
    with nullcontext(LineObserver(console)) if config.tasks else shown_progress(console) as observer:
        for run in runs:
            for each in kept_steps(run, observer.message) if every_checkpoint else (step,):
                evaluations.append(evaluate_run(run, config, observer, each))
                if out is None and report is None and evaluations[-1].step is not None:
                    files.append(save_evaluation(evaluations[-1]))
    differences = all_differences(evaluations, beside, by_step=every_checkpoint)
    compared = [each.to_data() for each in differences]
    whole = {"runs": [each.to_data() for each in evaluations], "differences": compared}
    if out is not None:
        write_atomic(out, json.dumps(whole, indent=2) + "\n")
        files.append(out)
    if report is not None:
        table = models_table(evaluations, differences, command_line())
        SealedFile(report / table.file_name).write(table.to_data() | whole)
        files += [report / table.file_name, *reversed(write_report(report))]
        answers = answer(table)
    shown = {"runs": [each.totals() for each in evaluations], "differences": compared}
    tables = (tables_by_checkpoint if every_checkpoint else evaluation_tables)(evaluations, differences)
    say_result(shown, as_json, answers, tables, files)


class AnalyzeOptions(CheckpointOptions):
    """The text that models read for an analysis, the checkpoints that read it, and the folder it is written to."""

    text: Path | None = None
    """Text to read: .txt, .jsonl, .parquet, or a folder; default: the first run's held-out documents."""
    tokens: PositiveInt = 2**16
    """Amount of text, in tokens of the first model; all models read the same text."""
    seq_len: int | None = Field(default=None, ge=2)
    """Tokens per window; default: the first run's seq_len."""
    batch_size: PositiveInt | None = None
    """Windows per pass; default: 4096 tokens."""
    out: Path | None = None
    """Folder; default: RUN/analysis, or runs/NAME-vs-NAME-analysis; with the suffix -step-N or -of-checkpoints."""
    parquet: bool = False
    """Also write analysis.parquet, one number per row."""


def analyze(models: RunsArgument, options: AnalyzeOptions, as_json: JsonOption = False) -> None:
    """Look inside trained models as they read a text: activations, entropy of the stream, logit lens, attention sinks.

    Several are overlaid.

    Example: `widthwise analyze runs/quickstart/runs/uniform-seed1 runs/quickstart/runs/x-seed1`
    """
    _check_there(models)
    from widthwise.analysis.rows import check_parquet, write_parquet
    from widthwise.reports.analysis_tables import checkpoints_table, findings, summary_table
    from widthwise.reports.writing import check_kind, write_report
    from widthwise.runs.analyse import analyse, write_analysis

    step, every_checkpoint, out = options.step, options.every_checkpoint, options.out
    if options.parquet:
        check_parquet()
    if out is not None:
        check_kind(out, "analysis.json")
    with shown_progress(progress_console()) as observer:
        analysis = analyse(
            models, options.text, options.tokens, options.seq_len, options.batch_size, observer, step, every_checkpoint
        )
    if out is None:
        kind = "-of-checkpoints" if every_checkpoint else "" if step is None else f"-step-{step}"
        name = f"analysis{kind}"
        is_one_run = len(models) == 1 and RunDir(models[0]).exists
        out = models[0] / name if is_one_run else Path("runs") / f"{analysis.title.replace('/', '-')}-{name}"
    files = [write_analysis(analysis, out)]
    if options.parquet:
        files.append(write_parquet(analysis, out))
    files += reversed(write_report(out))  # the page comes last
    table = checkpoints_table(analysis) if every_checkpoint else summary_table(analysis)
    say_result(analysis, as_json, findings(analysis), [table], files)


class GenerateOptions(Config):
    """The options of continuing texts."""

    prompts: tuple[str, ...] = ()
    """Text to continue; repeat for a batch."""
    max_new_tokens: int = Field(default=128, ge=1, lt=2**31)
    """Tokens to add."""
    temperature: NonNegativeFloat | None = None
    """0 takes the most probable token; default: 0.8, or 0 with speculative decoding."""
    top_k: PositiveInt | None = None
    """Sample from the k most probable tokens."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the fewest tokens that together reach this probability."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the sampling."""
    speculative: bool = False
    """Decode greedily with drafts from the heads of multi-token prediction (`model.mtp`)."""
    no_bos: bool = False
    """Leave out the beginning-of-text token that the tokenizer of an imported model puts before a text."""


def generate(run: RunArgument, options: GenerateOptions, step: StepOption = None, as_json: JsonOption = False) -> None:
    """Continue texts with the model of a run or Hugging Face folder; without a prompt, start a new document.

    Example: `widthwise generate runs/quickstart/runs/x-seed1 --prompt "def main("`
    """
    _check_there([run])
    from widthwise.model.generate import SamplingConfig, generate_drafted
    from widthwise.model.generate import generate as continue_prompts
    from widthwise.runs.open import open_model

    temperature = options.temperature
    if temperature is None:
        temperature = 0.0 if options.speculative else 0.8
    if options.speculative and temperature != 0:
        raise UserError(
            f"--speculative: got --temperature {temperature:g}; drafts are checked greedily, so it must be 0"
        )
    sampling = SamplingConfig(temperature=temperature, top_k=options.top_k, top_p=options.top_p)
    trained = open_model(run, step=step, as_decoder=True)
    drafting = {}
    for damage in trained.damages:
        remark(str(damage))
    tokenizer, texts = trained.tokenizer, options.prompts or [""]
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(f"--prompt: {text!r} is not UTF-8 text") from None
    if options.no_bos:
        tokenizer.bos_id = None
    if tokenizer.bos_note is not None:
        remark(tokenizer.bos_note)
    prompts = [*map(tokenizer.encode_prompt, texts)]
    if options.speculative:
        answers, counts = generate_drafted(trained.model, prompts, options.max_new_tokens, tokenizer.end_ids)
        drafting = {"speculative": counts.record()}
    else:
        answers = continue_prompts(
            trained.model, prompts, options.max_new_tokens, sampling, options.seed, tokenizer.end_ids
        )
    continuations = [*map(tokenizer.decode_after, prompts, answers)]
    if as_json:
        rows = [{"prompt": text, "continuation": answer} for text, answer in zip(texts, continuations)]
        say_json({"run": str(run), "step": trained.step, "continuations": rows, **drafting})
        return
    say_text("\n\n".join(text + answer for text, answer in zip(texts, continuations)))
    for counts in drafting.values():
        rate, n_tokens, speed = (counts[key] for key in ("accept_rate", "tokens_per_pass", "tokens_per_second"))
        accepted = "no drafts" if rate is None else f"{rate:.1%} of the drafts accepted"
        remark(f"{accepted}, {n_tokens:.2f} tokens a pass, {speed:,.1f} tokens/s")


class ReportOptions(Config):
    """Where a report is written, and what it has besides its page."""

    out: Path | None = None
    """Folder to write into; required for several runs or comparisons."""
    figures: Literal["svg", "pdf"] | None = None
    """Also write each figure of the page to a file."""
    columns: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    """Quantities of the main table of a comparison, sweep or family, such as val_loss,layer_params."""
    watch: PositiveInt | None = None
    """Rewrite the page every N seconds until training ends; the browser reloads it."""


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folder of results, or several.")],
    options: ReportOptions,
    as_json: JsonOption = False,
) -> None:
    """Write a report: one HTML page that opens offline, its tables as CSV and LaTeX, and optionally its figures.

    DIR is one folder of a comparison, sweep, family, fit, analysis or evaluation. Several run directories have one
    report, and several comparisons have a table of the effects that change sign.

    Example: `widthwise report runs/quickstart --figures pdf`
    """
    from widthwise.reports.effects import are_comparisons
    from widthwise.reports.writing import write_effects, write_report

    write = partial(write_report, paths, options.out, options.figures, options.columns)
    if options.watch is not None:
        _follow(paths, write, options.watch)
    if are_comparisons(paths):
        effects, file = write_effects(paths, options.out, options.figures, options.columns)
        result = {"signs": effects.signs, "files": [str(file)]}
        say_result(result, as_json, effects.sentences(), [effects.table()], [file])
        return
    files = write()
    if as_json:
        say_json({"files": [str(file) for file in files]})
    else:
        say(*map(str, files))


def _follow(paths: list[Path], write: Callable[..., list[Path]], seconds: int) -> None:
    """Write a page every few seconds until what it shows has finished. Ctrl-C leaves a page that does not reload."""
    from widthwise.reports.writing import is_at_work

    if not is_at_work(paths):
        return
    page, *_ = write(refresh_seconds=seconds)
    remark(f"{page}: written every {seconds} s until training ends")
    try:
        while is_at_work(paths):
            time.sleep(seconds)
            with suppress(UserError):  # files that belong together may just be written
                write(refresh_seconds=seconds)
    except BaseException:
        write()
        raise
