"""Download of models from the Hugging Face Hub into the cache of huggingface_hub (extra `hf`)."""

import re
import sys
from pathlib import Path

from widthwise.config_io import require
from widthwise.interop.hf_import import (
    ADAPTER,
    CHAT_TEMPLATE,
    CONFIG,
    GENERATION,
    INDEX,
    ONE_FILE,
    SPECIAL_TOKENS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    read_model,
)
from widthwise.mistakes import UserError

OF_TOKENIZER = (TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, CHAT_TEMPLATE)
FETCHED = (CONFIG, GENERATION, *OF_TOKENIZER, INDEX, ONE_FILE, "model-*.safetensors")
REASONS = {
    "GatedRepoError": "is gated; accept its terms on its page, then run `hf auth login`",
    "RepositoryNotFoundError": "is neither a local folder nor a model on the hub; private ones need `hf auth login`",
    "RevisionNotFoundError": "has no such revision; allowed: a branch, a tag or a commit",
    "IncompleteSnapshotError": "cannot be reached, and the cache holds only some of its files",
    **dict.fromkeys(
        ("RevisionResolutionError", "LocalEntryNotFoundError"),
        "is no local folder, the hub cannot be reached (network, HF_HUB_OFFLINE), and the cache does not have it",
    ),
}
"""Errors of huggingface_hub, subclasses before their base classes."""


def hub_name(source: Path | str) -> str | None:
    """Return the org/name of `hf://org/name`, or of `org/name` if there is no such folder; None for a local folder.

    Raises UserError for an invalid name after `hf:`.
    """
    match = re.fullmatch(r"(hf:/+)?(\w[\w.-]*/[\w.-]+)", str(source))  # a Path drops one of two slashes
    if match is None and str(source).startswith("hf:/"):
        raise UserError(f"{source}: is not the name of a model of the hub; allowed: hf://org/name")
    return None if match is None or (match[1] is None and Path(source).exists()) else match[2]


def import_source(
    source: Path | str, revision: str | None = None, config_only: bool = False
) -> tuple[Path, dict[str, str]]:
    """Return the folder of a model, and its origin for the record of a run: `folder`, and for the hub `commit`.

    source: a local folder, `hf://org/name`, or `org/name` if there is no such folder; revision: branch, tag or commit;
    config_only: fetch only config.json.

    Only JSON, safetensors and the chat template are fetched, once for each commit. Without network, or with
    HF_HUB_OFFLINE=1, the newest commit of the revision in the cache is used. Raises UserError without the extra, and if
    the model cannot be fetched or has no safetensors.
    """
    name = hub_name(source)
    if name is None:
        if revision is not None:
            raise UserError(f"--revision: got {revision}; {source} is a local folder; only the hub has revisions")
        return Path(source), {"folder": Path(source).resolve().name}
    shown = name if revision is None else f"{name} at {revision}"
    try:
        hub, errors, utils = (require(f"huggingface_hub{part}", "hf") for part in ("", ".errors", ".utils"))
    except UserError as error:
        raise UserError(f"{shown}: is no local folder; for models of the hub, {error}") from None
    if not sys.stderr.isatty():
        utils.disable_progress_bars()
    try:
        resolved = hub.resolve_revision(name, revision=revision or "main")
        if re.fullmatch("[0-9a-f]{40}", resolved.resolved) is None:  # it becomes the name of a folder
            raise UserError(f"{shown}: the hub names the commit {resolved.resolved!r}; allowed: 40 hexadecimal digits")
        folder = Path(hub.snapshot_download(name, revision=resolved, allow_patterns=(CONFIG, ADAPTER)))
        read_model(folder)
        if not config_only:
            folder = Path(hub.snapshot_download(name, revision=resolved, allow_patterns=FETCHED))
    except UserError:
        raise
    except Exception as error:  # of the hub, its HTTP library, or the disk
        reason = next((REASONS[kind] for kind in REASONS if isinstance(error, getattr(errors, kind, ()))), None)
        status = getattr(getattr(error.__cause__ or error, "response", None), "status_code", 0)
        if status == 429 or status >= 500:
            reason = f"the hub answers with an error, HTTP {status}; try again later"
        raise UserError(f"{shown}: {reason or f'cannot be fetched ({error})'}") from None
    if not config_only and not any(folder.glob("*.safetensors")):
        raise UserError(
            f"{shown}: holds no {ONE_FILE}; weights in other files, such as pickles, which can run code when read, are "
            "not fetched"
        )
    return folder, {"folder": name, "commit": folder.name}
