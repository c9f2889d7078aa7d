import torch
from tiny_runs import step_config, tiny_recipe

from widthwise.model.decoder import build
from widthwise.recipe.nested import NestedConfig
from widthwise.recipe.width_budget import PenaltyBudget
from widthwise.training.choice_metrics import ChoiceMeans
from widthwise.training.objective import Objective

CPU = torch.device("cpu")
DYNAMIC = "model.ffn={kind: dynamic, min_fraction: 0.25}"
TOKENS = torch.randint(0, 257, (3, 12), generator=torch.Generator().manual_seed(1))


def loss_of(model, width_fraction=None):
    return model.loss(TOKENS[:, :-1], TOKENS[:, 1:], width_fraction=width_fraction)


def test_a_model_without_dynamic_widths_has_one_pass_to_which_nothing_is_added():
    model = build(tiny_recipe().explicit_model, seed=1)
    objective, loss = Objective(step_config(), model.config, CPU), loss_of(model)
    assert list(objective.draw_passes()) == [None]
    assert objective.term(loss, None) is loss.objective
    objective.end_step(ChoiceMeans())
    assert (objective.state(), objective.record()) == ([], {})


def test_the_budget_joins_the_passes_in_which_tokens_choose_their_widths():
    model = build(tiny_recipe(DYNAMIC).explicit_model, seed=1)
    config = step_config(width_budget=PenaltyBudget(weight=0.7), nested=NestedConfig(sandwich=True))
    objective = Objective(config, model.config, CPU)
    assert objective.draw_passes()[:2] == [None, 1.0]
    free, forced = loss_of(model), loss_of(model, 0.5)
    assert objective.term(free, None) > free.objective
    assert objective.term(forced, 0.5) is forced.objective
