"""The example of hyperparameter search in the documentation of transformers, as it runs here; on SST-2.

    python -m studies.transformers_example --data FOLDER [--backend optuna|ray] [--trials 20] [--output runs]
    python -m studies.transformers_example --data FOLDER --model distilbert-base-uncased
    STUDY_DATA=FOLDER hpsearch run studies/transformers_example.py    # the search alone, with Optuna

What had to change of https://huggingface.co/docs/transformers/hpo_train: `from transformers import Trainer,
TrainingArguments` is now `from hpsearch import ...`. `model_init`, both spaces, `compute_objective` and the call are as
they were; `study_name` is new, so that several studies fit into one folder. What differs without a change: trials
pause at rungs where transformers lets Optuna prune by the median; `n_trials` is the total of the study, also when it
resumes after Ctrl-C; and the best model is there, as `best_trial.load_model()`.

FOLDER is that of `studies.sst2`. Without `--model` the model is a small BERT with new weights, for which the learning
rates of the documentation are too small: they are a hundred times larger then.

Measured as in `studies.sst2`: the 20 trials of the first line, with Optuna, took 599 seconds (other work had most of
the cores), and the best has an accuracy of 0.7844; on the test split 0.7941, with the default arguments 0.6403.
"""

from __future__ import annotations

import sys
from typing import Any

from hpsearch import SearchPlan
from studies.command import DATA, on_test_split, show, until_interrupted
from studies.sst2 import MAX_WORDS, compute_metrics, load_data, make_tokenizer, sentence_options

# The lower end of the learning rates; the upper one is a hundred times it.
LOWEST_FOR_PRETRAINED, LOWEST_FOR_NEW = 1e-6, 1e-4


def optuna_hp_space(trial: Any, lowest: float = LOWEST_FOR_NEW) -> dict[str, Any]:
    """The space of the documentation for Optuna."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", lowest, 100 * lowest, log=True),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [16, 32, 64, 128]),
    }


def ray_hp_space(trial: Any, lowest: float = LOWEST_FOR_NEW) -> dict[str, Any]:
    """The space of the documentation for Ray; it needs `pip install 'hpsearch[ray]'`."""
    from ray import tune

    return {
        "learning_rate": tune.loguniform(lowest, 100 * lowest),
        "per_device_train_batch_size": tune.choice([16, 32, 64, 128]),
    }


HP_SPACES = {"optuna": optuna_hp_space, "ray": ray_hp_space}


def compute_objective(metrics: dict[str, float]) -> float:
    """What is optimised, of the metrics of an evaluation."""
    return metrics["eval_accuracy"]


def make_trainer(
    folder: str | None, output: str = "runs", epochs: int = 6, samples: int | None = None, name: str | None = None
) -> tuple[Any, Any]:
    """Return the trainer, and the test split that it does not get. `name` is that of a pretrained model."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig

    from hpsearch import Trainer, TrainingArguments

    dataset = load_data(folder, samples)
    tokenizer = AutoTokenizer.from_pretrained(name) if name else make_tokenizer(list(dataset["train"]["sentence"]))

    def tokenize(examples: dict[str, Any]) -> Any:
        return tokenizer(examples["sentence"], truncation=True, max_length=MAX_WORDS)

    dataset = {split: each.map(tokenize, batched=True) for split, each in dataset.items()}

    def model_init(trial: Any) -> Any:
        if name is not None:
            return AutoModelForSequenceClassification.from_pretrained(name, num_labels=2)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=MAX_WORDS,
            initializer_range=0.1,
        )
        return AutoModelForSequenceClassification.from_config(config)

    training_args = TrainingArguments(
        output_dir=output,
        num_train_epochs=epochs,
        per_device_eval_batch_size=128,
        eval_strategy="epoch",
        save_strategy="no",
        logging_strategy="epoch",
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=None,
        args=training_args,
        train_dataset=dataset["train"],
        eval_dataset=dataset["dev"],
        compute_metrics=compute_metrics,
        processing_class=tokenizer,
        model_init=model_init,
    )
    return trainer, dataset["test"]


study = SearchPlan(
    lambda: make_trainer(DATA)[0],
    optuna_hp_space,
    n_trials=20,
    direction="maximize",
    compute_objective=compute_objective,
    study_name="transformers_example",
)


def run(options: Any) -> None:
    """Search as the documentation does, then meet the test split."""
    trainer, test = make_trainer(options.data, options.output, options.epochs, options.samples, options.model)
    lowest = LOWEST_FOR_PRETRAINED if options.model else LOWEST_FOR_NEW
    best_trial = trainer.hyperparameter_search(
        direction="maximize",
        backend=options.backend,
        hp_space=lambda trial: HP_SPACES[options.backend](trial, lowest),
        n_trials=options.trials,
        compute_objective=compute_objective,
        study_name="transformers_example",
    )
    found, default = (each["test_accuracy"] for each in on_test_split(trainer, best_trial, test))
    show(
        best_trial,
        f"test accuracy: {found:.4f} with the best trial, {default:.4f} with the default arguments",
        f"{len(test)} sentences that the search has not seen",
    )


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = sentence_options(__doc__)
    parser.add_argument("--backend", choices=tuple(HP_SPACES), default="optuna")
    options = parser.parse_args(arguments)
    return until_interrupted(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
