"""Two objectives at once: vision transformers for handwritten digits that are good, or small, or fast.

    python -m studies.several_objectives [--cost size|latency] [--trials 40] [--epochs 6] [--output runs]
    hpsearch run studies/several_objectives.py    # accuracy and size, with all options of the command line

There is no best trial here but a Pareto front: the trials of which no other is better in one objective and at least as
good in the other. Size is the number of weights; latency is milliseconds per sample, as the evaluations measure it, so
it varies from run to run and needs a machine with nothing else to do. The test split is never seen by the search.

Measured on 2 CPU cores that did other work too, November 2026: the 40 trials of the first line took 202 seconds, and
twelve of them are the front, from 771 weights (accuracy 0.7100, on the test split 0.6633) over 6,619 (0.9733; 0.9500)
to 35,581 (0.9900; 0.9600). The default arguments, with 18,218 weights, come to 0.6067 on the test split.
"""

from __future__ import annotations

import sys
from typing import Any

from hpsearch import Categorical, Float, Int, SearchPlan, SearchSpace
from objectives.several import metric_and_latency, metric_and_size
from studies import digits
from studies.command import options_parser, until_interrupted

SPACE = SearchSpace(
    {
        "learning_rate": Float(5e-4, 2e-2, log=True),
        "per_device_train_batch_size": Categorical((16, 32, 64)),
        # What makes a model large; the defaults are those of the model that is trained without a search.
        "model.hidden_size": Int(8, 96, step=8, default=32),
        "model.num_hidden_layers": Int(1, 3, default=2),
        "model.intermediate_size": Int(8, 192, log=True, default=64),
    }
)
OBJECTIVES = {"size": metric_and_size("accuracy"), "latency": metric_and_latency("accuracy")}


def model_init(trial: Any = None) -> Any:
    """A new model, as wide and as deep as the trial says."""
    params = SPACE.defaults() if trial is None else trial.params
    return digits.make_model(
        params["model.hidden_size"], params["model.num_hidden_layers"], params["model.intermediate_size"]
    )


def make_trainer(data: dict[str, Any], output: str, epochs: int) -> Any:
    """The recipe that is searched: that of the digits with other models, and evaluated in the batches they serve."""
    return digits.make_trainer(data, output, epochs, model_init).with_arguments(
        per_device_eval_batch_size=32, logging_strategy="no"
    )


study = SearchPlan(
    lambda: make_trainer(digits.load_data(), "runs", 6),
    SPACE,
    n_trials=40,
    study_name="accuracy_and_size",
    **OBJECTIVES["size"],
)


def accuracy_on_test(trainer: Any, data: dict[str, Any]) -> float:
    """Accuracy of a trainer's model on the split that the search has not seen."""
    return float(trainer.predict(data["test"]).metrics["test_accuracy"])


def show_front(front: list[Any], accuracies: list[float], cost: str) -> None:
    """Print the Pareto front, the cheapest model first."""
    rows = sorted(zip(front, accuracies, strict=True), key=lambda row: row[0].objective[1])
    print(f"{'trial':>5} {'dev accuracy':>12} {cost:>12} {'test accuracy':>13}  weights")
    for best, accuracy in rows:
        dev, price = best.objective
        print(f"{best.run_id:>5} {dev:>12.4f} {price:>12.6g} {accuracy:>13.4f}  {best.checkpoint}")


def run(options: Any) -> None:
    """Search, then let every model of the front meet the test split, and one with the default arguments."""
    from transformers import PrinterCallback

    from hpsearch import Trainer

    data = digits.load_data()
    trainer = make_trainer(data, options.output, options.epochs)
    search = {**study.search, **OBJECTIVES[options.cost], "study_name": f"accuracy_and_{options.cost}"}
    front = trainer.hyperparameter_search(SPACE, **{**search, "n_trials": options.trials})

    def loaded(best: Any) -> Any:
        return Trainer(
            model=best.load_model(), args=trainer.args, eval_dataset=data["dev"], compute_metrics=digits.compute_metrics
        )

    show_front(front, [accuracy_on_test(loaded(best), data) for best in front], options.cost)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    weights = sum(each.numel() for each in trainer.model.parameters())
    print(f"default arguments: test accuracy {accuracy_on_test(trainer, data):.4f} with {weights} weights")
    print(f"dashboard: {front[0].run_summary.dashboard_command()}")


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = options_parser(__doc__, trials=40)
    parser.add_argument("--cost", choices=tuple(OBJECTIVES), default="size")
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args(arguments)
    return until_interrupted(lambda: run(options))


if __name__ == "__main__":
    sys.exit(main())
