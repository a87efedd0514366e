"""What is on the disk: the names of a run's files, and checkpoints that are written atomically and verified when read.

Knows nothing about agents or environments. May import `config` and what is below.
"""
