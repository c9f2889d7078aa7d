"""widthwise: language models whose width is a design variable.

The public names. Each is imported from its module when it is first used, so that `import widthwise` and
`widthwise --help` stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from widthwise.config_io import UserError
    from widthwise.data.config import open_data
    from widthwise.data.prepare import prepare
    from widthwise.data.prepared import PreparedData
    from widthwise.experiments.compare import run_plan
    from widthwise.experiments.plan import read_plan
    from widthwise.model.config import ModelConfig, cost_summary
    from widthwise.model.decoder import Decoder, build
    from widthwise.model.ffn import register_ffn
    from widthwise.model.generate import SamplingConfig, generate
    from widthwise.model.mup import coordinate_check, parameter_groups
    from widthwise.model.residual import register_residual
    from widthwise.recipe.inspection import inspect_recipe
    from widthwise.recipe.recipe import Recipe, load_recipe
    from widthwise.reports.writing import write_report
    from widthwise.run_dir import RunDir, RunFailed
    from widthwise.runs.analyse import analyse, write_analysis
    from widthwise.runs.train import resume, train
    from widthwise.runs.trained import Trained, load_trained
    from widthwise.shape.search import search
    from widthwise.shape.search_space import SearchSpace
    from widthwise.shape.template import ModelTemplate

_HOMES = {
    "config_io": ("UserError",),
    "data.config": ("open_data",),
    "data.prepare": ("prepare",),
    "data.prepared": ("PreparedData",),
    "experiments.compare": ("run_plan",),
    "experiments.plan": ("read_plan",),
    "model.config": ("ModelConfig", "cost_summary"),
    "model.decoder": ("Decoder", "build"),
    "model.generate": ("SamplingConfig", "generate"),
    "model.ffn": ("register_ffn",),
    "model.mup": ("coordinate_check", "parameter_groups"),
    "model.residual": ("register_residual",),
    "recipe.inspection": ("inspect_recipe",),
    "recipe.recipe": ("Recipe", "load_recipe"),
    "reports.writing": ("write_report",),
    "run_dir": ("RunDir", "RunFailed"),
    "runs.analyse": ("analyse", "write_analysis"),
    "runs.train": ("resume", "train"),
    "runs.trained": ("Trained", "load_trained"),
    "shape.search": ("search",),
    "shape.search_space": ("SearchSpace",),
    "shape.template": ("ModelTemplate",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Decoder",
    "ModelConfig",
    "ModelTemplate",
    "PreparedData",
    "Recipe",
    "RunDir",
    "RunFailed",
    "SamplingConfig",
    "SearchSpace",
    "Trained",
    "UserError",
    "analyse",
    "build",
    "coordinate_check",
    "cost_summary",
    "generate",
    "inspect_recipe",
    "load_recipe",
    "load_trained",
    "open_data",
    "parameter_groups",
    "prepare",
    "read_plan",
    "register_ffn",
    "register_residual",
    "resume",
    "run_plan",
    "search",
    "train",
    "write_analysis",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'widthwise' has no attribute {name!r}")
    return getattr(import_module(f"widthwise.{_HOME_OF[name]}"), name)
