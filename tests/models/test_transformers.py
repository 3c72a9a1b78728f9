"""Small transformers of many families, with random weights: compiled, they are as in eager."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch._dynamo import config
from torch.utils import _pytree as pytree

import adjoint
from adjoint.backend import compile_graph
from adjoint.observing import watching
from tests.rewriting import Growth
from tests.versions import TORCH

# What transformers' own code makes torch warn about, when it is imported and when it is traced.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`"),
    pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin"),
]

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


def image(size: int = 32) -> Inputs:
    return {"pixel_values": torch.randn(BATCH, 3, size, size)}


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
EXPERTS: dict[str, Any] = {
    **GROUPED,
    "intermediate_size": 40,
    "num_local_experts": 4,
}
T5: dict[str, Any] = {"d_model": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4}
IMAGE: dict[str, Any] = {"image_size": 32, "patch_size": 8}
TOKENS: dict[str, Any] = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


# What models do as they run, and the first torch whose Dynamo follows it.
COPIES_ITS_CONFIGURATION = (2, 13)
BINDS_A_METHOD = (2, 13)


@dataclass(frozen=True)
class Family:
    """A model class, its configuration, and what it is called with."""

    model: str
    config: Mapping[str, Any]
    inputs: Callable[[], Inputs] = text
    dtype: torch.dtype = torch.float64
    skips_layers: bool = False
    """In training a random number decides whether a layer runs, which breaks the graph there."""
    followed_since: tuple[int, int] = (0, 0)
    """The first torch whose Dynamo follows all of it; before, the graph breaks there."""
    reads_data: bool = False
    """The derivative of its op for experts reads data: eager autograd takes over, and says so."""

    def make(self, **settings: Any) -> tuple[nn.Module, Inputs]:
        """The model with random weights, and its inputs."""
        torch.manual_seed(0)
        made = getattr(transformers, self.model)
        config = made.config_class(**self.config, **settings)
        model: nn.Module = made(config).to(self.dtype)
        inputs = self.inputs()
        for name, value in inputs.items():
            inputs[name] = value.to(self.dtype) if value.is_floating_point() else value
        return model, inputs


# Together: absolute, rotary and relative positions; grouped, sliding, windowed and cross attention;
# experts; convolutions; state spaces; tied weights; batch norm and its buffers.
FAMILIES: dict[str, Family] = {
    "bert": Family("BertForMaskedLM", SIZES),
    "clip": Family(
        "CLIPModel",
        {
            "projection_dim": 16,
            "text_config": {**SIZES, **TOKENS},
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
    "gemma2": Family("Gemma2ForCausalLM", {**GROUPED, "sliding_window": 4}),
    "gpt2": Family("GPT2LMHeadModel", {**SIZES, **TOKENS, "n_positions": 64}),
    "levit": Family(
        "LevitModel",
        {
            "image_size": 64,
            "hidden_sizes": [16, 32, 48],
            "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [4, 4, 4],
        },
        lambda: image(64),
    ),
    "llama": Family("LlamaForCausalLM", {**GROUPED, "attention_dropout": 0.1}),
    "mamba": Family(
        "MambaForCausalLM", {**SIZES, "state_size": 4, "use_associative_scan": False}, unpadded
    ),
    "mixtral": Family("MixtralForCausalLM", EXPERTS, dtype=torch.float32, reads_data=True),
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
        {**SIZES, **T5, "d_ff": 37},
        sequence_pair,
        followed_since=COPIES_ITS_CONFIGURATION,
    ),
    "vit": Family("ViTModel", {**SIZES, **IMAGE, "hidden_dropout_prob": 0.1}, image),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        {
            **ENCODER_DECODER,
            **TOKENS,
            "num_mel_bins": 8,
            "max_source_positions": 12,
            "max_target_positions": 64,
            "dropout": 0.1,
        },
        speech,
        skips_layers=True,
        followed_since=COPIES_ITS_CONFIGURATION,
    ),
}

MORE_FAMILIES: dict[str, Family] = {
    "albert": Family("AlbertModel", {**SIZES, "embedding_size": 16}),
    "bart": Family(
        "BartModel",
        {**ENCODER_DECODER, **TOKENS},
        sequence_pair,
        skips_layers=True,
        followed_since=COPIES_ITS_CONFIGURATION,
    ),
    "bloom": Family("BloomForCausalLM", {**SIZES, **TOKENS}),
    "convnext": Family(
        "ConvNextModel",
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "drop_path_rate": 0.2},
        image,
    ),
    "deepseek-v3": Family(
        "DeepseekV3ForCausalLM",
        {
            **SIZES,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 40,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
        dtype=torch.float32,
        reads_data=True,
    ),
    "distilbert": Family(
        "DistilBertModel",
        {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37},
    ),
    "falcon": Family("FalconForCausalLM", {**SIZES, "new_decoder_architecture": True}),
    "fnet": Family("FNetModel", SIZES, unpadded),
    "gpt-neox": Family("GPTNeoXForCausalLM", SIZES),
    "gpt-oss": Family(
        "GptOssForCausalLM", {**EXPERTS, "sliding_window": 4}, dtype=torch.float32, reads_data=True
    ),
    "mamba2": Family(
        "Mamba2ForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 4,
            "n_groups": 1,
            "chunk_size": 4,
        },
        unpadded,
    ),
    "opt": Family(
        "OPTForCausalLM", {**SIZES, "ffn_dim": 37, "word_embed_proj_dim": 16}, skips_layers=True
    ),
    "patchtst": Family(
        "PatchTSTModel",
        {
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "num_input_channels": 2,
            "d_model": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 37,
        },
        lambda: {"past_values": torch.randn(BATCH, 32, 2)},
    ),
    "phi": Family("PhiForCausalLM", {**SIZES, "resid_pdrop": 0.1}),
    "qwen2": Family("Qwen2ForCausalLM", {**GROUPED, "attention_dropout": 0.1}),
    "recurrent-gemma": Family(
        "RecurrentGemmaForCausalLM",
        {
            **SIZES,
            "num_key_value_heads": 1,
            "attention_window_size": 4,
            "lru_width": 32,
            "block_types": ["recurrent", "attention"],
        },
        followed_since=BINDS_A_METHOD,
    ),
    "roberta": Family("RobertaModel", SIZES),
    "rwkv": Family(
        "RwkvModel",
        {**SIZES, "attention_hidden_size": 32, "context_length": 64, "use_cache": False},
        unpadded,
    ),
    "sam": Family(
        "SamVisionModel",
        {
            **SIZES,
            "output_channels": 16,
            "image_size": 32,
            "patch_size": 4,
            "window_size": 3,
            "global_attn_indexes": [1],
            "mlp_dim": 37,
        },
        image,
    ),
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
        skips_layers=True,
    ),
    "xlnet": Family(
        "XLNetModel",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 37},
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


def observe(program: Callable[..., Any], model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """What a call of `model`, or of a program made of it, gives: its outputs, their gradients with
    respect to the parameters, and the buffers and the RNG state that it leaves behind."""
    torch.manual_seed(1)
    outputs = dict(tensors(program(**inputs)))
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

    def counted(*args: Any) -> Any:
        programs.append(compile_graph(*args))
        return programs[-1]

    monkeypatch.setattr("adjoint.backend.compile_graph", counted)
    torch.compiler.reset()
    with config.patch(suppress_errors=False):
        yield programs
    torch.compiler.reset()


def assert_same(actual: Any, expected: Any, dtype: torch.dtype) -> None:
    tolerance = 1e-10 if dtype is torch.float64 else 1e-5
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


# Evaluation is training without dropout: of most families `make test` trains only.
ALSO_EVALUATED = ("bert", "gpt2")


def cases(families: Iterable[str]) -> list[Any]:
    """Each family, in evaluation and in training."""
    return [
        pytest.param(
            {**FAMILIES, **MORE_FAMILIES}[name],
            training,
            id=f"{name}-{'train' if training else 'eval'}",
            marks=[]
            if name in FAMILIES and (training or name in ALSO_EVALUATED)
            else [pytest.mark.slow],
        )
        for name in families
        for training in (False, True)
    ]


@pytest.mark.parametrize(("family", "training"), cases([*FAMILIES, *MORE_FAMILIES]))
def test_a_family_compiled_is_as_in_eager(
    family: Family, training: bool, compiled: list[Any]
) -> None:
    model, inputs = family.make()
    model.train(training)
    original = copy.deepcopy(model)
    expected = observe(original, original, inputs)
    breaks = (training and family.skips_layers) or family.followed_since > TORCH
    reference: dict[str, Any] = {"target": "reference"}
    fast = torch.compile(model, backend="adjoint", options=reference, fullgraph=not breaks)
    with warnings.catch_warnings():
        if family.reads_data:
            warnings.simplefilter("ignore", adjoint.FallbackWarning)
        assert_same(observe(fast, model, inputs), expected, family.dtype)
    assert compiled


@pytest.mark.parametrize(
    ("family", "training"), cases(["bert", "clip", "gpt2", "llama", "swin", "vit"])
)
def test_a_family_captured_directly_is_as_in_eager(family: Family, training: bool) -> None:
    model, inputs = family.make(use_cache=False)
    model.train(training)
    original = copy.deepcopy(model)
    expected = observe(original, original, inputs)
    captured = adjoint.capture(model, dynamic=False, **inputs)
    program = functools.partial(adjoint.run, captured)
    assert_same(observe(program, model, inputs), expected, family.dtype)


# Attention is written out, so that there is something to rewrite.
REWRITTEN = ("bert", "gpt2", "llama", "t5", "vit", "swin", "clip", "bloom", "gpt-neox", "gemma2")


@pytest.mark.parametrize(
    "name",
    [each if each == "bert" else pytest.param(each, marks=pytest.mark.slow) for each in REWRITTEN],
)
def test_no_graph_is_larger_after_its_passes(name: str) -> None:
    model, inputs = {**FAMILIES, **MORE_FAMILIES}[name].make(attn_implementation="eager")
    options: dict[str, Any] = {"cache": False, "target": "reference"}
    fast = torch.compile(model, backend="adjoint", options=options)
    with watching(growth := Growth()):
        loss(dict(tensors(fast(**inputs)))).backward()
    assert {place for place, _, _ in growth.graphs} == {"primal", "joint", "post"}
    assert not growth.larger
