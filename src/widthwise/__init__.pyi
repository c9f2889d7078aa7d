"""The public names, once: type checkers read them here, and `__init__.py` imports each when it is first used."""

from widthwise.cli.progress import training_progress as training_progress
from widthwise.data.config import open_data as open_data
from widthwise.data.json_tokenizer import open_tokenizer as open_tokenizer
from widthwise.data.loader import Loader as Loader
from widthwise.data.prepare import prepare as prepare
from widthwise.data.prepared import PreparedData as PreparedData
from widthwise.experiments.compare import read_plan as read_plan
from widthwise.experiments.running import run_experiment as run_experiment
from widthwise.growth.choices import NewSizes as NewSizes
from widthwise.growth.choices import ShrinkOptions as ShrinkOptions
from widthwise.mistakes import RunFailed as RunFailed
from widthwise.mistakes import UserError as UserError
from widthwise.model.config import ModelConfig as ModelConfig
from widthwise.model.config import cost_summary as cost_summary
from widthwise.model.decoder import Decoder as Decoder
from widthwise.model.ffn import register_ffn as register_ffn
from widthwise.model.generate import SamplingConfig as SamplingConfig
from widthwise.model.generate import generate as generate
from widthwise.model.mup import coordinate_check as coordinate_check
from widthwise.model.residual import register_residual as register_residual
from widthwise.recipe.design import ShapeRequest as ShapeRequest
from widthwise.recipe.design import design_recipe as design_recipe
from widthwise.recipe.inspection import inspect_recipe as inspect_recipe
from widthwise.recipe.models import build as build
from widthwise.recipe.models import grow_model as grow_model
from widthwise.recipe.models import parameter_groups as parameter_groups
from widthwise.recipe.recipe import Recipe as Recipe
from widthwise.recipe.recipe import load_recipe as load_recipe
from widthwise.reports.writing import write_report as write_report
from widthwise.run_dir import RunDir as RunDir
from widthwise.runs.analyse import analyse as analyse
from widthwise.runs.analyse import write_analysis as write_analysis
from widthwise.runs.evaluate import EvaluationConfig as EvaluationConfig
from widthwise.runs.evaluate import evaluate_run as evaluate_run
from widthwise.runs.export import export_run as export_run
from widthwise.runs.grow import grow_run as grow_run
from widthwise.runs.open import Model as Model
from widthwise.runs.open import open_model as open_model
from widthwise.runs.save import import_run as import_run
from widthwise.runs.save import save_run as save_run
from widthwise.runs.shrink import shrink_run as shrink_run
from widthwise.runs.train import resume as resume
from widthwise.runs.train import train as train
from widthwise.shape.search import search as search
from widthwise.shape.search_space import SearchSpace as SearchSpace
from widthwise.shape.template import ModelTemplate as ModelTemplate
from widthwise.training.observer import tracked as tracked

__all__: list[str]
__version__: str
