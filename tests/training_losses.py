"""The prediction of each family's network for one image, called as diffusers' training scripts call it."""

from collections.abc import Callable
from typing import Any

import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler
from torch import Tensor

from tiny_pipelines import SIDE

FLOWS = ("stable-diffusion-3", "flux", "sana", "aura-flow", "lumina")


def network_of(pipeline: Any) -> Any:
    return (pipeline.unet if hasattr(pipeline, "unet") else pipeline.transformer).eval()


def stable_diffusion_xl(pipeline: Any, noisy: Tensor, t: Tensor, prompt: str) -> Tensor:
    words, _, pooled, _ = encoded(pipeline, prompt)
    added = {"text_embeds": pooled, "time_ids": torch.tensor([[SIDE, SIDE, 0, 0, SIDE, SIDE]])}
    return network_of(pipeline)(noisy, t, words, added_cond_kwargs=added).sample


def stable_diffusion_3(pipeline: Any, noisy: Tensor, t: Tensor, prompt: str) -> Tensor:
    words, _, pooled, _ = encoded(pipeline, prompt, prompt_2=[prompt], prompt_3=[prompt])
    told = {"encoder_hidden_states": words, "pooled_projections": pooled}
    return network_of(pipeline)(hidden_states=noisy, timestep=t, **told).sample


def flux(pipeline: Any, noisy: Tensor, t: Tensor, prompt: str) -> Tensor:
    words, pooled, text_ids = encoded(pipeline, prompt)
    height, width = noisy.shape[2:]
    output = network_of(pipeline)(
        hidden_states=pipeline._pack_latents(noisy, 1, noisy.shape[1], height, width),
        timestep=t / 1000,
        guidance=torch.tensor([3.5]),
        pooled_projections=pooled,
        encoder_hidden_states=words,
        txt_ids=text_ids,
        img_ids=pipeline._prepare_latent_image_ids(1, height // 2, width // 2, "cpu", torch.float32),
        return_dict=False,
    )[0]
    return pipeline._unpack_latents(output, SIDE, SIDE, pipeline.vae_scale_factor)


def pixart(pipeline: Any, noisy: Tensor, t: Tensor, prompt: str, added: Any = None) -> Tensor:
    words, mask, _, _ = encoded(pipeline, prompt)
    output = network_of(pipeline)(
        noisy,
        encoder_hidden_states=words,
        encoder_attention_mask=mask,
        timestep=t,
        added_cond_kwargs=added or {"resolution": None, "aspect_ratio": None},
    )
    return output.sample.chunk(2, 1)[0]


def pixart_alpha(pipeline: Any, noisy: Tensor, t: Tensor, prompt: str) -> Tensor:
    added = {"resolution": torch.tensor([[SIDE, SIDE]]).float(), "aspect_ratio": torch.tensor([[1.0]])}
    return pixart(pipeline, noisy, t, prompt, added)


def dit(pipeline: Any, noisy: Tensor, t: Tensor, name: str) -> Tensor:
    label = torch.tensor([{"circle": 0, "stripe": 1, "2": 2}[name]])
    return network_of(pipeline)(noisy, timestep=t, class_labels=label).sample.chunk(2, 1)[0]


def latent_diffusion(pipeline: Any, noisy: Tensor, t: Tensor, prompt: str) -> Tensor:
    return network_of(pipeline)(noisy, t).sample


def sana(pipeline: Any, noisy: Tensor, t: Tensor, prompt: str) -> Tensor:
    from inspect import signature

    instruction = signature(type(pipeline).__call__).parameters["complex_human_instruction"].default
    words, mask, _, _ = encoded(pipeline, prompt, complex_human_instruction=instruction)
    told = {"encoder_hidden_states": words, "encoder_attention_mask": mask}
    return network_of(pipeline)(noisy, timestep=t, **told).sample


def aura_flow(pipeline: Any, noisy: Tensor, t: Tensor, prompt: str) -> Tensor:
    return network_of(pipeline)(noisy, encoder_hidden_states=encoded(pipeline, prompt)[0], timestep=t / 1000).sample


def lumina(pipeline: Any, noisy: Tensor, t: Tensor, prompt: str) -> Tensor:
    words, mask, _, _ = encoded(pipeline, prompt)
    told = {"encoder_hidden_states": words, "encoder_attention_mask": mask}
    return -network_of(pipeline)(hidden_states=noisy, timestep=1 - t / 1000, return_dict=False, **told)[0]


PREDICTIONS: dict[str, Callable[[Any, Tensor, Tensor, str], Tensor]] = {
    "stable-diffusion-xl": stable_diffusion_xl,
    "stable-diffusion-3": stable_diffusion_3,
    "flux": flux,
    "pixart": pixart,
    "pixart-alpha": pixart_alpha,
    "dit": dit,
    "latent-diffusion": latent_diffusion,
    "latent-diffusion-kl": latent_diffusion,
    "sana": sana,
    "aura-flow": aura_flow,
    "lumina": lumina,
}


@torch.no_grad()
def encoded(pipeline: Any, prompt: str, **more: Any) -> Any:
    return (
        pipeline.encode_prompt([prompt], **{"prompt_2": [prompt]} | more)
        if hasattr(pipeline, "tokenizer_2")
        else pipeline.encode_prompt([prompt], **more)
    )


def training_loss(kind: str, pipeline: Any, latents: Tensor, noise: Tensor, t: int, told: str) -> Tensor:
    """The loss of one image at the t-th timestep, as diffusers' scripts for training compute it."""
    if kind in FLOWS:
        scheduler = pipeline.scheduler
        if kind == "sana":  # its training script has this scheduler, with the shift of the one that draws
            scheduler = FlowMatchEulerDiscreteScheduler(shift=scheduler.config.flow_shift)
        sigma, timestep = scheduler.sigmas[999 - t], scheduler.timesteps[999 - t].view(1)
        noisy, target = (1.0 - sigma) * latents + sigma * noise, noise - latents
    else:
        timestep, target = torch.tensor([t]), noise
        noisy = DDIMScheduler.from_config(pipeline.scheduler.config).add_noise(latents, noise, timestep)
    return (PREDICTIONS[kind](pipeline, noisy, timestep, told) - target).square().mean()


@torch.no_grad()
def latents_by_diffusers(pipeline: Any, images: Tensor) -> Tensor:
    vae = pipeline.vqvae if hasattr(pipeline, "vqvae") else pipeline.vae
    encoded_images = vae.encode(images)
    latents = encoded_images.latent_dist.mode() if hasattr(encoded_images, "latent_dist") else encoded_images[0]
    return (latents - (vae.config.get("shift_factor") or 0.0)) * vae.config.scaling_factor
