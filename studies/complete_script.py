"""A complete script: arguments, training, evaluation, prediction, saving, and loading what was saved.

    python -m studies.complete_script --output_dir out [--debug_flag] [any training argument]
    python -m studies.complete_script arguments.json

Every field of TrainingArguments is an option. `--debug_flag` makes everything small, to see in seconds whether the
script runs through; remove it for the real run.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers import HfArgumentParser, PrinterCallback, ViTForImageClassification

from hpsearch import Trainer, TrainingArguments
from studies.digits import compute_metrics, load_data, model_init

# What this script starts from; the command line or the file changes it.
DEFAULTS: dict[str, Any] = {
    "num_train_epochs": 12,
    "learning_rate": 2e-3,
    "per_device_train_batch_size": 32,
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "logging_strategy": "epoch",
    "save_total_limit": 1,
    "load_best_model_at_end": True,
    "metric_for_best_model": "accuracy",
    "disable_tqdm": True,
}
DEBUG = {"max_steps": 6, "eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 3, "save_steps": 3}
DEBUG_SAMPLES = 48


@dataclass
class ScriptArguments:
    """What this script adds to the training arguments."""

    debug_flag: bool = field(default=False, metadata={"help": "Small data, few updates: does the script run through?"})


def parse(words: list[str]) -> tuple[ScriptArguments, TrainingArguments]:
    """Parse the command line, or the JSON file it names."""
    parser = HfArgumentParser((ScriptArguments, TrainingArguments))
    if len(words) == 1 and words[0].endswith(".json"):
        given = json.loads(Path(words[0]).read_text(encoding="utf-8"))
        script, args = parser.parse_dict({**DEFAULTS, **given})
    else:
        parser.set_defaults(**DEFAULTS)
        script, args = parser.parse_args_into_dataclasses(words)
    return script, args.replace(**DEBUG) if script.debug_flag else args


def run(script: ScriptArguments, args: TrainingArguments) -> dict[str, float]:
    """Train, evaluate, predict and save; return the metrics of the test set."""
    data = load_data()
    if script.debug_flag:
        data = {name: each.select(range(DEBUG_SAMPLES)) for name, each in data.items()}
    trainer = Trainer(
        model_init=model_init,
        args=args,
        train_dataset=data["train"],
        eval_dataset=data["dev"],
        compute_metrics=compute_metrics,
    )
    trainer.remove_callback(PrinterCallback)

    trained = trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    evaluated = trainer.evaluate()
    predicted = trainer.predict(data["test"])
    for split, metrics in (("train", trained.metrics), ("eval", evaluated), ("test", predicted.metrics)):
        trainer.log_metrics(split, metrics)
        trainer.save_metrics(split, metrics)
    trainer.save_model()
    trainer.save_state()

    loaded = Trainer(model=ViTForImageClassification.from_pretrained(args.output_dir), args=args, eval_dataset=[])
    again = loaded.predict(data["test"]).predictions
    print("the model that was saved predicts the same:", bool(np.allclose(again, predicted.predictions, atol=1e-5)))
    return predicted.metrics


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    run(*parse(sys.argv[1:] if arguments is None else arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
