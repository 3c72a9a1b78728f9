"""Transformer families of other people, small and with random weights: through the backend as eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import adjoint
from adjoint import backend

Inputs: TypeAlias = dict[str, Tensor]

BATCH, LENGTH, VOCABULARY = 2, 12, 99


def integers(high: int, *shape: int) -> Tensor:
    return torch.randint(1, high, shape)


def text() -> Inputs:
    """Two sentences, the second of which is padded."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, -3:] = 0
    return {"input_ids": integers(VOCABULARY, BATCH, LENGTH), "attention_mask": mask}


def unpadded() -> Inputs:
    return {"input_ids": integers(VOCABULARY, BATCH, LENGTH)}


def sequence_pair() -> Inputs:
    return {**text(), "decoder_input_ids": integers(VOCABULARY, BATCH, LENGTH - 4)}


def image() -> Inputs:
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32)}


def speech() -> Inputs:
    decoder = integers(VOCABULARY, BATCH, LENGTH)
    return {"input_features": torch.randn(BATCH, 8, 24), "decoder_input_ids": decoder}


def waveform() -> Inputs:
    return {"input_values": torch.randn(BATCH, 400)}


def captioned_image() -> Inputs:
    return {**text(), **image()}


# The sizes under the names that most configurations use for them.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
}
GROUPED: dict[str, Any] = {**SIZES, "num_key_value_heads": 2, "head_dim": 8}
ENCODER_DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
}
IMAGE: dict[str, Any] = {"image_size": 32, "patch_size": 8}


@dataclass(frozen=True)
class Family:
    """A model class, its configuration, and what it is called with."""

    model: str
    config: Mapping[str, Any]
    inputs: Callable[[], Inputs] = text
    configured_by: str = ""
    dtype: torch.dtype = torch.float64
    graphs: int = 1
    """How many Dynamo finds in it; more than one where the model's own code breaks the graph."""

    def make(self) -> tuple[nn.Module, Inputs]:
        """The model with random weights, and its inputs."""
        torch.manual_seed(0)
        made = getattr(transformers, self.model)
        config = made.config_class(**self.config)
        model: nn.Module = made(config).to(self.dtype)
        inputs = self.inputs()
        for name, value in inputs.items():
            inputs[name] = value.to(self.dtype) if value.is_floating_point() else value
        return model, inputs


FAMILIES: dict[str, Family] = {
    "albert": Family("AlbertModel", {**SIZES, "embedding_size": 16}),
    "bert": Family("BertForMaskedLM", SIZES),
    "bloom": Family("BloomForCausalLM", {**SIZES, "n_layer": 2, "n_head": 4}),
    "clip": Family(
        "CLIPModel",
        {
            "projection_dim": 16,
            "text_config": {**SIZES, "eos_token_id": 2},
            "vision_config": {**SIZES, **IMAGE},
        },
        captioned_image,
    ),
    "deberta-v2": Family(
        "DebertaV2Model",
        {
            **SIZES,
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": False,
        },
    ),
    "distilbert": Family(
        "DistilBertModel",
        {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37},
    ),
    "falcon": Family("FalconForCausalLM", {**SIZES, "new_decoder_architecture": True}),
    "gemma2": Family("Gemma2ForCausalLM", {**GROUPED, "sliding_window": 4}),
    "gpt2": Family(
        "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "gpt-neox": Family("GPTNeoXForCausalLM", SIZES),
    "llama": Family("LlamaForCausalLM", {**GROUPED, "attention_dropout": 0.1}),
    "mamba": Family(
        "MambaForCausalLM", {**SIZES, "state_size": 4, "use_associative_scan": False}, unpadded
    ),
    "mixtral": Family(
        "MixtralForCausalLM",
        {**GROUPED, "intermediate_size": 40, "num_local_experts": 4, "output_router_logits": True},
        dtype=torch.float32,
    ),
    "opt": Family("OPTForCausalLM", {**SIZES, "ffn_dim": 37, "word_embed_proj_dim": 16}),
    "phi": Family("PhiForCausalLM", {**SIZES, "resid_pdrop": 0.1}),
    "qwen2": Family("Qwen2ForCausalLM", {**GROUPED, "attention_dropout": 0.1}),
    "roberta": Family("RobertaModel", SIZES),
    "rwkv": Family("RwkvModel", {**SIZES, "attention_hidden_size": 32, "context_length": 64, "use_cache": False}, unpadded),
    "segformer": Family(
        "SegformerModel",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
        },
        image,
    ),
    "swin": Family(
        "SwinModel",
        {
            "image_size": 32,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
            "hidden_dropout_prob": 0.1,
        },
        image,
    ),
    "t5": Family(
        "T5ForConditionalGeneration",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 37,
            "num_layers": 2,
            "num_heads": 4,
        },
        sequence_pair,
    ),
    "vit": Family("ViTModel", {**SIZES, **IMAGE, "hidden_dropout_prob": 0.1}, image),
    "wav2vec2": Family(
        "Wav2Vec2Model",
        {
            **SIZES,
            "conv_dim": (16, 16),
            "conv_stride": (5, 2),
            "conv_kernel": (10, 3),
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "apply_spec_augment": False,
        },
        waveform,
    ),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        {
            **ENCODER_DECODER,
            "num_mel_bins": 8,
            "max_source_positions": 12,
            "max_target_positions": 64,
            "dropout": 0.1,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        speech,
    ),
}


def tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in `value` with its path, in objects (key-value caches) as well as in trees."""
    for path, leaf in pytree.tree_leaves_with_path(value):
        name = pytree.keystr(path)
        if isinstance(leaf, Tensor):
            yield name, leaf
        elif hasattr(leaf, "__dict__"):
            yield from ((f"{name}.{inner}", each) for inner, each in tensors(vars(leaf)))


def loss(outputs: Mapping[str, Tensor]) -> Tensor:
    """A scalar to which every element of every differentiable output contributes differently."""
    total = torch.zeros((), dtype=torch.float64)
    for value in outputs.values():
        if value.requires_grad:
            weights = torch.linspace(-1, 1, value.numel(), dtype=torch.float64)
            total = total + (value.double().flatten() * weights).sum()
    return total


def observe(call: Callable[..., Any], model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """All that a call leaves behind: outputs, gradients of parameters, buffers, the RNG state."""
    torch.manual_seed(1)
    outputs = dict(tensors(call(**inputs)))
    state = torch.get_rng_state()
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    gradients = torch.autograd.grad(loss(outputs), list(trained.values()), allow_unused=True)
    return {
        "outputs": outputs,
        "gradients": dict(zip(trained, gradients, strict=True)),
        "buffers": {name: buffer.clone() for name, buffer in model.named_buffers()},
        "random": state,
    }


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The programs that the backend compiles."""
    programs: list[Any] = []
    compile_graph = backend.compile_graph

    def counted(*args: Any) -> Any:
        programs.append(compile_graph(*args))
        return programs[-1]

    monkeypatch.setattr(backend, "compile_graph", counted)
    monkeypatch.setattr(torch._dynamo.config, "suppress_errors", False)
    torch.compiler.reset()
    yield programs
    torch.compiler.reset()


def assert_same(actual: Any, expected: Any, dtype: torch.dtype) -> None:
    tolerance = 1e-10 if dtype is torch.float64 else 1e-5
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
