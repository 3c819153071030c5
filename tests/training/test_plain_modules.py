"""Any `torch.nn.Module` whose forward returns its loss, and what users put between a model and its metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sklearn.metrics import roc_auc_score
from transformers.utils import ModelOutput

from hpsearch import InvalidInputError, Trainer
from tests.support.models import line_data, weights_of
from tests.support.small_training import losses, make_trainer

SPEEDS = ("runtime", "per_second", "preparation_time")


@dataclass
class Predicted(ModelOutput):
    """A loss and predictions, as transformers' models return them."""

    loss: torch.Tensor | None = None
    predictions: torch.Tensor | None = None


class Returns(torch.nn.Module):
    """A linear model that returns its loss and predictions in one of many forms."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)
        self.form = form

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        predictions = self.linear(x).squeeze(-1)
        loss = None if labels is None else torch.nn.functional.mse_loss(predictions, labels)
        if self.form == "model_output":
            return Predicted(loss, predictions)
        if self.form == "dict":
            return {"predictions": predictions} if loss is None else {"loss": loss, "predictions": predictions}
        if self.form == "dict_with_the_loss_last":
            return {"predictions": predictions} if loss is None else {"predictions": predictions, "loss": loss}
        rest = {
            "tuple": (predictions,),
            "tuple_of_three": (predictions, x),
            "list": (predictions,),
            "only_a_loss": (),
        }[self.form]
        whole = rest if loss is None else (loss, *rest)
        return list(whole) if self.form == "list" else whole


FORMS = ["model_output", "dict", "dict_with_the_loss_last", "tuple", "tuple_of_three", "list", "only_a_loss"]


def plain(form: str) -> Returns:
    torch.manual_seed(0)
    return Returns(form)


def timeless(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in entry.items() if not key.endswith(SPEEDS)} for entry in entries]


@pytest.mark.feature(74)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_output_trains_evaluates_and_predicts_as_in_the_peer(tmp_path: Path, form: str) -> None:
    trained = []
    for kind in (transformers.Trainer, Trainer):
        trainer = make_trainer(
            tmp_path, kind, model=plain(form), eval_strategy="epoch", num_train_epochs=2, gradient_accumulation_steps=2
        )
        trainer.train()
        trained.append((trainer, trainer.predict(line_data(5, seed=2))))
    (peer, peer_output), (ours, output) = trained
    assert len(losses(ours)) == 4
    for entry, expected in zip(timeless(ours.state.log_history), timeless(peer.state.log_history), strict=True):
        assert entry == pytest.approx(expected, rel=1e-5)
    expected_weights = weights_of(peer.model)
    for name, weights in weights_of(ours.model).items():
        torch.testing.assert_close(weights, expected_weights[name], msg=name)
    assert output.metrics["test_loss"] == pytest.approx(peer_output.metrics["test_loss"], rel=1e-5)
    if form == "only_a_loss":
        assert len(output.predictions) == 0
        return
    shapes = [np.shape(each) for each in _as_tuple(output.predictions)]
    assert shapes == [np.shape(each) for each in _as_tuple(peer_output.predictions)]
    assert shapes[0] == (5,)
    np.testing.assert_allclose(
        _as_tuple(output.predictions)[0], _as_tuple(peer_output.predictions)[0], rtol=1e-5, atol=1e-6
    )


def _as_tuple(predictions: Any) -> tuple[Any, ...]:
    return predictions if isinstance(predictions, tuple) else (predictions,)


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_give_the_same_losses(tmp_path: Path, form: str) -> None:
    reference, trainer = make_trainer(tmp_path, model=plain("dict")), make_trainer(tmp_path, model=plain(form))
    reference.train()
    trainer.train()
    assert losses(trainer) == losses(reference)
    assert trainer.evaluate()["eval_loss"] == reference.evaluate()["eval_loss"]


def test_a_model_that_only_gives_a_loss_can_be_given_metrics_of_the_loss(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, model=plain("only_a_loss"), include_for_metrics=["loss"], prediction_loss_only=True
    )
    assert set(trainer.evaluate()) >= {"eval_loss", "eval_runtime"}


# The loss, overridden.


class ThreeArguments(Trainer):
    """The documented form without the count of items."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.l1_loss(outputs["predictions"], labels)
        return (loss, outputs) if return_outputs else loss


