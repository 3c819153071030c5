"""What the studies have in common on the command line: options, an end by Ctrl-C, a test split, and what is printed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

from hpsearch import SearchInterrupted
from hpsearch.system.ctrl_c import ctrl_c_as_interruption

# Where a study's data lie. `hpsearch run` has no option of a study's own, so there the variable says it.
DATA = os.environ.get("STUDY_DATA")


def options_parser(description: str | None, trials: int, output: str = "runs") -> argparse.ArgumentParser:
    """Return a parser with the options that every study has; `description` is its docstring."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=trials)
    parser.add_argument("--output", default=output, help="the study's folder is made in it")
    return parser


def until_interrupted(run: Callable[[], object]) -> int:
    """Run a study to its end, to Ctrl-C or a signal; return the exit status, 130 for Ctrl-C as shells have it."""
    try:
        with ctrl_c_as_interruption():
            run()
    except SearchInterrupted as interruption:
        print(interruption)
        return interruption.exit_code
    except KeyboardInterrupt:
        print("Interrupted. Run the same command again to continue.")
        return 130
    return 0


def on_test_split(trainer: Any, best: Any, test: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Return the test metrics of the best model, and of one trained with the trainer's own arguments.

    Args:
        trainer: the one that has searched; it is trained here.
        best: what the search returned.
        test: samples that the search has not seen.
    """
    from transformers import PrinterCallback

    from hpsearch import Trainer

    found = Trainer(
        model=best.load_model(),
        args=trainer.args,
        eval_dataset=trainer.eval_dataset,
        data_collator=trainer.data_collator,
        compute_metrics=trainer.compute_metrics,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return found.predict(test).metrics, trainer.predict(test).metrics


def show(best: Any, result: str = "", note: str = "") -> None:
    """Print the best trials, what each parameter explains, the best one, and a result with a note, for a person."""
    from rich.console import Console

    from hpsearch.reports.tables import describe_best, importance_table, trials_table

    summary = best.run_summary
    console = Console(highlight=False)
    console.print(trials_table(summary.study, summary.records, has_heading=False))
    if importances := summary.importances():  # too few trials tell none
        console.print(importance_table(importances, summary.study.unit))
    console.print(describe_best(best, has_test_set=False), soft_wrap=True)
    if result:
        console.print(result, style="bold", soft_wrap=True)
    console.print(f"  ({note})", style="dim", soft_wrap=True)
    console.print(f"dashboard: {summary.dashboard_command()}", soft_wrap=True)
