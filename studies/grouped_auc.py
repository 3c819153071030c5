"""Rank items for every user: the objective is the area under the ROC curve within each user's own samples.

    python -m studies.grouped_auc [--trials 40] [--epochs 9] [--samples 40000] [--output runs]
    hpsearch run studies/grouped_auc.py    # the search alone, with all options of the command line

The data are made up, from a fixed seed: users with tastes click on items with features, some on nearly everything. An
AUC over all samples rewards knowing who clicks much, which says nothing about the order of one user's items; so the
metric is taken within each user, and averaged over those that have both, clicks and misses. It must know whose a sample
is: `include_for_metrics=["inputs"]` hands the model's main input to `compute_metrics`, and here that is the user.

Measured on 2 CPU cores that did other work too, November 2026: the 40 trials of the first line took 141 seconds, and
the best has an AUC of 0.6959 within users. On the test split it is 0.7058 (0.8227 over all samples); with the default
arguments, whose learning rate is 5e-5, it is 0.5558. The rate that was found is 9.9e-3.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from hpsearch import Categorical, Float, SearchPlan, SearchSpace
from studies.command import on_test_split, options_parser, show, until_interrupted

SPACE = SearchSpace(
    {
        "learning_rate": Float(1e-4, 1e-1, log=True),
        "per_device_train_batch_size": Categorical((64, 256, 1024)),
        "weight_decay": Float(1e-3, 10.0, log=True),
        # The defaults are those of the model that is trained without a search.
        "model.width": Categorical((4, 8, 16, 32), default=16),
        "model.dropout": Float(0.0, 0.5, default=0.0),
    }
)
USERS, ITEMS, TASTES = 200, 100, 6


def load_data(samples: int = 40_000, seed: int = 0) -> dict[str, Any]:
    """Make the splits train (eight tenths), dev and test, as datasets of `user`, `item` and `labels` (clicked or not).

    The logit of a click is how active the user is, plus how liked the item is, plus what the two have in common.
    """
    from datasets import Dataset

    random = np.random.default_rng(seed)
    activity, appeal = random.normal(-0.5, 1.5, USERS), random.normal(0.0, 0.5, ITEMS)
    tastes, features = random.normal(size=(USERS, TASTES)), random.normal(size=(ITEMS, TASTES))
    user, item = random.integers(0, USERS, samples), random.integers(0, ITEMS, samples)
    logits = activity[user] + appeal[item] + (tastes[user] * features[item]).sum(-1) / TASTES**0.5
    clicked = (random.random(samples) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    bounds = {"train": (0, 8), "dev": (8, 9), "test": (9, 10)}
    parts = {name: slice(*(samples * tenths // 10 for tenths in each)) for name, each in bounds.items()}
    return {
        name: Dataset.from_dict({"user": user[part], "item": item[part], "labels": clicked[part]}).with_format("torch")
        for name, part in parts.items()
    }


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of pairs of a click and a miss that are in the right order; ties count half.

    The statistic of Mann and Whitney (1947), from the ranks of the clicks.
    """
    from scipy.stats import rankdata

    is_click = labels > 0
    clicks, misses = int(is_click.sum()), int((~is_click).sum())
    return float((rankdata(scores)[is_click].sum() - clicks * (clicks + 1) / 2) / (clicks * misses))


def grouped_auc(groups: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean of the AUC within each group; groups without both classes are left out. NaN if all are."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order])) + 1
    each = [auc(scores[own], labels[own]) for own in np.split(order, starts) if 0 < labels[own].mean() < 1]
    return float(np.mean(each)) if each else float("nan")


def compute_metrics(prediction: Any) -> dict[str, float]:
    """The AUC within users, which counts, and the one over all samples, to compare."""
    users, scores, labels = prediction.inputs, prediction.predictions, prediction.label_ids
    return {"grouped_auc": grouped_auc(users, scores, labels), "auc": auc(scores, labels)}


def model_init(trial: Any = None) -> Any:
    """Biases and embeddings of users and items, in a plain torch module; its class is made here, as it needs torch."""
    import torch

    class Clicks(torch.nn.Module):
        """The logit of a click; the loss too, if there are labels."""

        # What `include_for_metrics=["inputs"]` hands to compute_metrics.
        main_input_name = "user"

        def __init__(self, width: int, dropout: float) -> None:
            super().__init__()
            self.user, self.item = torch.nn.Embedding(USERS, width), torch.nn.Embedding(ITEMS, width)
            self.activity, self.appeal = torch.nn.Embedding(USERS, 1), torch.nn.Embedding(ITEMS, 1)
            self.dropout = torch.nn.Dropout(dropout)
            for table in (self.user, self.item, self.activity, self.appeal):
                torch.nn.init.normal_(table.weight, std=0.1)

        def forward(self, user: Any, item: Any, labels: Any = None) -> dict[str, Any]:
            common = (self.dropout(self.user(user)) * self.item(item)).sum(-1)
            logits = common + self.activity(user).squeeze(-1) + self.appeal(item).squeeze(-1)
            if labels is None:
                return {"logits": logits}
            return {"loss": torch.nn.functional.binary_cross_entropy_with_logits(logits, labels), "logits": logits}

    params = SPACE.defaults() if trial is None else trial.params
    return Clicks(params["model.width"], params["model.dropout"])


def make_trainer(data: dict[str, Any], output: str, epochs: int) -> Any:
    """The recipe that is searched; nothing in it is about the search."""
    from hpsearch import Trainer, TrainingArguments

    args = TrainingArguments(
        output,
        num_train_epochs=epochs,
        per_device_eval_batch_size=4096,
        include_for_metrics=["inputs"],
        eval_strategy="epoch",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    return Trainer(
        model_init=model_init,
        args=args,
        train_dataset=data["train"],
        eval_dataset=data["dev"],
        compute_metrics=compute_metrics,
    )


study = SearchPlan(
    lambda: make_trainer(load_data(), "runs", 9),
    SPACE,
    n_trials=40,
    compute_objective="grouped_auc",
    study_name="grouped_auc",
)


def run(options: Any) -> None:
    """Search, then meet the test split."""
    data = load_data(options.samples)
    trainer = make_trainer(data, options.output, options.epochs)
    best = trainer.hyperparameter_search(SPACE, **{**study.search, "n_trials": options.trials})
    found, default = on_test_split(trainer, best, data["test"])
    show(
        best,
        f"test AUC within users: {found['test_grouped_auc']:.4f} with the best trial, "
        f"{default['test_grouped_auc']:.4f} with the default arguments",
        f"over all samples {found['test_auc']:.4f} and {default['test_auc']:.4f}; 0.5 is chance",
    )


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = options_parser(__doc__, trials=40)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--samples", type=int, default=40_000, help="how many to make, all splits together")
    options = parser.parse_args(arguments)
    return until_interrupted(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
