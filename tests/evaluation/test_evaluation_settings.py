"""The section `evaluation` of recipes, the options of `dtrak evaluate lds` and `RetrainingSettings` agree."""

from dataclasses import fields

import pytest

from dtrak.cli.commands import app
from dtrak.evaluation.benchmark_making import RetrainingSettings
from dtrak.runs.recipes.schema import Evaluation

OPTIONS = {"timesteps": "output_timesteps", "noises": "output_noises", "validation": "validation_count"}
COUNTERFACTUAL = {"remove", "pictures"}
DEFAULTS = {one.name: one.default for one in fields(RetrainingSettings)}


def test_a_recipe_has_the_settings_of_retraining_by_name_and_leaves_defaults_to_the_command() -> None:
    assert Evaluation.model_fields.keys() - COUNTERFACTUAL == DEFAULTS.keys() - {"seed", "keep_models"}
    assert all(one.default is None for one in Evaluation.model_fields.values())


@pytest.mark.parametrize("name", sorted(DEFAULTS.keys() - {"seed", "generated", "keep_models"}))
def test_the_help_text_shows_the_default(name: str) -> None:
    typed = f"--{OPTIONS.get(name, name).replace('_', '-')}"
    option = next(one for one in app["evaluate"]["lds"].assemble_argument_collection() if one.name == typed)
    assert option.parameter.show_default == ("all" if DEFAULTS[name] is None else str(DEFAULTS[name]))
