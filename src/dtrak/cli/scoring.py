"""The options for scoring: one for each setting that has a help text, and those that say where the work is done."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from dtrak.attribution.settings import DEFAULTS, KINDS, OPTIONS, Option, Settings
from dtrak.checks import MOST
from dtrak.cli.options import Cache, some_path, whole_number

if TYPE_CHECKING:
    from dtrak.engines import Engine
    from dtrak.methods import Method

EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="Where gradients are computed and models retrained: process, pool or ray.",
        show_default="this process for gradients, a pool for retraining",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole_number(1, MOST["workers"]),
        help="How many jobs run at a time.",
        show_default="as many as fit",
    ),
]
Address = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="The address of a running Ray cluster, or auto.")
]


@dataclass(frozen=True)
class Scoring:
    """The options for scoring that were typed. A recipe or the defaults decide about the others."""

    typed: dict[str, Any]  # fields of `Settings`
    methods: str | None = None
    cache: Path | None = None
    engine: "Engine | None" = None
    top: int | None = None  # how many of the strongest training images are kept; None means all

    def asking_for(self, methods: str | None, damping: str | None, top: int | None = None) -> "Scoring":
        """Return the same with the options that each command declares in its own way."""
        more = {} if damping is None else {"damping": damping}
        return replace(self, methods=methods, typed=self.typed | more, top=top)

    def settings(self, usual: Settings | None = None) -> Settings:
        """Return the usual settings, with those replaced that were typed."""
        return replace(usual or Settings(), **self.typed)

    def chosen(self, settings: Settings, usual: str | None = None) -> "tuple[Method, ...]":
        """Return the methods that were typed, or the usual ones."""
        from dtrak.methods import chosen_methods

        return chosen_methods(self.methods or usual, settings.objective)

    def every(self, usual: str | None = None) -> bool:
        """Return whether all methods were asked for."""
        return (self.methods or usual) == "all"


def _option(name: str, option: Option) -> Any:
    kinds = get_args(KINDS[name]) or (KINDS[name],)
    if bool in kinds:
        return Annotated[bool | None, typer.Option(f"--{name.replace('_', '-')}", help=option.help)]
    shown = option.shown or str(DEFAULTS[name])
    settings: dict[str, Any] = {"metavar": option.metavar, "help": option.help, "show_default": shown}
    if Path in kinds:
        return Annotated[Path | None, typer.Option(parser=some_path, **settings)]
    if int in kinds and str not in kinds:
        return Annotated[int | None, typer.Option(parser=whole_number(option.least, MOST[name]), **settings)]
    return Annotated[str | None, typer.Option(**settings)]


TYPED = {name: _option(name, option) for name, option in OPTIONS.items() if option.is_typed}
WHERE: dict[str, Any] = {"cache": Cache, "engine": EngineName, "workers": Workers, "address": Address}


def with_scoring(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `Settings` to a command. It gets those that were typed as its argument `scoring`.

    If the command has an option of the same name, its own option is used.
    """
    own = [one for one in inspect.signature(command).parameters.values() if one.name != "scoring"]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in {**TYPED, **WHERE}.items()
        if name not in {one.name for one in own}
    ]

    @wraps(command)
    def widened(**given: Any) -> None:
        typed = {one.name: given.pop(one.name) for one in more}
        cache, *where = (typed.pop(name, None) for name in WHERE)
        typed = {name: value for name, value in typed.items() if value is not None}
        command(**given, scoring=Scoring(typed, cache=cache, engine=engine_of(*where)))

    widened.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
    widened.__annotations__ = {one.name: one.annotation for one in [*own, *more]}
    return widened


def engine_of(name: str | None, workers: int | None, address: str | None) -> "Engine | None":
    """Return the engine that the options name; None if they name none."""
    from dtrak.engines import make_engine

    if name is None and workers is None and address is None:
        return None
    return make_engine(name or ("pool" if address is None else "ray"), workers, address)
