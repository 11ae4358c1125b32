"""Pipelines of every family with a few thousand parameters, made by diffusers' own classes and saved by them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AuraFlowPipeline,
    AuraFlowTransformer2DModel,
    AutoencoderDC,
    AutoencoderKL,
    DDIMScheduler,
    DiTPipeline,
    DiTTransformer2DModel,
    DPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    LDMPipeline,
    Lumina2Pipeline,
    Lumina2Transformer2DModel,
    PixArtAlphaPipeline,
    PixArtSigmaPipeline,
    PixArtTransformer2DModel,
    SanaPipeline,
    SanaTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
    UNet2DModel,
    VQModel,
)
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Gemma2Config,
    Gemma2Model,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
    UMT5Config,
    UMT5EncoderModel,
)

SIDE, TOKENS, WIDTH = 16, 24, 16
LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789,.-'"]


def clip_tokenizer(folder: Path) -> CLIPTokenizer:
    """Letters and digits, alone and at the end of a word."""
    words = LETTERS + [f"{one}</w>" for one in LETTERS] + ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=TOKENS)


def clip(tokenizer: CLIPTokenizer, projected: bool) -> Any:
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=TOKENS,
        projection_dim=WIDTH,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config)


def letter_tokenizer(end: str = "</s>") -> PreTrainedTokenizerFast:
    """Every letter is a token, as a T5 or a Gemma without its vocabulary has it."""
    words = ["<pad>", end, "<unk>", " ", *LETTERS]
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token=end, unk_token="<unk>", model_max_length=TOKENS
    )


def t5(tokenizer: Any, width: int = WIDTH) -> T5EncoderModel:
    return T5EncoderModel(
        T5Config(vocab_size=len(tokenizer), d_model=width, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    )


def vae(channels: int = 4, **more: Any) -> AutoencoderKL:
    return AutoencoderKL(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
        sample_size=SIDE,
        latent_channels=channels,
        **{"scaling_factor": 0.5} | more,
    )


BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def stable_diffusion_xl(folder: Path) -> Any:
    words, more_words = clip_tokenizer(folder / "one"), clip_tokenizer(folder / "two")
    unet = UNet2DConditionModel(
        sample_size=SIDE // 2,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=2 * WIDTH,
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        norm_num_groups=8,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=WIDTH + 6 * 8,
    )
    scheduler = EulerDiscreteScheduler(**BETAS, steps_offset=1, timestep_spacing="leading")
    return StableDiffusionXLPipeline(
        vae(), clip(words, False), clip(more_words, True), words, more_words, unet, scheduler, add_watermarker=False
    )


def stable_diffusion_3(folder: Path) -> Any:
    words, more_words, letters = clip_tokenizer(folder / "one"), clip_tokenizer(folder / "two"), letter_tokenizer()
    transformer = SD3Transformer2DModel(
        sample_size=SIDE // 2,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=2 * WIDTH,
        caption_projection_dim=16,
        pooled_projection_dim=2 * WIDTH,
        pos_embed_max_size=8,
    )
    return StableDiffusion3Pipeline(
        transformer,
        FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae(shift_factor=0.06),
        clip(words, True),
        words,
        clip(more_words, True),
        more_words,
        t5(letters, 2 * WIDTH),
        letters,
    )


def flux(folder: Path, guidance: bool = True) -> Any:
    words, letters = clip_tokenizer(folder / "one"), letter_tokenizer()
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=(2, 2, 4),
        guidance_embeds=guidance,
    )
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    return FluxPipeline(scheduler, vae(shift_factor=0.06), clip(words, False), words, t5(letters), letters, transformer)


def pixart(folder: Path, kind: Any = PixArtSigmaPipeline, large: bool = False) -> Any:
    letters = letter_tokenizer()
    transformer = PixArtTransformer2DModel(
        sample_size=SIDE // 2,
        patch_size=2,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        attention_head_dim=12,
        num_attention_heads=2,
        cross_attention_dim=24,
        caption_channels=WIDTH,
        norm_num_groups=4,
        use_additional_conditions=large,
    )
    return kind(letters, t5(letters), vae(), transformer, DPMSolverMultistepScheduler(**BETAS))


def pixart_alpha(folder: Path) -> Any:
    return pixart(folder, PixArtAlphaPipeline, large=True)


def dit(folder: Path) -> Any:
    transformer = DiTTransformer2DModel(
        sample_size=SIDE // 2,
        patch_size=2,
        in_channels=4,
        out_channels=8,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        num_embeds_ada_norm=1000,
        norm_num_groups=4,
    )
    names = {0: "disc, circle", 1: "stripe", 2: "diamond"}
    return DiTPipeline(transformer, vae(), DDIMScheduler(clip_sample=False), id2label=names)


def latent_diffusion(folder: Path, autoencoder: Any = None) -> Any:
    vq = VQModel(
        block_out_channels=(8, 16),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=4,
        latent_channels=4,
        num_vq_embeddings=16,
    )
    unet = UNet2DModel(
        sample_size=SIDE // 2,
        in_channels=4,
        out_channels=4,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        norm_num_groups=4,
    )
    return LDMPipeline(autoencoder or vq, unet, DDIMScheduler(**BETAS, clip_sample=False))


def latent_diffusion_kl(folder: Path) -> Any:
    return latent_diffusion(folder, vae())


def gemma(tokenizer: Any) -> Gemma2Model:
    config = Gemma2Config(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        pad_token_id=0,
    )
    return Gemma2Model(config)


def sana(folder: Path) -> Any:
    letters = letter_tokenizer()
    autoencoder = AutoencoderDC(
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
        scaling_factor=0.41407,
    )
    transformer = SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=4,
        num_layers=1,
        num_cross_attention_heads=2,
        cross_attention_head_dim=4,
        cross_attention_dim=8,
        caption_channels=WIDTH,
        sample_size=SIDE // 2,
        patch_size=1,
    )
    scheduler = DPMSolverMultistepScheduler(use_flow_sigmas=True, flow_shift=3.0, prediction_type="flow_prediction")
    return SanaPipeline(letters, gemma(letters), autoencoder, transformer, scheduler)


def aura_flow(folder: Path) -> Any:
    letters = letter_tokenizer()
    transformer = AuraFlowTransformer2DModel(
        sample_size=SIDE // 2,
        patch_size=2,
        in_channels=4,
        num_mmdit_layers=1,
        num_single_dit_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        caption_projection_dim=16,
        pos_embed_max_size=64,
    )
    encoder = UMT5EncoderModel(
        UMT5Config(vocab_size=len(letters), d_model=WIDTH, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    )
    return AuraFlowPipeline(letters, encoder, vae(), transformer, FlowMatchEulerDiscreteScheduler(shift=1.73))


def lumina(folder: Path) -> Any:
    letters = letter_tokenizer()
    transformer = Lumina2Transformer2DModel(
        sample_size=SIDE // 2,
        patch_size=2,
        in_channels=4,
        hidden_size=24,
        num_layers=1,
        num_refiner_layers=1,
        num_attention_heads=3,
        num_kv_heads=1,
        multiple_of=2,
        axes_dim_rope=(4, 2, 2),
        axes_lens=(512, 32, 32),
        cap_feat_dim=WIDTH,
    )
    scheduler = FlowMatchEulerDiscreteScheduler(shift=6.0)
    return Lumina2Pipeline(transformer, scheduler, vae(shift_factor=0.06), gemma(letters), letters)


MAKERS: dict[str, Callable[[Path], Any]] = {
    "stable-diffusion-xl": stable_diffusion_xl,
    "stable-diffusion-3": stable_diffusion_3,
    "flux": flux,
    "pixart": pixart,
    "dit": dit,
    "latent-diffusion": latent_diffusion,
    "sana": sana,
    "aura-flow": aura_flow,
    "lumina": lumina,
}


def save_tiny(kind: str, folder: Path, make: Callable[[Path], Any] | None = None) -> Path:
    """Save a pipeline of a family; its weights are random, and none of them is zero."""
    torch.manual_seed(0)
    pipeline = (make or MAKERS[kind])(folder.parent / f"{folder.name}-words")
    for part in pipeline.components.values():
        if isinstance(part, torch.nn.Module):
            for value in part.parameters():  # transformers begin with zeros, which would hide most gradients
                if not value.any():
                    torch.nn.init.normal_(value, std=0.05)
    pipeline.save_pretrained(folder, safe_serialization=True)
    return folder
