"""Estimate how long `dtrak evaluate lds` would take for a run, from the time that its own training took."""

import json
import os

from dtrak.evaluation.benchmark_making import RetrainingSettings
from dtrak.runs.run import BENCHMARK, TIMES, Run


def lds_seconds(run: Run) -> float | None:
    """Return the seconds to retrain the run's model M × S times on a part of its images; None if it is unknown.

    The models share the cores of this machine. What features and outputs take is little beside it.
    """
    try:
        times = json.loads((run.folder / TIMES).read_text(encoding="utf-8"))
        training = float(times["steps"]) * float(times["seconds_per_step"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    settings = RetrainingSettings.resumed(run.folder / BENCHMARK, run.recipe.evaluation, {})
    return settings.subsets * settings.seeds * settings.fraction * training / (os.cpu_count() or 1)
