"""Verbs that look at trained models: losses, tasks, activations, generated texts, reports."""

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
from widthwise.config_io import Config
from widthwise.files import write_atomic
from widthwise.mistakes import UserError
from widthwise.records.evaluation import EvaluationTable
from widthwise.records.record import SealedFile
from widthwise.run_dir import RunDir
from widthwise.runs.environment import command_line
from widthwise.runs.scoring import EvaluationConfig


def _check_models(models: Sequence[Path]) -> None:
    """Raise UserError for a path without a model. Called before the slow import of torch."""
    for model in models:
        if not (model / "config.json").is_file():
            RunDir(model).config_yaml()


class CheckpointOptions(Config):
    """Options that select checkpoints of runs."""

    step: NonNegativeInt | None = None
    """Step of each run's checkpoint; default: its newest undamaged one."""
    every_checkpoint: bool = False
    """All checkpoints of each run, first to last."""

    @model_validator(mode="after")
    def _check(self) -> "CheckpointOptions":
        if self.every_checkpoint and self.step is not None:
            raise ValueError(f"step: got {self.step}; conflicts with --every-checkpoint; use one of them")
        return self


class EvalOptions(CheckpointOptions):
    """Options of `eval`."""

    out: Path | None = None
    """One JSON file for all runs, in place of a file in evaluations/ of each run."""
    report: Path | None = None
    """Folder for a page, CSV and LaTeX with a row for each run; significantly better values are marked."""
    baselines: tuple[str, ...] = ()
    """Baseline of a run, as RUN=BASELINE; default: the first run; repeat for several."""


def eval_(
    runs: RunsArgument,
    config: Annotated[EvaluationConfig, "Texts and tasks"],
    options: EvalOptions,
    as_json: JsonOption = False,
) -> None:
    """Measure perplexity and bits per byte of texts, and accuracy on tasks; by default on the run's held-out text.

    With several runs, each is compared with the first, or with its --baseline.

    Example: `widthwise eval runs/quickstart/runs/uniform-seed1 runs/quickstart/runs/x-seed1 --text README.md`
    """
    _check_models(runs)
    from widthwise.evaluation.differences import all_differences, baselines_of, models_table
    from widthwise.reports.evaluation import answer
    from widthwise.reports.evaluations import evaluation_tables, tables_by_checkpoint
    from widthwise.reports.writing import check_kind, write_report
    from widthwise.runs.evaluate import evaluate_run, save_evaluation
    from widthwise.runs.open import checkpoint_steps

    baseline_of_run = dict[str, str]()
    for pair in options.baselines:
        run_name, equals, baseline = pair.rpartition("=")
        if not (run_name and equals and baseline):
            raise UserError(f"--baseline: got {pair!r}; expected RUN=BASELINE")
        baseline_of_run[run_name] = baseline
    baselines = baselines_of([str(run) for run in runs], baseline_of_run)
    if options.report is not None:
        check_kind(options.report, EvaluationTable.file_name)
    evaluations = []
    files = []
    answers = []
    console = progress_console()
    # The evaluation harness has bars, which would break ours.
    progress = nullcontext(LineObserver(console)) if config.tasks else shown_progress(console)
    with progress as observer:
        for run in runs:
            steps = checkpoint_steps(run, observer.message) if options.every_checkpoint else [options.step]
            for step in steps:
                evaluation = evaluate_run(run, config, observer, step)
                evaluations.append(evaluation)
                if options.out is None and options.report is None and evaluation.step is not None:
                    files.append(save_evaluation(evaluation))
    differences = all_differences(evaluations, baselines, by_step=options.every_checkpoint)
    difference_records = [difference.to_data() for difference in differences]
    records = {"runs": [evaluation.to_data() for evaluation in evaluations], "differences": difference_records}
    if options.out is not None:
        write_atomic(options.out, json.dumps(records, indent=2) + "\n")
        files.append(options.out)
    if options.report is not None:
        table = models_table(evaluations, differences, command_line())
        SealedFile(options.report / table.file_name).write(table.to_data() | records)
        files += [options.report / table.file_name, *reversed(write_report(options.report))]
        answers = answer(table)
    summary = {"runs": [evaluation.totals() for evaluation in evaluations], "differences": difference_records}
    make_tables = tables_by_checkpoint if options.every_checkpoint else evaluation_tables
    say_result(summary, as_json, answers, make_tables(evaluations, differences), files)


class AnalyzeOptions(CheckpointOptions):
    """Options of `analyze`."""

    text: Path | None = None
    """Text to read: .txt, .jsonl, .parquet, or a folder; default: the held-out documents of the first run."""
    tokens: PositiveInt = 2**16
    """Amount of text, in tokens of the first model; all models read the same text."""
    seq_len: int | None = Field(default=None, ge=2)
    """Tokens per window; default: seq_len of the first run."""
    batch_size: PositiveInt | None = None
    """Windows per pass; default: 4096 tokens."""
    out: Path | None = None
    """Folder; default: RUN/analysis, or runs/NAME-vs-NAME-analysis; with the suffix -step-N or -of-checkpoints."""


