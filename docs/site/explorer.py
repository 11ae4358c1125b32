"""The explorer of the shipped run as static files: its page, the run's images, and data.js with the scores.

Browsers load neither modules nor JSON from a disk, so that the modules are written into the page, and the data are a
script. The page works without any server.
"""

import json
import re
from base64 import b64encode
from pathlib import Path

from dtrak import explorer, report
from dtrak.explorer.catalog import Catalog
from dtrak.explorer.run_pages import credit_of
from dtrak.figures.html_pictures import thumbnail
from dtrak.report.measured import trust_of, trust_words
from dtrak.runs.run import Run

PAGE, THEME = Path(explorer.__file__).parent, Path(report.__file__).parent / "theme.css"
# What needs the model is not there.
STYLE = "<style>#advanced, #tabs a[href^='#ask'], a[download] { display: none !important; }</style>"
SIDE = 192
MODULE = '<script type="module" src="page.js"></script>'


def static_explorer(run: Run) -> dict[str, str | bytes]:
    """Return the files of the page by their names."""
    scores = run.scores()
    assert scores.train is not None
    assert scores.queries is not None
    train, pictures = Catalog("training images", scores.train), Catalog("generated pictures", scores.queries)
    shape = run.train_images.shape
    method = {"name": scores.method, "summary": "", "damped": True, "self_influence": True}
    data = {
        "run": {
            "name": run.folder.name,
            "summary": run.recipe.summary,
            "train": {"count": len(train), "labels": train.labels()},
            "sets": [{"name": "generated", "title": pictures.title, "count": len(pictures)}],
            "methods": [method],
            "damping": "auto",
            "trust": {scores.method: trust_words(run, trust_of(run), scores.method)},
            "width": shape[2],
            "height": shape[1],
            "pixelated": True,
            "version": "",
        },
        "train": [one.described() for one in train.entries],
        "pictures": [one.described() for one in pictures.entries],
        "scores": b64encode(scores.values.tobytes()).decode(),
        "self_influence": [] if scores.self_influence is None else scores.self_influence.tolist(),
        "credit": [{"label": credit_of(scores.one(place), "label")} for place in range(len(pictures))],
    }
    page = (PAGE / "page.html").read_text(encoding="utf-8")
    scripts = '<script src="data.js"></script>\n<script src="static.js"></script>'
    page = page.replace("</head>", f"{STYLE}\n{scripts}\n</head>").replace(MODULE, modules())
    files: dict[str, str | bytes] = {
        path.name: path.read_bytes() for path in PAGE.glob("*") if path.suffix in (".css", ".svg")
    }
    files |= {"index.html": page, "theme.css": THEME.read_bytes(), "data.js": f"window.DATA = {json.dumps(data)}"}
    files["static.js"] = (Path(__file__).parent / "static.js").read_bytes()
    for where, catalog in (("train", train), ("generated", pictures)):
        for one in catalog.entries:
            for size in ("small", "large"):
                files[f"images/{size}/{where}/{one.number}"] = thumbnail(one.images.pixels([one.position])[0], SIDE)[0]
    return files


def modules() -> str:
    """Return the page's modules as parts of the page itself, each under its name."""
    texts = {
        path.stem: re.sub(r'from "\./(\w+)\.js"', r'from "\1"', path.read_text(encoding="utf-8"))
        for path in sorted(PAGE.glob("*.js"))
    }
    first = texts.pop("page")
    addresses = {
        name: f"data:text/javascript;base64,{b64encode(text.encode()).decode()}" for name, text in texts.items()
    }
    imports = json.dumps({"imports": addresses})
    return f'<script type="importmap">{imports}</script>\n<script type="module">\n{first}</script>'
