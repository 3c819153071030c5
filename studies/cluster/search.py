"""The search of `studies.digits` on a Ray cluster: as many parallel trials as it has room for.

    python -m studies.cluster.search [--address auto] [--trials 30] [--epochs 12] [--output quickstart]

Without an address it starts a local Ray instance and ends it afterwards. Run it again, and the study continues.
"""

from __future__ import annotations

import argparse
import sys

from hpsearch import SearchInterrupted, Trainer, TrainingArguments
from studies.digits import SPACE, compute_metrics, load_data, model_init


def run(address: str | None, trials: int, epochs: int, output: str) -> None:
    """Search, and say what was found."""
    data = load_data()
    trainer = Trainer(
        model_init=model_init,
        args=TrainingArguments(
            output,
            num_train_epochs=epochs,
            per_device_eval_batch_size=128,
            eval_strategy="epoch",
            save_strategy="epoch",  # what a trial resumes from when its worker or node is lost
            disable_tqdm=True,
        ),
        train_dataset=data["train"],
        eval_dataset=data["dev"],
        compute_metrics=compute_metrics,
    )
    best = trainer.hyperparameter_search(
        SPACE,
        compute_objective="accuracy",
        n_trials=trials,
        study_name="cluster",
        backend="ray",
        address=address,
        storage="journal",  # SQLite needs a local disk
    )
    print(f"best trial {best.run_id}: accuracy {best.objective:.4f}, weights in {best.checkpoint}")


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--address", help="of the cluster: auto or host:port")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--output", default="quickstart", help="a folder that all nodes share")
    options = parser.parse_args(arguments)
    try:
        run(options.address, options.trials, options.epochs, options.output)
    except SearchInterrupted as interruption:
        print(interruption)
        return interruption.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
