"""Which schedulers of diffusers are understood, and the noise process of each.

Schedulers that differ only in how they draw pictures have the same noise process.
"""

from collections.abc import Mapping
from inspect import isclass
from pathlib import Path
from typing import Any

from dtrak.checks import MOST, shortened
from dtrak.errors import UsageError
from dtrak.models.noise_process import Diffusion, Flow, NoiseProcess, Preconditioned, ScoreBased

SCORE_BASED = ("ScoreSdeVeScheduler",)
EDM = ("EDMEulerScheduler", "EDMDPMSolverMultistepScheduler")
PREDICTION_TYPES = ("epsilon", "v_prediction", "sample")


def noise_process_of(scheduler: Any, source: str) -> NoiseProcess:
    """Return the noise process of a scheduler of diffusers; refuse one that is not supported."""
    from diffusers import DDIMScheduler, DDPMScheduler, SchedulerMixin

    if isinstance(scheduler, type):
        raise UsageError(f"scheduler is the class {scheduler.__name__}: give an object of it, {scheduler.__name__}()")
    kind = type(scheduler).__name__
    if not isinstance(scheduler, SchedulerMixin):
        raise UsageError(f"scheduler is a {kind}: give a scheduler of diffusers, as DDPMScheduler()")
    config: Any = scheduler.config
    if is_flow(scheduler):
        return Flow(as_flow(scheduler))  # one that has drawn a picture has lost all σ but those of its steps
    if kind in SCORE_BASED + EDM:
        new = type(scheduler).from_config(config)  # as above
        if kind in SCORE_BASED:
            return ScoreBased(new, new.discrete_sigmas.float())
        new.set_timesteps(config.num_train_timesteps)
        return Preconditioned(new, new.sigmas[: config.num_train_timesteps].flip(0).float())
    if not isinstance(scheduler, DDPMScheduler | DDIMScheduler):
        if not config.get("beta_schedule") and config.get("trained_betas") is None:
            raise UsageError(
                f"{source} has a {kind}: only schedulers that add noise like DDPMScheduler, "
                "FlowMatchEulerDiscreteScheduler, ScoreSdeVeScheduler or EDMEulerScheduler are supported; give one of "
                "these that adds noise as your training did"
            )
        scheduler = DDPMScheduler.from_config(config)
    if (predicts := scheduler.config.prediction_type) not in PREDICTION_TYPES:
        raise UsageError(f"{source} predicts {predicts!r}: only {', '.join(PREDICTION_TYPES)} are supported")
    return Diffusion(scheduler)


def is_flow(scheduler: Any) -> bool:
    return "FlowMatch" in type(scheduler).__name__ or bool(scheduler.config.get("use_flow_sigmas"))


def as_flow(scheduler: Any) -> Any:
    """Return the scheduler of a flow as Euler's, with the same T and shift."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    config = scheduler.config
    if config.get("use_flow_sigmas"):
        return FlowMatchEulerDiscreteScheduler(num_train_timesteps=config.num_train_timesteps, shift=config.flow_shift)
    return FlowMatchEulerDiscreteScheduler.from_config(config)


def as_latent(scheduler: Any) -> Any:
    """Return a scheduler for training and attribution of a latent model: latents, unlike pixels, may be beyond ±1."""
    from diffusers import DDPMScheduler

    if is_flow(scheduler):
        return as_flow(scheduler)
    if type(scheduler).__name__ in SCORE_BASED + EDM:
        return scheduler
    return DDPMScheduler.from_config(scheduler.config, clip_sample=False, thresholding=False)


def check_schedule(config: Mapping[str, Any], source: str) -> None:
    """Refuse a schedule of an unknown noise process: diffusers' DDPMScheduler would use its own defaults instead."""
    steps = config.get("num_train_timesteps", 1000)
    if not isinstance(steps, int) or not 0 < steps <= MOST["num_train_timesteps"]:
        raise UsageError(
            f"{source}: its schedule has {shortened(steps)} timesteps: it must be a whole number up to 10^5"
        )
    kind = config.get("_class_name", "DDPMScheduler")
    has_betas = kind == "DDPMScheduler" or config.get("beta_schedule") or config.get("trained_betas")
    if not _is_other(config) and not has_betas:
        raise UsageError(
            f"{source}: its schedule is a {kind}, whose noise process is not supported: wrap its network in "
            "dtrak.DiffusionModel, with a scheduler that adds noise as the training did"
        )


def open_scheduler(folder: Path, config: Mapping[str, Any], source: str, as_ddpm: bool = False) -> Any:
    """Open the scheduler in a folder by its class, which a stranger may have written: only schedulers are opened.

    With `as_ddpm`, one that has β becomes a DDPM's.
    """
    import diffusers

    if as_ddpm and not _is_other(config):
        return diffusers.DDPMScheduler.from_pretrained(folder)
    found: Any = getattr(diffusers, str(config.get("_class_name", "DDPMScheduler")), None)
    if not isclass(found) or not issubclass(found, diffusers.SchedulerMixin):
        raise UsageError(f"{source}: its scheduler is a {config['_class_name']}, which is no scheduler of diffusers")
    kind: Any = found
    return kind.from_pretrained(folder)


def _is_other(config: Mapping[str, Any]) -> bool:
    """Tell whether a schedule has no β: that of a flow, or of noise that is added to an unchanged image."""
    kind = str(config.get("_class_name"))
    return "FlowMatch" in kind or bool(config.get("use_flow_sigmas")) or kind in SCORE_BASED + EDM