def analyze(models: RunsArgument, options: AnalyzeOptions, as_json: JsonOption = False) -> None:
    """Measure trained models on a text: activations, entropy of the stream, logit lens, attention sinks.

    Several models share each figure.

    Example: `widthwise analyze runs/quickstart/runs/uniform-seed1 runs/quickstart/runs/x-seed1`
    """
    _check_models(models)
    from widthwise.reports.analysis_tables import checkpoints_table, findings, summary_table
    from widthwise.reports.writing import check_kind, write_report
    from widthwise.runs.analyse import analyse, write_analysis

    out = options.out
    if out is not None:
        check_kind(out, "analysis.json")
    with shown_progress(progress_console()) as observer:
        analysis = analyse(
            models,
            options.text,
            options.tokens,
            options.seq_len,
            options.batch_size,
            observer,
            options.step,
            options.every_checkpoint,
        )
    if out is None:
        name = "analysis"
        if options.every_checkpoint:
            name += "-of-checkpoints"
        elif options.step is not None:
            name += f"-step-{options.step}"
        is_one_run = len(models) == 1 and RunDir(models[0]).exists
        out = models[0] / name if is_one_run else Path("runs") / f"{analysis.title.replace('/', '-')}-{name}"
    files = [write_analysis(analysis, out)]
    files += reversed(write_report(out))  # the page comes last
    table = checkpoints_table(analysis) if options.every_checkpoint else summary_table(analysis)
    say_result(analysis, as_json, [sentence for _, sentence in findings(analysis)], [table], files)


class GenerateOptions(Config):
    """Options of `generate`."""

    prompts: tuple[str, ...] = ()
    """Text to continue; repeat for a batch."""
    max_new_tokens: int = Field(default=128, ge=1, lt=2**31)
    """Tokens to generate."""
    temperature: NonNegativeFloat | None = None
    """0 selects the most probable token; default: 0.8, or 0 with speculative decoding."""
    top_k: PositiveInt | None = None
    """Sample from the k most probable tokens."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the fewest tokens that together reach this probability."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the sampling."""
    speculative: bool = False
    """Decode greedily with drafts from the heads of multi-token prediction (`model.mtp`)."""
    no_bos: bool = False
    """Omit the beginning-of-text token that the tokenizer of an imported model adds."""


def generate(run: RunArgument, options: GenerateOptions, step: StepOption = None, as_json: JsonOption = False) -> None:
    """Continue texts with the model of a run or a Hugging Face folder; without a prompt, begin a new document.

    Example: `widthwise generate runs/quickstart/runs/x-seed1 --prompt "def main("`
    """
    _check_models([run])
    from widthwise.model.generate import SamplingConfig, generate_drafted
    from widthwise.model.generate import generate as continue_prompts
    from widthwise.runs.open import open_model

    temperature = options.temperature
    if temperature is None:
        temperature = 0.0 if options.speculative else 0.8
    if options.speculative and temperature != 0:
        raise UserError(
            f"--speculative: got --temperature {temperature:g}; drafts are verified greedily, so it must be 0"
        )
    sampling = SamplingConfig(temperature=temperature, top_k=options.top_k, top_p=options.top_p)
    trained = open_model(run, step=step)
    for damage in trained.damages:
        remark(str(damage))
    tokenizer = trained.tokenizer
    texts = options.prompts or [""]
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(f"--prompt: {text!r} is not UTF-8 text") from None
    if options.no_bos:
        tokenizer.bos_id = None
    if tokenizer.bos_note is not None:
        remark(tokenizer.bos_note)
    prompts = [tokenizer.encode_prompt(text) for text in texts]
    counts = None
    if options.speculative:
        answers, drafts = generate_drafted(trained.model, prompts, options.max_new_tokens, tokenizer.end_ids)
        counts = drafts.record()
    else:
        answers = continue_prompts(
            trained.model, prompts, options.max_new_tokens, sampling, options.seed, tokenizer.end_ids
        )
    continuations = [tokenizer.decode_after(prompt, answer) for prompt, answer in zip(prompts, answers)]
    if as_json:
        rows = [{"prompt": text, "continuation": continuation} for text, continuation in zip(texts, continuations)]
        record = {"run": str(run), "step": trained.step, "continuations": rows}
        say_json(record if counts is None else {**record, "speculative": counts})
        return
    say_text("\n\n".join(text + continuation for text, continuation in zip(texts, continuations)))
    if counts is not None:
        rate = counts["accept_rate"]
        accepted = "no drafts" if rate is None else f"{rate:.1%} of the drafts accepted"
        remark(f"{accepted}, {counts['tokens_per_pass']:.2f} tokens/pass, {counts['tokens_per_second']:,.1f} tokens/s")


class ReportOptions(Config):
    """Options of `report`."""

    out: Path | None = None
    """Folder to write into; required for several runs or comparisons."""
    figures: Literal["svg", "pdf"] | None = None
    """Also write each figure of the page to a file."""
    columns: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    """Quantities of the main table of a comparison or sweep, such as val_loss,layer_params."""
    watch: PositiveInt | None = None
    """Update the page every N seconds until training ends; the browser reloads it."""


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folder of results, or several.")],
    options: ReportOptions,
    as_json: JsonOption = False,
) -> None:
    """Write a report: one HTML page that opens offline, its tables as CSV and LaTeX, and optionally its figures.

    DIR is the folder of a comparison, sweep, fit, analysis or evaluation. Several run directories give a
    common report; several comparisons give a table of the effects that change sign.

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
        say_result(result, as_json, [], [effects.table()], [file])
        return
    files = write()
    if as_json:
        say_json({"files": [str(file) for file in files]})
    else:
        say(*map(str, files))


def _follow(paths: list[Path], write: Callable[..., list[Path]], seconds: int) -> None:
    """Write a page every few seconds until its runs have finished. Ctrl-C writes it a last time, without reloading."""
    from widthwise.reports.writing import is_at_work

    if not is_at_work(paths):
        return
    page, *_ = write(refresh_seconds=seconds)
    remark(f"{page}: written every {seconds} s until training ends")
    try:
        while is_at_work(paths):
            time.sleep(seconds)
            with suppress(UserError):  # files may be incomplete while runs write them
                write(refresh_seconds=seconds)
    except BaseException:
        write()
        raise
