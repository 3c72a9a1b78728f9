"""Networks of packages where these are installed: transformers and torchvision."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adjoint.bench.problems import Network, Problem
from adjoint.bench.zoo.convolutional import classifier
from adjoint.bench.zoo.scales import choose, tokens

# Ignored by the losses of transformers.
UNLABELLED = -100
FRACTION_MASKED = 0.15
LABELS = 10


class LossOf(nn.Module):
    """A network of transformers as a function from its inputs, in order, to its loss."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        loss: Tensor = self.model(**dict(zip(self.names, inputs, strict=True))).loss
        return loss


Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Transformer:
    """A class of transformers, the fields of its configuration by scale, and its batches."""

    name: str
    full: Mapping[str, object]
    cpu: Mapping[str, object]
    batch: Callable[[int, tuple[int, int], str], Batch]
    """From the size of the vocabulary, or of the images, and how many of them, how long."""
    full_shape: tuple[int, int]
    cpu_shape: tuple[int, int] = (4, 64)
    half: bool = False
    """All parameters are bfloat16 on a GPU, instead of autocast."""

    def problem(self, device: str, small: bool) -> Problem:
        package = importlib.import_module("transformers")
        fields = choose(device, small, full=self.full, cpu=self.cpu, tiny=self.cpu)
        shape = choose(device, small, full=self.full_shape, cpu=self.cpu_shape, tiny=(2, 16))
        torch.manual_seed(0)
        kind = getattr(package, self.name)
        model = kind(kind.config_class(**fields, use_cache=False)).to(device).train()
        extent = fields.get("vocab_size", fields.get("image_size"))
        assert isinstance(extent, int)
        batch = self.batch(extent, shape, device)
        half = self.half and device == "cuda"
        net = LossOf(model.bfloat16() if half else model, tuple(batch))
        mixed = device == "cuda" and not half
        return Problem(net, tuple(batch.values()), _loss, {}, mixed=mixed)


def _loss(net: Network, *inputs: Tensor) -> Tensor:
    return net(*inputs)


def _causal(vocabulary: int, shape: tuple[int, int], device: str) -> Batch:
    text = tokens(vocabulary, shape, device)
    return {"input_ids": text, "labels": text}


def _masked(vocabulary: int, shape: tuple[int, int], device: str) -> Batch:
    """Some tokens are to be predicted, and texts have different lengths."""
    text = tokens(vocabulary, shape, device)
    count, longest = shape
    lengths = torch.linspace(longest // 2, longest, count, device=device).long()
    there = torch.arange(longest, device=device) < lengths[:, None]
    chosen = (torch.rand(shape, device=device) < FRACTION_MASKED) & there
    labels = torch.where(chosen, text, UNLABELLED)
    return {"input_ids": text, "attention_mask": there.long(), "labels": labels}


def _translated(vocabulary: int, shape: tuple[int, int], device: str) -> Batch:
    count, longest = shape
    source = _masked(vocabulary, shape, device)
    target = tokens(vocabulary, (count, longest // 2), device)
    return {**source, "labels": target}


def _images(size: int, shape: tuple[int, int], device: str) -> Batch:
    count, _ = shape
    images = torch.randn(count, 3, size, size, device=device)
    return {"pixel_values": images, "labels": tokens(LABELS, (count,), device)}


_WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_ENDS = {"bos_token_id": 0, "eos_token_id": 0}
_GPT2 = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **_ENDS}
_T5 = {"dropout_rate": 0.0, "decoder_start_token_id": 0}
_SMALL_ENCODER = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}
_LLAMA = {"hidden_act": "silu", "tie_word_embeddings": False}

TRANSFORMERS: dict[str, Transformer] = {
    "bert": Transformer(
        "BertForMaskedLM",
        full={"vocab_size": 30522, **_WITHOUT_DROPOUT},
        cpu={"vocab_size": 1000, **_SMALL_ENCODER, **_WITHOUT_DROPOUT},
        batch=_masked,
        full_shape=(16, 256),
    ),
    "vit": Transformer(
        "ViTForImageClassification",
        full={"image_size": 224, "num_labels": LABELS, **_WITHOUT_DROPOUT},
        cpu={
            "image_size": 64,
            "patch_size": 8,
            "num_labels": LABELS,
            **_SMALL_ENCODER,
            **_WITHOUT_DROPOUT,
        },
        batch=_images,
        full_shape=(32, 0),
    ),
    "t5": Transformer(
        "T5ForConditionalGeneration",
        full={"vocab_size": 32128, "d_model": 512, "num_layers": 6, **_T5},
        cpu={
            "vocab_size": 1000,
            "d_model": 128,
            "d_kv": 32,
            "d_ff": 256,
            "num_layers": 2,
            "num_heads": 4,
            **_T5,
        },
        batch=_translated,
        full_shape=(16, 256),
    ),
    "gpt2": Transformer(
        "GPT2LMHeadModel",
        full={"vocab_size": 50257, **_GPT2},
        cpu={
            "vocab_size": 1000,
            "n_embd": 128,
            "n_layer": 2,
            "n_head": 4,
            **_GPT2,
        },
        batch=_causal,
        full_shape=(8, 512),
    ),
    "llama": Transformer(
        "LlamaForCausalLM",
        full={
            "vocab_size": 32000,
            "hidden_size": 768,
            "intermediate_size": 2048,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            **_LLAMA,
        },
        cpu={
            "vocab_size": 1000,
            **_SMALL_ENCODER,
            "num_key_value_heads": 2,
            **_LLAMA,
        },
        batch=_causal,
        full_shape=(8, 512),
        half=True,
    ),
    "bart": Transformer(
        "BartForConditionalGeneration",
        full={
            "vocab_size": 50265,
            "d_model": 768,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_ffn_dim": 3072,
            "decoder_ffn_dim": 3072,
            "encoder_attention_heads": 12,
            "decoder_attention_heads": 12,
            "dropout": 0.0,
        },
        cpu={
            "vocab_size": 1000,
            "d_model": 128,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_ffn_dim": 256,
            "decoder_ffn_dim": 256,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "dropout": 0.0,
        },
        batch=_translated,
        full_shape=(16, 256),
    ),
}


def of_torchvision(name: str, count: int) -> Callable[[str, bool], Problem]:
    """A classifier of torchvision, by the name of the function that makes it."""

    def problem(device: str, small: bool) -> Problem:
        images, size = choose(device, small, full=(count, 224), cpu=(2, 64), tiny=(2, 64))
        torch.manual_seed(0)
        models = importlib.import_module("torchvision.models")
        return classifier(_without_chance(getattr(models, name)()), images, size, device)

    return problem


def _without_chance(net: nn.Module) -> nn.Module:
    """Dropout and stochastic depth, which would make no two steps comparable, are switched off."""
    for module in net.modules():
        if isinstance(getattr(module, "p", None), float):
            vars(module)["p"] = 0.0
    return net
