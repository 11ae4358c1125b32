"""A setting is declared once: the call in Python, recipes and commands have the same ones, with the same defaults."""

import inspect
from dataclasses import asdict, fields
from typing import get_type_hints

import dtrak
from dtrak.attribution.settings import OPTIONS, Options, Settings
from dtrak.cli.commands import app
from dtrak.runs.recipes import Attribution, load_recipe

RUN_TIME = {"top", "cache", "device", "engine"}  # of the call alone: where the work is done, and what it keeps


def test_the_call_has_every_setting_by_name_type_and_default() -> None:
    parameters = {
        name: one
        for name, one in inspect.signature(dtrak.attribute).parameters.items()
        if one.kind is inspect.Parameter.KEYWORD_ONLY and name not in RUN_TIME
    }
    assert {name: one.default for name, one in parameters.items()} == asdict(Settings())
    assert {name: one.annotation for name, one in parameters.items()} == get_type_hints(Settings)


def test_type_checkers_have_every_setting_by_name_and_type() -> None:
    assert get_type_hints(Options) == get_type_hints(Settings)
    assert not Options.__required_keys__


def test_recipes_have_every_setting_and_the_method() -> None:
    assert {one.name for one in fields(Attribution)} == {one.name for one in fields(Settings)} | {"method"}
    assert asdict(load_recipe("digits").attribution) == asdict(Settings()) | {"method": None}


def test_commands_have_an_option_for_every_setting_that_is_typed() -> None:
    typed = {f"--{name.replace('_', '-')}" for name, one in OPTIONS.items() if one.is_typed}
    assert typed >= {"--timesteps", "--projection-dim", "--objective", "--parameters", "--seed", "--dtype", "--damping"}
    assert all(one.help for one in OPTIONS.values())
    for name in ("attribute", "serve"):
        assert typed <= {one.name for one in app[name].assemble_argument_collection()}