class FourArguments(ThreeArguments):
    """The present form, which divides by the count of items of the whole update where there is one."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        return ThreeArguments.compute_loss(self, model, inputs, return_outputs)


class RestOfTheArguments(ThreeArguments):
    """A form that takes whatever else there is."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return ThreeArguments.compute_loss(self, model, inputs, kwargs.get("return_outputs", False))


def absolute(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """The same loss as a `compute_loss_func`."""
    summed = (outputs["predictions"] - labels).abs().sum()
    return summed / (len(labels) if num_items_in_batch is None else num_items_in_batch)


@pytest.mark.feature(77)
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", [FourArguments, RestOfTheArguments, "compute_loss_func"])
def test_every_way_to_override_the_loss_trains_the_same(tmp_path: Path, kind: Any, steps: int) -> None:
    common: dict[str, Any] = {"gradient_accumulation_steps": steps, "eval_strategy": "epoch"}
    reference = make_trainer(tmp_path, ThreeArguments, model=plain("dict"), **common)
    if kind == "compute_loss_func":
        trainer = make_trainer(tmp_path, model=plain("dict"), compute_loss_func=absolute, **common)
    else:
        trainer = make_trainer(tmp_path, kind, model=plain("dict"), **common)
    reference.train()
    trainer.train()
    assert losses(trainer) == pytest.approx(losses(reference), rel=1e-5)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(reference.evaluate()["eval_loss"], rel=1e-5)
    squared = make_trainer(tmp_path, model=plain("dict"), **common)
    squared.train()
    assert losses(trainer) != pytest.approx(losses(squared), rel=1e-2)


def test_a_loss_function_may_be_for_a_module_that_has_no_loss(tmp_path: Path) -> None:
    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"predictions": self.linear(x).squeeze(-1)}

    trainer = make_trainer(tmp_path, model=Bare(), compute_loss_func=absolute, label_names=["labels"])
    trainer.train()
    assert losses(trainer)[-1] < losses(trainer)[0]
    assert trainer.evaluate()["eval_loss"] > 0


# Labels.


class Ranker(torch.nn.Module):
    """Tells the probability that a user likes an item; its main input are the users."""

    main_input_name = "user"

    def __init__(self) -> None:
        super().__init__()
        self.user = torch.nn.Embedding(5, 4)
        self.item = torch.nn.Linear(3, 4)

    def forward(self, user: torch.Tensor, item: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = (self.user(user) * self.item(item)).sum(-1)
        if labels is None:
            return {"logits": logits}
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.float())
        return {"loss": loss, "logits": logits}


def likes(size: int = 64) -> list[dict[str, Any]]:
    """Items that users like if a direction of their own tells so; user 4 likes everything."""
    random = np.random.default_rng(0)
    directions = random.normal(size=(5, 3))
    rows = []
    for user in random.integers(0, 5, size=size):
        item = random.normal(size=3).astype(np.float32)
        liked = int(user == 4 or directions[user] @ item > 0)
        rows.append({"user": int(user), "item": torch.from_numpy(item), "labels": liked})
    return rows


def grouped_auc(users: Any, scores: Any, labels: Any) -> float:
    """The area under the curve of every user, weighted by its samples; users of one class tell nothing."""
    total, weights = 0.0, 0
    for user in np.unique(users):
        own = users == user
        if len(set(labels[own].tolist())) == 2:
            total += own.sum() * roc_auc_score(labels[own], scores[own])
            weights += int(own.sum())
    return float(total / weights)


