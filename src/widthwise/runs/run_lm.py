"""Models under the name `widthwise` in lm-evaluation-harness. Imports lm_eval, of the extra [eval].

Importing this module registers the name: `lm_eval.simple_evaluate(model="widthwise", model_args={"run": "runs/x"})`.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import lm_eval.models  # noqa: F401  (an own name registered before the harness's would keep those out)
import pydantic
import torch
from lm_eval.api.registry import register_model
from lm_eval.utils import simple_parse_args_string

from widthwise.config_io import parse
from widthwise.evaluation.lm_eval_model import ScorerLM
from widthwise.runs.loaded import load_model
from widthwise.runs.scoring import ScoringOptions, TorchDevice
from widthwise.sizes import Count

NAME = "widthwise"


def _number(value: Any) -> Any:
    """The harness's command line gives a batch size as text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _available_device(name: Any) -> Any:
    """The harness gives cuda:0 by default, also where there is none."""
    is_cuda = isinstance(name, str) and name.startswith("cuda")
    return None if is_cuda and not torch.cuda.is_available() else name


class RunOptions(ScoringOptions):
    """`--model_args` of the harness."""

    run: str
    """Path of the run directory, or of a Hugging Face folder."""
    batch_size: Annotated[Count, pydantic.BeforeValidator(_number)] = 16
    """Texts per forward pass."""
    device: Annotated[TorchDevice | None, pydantic.BeforeValidator(_available_device)] = None
    """A torch device; by default cuda, if there is one."""


@register_model(NAME)
class RunLM(ScorerLM):
    """The newest model of a run, or that of a Hugging Face folder."""

    def __init__(self, **options: Any):
        """options: of `RunOptions`. Raises UserError for others, and where the run has no model or no tokenizer."""
        given = parse(RunOptions, options, "model_args")
        loaded = load_model(given.run, given.device)
        super().__init__(loaded.scorer(given))
        self.step = loaded.step

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> "RunLM":
        """arg_dict, of --model_args, goes before additional_config: the harness's own options and their defaults."""
        own = {key: value for key, value in (additional_config or {}).items() if value is not None}
        return cls(**{**own, **arg_dict})

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: Mapping[str, Any] | None = None) -> "RunLM":
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def get_model_info(self) -> dict[str, Any]:
        return {**super().get_model_info(), "step": self.step, "max_length": self.max_length}
