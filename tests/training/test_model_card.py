"""What the model card of a run says; the card is read back with huggingface_hub's own reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from huggingface_hub import ModelCard, constants
from transformers import PrinterCallback

import hpsearch
from hpsearch import Trainer, TrainingArguments
from hpsearch.errors import InvalidInputError
from tests.support.models import Line, accuracy, bert_classifier, classification_data, line_data


def make_trainer(folder: Path, kind: Any = Trainer, **changes: Any) -> Any:
    """A small classifier that is evaluated after each of two epochs of 4 steps."""
    names = ("model", "model_init", "train_dataset", "eval_dataset", "compute_metrics", "optimizers")
    parts = {name: changes.pop(name) for name in names if name in changes}
    if "model" not in parts:
        parts.setdefault("model_init", lambda: bert_classifier(hidden=8))
    values: dict[str, Any] = {
        "learning_rate": 0.01,
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "eval_strategy": "epoch",
        "logging_strategy": "epoch",
        "save_strategy": "no",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        **changes,
    }
    given = {"train_dataset": classification_data(16), "eval_dataset": classification_data(8, seed=1), **parts}
    arguments = TrainingArguments if issubclass(kind, Trainer) else transformers.TrainingArguments
    trainer = kind(args=arguments(str(folder), **values), **given)
    trainer.remove_callback(PrinterCallback)
    return trainer


def card_of(trainer: Any, **fields: Any) -> ModelCard:
    trainer.create_model_card(**fields)
    return ModelCard.load(Path(trainer.args.output_dir, "README.md"))


def row(card: ModelCard, title: str) -> list[list[str]]:
    """Return the cells of the table under `title`, line by line."""
    text = card.text.split(f"### {title}\n")[1].split("\n#")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


@pytest.mark.feature(131)
def test_the_card_of_a_training_names_model_task_results_hyperparameters_and_versions(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "my-model", compute_metrics=accuracy)
    trainer.train()
    card = card_of(trainer)
    last = [logs for logs in trainer.state.log_history if "eval_loss" in logs][-1]
    assert card.data.library_name == "transformers"
    assert card.data.tags == ["hpsearch", "generated_from_trainer"]
    assert card.data.metrics == ["accuracy"]
    assert card.data.model_name == "my-model"
    assert "# my-model\n\nThis model was trained from scratch on an unknown dataset." in card.text
    assert f"- Loss: {last['eval_loss']:.4f}\n- Accuracy: {last['eval_accuracy']}" in card.text
    for line in ("learning_rate: 0.01", "train_batch_size: 4", "num_epochs: 2", "lr_scheduler_type: linear"):
        assert f"\n- {line}\n" in card.text
    assert f"- Transformers {transformers.__version__}\n" in card.text
    assert f"- hpsearch {hpsearch.__version__}\n" in card.text


def test_the_card_lists_every_evaluation_with_the_training_loss_before_it(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, compute_metrics=accuracy)
    trainer.train()
    head, _, *lines = row(card_of(trainer), "Training results")
    assert head == ["Training Loss", "Epoch", "Step", "Validation Loss", "Accuracy"]
    losses = [logs["loss"] for logs in trainer.state.log_history if "loss" in logs]
    evaluations = [logs for logs in trainer.state.log_history if "eval_loss" in logs]
    for line, loss, logs in zip(lines, losses, evaluations, strict=True):
        assert [float(each) for each in line] == pytest.approx(
            [loss, logs["epoch"], logs["step"], logs["eval_loss"], logs["eval_accuracy"]], abs=5e-5
        )


def test_the_card_agrees_with_transformers_card_of_the_same_training(tmp_path: Path) -> None:
    cards = []
    for kind in (Trainer, transformers.Trainer):
        trainer = make_trainer(tmp_path / kind.__module__ / "model", kind, compute_metrics=accuracy)
        trainer.train()
        cards.append(
            card_of(trainer, dataset="words", dataset_tags="words", tasks="text-classification", license="mit")
        )
    ours, theirs = cards
    wanted, found = theirs.data.to_dict(), ours.data.to_dict()
    assert found.pop("tags") == ["hpsearch", *wanted.pop("tags")]
    assert found == wanted
    missing = set(theirs.text.splitlines()) - set(ours.text.splitlines())
    assert missing == {"This model is a fine-tuned version of [](https://huggingface.co/) on the words dataset."}


@pytest.mark.feature(131)
def test_given_fields_are_in_the_card_and_the_result_is_indexed_by_task_and_dataset(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, compute_metrics=accuracy, num_train_epochs=1)
    trainer.train()
    tags = ["mine"]
    card = card_of(
        trainer,
        language="en",
        license="apache-2.0",
        tags=tags,
        model_name="Named",
        finetuned_from="base/model",
        tasks="text-classification",
        dataset_tags="glue",
        dataset="GLUE MRPC",
        dataset_args="mrpc",
    )
    assert (card.data.language, card.data.license, card.data.base_model) == (["en"], "apache-2.0", "base/model")
    assert card.data.tags == ["mine", "hpsearch", "generated_from_trainer"]
    assert tags == ["mine"]
    assert card.data.datasets == ["glue"]
    (result,) = card.data.eval_results
    assert (result.task_type, result.dataset_type, result.dataset_name) == ("text-classification", "glue", "GLUE MRPC")
    assert (result.metric_type, result.dataset_args) == ("accuracy", "mrpc")
    assert (
        "a fine-tuned version of [base/model](https://huggingface.co/base/model) on the GLUE MRPC dataset" in card.text
    )


def test_base_model_and_task_are_inferred_from_the_model(tmp_path: Path) -> None:
    model = bert_classifier(hidden=8)
    model.config._name_or_path = "someone/bert-tiny"
    model.add_model_tags("tiny")
    trainer = make_trainer(tmp_path, model=model, compute_metrics=accuracy, num_train_epochs=1)
    trainer.train()
    card = card_of(trainer, dataset="words", dataset_tags="words")
    assert card.data.base_model == "someone/bert-tiny"
    assert card.data.tags == ["tiny", "hpsearch", "generated_from_trainer"]
    assert card.data.eval_results[0].task_type == "text-classification"


def test_a_folder_is_no_base_model(tmp_path: Path) -> None:
    bert_classifier(hidden=8).save_pretrained(tmp_path / "base")
    model = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "base")
    card = card_of(make_trainer(tmp_path / "out", model=model))
    assert card.data.base_model is None
    assert str(tmp_path) not in card.text


def test_the_licence_of_a_base_model_comes_from_the_hub_only_if_it_can_be_asked(tmp_path: Path) -> None:
    assert constants.is_offline_mode()
    assert card_of(make_trainer(tmp_path), finetuned_from="someone/bert").data.license is None


def test_tags_and_metadata_of_an_earlier_card_are_kept_and_results_are_not(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, compute_metrics=accuracy, num_train_epochs=1)
    earlier = "---\nlicense: mit\ntags: [first]\nmetrics: [bleu]\npipeline_tag: text-classification\n---\n# Old\n"
    Path(tmp_path, "README.md").write_text(earlier)
    trainer.train()
    card = card_of(trainer, tags="second")
    assert card.data.tags == ["second", "hpsearch", "generated_from_trainer", "first"]
    assert (card.data.license, card.data.get("pipeline_tag")) == ("mit", "text-classification")
    assert card.data.metrics == ["accuracy"]
    assert "# Old" not in card.text
    assert card_of(trainer, license="gpl").data.license == "gpl"
    assert card_of(make_trainer(tmp_path)).data.metrics is None


def test_a_card_whose_metadata_cannot_be_read_is_an_error_and_stays_as_it_was(tmp_path: Path) -> None:
    path = Path(tmp_path, "README.md")
    path.write_text("---\ntags: [open\n---\n# Old\n")
    with pytest.raises(InvalidInputError, match=r"README\.md.*not a YAML mapping"):
        make_trainer(tmp_path).create_model_card()
    assert "# Old" in path.read_text()


def test_a_card_can_be_written_before_any_training(tmp_path: Path) -> None:
    card = card_of(make_trainer(tmp_path / "new" / "model"))
    assert card.data.model_name == "model"
    assert "### Training results" not in card.text


def test_a_plain_module_has_a_card_that_does_not_claim_transformers_can_load_it(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, model_init=Line, train_dataset=line_data(16), eval_dataset=line_data(8))
    trainer.train()
    card = card_of(trainer)
    assert card.data.library_name == "hpsearch"
    assert "trained from scratch" in card.text
    assert len(row(card, "Training results")) == 4


def test_a_dataset_in_memory_is_unknown_and_a_named_one_is_named(tmp_path: Path) -> None:
    table = datasets.Dataset.from_list(classification_data(8))
    trainer = make_trainer(tmp_path, train_dataset=table, eval_dataset=table)
    assert "on an unknown dataset" in card_of(trainer).text
    table.info.builder_name, table.info.config_name = "glue", "mrpc"
    card = card_of(trainer)
    assert card.data.datasets == ["glue"]
    assert "on the glue dataset" in card.text


def test_evaluations_with_different_metrics_share_one_table(tmp_path: Path) -> None:
    scores = iter([{"accuracy": 0.5}, {"accuracy": 0.75, "f1": 0.25}])
    trainer = make_trainer(tmp_path, compute_metrics=lambda prediction: dict(next(scores)))
    trainer.train()
    head, _, first, second = row(card_of(trainer), "Training results")
    assert head[-2:] == ["Accuracy", "F1"]
    assert (first[-2:], second[-2:]) == (["0.5", ""], ["0.75", "0.25"])


def test_a_trial_is_named_with_its_parameters_and_its_own_hyperparameters(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, num_train_epochs=1)
    trainer.train(trial={"learning_rate": 0.002, "model.layers": 3})
    card = card_of(trainer)
    assert "\n- learning_rate: 0.002\n- train_batch_size" in card.text
    described = card.text.split("### Hyperparameter search\n")[1]
    assert (
        described
        == "\nThis run is a trial of a search, with these values:\n\n- learning_rate: 0.002\n- model.layers: 3\n"
    )
    trainer.run.describe_trial({"learning_rate": 0.002}, "run-7")
    assert "the trial `run-7` of a search" in card_of(trainer).text
    assert trainer.args.learning_rate == 0.01


def test_a_training_that_is_no_trial_says_nothing_of_a_search(tmp_path: Path) -> None:
    assert "search" not in card_of(make_trainer(tmp_path)).text.replace("hpsearch", "")


def test_an_optimizer_that_was_given_is_named_instead_of_the_one_in_the_arguments(tmp_path: Path) -> None:
    model = bert_classifier(hidden=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)
    trainer = make_trainer(tmp_path, model=model, optimizers=(optimizer, None), num_train_epochs=1)
    trainer.train()
    text = card_of(trainer).text
    assert "- optimizer: SGD(lr=0.25, momentum=0.5" in text
    assert "adamw" not in text


def test_only_the_main_process_writes_a_card(tmp_path: Path) -> None:
    class Second(Trainer):
        def is_world_process_zero(self) -> bool:
            return False

    make_trainer(tmp_path, Second).create_model_card()
    assert not Path(tmp_path, "README.md").exists()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft asks transformers
@pytest.mark.filterwarnings("ignore:Could not find a config file:UserWarning")  # the base model is only a name
def test_the_card_of_an_adapter_names_peft_and_the_base_model(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = bert_classifier(hidden=8)
    base.config._name_or_path = base.name_or_path = "someone/bert-tiny"
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"]))
    trainer = make_trainer(tmp_path, model=model, num_train_epochs=1)
    trainer.train()
    trainer.save_model()
    card = card_of(trainer, tags="mine", dataset="words", dataset_tags="words")
    assert card.data.library_name == "peft"
    assert card.data.base_model == "someone/bert-tiny"
    assert {"mine", "hpsearch", "base_model:adapter:someone/bert-tiny", "lora"} <= set(card.data.tags)
    assert f"- PEFT {peft.__version__}\n" in card.text
    assert "a fine-tuned version of [someone/bert-tiny]" in card.text
