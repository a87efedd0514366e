"""softaug with other people's work: SODA inside their learners, and their policies in our evaluation.

Files that need an optional library say so when they are imported; nothing else imports that library.
"""
