"""The operations of a model per token, in literal numbers and against those that torch counts."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers.modeling_utils import ModuleUtilsMixin

from hpsearch.training.flops import operations_per_token, operations_so_far, samples_so_far

BATCH, LENGTH = 4, 32


class Stack(ModuleUtilsMixin, torch.nn.Module):
    """Embeddings of 5 * 4 weights, a lower layer of 4 * 4 and an upper one of 4 * 2; an output layer if asked."""

    def __init__(self, output: str = "none") -> None:
        super().__init__()
        self.embeddings = torch.nn.Embedding(5, 4)
        self.lower = torch.nn.Linear(4, 4, bias=False)
        self.upper = torch.nn.Linear(4, 2, bias=False)
        self.output = None if output == "none" else torch.nn.Linear(4, 5, bias=False)
        if self.output is not None and output == "tied":
            self.output.weight = self.embeddings.weight

    def get_output_embeddings(self) -> Any:
        return self.output


@pytest.mark.parametrize(
    ("frozen", "expected"),
    [
        ("", 6 * 16 + 6 * 8),
        ("embeddings", 4 * 16 + 6 * 8),  # nothing below the lower layer asks for gradients
        ("embeddings lower", 2 * 16 + 4 * 8),
        ("lower", 4 * 16 + 6 * 8),
        ("upper", 6 * 16 + 4 * 8),
        ("embeddings upper", 4 * 16 + 4 * 8),
        ("lower upper", 4 * 16 + 4 * 8),
        ("embeddings lower upper", 2 * 16 + 2 * 8),
    ],
)
def test_a_weight_costs_six_frozen_four_and_below_all_trained_ones_two(frozen: str, expected: int) -> None:
    model = Stack()
    for name in frozen.split():
        getattr(model, name).requires_grad_(False)
    assert operations_per_token(model) == expected


@pytest.mark.parametrize(
    ("output", "frozen", "expected"),
    [
        ("tied", "", 6 * 16 + 6 * 8 + 6 * 20),
        ("separate", "", 6 * 16 + 6 * 8 + 6 * 20),
        ("tied", "embeddings", 4 * 16 + 6 * 8 + 4 * 20),
        ("separate", "embeddings", 4 * 16 + 6 * 8 + 6 * 20),
    ],
)
def test_an_output_layer_counts_once_also_if_it_shares_the_embeddings(output: str, frozen: str, expected: int) -> None:
    model = Stack(output)
    for name in frozen.split():
        getattr(model, name).requires_grad_(False)
    assert operations_per_token(model) == expected


def test_tokens_are_those_that_the_trainer_has_counted() -> None:
    model = Stack("tied")
    tokens = 7
    state = SimpleNamespace(total_flos=6.0 * (16 + 8) * tokens)  # as transformers counts, without the output layer
    assert operations_so_far(state, model, samples=3) == (6 * 16 + 6 * 8 + 6 * 20) * tokens
    assert operations_so_far(state, model, samples=3, is_own_count=True) == 6 * 24 * tokens


def test_values_that_are_not_ids_do_not_count_but_samples() -> None:
    class Images(Stack):
        main_input_name = "pixel_values"

    state = SimpleNamespace(total_flos=6.0 * (16 + 8) * 3072)
    assert operations_so_far(state, Images(), samples=3) == 3 * 6 * (16 + 8)


def test_nothing_is_known_where_the_trainer_counts_nothing() -> None:
    for model in (Stack(), torch.nn.Linear(2, 2)):
        assert operations_so_far(SimpleNamespace(total_flos=0), model, samples=3) == 0


def test_sums_in_other_parts_are_the_same_beyond_the_precision_of_floats() -> None:
    part, model = 6.0 * (2**51 + 1), Stack()
    whole, parts = sum([part] * 9), sum([part] * 4) + sum([part] * 5)
    counted = [
        operations_so_far(SimpleNamespace(total_flos=each), model, samples=0)
        for each in (whole, parts, math.fsum([part] * 9))
    ]
    assert len({whole, parts, math.fsum([part] * 9)}) > 1
    assert len(set(counted)) == 1


def test_samples_are_passes_over_the_data_or_steps_of_data_without_a_length() -> None:
    args = SimpleNamespace(train_batch_size=4, gradient_accumulation_steps=2, world_size=3)
    state = SimpleNamespace(epoch=1.5, global_step=10)
    assert samples_so_far(state, args, torch.utils.data.DataLoader(list(range(100)))) == 150
    assert samples_so_far(state, args, iter([])) == samples_so_far(state, args, None) == 240


def bert(*frozen: str) -> Any:
    config = transformers.BertConfig(
        vocab_size=1000, hidden_size=128, num_hidden_layers=4, num_attention_heads=2, intermediate_size=512
    )
    model = transformers.BertForSequenceClassification(config)
    for name, weight in model.named_parameters():
        weight.requires_grad_(not any(each in name for each in frozen))
    return model


def gpt2(is_tied: bool, *frozen: str) -> Any:
    special = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(
        vocab_size=5000, n_positions=64, n_embd=128, n_layer=2, n_head=2, tie_word_embeddings=is_tied, **special
    )
    model = transformers.GPT2LMHeadModel(config)
    for name, weight in model.named_parameters():
        weight.requires_grad_(not any(each in name for each in frozen))
    return model


def bart() -> Any:
    sizes = {
        f"{part}_{what}": size
        for part in ("encoder", "decoder")
        for what, size in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 512))
    }
    return transformers.BartForConditionalGeneration(
        transformers.BartConfig(vocab_size=1000, d_model=128, max_position_embeddings=64, **sizes)
    )


def adapted(model: Any, method: str, **settings: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, getattr(peft, method)(**settings))


LORA = {"task_type": "SEQ_CLS", "target_modules": ["query", "value"]}


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: bert(), id="whole"),
        pytest.param(lambda: bert("bert."), id="encoder frozen"),
        pytest.param(lambda: bert("embeddings"), id="embeddings frozen"),
        pytest.param(lambda: bert("embeddings", *(f"layer.{at}." for at in range(3))), id="lower layers frozen"),
        pytest.param(lambda: bert("encoder", "pooler", "classifier"), id="only embeddings trained"),
        pytest.param(lambda: adapted(bert(), "LoraConfig", r=8, **LORA), id="LoRA"),
        pytest.param(lambda: gpt2(True), id="tied"),
        pytest.param(lambda: gpt2(False), id="untied"),
        pytest.param(lambda: gpt2(True, "wte"), id="tied embeddings frozen"),
        pytest.param(lambda: gpt2(False, "transformer."), id="only output layer trained"),
        pytest.param(
            lambda: adapted(gpt2(True), "PrefixTuningConfig", task_type="CAUSAL_LM", num_virtual_tokens=2), id="prefix"
        ),
        pytest.param(bart, id="encoder-decoder, labels as long as inputs"),
    ],
)
def test_operations_are_within_a_twentieth_of_those_that_torch_counts(make: Any) -> None:
    model = make()
    ids = torch.randint(1, 1000, (BATCH, LENGTH))
    labels = torch.randint(0, 2, (BATCH,)) if "SequenceClassification" in type(_core(model)).__name__ else ids
    with FlopCounterMode(display=False) as measured:
        model(input_ids=ids, labels=labels).loss.backward()
    assert operations_per_token(model) * BATCH * LENGTH == pytest.approx(measured.get_total_flops(), rel=0.05)


def _core(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "peft_config") else model


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_the_rank_of_an_adapter_is_visible() -> None:
    low, high = (operations_per_token(adapted(bert(), "LoraConfig", r=rank, **LORA)) for rank in (2, 64))
    assert 1.0 < high / low < 1.5
    assert low < 0.8 * operations_per_token(bert())
