"""From runs to the paper's tables and figures: the grid of each, the runs that are missing, and what is written.

`grids` says what each table and figure holds, `collect` chooses the runs and evaluations behind every number,
`tables` and `figures` give them the paper's form, `making` trains and evaluates what is missing.
"""
