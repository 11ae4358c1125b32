"""What commands share: the options for scoring, those that say where work runs, and parsers of what is typed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, get_args

from cyclopts import Group, Parameter, Token

from dtrak.attribution.settings import DEFAULTS, KINDS, OPTIONS, Options, Settings
from dtrak.checks import MOST, shortened
from dtrak.devices import devices
from dtrak.engines import Engine, make_engine
from dtrak.errors import UsageError, check_known
from dtrak.methods import EVERY_METHOD, Method, chosen_methods

DIGITS = 30  # a number with more digits is above every limit
Parser = Callable[[Any, Sequence[Token]], Any]


def option(
    metavar: str, help: str, shown: str | None = None, parse: Parser | None = None, name: str | None = None
) -> Parameter:
    """Describe an option; `shown` is its default in words."""
    given: dict[str, Any] = {} if parse is None else {"converter": parse}  # none would undo that of `Place`
    return Parameter(name, metavar=metavar, help=help, show_default=shown, **given)


def whole(least: int, most: str | int) -> Parser:
    """Return a parser of whole numbers up to a number, or up to the limit of this name."""
    limit = MOST[most] if isinstance(most, str) else most

    def parse(_: Any, tokens: Sequence[Token]) -> int:
        text, name = tokens[0].value, tokens[0].keyword
        if not text.isdecimal() or (len(text) < DIGITS and int(text) < least):
            raise UsageError(f"Invalid value for '{name}': {shortened(text)} is not a whole number from {least} on")
        if len(text) >= DIGITS or int(text) > limit:
            raise UsageError(f"Invalid value for '{name}': {shortened(text)} is more than {limit:,}")
        return int(text)

    return parse


def some_path(_: Any, tokens: Sequence[Token]) -> Path:
    """Parse a path; refuse an empty text, which would mean the current folder."""
    if not tokens[0].value:
        raise UsageError(f"Invalid value for '{tokens[0].keyword}': the name is empty (--help tells more)")
    return Path(tokens[0].value)


def known_device(_: Any, tokens: Sequence[Token]) -> str:
    check_known("device", tokens[0].value, devices())
    return tokens[0].value


def fastest(device: str | None) -> str:
    """Return the device that was typed, or the fastest one of this machine."""
    return device or devices()[0]


HOW, WHERE = Group("How features and scores are made", sort_key=1), Group("Where it runs", sort_key=3)

Place = Annotated[Path, Parameter(converter=some_path)]
RunFolder = Annotated[Path, Parameter("RUN", help="The folder of a run.")]
Device = Annotated[
    str | None, Parameter(group=WHERE), option("DEVICE", "cpu, cuda, cuda:1 or mps.", "the fastest", known_device)
]
Cache = Annotated[
    Place | None,
    Parameter(group=WHERE),
    option("FOLDER", "Keep the features in this folder, so that the next attribution can use them.", "RUN/features"),
]
Methods = Annotated[
    str | None,
    option(
        "NAME",
        "A method from `dtrak methods`, several such as trak,d-trak, or all.",
        "the recipe's; else step-trak, or d-trak with --objective",
    ),
]
Model = Annotated[str | None, option("MODEL", "A diffusers folder or a hub id.")]
Lora = Annotated[
    str | None, option("LORA", "With --model: its LoRA weights, as a folder, a .safetensors file or a hub id.")
]
Checkpoint = Annotated[
    str | None,
    option(
        "NAME",
        "An earlier checkpoint instead of the final model: its name or number of steps in RUN/checkpoints, or its "
        "folder.",
    ),
]
Highest = Annotated[
    int | None, option("N", "Count only each picture's N highest scores.", "all positive scores", whole(1, "count"))
]


@Parameter("*", group=WHERE)
@dataclass(frozen=True)
class Workers:
    """Where gradients are computed and models retrained."""

    engine: Annotated[
        str | None, option("NAME", "process, pool or ray.", "this process for gradients, a pool for retraining")
    ] = None
    workers: Annotated[
        int | None, option("N", "How many jobs run at a time.", "as many as fit", whole(1, "workers"))
    ] = None
    address: Annotated[str | None, option("HOST:PORT", "The address of a running Ray cluster, or auto.")] = None

    def chosen(self) -> Engine | None:
        """Return the engine that the options name; None if they name none."""
        if self == HERE:
            return None
        return make_engine(self.engine or ("pool" if self.address is None else "ray"), self.workers, self.address)


HERE = Workers()


def scoring_options(own: str) -> Any:
    """Return the options that `Settings` describes, but for a command's `own` one; it gets those that were typed."""
    found: dict[str, Any] = {}
    for name, one in OPTIONS.items():
        kinds = get_args(KINDS[name]) or (KINDS[name],)
        shown = option(one.metavar, one.help, one.shown or str(DEFAULTS[name]))
        if one.is_typed and name != own:
            if bool in kinds:
                found[name] = Annotated[bool, Parameter(help=one.help)]
            elif Path in kinds:
                found[name] = Annotated[Place, shown]
            elif int in kinds and str not in kinds:
                found[name] = Annotated[int, shown, Parameter(converter=whole(one.least, name))]
            else:
                found[name] = Annotated[str, shown]
    flattened: Any = TypedDict
    return Annotated[flattened("Typed", found, total=False), Parameter("*", group=HOW)]


if TYPE_CHECKING:
    Typed = Options
    TypedWithoutDamping = Options
    TypedWithoutStep = Options
else:
    Typed, TypedWithoutDamping, TypedWithoutStep = map(scoring_options, ("", "damping", "step"))
NOTHING: Options = {}


def asked_for(
    typed: Options, method: str | None, settings: Settings | None = None, usual: str | None = None
) -> tuple[Settings, tuple[Method, ...], bool]:
    """Return settings and methods, typed or usual, and whether every method was asked for."""
    chosen = replace(settings or Settings(), **typed)
    return chosen, chosen_methods(method or usual, chosen.objective), (method or usual) == EVERY_METHOD
