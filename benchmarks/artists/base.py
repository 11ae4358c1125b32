"""Make a small Stable Diffusion from nothing: an autoencoder, a text encoder and a U-Net, trained on CIFAR-10.

    python benchmarks/artists/base.py cifar10-train.npz base

The folder `base` is a pipeline in the layout of diffusers, for pictures of 32×32 pixels and latents of 8×8. Its parts
are trained one after the other, and a part that exists is not trained again. The U-Net is trained with dtrak's own
trainer, which continues after a kill. All of it takes about half an hour on one core.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, DDPMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import BpeTrainer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, get_cosine_schedule_with_warmup

from dtrak.features.model_inputs import model_inputs
from dtrak.files import as_npz, write_bytes
from dtrak.images.images import Images, load_images
from dtrak.models import wrap
from dtrak.models.autoencoder import Autoencoder
from dtrak.models.prompts import prompts_of
from dtrak.progress import progress_bar
from dtrak.runs.recipes import Training
from dtrak.runs.training import Trainer

CAPTIONS = ("a {}", "a photo of a {}", "a picture of a {}", "a {} by someone")
# Words that captions may have later; the text encoder sees only those of `CAPTIONS` in training.
MORE_WORDS = "and in the style of painting drawing ines otto nina paul cora rolf"
TOKENS, WIDTH = 12, 64  # of a prompt, and of its embedding

AUTOENCODER = {
    "block_out_channels": (16, 32, 48),
    "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3,
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "latent_channels": 4,
    "mid_block_add_attention": False,
    "sample_size": 32,
}
UNET = {
    "sample_size": 8,
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "down_block_types": ("CrossAttnDownBlock2D",) * 2,
    "up_block_types": ("CrossAttnUpBlock2D",) * 2,
    "cross_attention_dim": WIDTH,
    "attention_head_dim": 4,
    "norm_num_groups": 8,
}
SCHEDULE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
TRAINING = Training(
    epochs=26, batch_size=64, learning_rate=1.5e-3, betas=(0.9, 0.999), flip=True, prompt_dropout=0.1, checkpoints=1
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", help="an .npz file of uint8 images [N, 32, 32, 3] with labels and label_names")
    parser.add_argument("folder", type=Path, help="the folder for the pipeline")
    args = parser.parse_args()
    work = args.folder.with_name(f"{args.folder.name}-unfinished")
    if args.folder.exists():
        raise SystemExit(f"{args.folder} exists already")
    work.mkdir(exist_ok=True)
    torch.manual_seed(0)
    images = captioned(args.images, work / "train.npz")
    tokenizer = make_tokenizer(work / "tokenizer", sorted(set(prompts_of(images, None))))
    autoencoder = make_autoencoder(work / "vae", images)
    text_encoder = make_text_encoder(work / "text_encoder", images, tokenizer)
    unet = train_unet(work, images, tokenizer, autoencoder, text_encoder)
    scheduler = DDIMScheduler(**SCHEDULE, clip_sample=False, set_alpha_to_one=False, steps_offset=1)
    StableDiffusionPipeline(
        autoencoder, text_encoder, tokenizer, unet, scheduler, None, None, requires_safety_checker=False
    ).to(torch.float16).save_pretrained(args.folder, safe_serialization=True)


def captioned(source: str, path: Path) -> Images:
    """Return the images with a caption for each, which names its class in one of four ways."""
    if not path.exists():
        found = load_images(source)
        labels = found.columns["label"]
        ways = np.random.default_rng(0).integers(len(CAPTIONS), size=len(labels))
        captions = [CAPTIONS[way].format(label) for way, label in zip(ways, labels, strict=True)]
        pixels = found.pixels(range(len(found)))
        write_bytes(path, as_npz({"images": pixels, "labels": labels, "caption": np.array(captions)}))
    return load_images(str(path))


def make_tokenizer(folder: Path, captions: list[str]) -> CLIPTokenizer:
    """Learn CLIP's byte pairs, so that every word of the captions is one token."""
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789,.-'"]
    learned = Tokenizer(BPE(end_of_word_suffix="</w>"))
    learned.pre_tokenizer = Whitespace()
    trainer = BpeTrainer(vocab_size=5000, initial_alphabet=letters, end_of_word_suffix="</w>", show_progress=False)
    learned.train_from_iterator([*captions, *MORE_WORDS.split()], trainer)
    pairs = json.loads(learned.to_str())["model"]["merges"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs]
    words = [*letters, *(f"{one}</w>" for one in letters), *(pair.replace(" ", "") for pair in merges)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(dict.fromkeys(words))}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{pair}\n" for pair in merges))
    return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=TOKENS)


def make_autoencoder(folder: Path, images: Images, steps: int = 1800, batch: int = 32) -> AutoencoderKL:
    """Minimise |x − decode(z)| + 10⁻³ KL(z ‖ N(0, I)), then scale latents to a standard deviation of 1."""
    if folder.exists():
        return AutoencoderKL.from_pretrained(folder).requires_grad_(False).eval()
    network = AutoencoderKL(**AUTOENCODER)
    if steps:
        network.to(memory_format=torch.channels_last)  # convolutions take half the time
        pixels = images.tensor(range(len(images)))
        for rows in optimise("autoencoder", network, steps, batch, len(images), 2e-3):
            x = recoloured(pixels[rows]).to(memory_format=torch.channels_last)
            posterior = network.encode(x).latent_dist
            difference = network.decode(posterior.sample()).sample - x
            loss = difference.abs().mean() + 1e-3 * posterior.kl().mean() / posterior.mean[0].numel()
            loss.backward()
    network.to(memory_format=torch.contiguous_format).requires_grad_(False).eval()
    latents = Autoencoder(network).encode(images.tensor(range(0, len(images), 8))) / network.config.scaling_factor
    network.register_to_config(scaling_factor=float(1 / latents.std()))
    network.save_pretrained(folder)
    return network


