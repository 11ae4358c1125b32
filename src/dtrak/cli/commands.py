"""The commands of `dtrak` by their names. Each is a function in a file beside this one, which is read when it is typed.

Their help is their docstring, which `dtrak --help` takes from the source, as imports take seconds.
"""

import ast
import re
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from cyclopts import App, Group, Parameter

# In the order of `dtrak --help`: the usual way through, then what is for large sets, then what there is.
COMMANDS = {
    **dict.fromkeys(("demo", "run", "train", "generate"), "run_commands"),
    "attribute": "attribute_command",
    **dict.fromkeys(("credit", "report", "serve", "figure", "card", "info"), "look_commands"),
    **dict.fromkeys(("index", "search", "plan"), "index_commands"),
    **dict.fromkeys(("methods", "recipes"), "list_commands"),
}
EVALUATIONS = dict.fromkeys(("lds", "retrain", "counterfactual", "credit"), "evaluate_commands")
HELP = """Which training images made this picture? Attribution for diffusion models.

Every long command can be interrupted or killed. Run again, it continues where it stopped.

With --debug anywhere in a command, an error shows its traceback as well.

For a first look, in seconds: dtrak demo --ready. To try everything, in minutes: dtrak demo
"""


def documented(file: str, name: str) -> str:
    """Return the docstring of a command without importing its file."""
    tree = ast.parse(Path(__file__).with_name(f"{file}.py").read_text(encoding="utf-8"))
    found = next(one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name)
    return re.sub(r"(?<!\n)\n(?!\n)", " ", ast.get_docstring(found) or "")


def app_of(name: str, help: str, commands: dict[str, str]) -> App:
    """Return a command line of these commands."""
    found = App(
        name,
        help,
        help_format="plaintext",
        version=lambda: version("dtrak"),
        group_parameters=Group("Options", sort_key=0),
        default_parameter=Parameter(negative=(), allow_repeating=True),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for place, (command, file) in enumerate(commands.items()):
        found.command(f"dtrak.cli.{file}:{command}", command, help=documented(file, command), sort_key=place)
    return found


app = app_of("dtrak", HELP, COMMANDS)
evaluations = app_of("evaluate", "Measure how far scores can be trusted.", EVALUATIONS)
evaluations.sort_key = [*COMMANDS].index("attribute") + 0.5
app.command(evaluations)
app.register_install_completion_command()


@app.command(name="--show-completion")
def show_completion(shell: Literal["bash", "zsh", "fish", "powershell"], /) -> None:
    """Print the script by which a shell completes commands."""
    print(app.generate_completion(shell=shell))