@pytest.mark.feature(57)
def test_a_grouped_auc_sees_the_user_of_every_sample(tmp_path: Path) -> None:
    data = likes()
    seen: list[Any] = []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append(prediction.inputs)
        return {"gauc": grouped_auc(prediction.inputs, prediction.predictions, prediction.label_ids)}

    torch.manual_seed(0)
    trainer = make_trainer(
        tmp_path,
        model=Ranker(),
        train_dataset=data,
        eval_dataset=data,
        compute_metrics=metrics,
        include_for_metrics=["inputs"],
        num_train_epochs=6,
        eval_strategy="epoch",
        per_device_eval_batch_size=10,
        eval_accumulation_steps=2,
        metric_for_best_model="gauc",
    )
    trainer.train()
    course = [entry["eval_gauc"] for entry in trainer.state.log_history if "eval_gauc" in entry]
    assert course[-1] > course[0]
    assert trainer.state.best_metric == max(course)
    users = np.array([row["user"] for row in data])
    assert all(each.tolist() == users.tolist() for each in seen)
    logits = trainer.predict(data).predictions
    expected = grouped_auc(users, logits, np.array([row["labels"] for row in data]))
    assert trainer.evaluate()["eval_gauc"] == pytest.approx(expected)
    assert expected != pytest.approx(roc_auc_score([row["labels"] for row in data], logits), abs=1e-3)


def test_inputs_that_the_batch_does_not_hold_are_an_error_that_says_how_to_name_them(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, model=plain("dict"), compute_metrics=lambda prediction: {}, include_for_metrics=["inputs"]
    )
    with pytest.raises(InvalidInputError, match=r"'input_ids'.*x, labels.*main_input_name"):
        trainer.evaluate()


class Heights(torch.nn.Module):
    """Predicts one target that is called height."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, height: torch.Tensor | None = None) -> Any:
        predictions = self.linear(x).squeeze(-1)
        if height is None:
            return {"predictions": predictions}
        return {"loss": torch.nn.functional.mse_loss(predictions, height), "predictions": predictions}


def heights(size: int = 16) -> list[dict[str, Any]]:
    return [{"x": each["x"], "height": each["labels"]} for each in line_data(size)]


def test_one_label_of_another_name_comes_bare(tmp_path: Path) -> None:
    data = heights()
    trainer = make_trainer(tmp_path, model=Heights(), train_dataset=data, eval_dataset=data, label_names=["height"])
    trainer.train()
    output = trainer.predict(data)
    assert output.label_ids.tolist() == pytest.approx([float(each["height"]) for each in data])
    assert output.metrics["test_loss"] == pytest.approx(trainer.evaluate()["eval_loss"])


@pytest.mark.parametrize("kind", [transformers.Trainer, Trainer])
def test_without_label_names_a_plain_module_only_predicts(tmp_path: Path, kind: Any) -> None:
    calls: list[Any] = []
    trainer = make_trainer(
        tmp_path, kind, model=plain("dict"), label_names=[], compute_metrics=lambda each: calls.append(each) or {}
    )
    output = trainer.predict([{"x": each["x"]} for each in line_data(5)])
    assert output.predictions.shape == (5,)
    assert output.label_ids is None
    assert "test_loss" not in output.metrics
    assert calls == []
    assert "eval_loss" not in trainer.evaluate([{"x": each["x"]} for each in line_data(5)])


class Pairs(torch.nn.Module):
    """A model whose loss needs no labels, as it says."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, return_loss: bool = True) -> Any:
        embedded = self.linear(x)
        if not return_loss:
            return {"embedded": embedded}
        targets = torch.arange(len(x))
        return {"loss": torch.nn.functional.cross_entropy(embedded @ embedded.T, targets), "embedded": embedded}


@pytest.mark.parametrize("kind", [transformers.Trainer, Trainer])
def test_a_loss_that_needs_no_labels_is_that_of_evaluations_too(tmp_path: Path, kind: Any) -> None:
    data = [{"x": each["x"]} for each in line_data(16)]
    trainer = make_trainer(tmp_path, kind, model=Pairs(), train_dataset=data, eval_dataset=data)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0
    output = trainer.predict(data)
    assert output.predictions.shape == (16, 2)
    assert not output.label_ids


# Label smoothing and ragged predictions of modules without a config.


class Tagger(torch.nn.Module):
    """Gives every token one of four tags; a module without a config."""

    main_input_name = "tokens"

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 4)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.embedding(tokens)
        if labels is None:
            return {"logits": logits}
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return {"loss": loss, "logits": logits}


