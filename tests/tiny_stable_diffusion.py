"""A Stable Diffusion of 0.2 M parameters, made on the spot and saved by diffusers, and pictures to teach it."""

import json
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from PIL import Image
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from dtrak.images.images import Images
from dtrak.models import new_model
from dtrak.runs.recipes import load_recipe
from dtrak.runs.training import Trainer

ARTISTS = ("anna", "bert", "carl")
SIDE, TOKENS = 16, 24


def save_pipeline(folder: Path, prediction_type: str = "epsilon") -> Path:
    """Everything that a pipeline on the hub has, but for the safety checker."""
    torch.manual_seed(0)
    tokenizer = _tokenizer(folder.parent / f"{folder.name}-words")
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=TOKENS,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    vae = AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
        sample_size=SIDE,
        scaling_factor=0.5,
    )
    unet = UNet2DConditionModel(
        sample_size=SIDE // 2,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
        norm_num_groups=8,
    )
    scheduler = PNDMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        skip_prk_steps=True,
        steps_offset=1,
        prediction_type=prediction_type,
    )
    pipeline = StableDiffusionPipeline(
        vae, text_encoder, tokenizer, unet, scheduler, None, None, requires_safety_checker=False
    )
    pipeline.save_pretrained(folder, safe_serialization=True)
    return folder


def _tokenizer(folder: Path) -> CLIPTokenizer:
    """Letters and digits, alone and at the end of a word."""
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789,.-'"]
    words = letters + [f"{one}</w>" for one in letters] + ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir()
    (folder / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=TOKENS)


def save_paintings(folder: Path, count: int, seed: int = 0) -> Path:
    """A folder of pictures with metadata.jsonl: discs by anna, stripes by bert, diamonds by carl."""
    random, lines = np.random.default_rng(seed), []
    y, x = np.mgrid[:SIDE, :SIDE]
    shapes = [
        lambda: (x - 8) ** 2 + (y - 8) ** 2 < random.integers(9, 49),
        lambda: (x // random.integers(2, 4)) % 2 == 0,
        lambda: abs(x - 8) + abs(y - 8) < random.integers(3, 8),
    ]
    folder.mkdir(parents=True)
    for index in range(count):
        which = index % len(ARTISTS)
        picture = np.full((SIDE, SIDE, 3), random.integers(0, 100, 3), dtype=np.uint8)
        picture[shapes[which]()] = random.integers(100, 256, 3)
        name = f"{index:03d}.png"
        Image.fromarray(picture).save(folder / name)
        caption = f"a {('disc', 'stripe', 'diamond')[which]} by {ARTISTS[which]}"
        lines.append(json.dumps({"file_name": name, "artist": ARTISTS[which], "caption": caption}))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder


RECIPE = """
name: tiny-paintings
summary: a tiny Stable Diffusion with a LoRA for paintings
data:
  train: {train}
  validation: {validation}
model:
  kind: stable-diffusion
  base: {base}
  lora: {{rank: 4, alpha: 8, dropout: 0.1}}
  prompt: "{{caption}}"
training: {{epochs: 6, batch_size: 6, learning_rate: 1.0e-2, flip: true, checkpoints: 2}}
generation: {{count: 3, steps: 5, guidance: 7.5}}
attribution: {{timesteps: 4, projection_dim: 128}}
"""


def save_recipe(folder: Path, base: Path) -> Path:
    """A recipe for 18 paintings and 6 more, in the folder."""
    train, validation = save_paintings(folder / "train", 18), save_paintings(folder / "validation", 6, seed=1)
    path = folder / "paintings.yaml"
    path.write_text(RECIPE.format(train=train, validation=validation, base=base))
    return path


def trainer_of(recipe: Path, images: Images) -> Trainer:
    """Of a new LoRA, as `dtrak train` makes it."""
    content = load_recipe(str(recipe))
    torch.manual_seed(0)
    return Trainer(new_model(content.model, images.shape, "tiny"), images, content.training)


if __name__ == "__main__":
    import sys

    place = Path(sys.argv[1])
    place.mkdir(parents=True)
    print(f"dtrak run {save_recipe(place, save_pipeline(place / 'pipeline'))} --out runs/paintings")
