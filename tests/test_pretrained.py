"""`FromPretrained` gives the models of `from_pretrained`, reads the files once, and keeps trials apart."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification, BertConfig, BertModel

from hpsearch import Categorical, FixedTrial, FromPretrained, InvalidInputError, SearchListener, SpaceError, StudyError
from tests.support.models import gpt2_language_model, weights_of

PARTS = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    BertModel(BertConfig(**PARTS)).save_pretrained(tmp_path / "pretrained")
    return tmp_path / "pretrained"


def classifier(folder: Path, **options: Any) -> FromPretrained:
    return FromPretrained(AutoModelForSequenceClassification, folder, **{"num_labels": 3, **options})


@pytest.mark.parametrize("options", [{}, {"dtype": torch.bfloat16}])
def test_its_models_are_those_of_from_pretrained_whichever_comes_first(folder: Path, options: Any) -> None:
    model_init = classifier(folder, **options)
    for _ in range(2):
        torch.manual_seed(7)
        model = model_init()
        torch.manual_seed(7)
        other = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3, **options)
        assert type(model) is type(other)
        torch.testing.assert_close(weights_of(model), weights_of(other), rtol=0, atol=0)
        assert model.dtype == other.dtype
        assert model.config.to_dict() == {**other.config.to_dict(), "_name_or_path": model.config._name_or_path}
        assert not model.training


def test_the_head_is_drawn_from_the_seed_of_the_trial(folder: Path) -> None:
    model_init = classifier(folder)
    torch.manual_seed(1)
    one = model_init()
    torch.manual_seed(2)
    other = model_init()
    assert not torch.equal(one.classifier.weight, other.classifier.weight)
    assert torch.equal(one.bert.pooler.dense.weight, other.bert.pooler.dense.weight)


def test_a_head_that_does_not_fit_the_files_is_drawn_from_the_seed_of_the_trial_too(folder: Path) -> None:
    made = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=5)
    made.save_pretrained(folder)
    model_init = classifier(folder, ignore_mismatched_sizes=True)
    heads = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        model = model_init()
        heads.append(model.classifier.weight.detach().clone())
        assert torch.equal(model.bert.pooler.dense.weight, made.bert.pooler.dense.weight)
    assert heads[0].shape == (3, 16)
    assert not torch.equal(heads[0], heads[1])
    assert torch.equal(heads[0], heads[2])


def test_the_files_are_read_once_also_by_other_processes(folder: Path) -> None:
    sent = pickle.dumps(classifier(folder))
    for path in folder.iterdir():
        path.unlink()
    model_init = pickle.loads(sent)
    assert model_init().num_labels == model_init().num_labels == 3


def test_what_one_model_learns_no_other_one_has(folder: Path) -> None:
    model_init = classifier(folder)
    model = model_init()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert not torch.equal(model_init().bert.pooler.dense.weight, model.bert.pooler.dense.weight)


def test_options_of_the_model_class_reach_every_model(folder: Path) -> None:
    model_init = FromPretrained(AutoModel, folder, add_pooling_layer=False)
    assert model_init().pooler is model_init().pooler is None


def test_what_a_parameter_adds_to_the_model_is_drawn_from_the_seed_of_the_trial(tmp_path: Path) -> None:
    gpt2_language_model().save_pretrained(tmp_path)
    model_init = FromPretrained(AutoModelForCausalLM, tmp_path)
    weights = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        model = model_init(FixedTrial({"model.add_cross_attention": True}))
        weights.append(model.transformer.h[0].crossattention.c_attn.weight.detach().clone())
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[1])


def test_fewer_layers_than_the_files_have_are_a_model_of_the_first_ones(folder: Path) -> None:
    model = classifier(folder)(FixedTrial({"model.num_hidden_layers": 1}))
    whole = BertModel.from_pretrained(folder)
    assert len(model.bert.encoder.layer) == 1
    assert torch.equal(model.bert.encoder.layer[0].output.dense.weight, whole.encoder.layer[0].output.dense.weight)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT asks for it
def test_an_adapter_is_refused(folder: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = AutoModel.from_pretrained(folder)
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["query"]))
    adapted.save_pretrained(tmp_path / "adapter")
    with pytest.raises(InvalidInputError, match=r"has an adapter of PEFT: FromPretrained is for plain models"):
        FromPretrained(AutoModel, tmp_path / "adapter")()


def test_parameters_of_the_model_are_set_in_its_configuration(folder: Path) -> None:
    trial = FixedTrial({"model.hidden_dropout_prob": 0.4, "learning_rate": 1.0})
    model_init = classifier(folder)
    model = model_init(trial)
    assert model.config.hidden_dropout_prob == model.bert.embeddings.dropout.p == 0.4
    assert trial.params.read == {"model.hidden_dropout_prob"}
    assert model_init().config.hidden_dropout_prob == 0.1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model.hidden_siz", 16, r"model.hidden_siz is not in BertConfig. Did you mean 'model.hidden_size'"),
        ("model.hidden_size", 32, r"The pretrained weights do not fit model.hidden_size=32"),
        ("model.num_hidden_layers", 3, r"do not fit model.num_hidden_layers=3: they have no .*layer.2.* more"),
    ],
)
def test_a_parameter_that_does_not_fit_is_named(folder: Path, name: str, value: int, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        classifier(folder)(FixedTrial({name: value}))


@pytest.mark.parametrize(
    ("model_class", "options", "message"),
    [
        (3, {}, r"model_class must be a model class of transformers, but got 3"),
        (AutoModel, {"state_dict": {}}, r"does not take state_dict"),
        (AutoModel, {"config": None}, r"does not take config"),
        (AutoModel, {"gguf_file": "weights.gguf"}, r"does not take gguf_file: it is for plain models"),
        (AutoModel, {"quantization_config": {"load_in_8bit": True}}, r"does not take quantization_config"),
        (AutoModel, {"load_in_4bit": True}, r"does not take load_in_4bit.* Call from_pretrained in a model_init"),
        (AutoModel, {"load_in_8bit": True}, r"does not take load_in_8bit"),
    ],
)
def test_what_it_cannot_use_is_refused_at_once(model_class: Any, options: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        FromPretrained(model_class, "nowhere", **options)


def rows(count: int) -> list[dict[str, Any]]:
    tokens = torch.randint(0, 50, (count, 6), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "attention_mask": torch.ones(6).long(), "labels": int(row[0]) % 3} for row in tokens]


def test_a_file_that_is_damaged_is_what_the_error_says(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(
        StudyError, match=r"FromPretrained\(AutoModelForSequenceClassification, .*cannot be loaded: Safe"
    ):
        classifier(folder)()


class Removes(SearchListener):
    """Deletes a folder before the first trial begins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_trial_begin(self, trial: Any) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.mark.process
