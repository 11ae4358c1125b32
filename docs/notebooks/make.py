"""Write the notebooks of this folder and execute them: `python docs/notebooks/make.py [FOLDER]`.

The second one works on any Stable Diffusion and folder of pictures; here it gets a tiny one, made on the spot, whose
pictures mean nothing, so that it runs everywhere in seconds.
"""

import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
TESTS = HERE.parents[1] / "tests"

DDPM = """
# From a DDPM to a figure

This notebook opens a small DDPM, asks which training digits made the digits that it drew, and ends with a
figure for a paper. The run comes with the package; everything works the same for a model of your own.
---
import dtrak

run = dtrak.ready_run("runs/digits")
run
---
## The model and the images

`dtrak.load_model` opens any DDPM that diffusers opens, and `dtrak.load_images` a folder, an `.npz` file, or a
data set of the Hugging Face hub.
---
model = dtrak.load_model("runs/digits/model")
model
---
train = dtrak.load_images("digits:train")
train
---
pictures = dtrak.load_images("runs/digits/generated").first(8)
pictures
---
## The scores

One call. Here it has cheap settings, so that it takes seconds; without them it has the recommended ones. A
`cache` keeps the features, so that the next question costs only its pictures.
---
cheap = {"timesteps": 2, "projection_dim": 512, "parameters": "up_blocks"}
scores = dtrak.attribute(model, train, pictures, cache="features", **cheap)
scores
---
scores.top(3)[0]
---
## Two figures

A notebook shows a figure by itself. `save` writes it as vector graphics.
---
figure = scores.plot(3, top=6, bottom=2)
figure.save("proponents.pdf")
figure
---
scores.plot_credit(by="label")
---
## How far to trust them

The run's own scores were made with better settings, and their LDS was measured: models were retrained on random
halves of the digits, and compared with what the scores predict.
---
from dtrak.report.measured import trust_of

trust_of(run).words("step-trak")
"""

LORA = """
# From a LoRA to credit

You have a Stable Diffusion with a LoRA that was fine-tuned on people's pictures. This notebook gives each artist a
share of the credit for its outputs, with an interval.

Set `BASE` to your pipeline's folder or hub id, `LORA` to the LoRA's weights, and `PICTURES` to the folder of the
pictures, with a `metadata.jsonl` that has their captions and artists. The results below are those of a tiny model that
was made on the spot; its pictures mean nothing.
---
import os

BASE = os.environ.get("BASE", "stable-diffusion-v1-5/stable-diffusion-v1-5")
LORA = os.environ.get("LORA", "my-lora")
PICTURES = os.environ.get("PICTURES", "pictures")
OUTPUTS = os.environ.get("OUTPUTS", "outputs")
---
import dtrak

pictures = dtrak.load_images(PICTURES)
pictures
---
model = dtrak.load_model(BASE, lora=LORA)
model
---
## Scores with respect to the LoRA

Only the LoRA's parameters count, and each picture is scored with its own prompt.
---
scores = dtrak.attribute(model, pictures, OUTPUTS, timesteps=4, projection_dim=512, cache="features")
scores
---
## Credit

A share is a group's part of the positive scores. Its interval is that of a bootstrap over the outputs. The
black marks are the artists' shares of the pictures: an artist with as much credit as pictures has nothing
special.
---
for one in scores.credit(by="artist"):
    print(f"{one.group:10} {one.share:6.1%} ({one.low:.1%} to {one.high:.1%})")
---
scores.plot_credit(by="artist")
---
scores.plot(2, top=5, bottom=2)
---
## Before you use it

Credit is an estimate. Measure it with `dtrak evaluate lds`, and read what attribution cannot say in a dispute.
"""


def notebook(text: str) -> nbformat.NotebookNode:
    """Return a notebook from its cells; those that begin with # and a space, or have no code, are Markdown."""
    cells = []
    for index, cell in enumerate(text.strip().split("\n---\n")):
        is_text = cell.startswith("#")
        make = nbformat.v4.new_markdown_cell if is_text else nbformat.v4.new_code_cell
        cells.append(make(cell.strip(), id=f"cell-{index}"))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=kernel)


def tiny_lora(folder: Path) -> dict[str, str]:
    """Make a tiny Stable Diffusion with a LoRA, its pictures and its outputs; return where they are."""
    sys.path.insert(0, str(TESTS))
    from dtrak.images.images import load_images
    from dtrak.models import save_model
    from tiny_stable_diffusion import save_paintings, save_pipeline, save_recipe, trainer_of

    base = save_pipeline(folder / "base")
    recipe = save_recipe(folder, base)
    trainer = trainer_of(recipe, load_images(str(folder / "train")))
    while trainer.step < 4:
        trainer.take_step()
    save_model(trainer.model, folder / "lora")
    outputs = save_paintings(folder / "outputs", 6, seed=2)
    return {"BASE": str(base), "LORA": str(folder / "lora"), "PICTURES": str(folder / "train"), "OUTPUTS": str(outputs)}


def execute(name: str, out: Path) -> nbformat.NotebookNode:
    """Execute a notebook in an empty folder, and write it with its outputs."""
    with TemporaryDirectory() as folder:
        if name == "lora-to-credit":
            (Path(folder) / "tiny").mkdir()
            os.environ |= {
                key: os.path.relpath(value, folder) for key, value in tiny_lora(Path(folder) / "tiny").items()
            }
        made = notebook({"ddpm-to-figure": DDPM, "lora-to-credit": LORA}[name])
        NotebookClient(made, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    for cell in made.cells:
        cell.metadata.pop("execution", None)  # times of day
        if cell.cell_type == "code":  # bars of progress
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    out.mkdir(exist_ok=True)
    nbformat.write(made, out / f"{name}.ipynb")
    return made


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    for one in ("ddpm-to-figure", "lora-to-credit"):
        execute(one, target)
    shutil.rmtree(HERE / "__pycache__", ignore_errors=True)
