"""Clip norm, step and rounds of an experiment's arms, found in one of two ways that are sound.

    public    trials on data that the user names as public: nothing is charged
    private   trials on the experiment's own clients, without a seed: arms of one run, all debited
              to the population's journal before the first draw, and all released

Either way a trial's score is its accuracy on public held-out records: post-processing.

Private trials are composed: k trials of T rounds cost what k T rounds cost, exactly. Releasing only
the best of a random number of trials (Papernot and Steinke 2022) takes less noise from three trials
on. But then nothing else may ever leave the server, not even the number of trials, and it gains
nothing against a server that sees messages; a run's folder, ledger and bundle show every arm.

task.py     what is to be tuned, checked
trials.py   the trials, on public data or charged
report.py   the tuned file and the report
"""
