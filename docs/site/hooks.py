"""Pages of the site that are made from other files: changes, notebooks, and the report of the shipped run."""

import json
import re
import runpy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    made: dict[str, str | bytes] = {"changelog.md": changes(), **live()}
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        made[f"notebooks/{notebook.stem}.md"] = page_of(notebook)
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files of the repository outside docs/ have no page on the site: they stay as text."""
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]+\)", r"\1", markdown)


def changes() -> str:
    """Return the changelog with its links as they are from the site."""
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")


def live() -> dict[str, str | bytes]:
    """Return the report and the explorer of the run that comes with the package."""
    from dtrak.report import write_report
    from dtrak.runs.ready import ready_run

    static_explorer = runpy.run_path(str(Path(__file__).parent / "explorer.py"))["static_explorer"]
    with TemporaryDirectory() as folder:
        run = ready_run(Path(folder) / "digits")
        explorer = {f"live/explorer/{name}": content for name, content in static_explorer(run).items()}
        return {"live/report.html": write_report(run).read_text(encoding="utf-8"), **explorer}


def page_of(notebook: Path) -> str:
    """Return an executed notebook as Markdown, with its pictures."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts = [_cell(cell) for cell in cells]
    place = f"[{notebook.name}]({notebook.name})"
    return "\n\n".join([*parts, f"This page is the notebook {place}, as it was executed."])


def _cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return text
    outputs = "".join(map(_output, cell.get("outputs", [])))
    return f"```python\n{text}\n```\n\n" + (f'<div class="output">{outputs}</div>' if outputs else "")


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="the figure" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    if "text/html" in data:
        return "".join(data["text/html"]).replace("\n", " ")
    text = "".join(output.get("text", data.get("text/plain", "")))
    return "" if output.get("name") == "stderr" else f"<pre>{_escaped(text)}</pre>"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", "&#10;")
