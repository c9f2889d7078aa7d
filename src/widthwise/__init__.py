"""widthwise: language models whose width is a design variable.

The public names. Each is imported from its module when it is first used, so that `import widthwise` and
`widthwise --help` stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from widthwise.config_io import UserError
    from widthwise.data.config import open_data
    from widthwise.data.json_tokenizer import open_tokenizer
    from widthwise.data.loader import Loader
    from widthwise.data.prepare import prepare
    from widthwise.data.prepared import PreparedData
    from widthwise.experiments.compare import read_plan
    from widthwise.experiments.running import run_plan
    from widthwise.growth.choices import NewSizes
    from widthwise.model.config import ModelConfig, cost_summary
    from widthwise.model.decoder import Decoder
    from widthwise.model.ffn import register_ffn
    from widthwise.model.generate import SamplingConfig, generate
    from widthwise.model.mup import coordinate_check
    from widthwise.model.residual import register_residual
    from widthwise.recipe.design import ShapeRequest, design_recipe
    from widthwise.recipe.inspection import inspect_recipe
    from widthwise.recipe.models import build, grow_model, parameter_groups
    from widthwise.recipe.recipe import Recipe, load_recipe
    from widthwise.reports.writing import write_report
    from widthwise.run_dir import RunDir, RunFailed
    from widthwise.runs.analyse import analyse, write_analysis
    from widthwise.runs.evaluate import EvaluationConfig, evaluate_run
    from widthwise.runs.export import export_run
    from widthwise.runs.grow import grow_run
    from widthwise.runs.save import import_run, save_run
    from widthwise.runs.train import resume, train
    from widthwise.runs.trained import Trained, load_trained
    from widthwise.shape.search import search
    from widthwise.shape.search_space import SearchSpace
    from widthwise.shape.template import ModelTemplate
    from widthwise.training.tracked import tracked

__version__ = "0.1.0"

_HOMES = {
    "config_io": ("UserError",),
    "data.config": ("open_data",),
    "data.loader": ("Loader",),
    "data.prepare": ("prepare",),
    "data.prepared": ("PreparedData",),
    "data.json_tokenizer": ("open_tokenizer",),
    "experiments.running": ("run_plan",),
    "experiments.compare": ("read_plan",),
    "growth.choices": ("NewSizes",),
    "model.config": ("ModelConfig", "cost_summary"),
    "model.decoder": ("Decoder",),
    "model.ffn": ("register_ffn",),
    "model.generate": ("SamplingConfig", "generate"),
    "model.mup": ("coordinate_check",),
    "model.residual": ("register_residual",),
    "recipe.design": ("ShapeRequest", "design_recipe"),
    "recipe.inspection": ("inspect_recipe",),
    "recipe.models": ("build", "grow_model", "parameter_groups"),
    "recipe.recipe": ("Recipe", "load_recipe"),
    "reports.writing": ("write_report",),
    "run_dir": ("RunDir", "RunFailed"),
    "runs.analyse": ("analyse", "write_analysis"),
    "runs.evaluate": ("EvaluationConfig", "evaluate_run"),
    "runs.export": ("export_run",),
    "runs.grow": ("grow_run",),
    "runs.save": ("import_run", "save_run"),
    "runs.train": ("resume", "train"),
    "runs.trained": ("Trained", "load_trained"),
    "shape.search": ("search",),
    "shape.search_space": ("SearchSpace",),
    "shape.template": ("ModelTemplate",),
    "training.tracked": ("tracked",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Decoder",
    "EvaluationConfig",
    "Loader",
    "ModelConfig",
    "ModelTemplate",
    "NewSizes",
    "PreparedData",
    "Recipe",
    "RunDir",
    "RunFailed",
    "SamplingConfig",
    "SearchSpace",
    "ShapeRequest",
    "Trained",
    "UserError",
    "analyse",
    "build",
    "coordinate_check",
    "cost_summary",
    "design_recipe",
    "evaluate_run",
    "export_run",
    "generate",
    "grow_model",
    "grow_run",
    "import_run",
    "inspect_recipe",
    "load_recipe",
    "load_trained",
    "open_data",
    "open_tokenizer",
    "parameter_groups",
    "prepare",
    "read_plan",
    "register_ffn",
    "register_residual",
    "resume",
    "run_plan",
    "save_run",
    "search",
    "tracked",
    "train",
    "write_analysis",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'widthwise' has no attribute {name!r}")
    return getattr(import_module(f"widthwise.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    """The public names, loaded or not, for `dir()` and completion."""
    return [*__all__, "__version__"]
