"""Help in groups: `--help` shows the options that most people need, and `--help-all` shows every option.

A group is found by the option's name, so that the same word stands in the same group of every command.
"""

from typing import Any

from typer.core import TyperCommand, TyperGroup

from dtrak.attribution.settings import OPTIONS
from dtrak.cli.scoring import WHERE

WHAT, HOW, RETRAINING, RUNS, OUTPUT = (
    "What to score",
    "How features and scores are made",
    "How models are retrained",
    "Where it runs",
    "Output",
)
NAMES = {
    WHAT: "benchmark queries method model lora prompt train_source validation base size scale subset count seed "
    "top by kind highest images add",
    HOW: "damping grid output_function step encoder checkpoint precision",
    RETRAINING: "subsets fraction seeds output_timesteps output_noises validation_count keep_models remove",
    RUNS: "device host port no_browser shard gpus rate",
    OUTPUT: "out new_run table dry_run ready",
}
GROUPS = {
    **dict.fromkeys(WHERE, RUNS),
    **dict.fromkeys(OPTIONS, HOW),
    **{name: group for group, names in NAMES.items() for name in names.split()},
}
USUAL = ("timesteps", "parameters", "cache")  # of the options for scoring, those that --help shows
RARE = {*OPTIONS, *WHERE, "grid", "output_function", "output_timesteps", "output_noises"} - {*USUAL}
EVERYTHING = "--help-all"
# The commands as `dtrak --help` lists them: the usual way through, then what is for large sets, then what there is.
COMMANDS = [
    *(
        "demo",
        "run",
        "train",
        "generate",
        "attribute",
        "evaluate",
        "credit",
        "report",
        "serve",
        "figure",
        "card",
        "info",
    ),
    *("index", "search", "plan", "methods", "recipes"),
]


class InOrder(TyperGroup):
    """The commands in this order, whichever files they come from."""

    def list_commands(self, ctx: Any) -> list[str]:
        found = super().list_commands(ctx)
        return [*(name for name in COMMANDS if name in found), *(name for name in found if name not in COMMANDS)]


class GroupedCommand(TyperCommand):
    """A command whose help has its options in groups."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the long help if it is asked for."""
        if EVERYTHING in args:
            ctx.meta[EVERYTHING] = True
            print(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options group by group."""
        asked, hidden = EVERYTHING in ctx.meta, 0
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{name: [] for name in NAMES}, "Help": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if self.has_rare and is_rare(param) and not asked:
                hidden += 1
            elif param.param_type_name == "argument":
                groups["Arguments"].append(record)
            else:
                groups[GROUPS.get(param.name, "Help" if param.name == "help" else OUTPUT)].append(record)
        if self.has_rare:
            more = "Show every option and exit." if asked else f"Show {hidden} more options and exit."
            groups["Help"].append((EVERYTHING, more))
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    @property
    def has_rare(self) -> bool:
        """Tell whether the command has the options for scoring, of which there are many."""
        return any(param.name in OPTIONS for param in self.params)


def is_rare(param: Any) -> bool:
    return param.param_type_name == "option" and param.name in RARE