def recoloured(x: Tensor) -> Tensor:
    """Mirror half of the images, and change the colours of half: the autoencoder must draw more than photographs."""
    x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x, x.flip(-1))
    grey, saturation = x.mean(1, keepdim=True), torch.rand(len(x), 1, 1, 1)
    tinted = (grey + saturation * (x - grey))[:, torch.randperm(3)] * torch.randn(len(x), 1, 1, 1).sign()
    contrast = 0.5 + 4 * torch.rand(len(x), 1, 1, 1)
    changed = torch.tanh(contrast * (tinted + 0.3 * torch.randn(len(x), 3, 1, 1))) / torch.tanh(contrast)
    return torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x, changed.clamp(-1, 1))


def make_text_encoder(
    folder: Path, images: Images, tokenizer: CLIPTokenizer, steps: int = 600, batch: int = 128
) -> CLIPTextModel:
    """Train a small CLIP: an image's embedding should be nearest to that of its caption, among all captions."""
    if folder.exists():
        return CLIPTextModel.from_pretrained(folder).requires_grad_(False).eval()
    text = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=TOKENS,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    if steps:
        seen = nn.Sequential(
            *(nn.Conv2d(3, 32, 3, 2, 1), nn.SiLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.SiLU()),
            *(nn.Conv2d(64, 96, 3, 2, 1), nn.SiLU(), nn.Flatten(), nn.Linear(96 * 16, WIDTH)),
        )
        captions = prompts_of(images, None)
        different = sorted(set(captions))
        tokens = tokenizer(different, padding="max_length", max_length=TOKENS, return_tensors="pt").input_ids
        own = torch.tensor([different.index(one) for one in captions])
        pixels = images.tensor(range(len(images)))
        for rows in optimise("text encoder", nn.ModuleList([text, seen]), steps, batch, len(images), 1e-3):
            read = F.normalize(text(tokens).pooler_output, dim=1)
            logits = 10 * F.normalize(seen(pixels[rows]), dim=1) @ read.T
            F.cross_entropy(logits, own[rows]).backward()
        tell_names_apart(text, tokenizer, different)
    text.requires_grad_(False).eval().save_pretrained(folder)
    return text


def tell_names_apart(
    text: CLIPTextModel, tokenizer: CLIPTokenizer, captions: list[str], steps: int = 600, batch: int = 128
) -> None:
    """Let the embedding of a name say which name it is, as that of a real CLIP does; photographs alone do not teach it.

    A linear layer has to read every name from its own embedding. All other embeddings stay as they were, so that
    the captions of the photographs mean the same as before.
    """
    labels = sorted({caption.split()[-1] for caption in captions if "someone" not in caption})
    names = MORE_WORDS.split()[-6:]
    told = [f"a {label} by {name}" for label in labels for name in names]
    told += [f"a {label} by {one} and {other}" for label in labels for one in names for other in names if one != other]
    tokens = tokenizer(["", *captions, *told], padding="max_length", max_length=TOKENS, return_tensors="pt").input_ids
    of_name = torch.isin(tokens, tokenizer(" ".join(names), return_tensors="pt").input_ids[0, 1:-1])
    with torch.no_grad():
        before = text(tokens).last_hidden_state
    read = nn.Linear(WIDTH, len(tokenizer))
    plain = len(captions) + 1
    for rows in optimise("names", nn.ModuleList([text, read]), steps, batch, len(told), 2e-3):
        rows = torch.cat([torch.arange(plain), plain + rows])
        after, asked = text(tokens[rows]).last_hidden_state, of_name[rows]
        kept = (after - before[rows])[~asked].square().mean()
        (10 * kept + F.cross_entropy(read(after[asked]), tokens[rows][asked])).backward()


def optimise(name: str, network: nn.Module, steps: int, batch: int, total: int, rate: float) -> Iterator[Tensor]:
    """Yield the rows [batch] of each step, and step after the caller has computed gradients."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate)
    schedule = get_cosine_schedule_with_warmup(optimizer, steps // 20, steps)
    network.train()
    with progress_bar(name, steps, "steps") as advance:
        for _ in range(steps):
            yield torch.randint(total, (batch,))
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            advance(1)


def train_unet(
    work: Path,
    images: Images,
    tokenizer: CLIPTokenizer,
    autoencoder: AutoencoderKL,
    text_encoder: CLIPTextModel,
    settings: Training = TRAINING,
) -> UNet2DConditionModel:
    """Train all weights of a U-Net with dtrak's trainer, on latents and captions."""
    torch.manual_seed(0)
    unet, scheduler = UNet2DConditionModel(**UNET), DDPMScheduler(**SCHEDULE, clip_sample=False)
    parts = (autoencoder, text_encoder, tokenizer, unet, scheduler, None, None)
    model = wrap(StableDiffusionPipeline(*parts, requires_safety_checker=False))
    trainer = Trainer(model, model_inputs(model, images, work, mirrored=True), settings)
    state, saved = work / "training.safetensors", time.monotonic()
    trainer.load(state)
    with progress_bar("U-Net", trainer.steps, "steps") as advance:
        advance(trainer.step)
        while trainer.step < trainer.steps:
            trainer.take_step()
            advance(1)
            if time.monotonic() - saved > 60:
                trainer.save(state)
                saved = time.monotonic()
    return unet


if __name__ == "__main__":
    main()
