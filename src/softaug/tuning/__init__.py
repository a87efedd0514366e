"""Tuning: search the fields of a config for the best training curve, with Optuna.

    space.py       which fields are searched, and between which values
    objective.py   what is maximized: the area under the training curve, from a run's metrics
    plan.py        one study's settings, and the runs of one of its trials
    runners.py     trains runs through the sweep's supervisor, on local processes or Ray
    study.py       the study: asks Optuna for trials, trains them, prunes them, resumes after a crash
    display.py     progress
    summary.py     the result: table, importance of each field, preset file

It uses `sweep`, and nothing but its command uses it. Optuna is the extra ``tune``.
"""
