"""A setting is declared once: the call in Python, recipes and commands have the same ones, with the same defaults."""

import inspect
from dataclasses import asdict, fields
from pathlib import Path
from typing import get_type_hints

import dtrak
from dtrak.attribution.settings import Settings
from dtrak.cli.commands import app
from dtrak.cli.scoring import OPTIONS
from dtrak.runs.recipes import Attribution, load_recipe

RUN_TIME = {"top", "cache", "device", "engine"}  # of the call alone: where the work is done, and what it keeps


def test_the_call_has_every_setting_by_name_type_and_default() -> None:
    parameters = {
        name: one
        for name, one in inspect.signature(dtrak.attribute).parameters.items()
        if one.kind is inspect.Parameter.KEYWORD_ONLY and name not in RUN_TIME
    }
    assert {name: one.default for name, one in parameters.items()} == asdict(Settings())
    hints = get_type_hints(Settings)
    given_as_object = {"objective", "parameters", "projection", "encoder"}  # a function as well as a name
    for one in fields(Settings):
        wanted = hints[one.name]
        if one.name not in given_as_object:
            assert parameters[one.name].annotation == (
                str | wanted if Path in getattr(wanted, "__args__", ()) else wanted
            ), one.name


def test_recipes_have_every_setting_and_the_method() -> None:
    assert {one.name for one in fields(Attribution)} == {one.name for one in fields(Settings)} | {"method"}
    assert asdict(load_recipe("digits").attribution) == asdict(Settings()) | {"method": None}


def test_commands_have_an_option_for_every_setting_with_a_help_text() -> None:
    commands = {command.name or command.callback.__name__: command.callback for command in app.registered_commands}
    for name in ("attribute", "serve"):
        assert OPTIONS.keys() <= inspect.signature(commands[name]).parameters.keys()
    assert OPTIONS.keys() | {"damping"} >= {"timesteps", "projection_dim", "objective", "parameters", "seed", "dtype"}