def test_a_search_in_workers_starts_all_trials_from_the_same_weights_which_they_do_not_read(
    folder: Path, tmp_path: Path
) -> None:
    from hpsearch import Trainer, TrainingArguments

    space = {"model.hidden_dropout_prob": Categorical([0.0, 0.2]), "seed": Categorical([1, 2])}
    found = []
    for n_jobs in (1, 2):
        args = TrainingArguments(
            str(tmp_path / str(n_jobs)),
            max_steps=4,
            eval_strategy="steps",
            eval_steps=2,
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(args=args, model_init=classifier(folder), train_dataset=rows(16), eval_dataset=rows(8))
        listener = Removes(folder) if n_jobs == 2 else SearchListener()
        options = {"n_jobs": n_jobs, "pruner": "none", "progress": listener}
        best = trainer.hyperparameter_search(space, "loss", n_trials=4, **options)
        by_params = {str(record.params): record.values for record in best.run_summary.records}
        found.append(by_params)
    shared = found[0].keys() & found[1].keys()
    assert shared
    assert all(found[0][each] == found[1][each] for each in shared)


def test_name_and_generation_config_are_those_of_the_files(tmp_path: Path) -> None:
    model = gpt2_language_model()
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path / "gpt2")
    first, second = (FromPretrained(AutoModelForCausalLM, str(tmp_path / "gpt2"))() for _ in range(2))
    plain = AutoModelForCausalLM.from_pretrained(str(tmp_path / "gpt2"))
    assert first.name_or_path == plain.name_or_path
    assert first.generation_config.max_new_tokens == plain.generation_config.max_new_tokens == 7
    first.generation_config.max_new_tokens = 9
    assert second.generation_config.max_new_tokens == 7
