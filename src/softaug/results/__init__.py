"""From runs to tables, figures and pages: reading runs back, statistics over seeds, `report` and `reproduce`.

May import `sweep` (to train what is missing) and what is below.
"""
