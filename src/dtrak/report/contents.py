"""What a run holds, what was measured about it, and which command would be next: for `dtrak info RUN`."""

from dtrak.report.counterfactuals import read_counterfactuals
from dtrak.report.measured import trust_of, trust_words
from dtrak.runs.run import Run


def described(run: Run) -> dict[str, str]:
    """Return facts about the run, each with its name; the last one is what to do next."""
    asked = run.asked
    found = {"what it is": run.summary} | {name.lower(): text for name, text in run.contents().items()}
    if asked is not None:
        methods = list(asked["facts"]["methods"])
        scores = run.scores(methods[0])
        if scores.damping is not None:
            found["damping"] = str(scores.damping)
        measured = trust_of(run)
        for method in methods:
            found[f"trust in {method}"] = trust_words(run, measured, method)
    counterfactuals = read_counterfactuals(run.folder)
    if counterfactuals:
        found["counterfactuals"] = f"of {counterfactuals[0].queries:,} pictures"
    report = run.folder / "report.html"
    found["report"] = str(report) if report.exists() else "none yet"
    found["disk"] = _size(run)
    return found | {"next": next_command(run)}


def next_command(run: Run) -> str:
    """Return the command that makes the first thing that the run does not have."""
    folder = run.folder
    steps = [
        (run.is_trained, f"dtrak train {folder}/recipe.yaml --out {folder}"),
        (any((folder / "generated").glob("*.png")), f"dtrak generate {folder}"),
        (run.asked is not None, f"dtrak attribute {folder}"),
        ((folder / "report.html").exists(), f"dtrak report {folder}"),
        (trust_of(run) is not None, f"dtrak evaluate lds {folder}"),
    ]
    return next((command for done, command in steps if not done), f"dtrak serve {folder}")


def _size(run: Run) -> str:
    total = sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())
    return f"{total / 1e6:,.1f} MB"
