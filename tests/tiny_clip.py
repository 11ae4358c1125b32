"""A CLIP of some 10,000 parameters, as transformers saves it."""

from pathlib import Path

import torch
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

SIDE, DIM = 16, 12
MEAN, DEVIATION = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
HALF = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT = {"vocab_size": 30, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2}
VISION = {"image_size": SIDE, "patch_size": 4, "attention_dropout": 0.5}  # dropout that must stay off


def save_clip(folder: Path) -> Path:
    torch.manual_seed(0)
    config = CLIPConfig(text_config=HALF | TEXT, vision_config=HALF | VISION, projection_dim=DIM)
    CLIPModel(config).save_pretrained(folder)
    CLIPImageProcessorPil(
        size={"shortest_edge": SIDE},
        crop_size={"height": SIDE, "width": SIDE},
        image_mean=MEAN,
        image_std=DEVIATION,
    ).save_pretrained(folder)
    return folder