def sentences(size: int = 10) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    drawn = [random.integers(1, 20, size=int(length)) for length in random.integers(3, 8, size=size)]
    return [{"tokens": tokens, "labels": tokens % 4} for tokens in drawn]


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    width = max(len(row["tokens"]) for row in rows)
    fill = {"tokens": 0, "labels": -100}
    return {
        name: torch.tensor([[*row[name].tolist(), *[value] * (width - len(row[name]))] for row in rows])
        for name, value in fill.items()
    }


def tagger_trainer(folder: Path, **changes: Any) -> Any:
    torch.manual_seed(0)
    data = sentences()
    return make_trainer(
        folder,
        **{
            "model": Tagger(),
            "train_dataset": data,
            "eval_dataset": data,
            "data_collator": padded,
            "per_device_train_batch_size": 4,
            "per_device_eval_batch_size": 3,
            "train_sampling_strategy": "sequential",
            **changes,
        },
    )


@pytest.mark.feature(52)
def test_label_smoothing_of_a_plain_module_is_torchs_own_over_the_labels_that_count(tmp_path: Path) -> None:
    trainer = tagger_trainer(tmp_path, label_smoothing_factor=0.2, learning_rate=0.0, num_train_epochs=1)
    trainer.train()
    batches = [padded(sentences()[start : start + 4]) for start in (0, 4, 8)]
    with torch.no_grad():
        expected = [
            torch.nn.functional.cross_entropy(
                trainer.model.embedding(each["tokens"]).flatten(0, 1),
                each["labels"].flatten(),
                ignore_index=-100,
                label_smoothing=0.2,
            ).item()
            for each in batches
        ]
    assert losses(trainer) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("accumulation", [None, 1, 3])
@pytest.mark.parametrize("concatenated", [True, False])
def test_ragged_predictions_are_padded_with_minus_100_or_kept_by_batch(
    tmp_path: Path, accumulation: int | None, concatenated: bool
) -> None:
    trainer = tagger_trainer(
        tmp_path, eval_accumulation_steps=accumulation, eval_do_concat_batches=concatenated, num_train_epochs=1
    )
    output = trainer.predict(sentences())
    lengths = [len(each["labels"]) for each in sentences()]
    if not concatenated:
        widths = [max(lengths[start : start + 3]) for start in range(0, 10, 3)]
        assert [each.shape for each in output.predictions] == [
            (size, width, 4) for size, width in zip((3, 3, 3, 1), widths, strict=True)
        ]
        return
    assert output.predictions.shape == (10, max(lengths), 4)
    for row, (length, sample) in enumerate(zip(lengths, sentences(), strict=True)):
        assert output.label_ids[row, :length].tolist() == sample["labels"].tolist()
        assert (output.label_ids[row, length:] == -100).all()
        own = trainer.model.embedding.weight[torch.from_numpy(sample["tokens"])].detach().numpy()
        np.testing.assert_allclose(output.predictions[row, :length], own, rtol=1e-6)
    width_of_batch = max(lengths[:3])
    assert (output.predictions[0, width_of_batch:] == -100).all()


@pytest.mark.feature(71)
def test_preprocessed_predictions_of_a_plain_module_reach_the_metrics_and_predict(tmp_path: Path) -> None:
    shapes: list[Any] = []

    def metrics(prediction: Any) -> dict[str, float]:
        shapes.append(prediction.predictions.shape)
        counted = prediction.label_ids != -100
        return {"accuracy": float((prediction.predictions == prediction.label_ids)[counted].mean())}

    trainer = tagger_trainer(
        tmp_path,
        compute_metrics=metrics,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        eval_accumulation_steps=1,
        learning_rate=0.3,
        num_train_epochs=8,
    )
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] > before
    width = max(len(each["labels"]) for each in sentences())
    assert set(shapes) == {(10, width)}
    assert trainer.predict(sentences()).predictions.shape == (10, width)


def test_only_the_loss_of_a_plain_module_leaves_metrics_and_predictions_out(tmp_path: Path) -> None:
    def fails(*args: Any) -> Any:
        raise AssertionError

    trainer = tagger_trainer(
        tmp_path, prediction_loss_only=True, compute_metrics=fails, preprocess_logits_for_metrics=fails
    )
    assert trainer.evaluate()["eval_loss"] > 0
    output = trainer.predict(sentences())
    assert output.predictions is None
    assert output.label_ids is None
