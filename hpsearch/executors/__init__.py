"""Ways to run the trials of a search: in this process, in workers, on Ray. They know no pruner, budget or storage.

An executor drives a `Coordinator` from one thread, until it is over or an error or a signal ends the search:

    try:
        while not coordinator.is_ending:
            while (a slot is free) and (assignment := coordinator.next()) is not None:
                (let the slot train it)
            if coordinator.is_over:
                break
            (wait for a message of a slot, at most half a second, and take it)
        if coordinator.interruption.signal:
            coordinator.end_with(KeyboardInterrupt())
            (pass the signal on to the slots; take messages until no slot trains, or interruption.is_overdue)
    except BaseException as error:
        coordinator.end_with(error)
    finally:
        try:
            (abandon what still trains; pass each Ended that comes from it to coordinator.left)
        finally:
            coordinator.close()
    if coordinator.error is not None:
        raise coordinator.error

Where trials run in other processes, Ctrl-C calls `coordinator.take_ctrl_c` (`at_ctrl_c`), which notes it as a signal.
In this process, `finishing_at_ctrl_c` does so while a trial trains.

To train is one call: `LocalTrials.train` in the process and thread of the coordinator (its reporter calls the
coordinator), or `train_remotely` elsewhere, whose `Line` brings messages to the coordinator and answers back. Both take
an `Assignment` (`trial/assignment.py`), return an `Ended` (`trial/ending.py`), and decide what an error makes of the
trial. Where several processes train a trial, `train_remotely` gets them as its `ranks`, and the other processes call
`train_with_main` with the same assignment. To take a message is one call, too:

- An `Ended` goes to `coordinator.ended`.
- A slot that died is a `Loss` for `coordinator.lost`. If that returns None, `next` gives the trial again, and its
  checkpoints tell where it resumes; if it returns an `Ended`, that goes to `coordinator.ended`.
- Any other message goes to `coordinator.receive`, and the answer, also if it is an error, to the slot, which waits for
  one after every message but `Progress`. If `receive` raises, the search ends, and the slots are abandoned: `Line.ask`
  and `Line.look` then raise `Abandoned`, which makes an `Ended` of the trial.

`tests/support/threads.py` is a whole executor in this form.
"""
