"""`softaug lab`: a local page on which policies act side by side while you change what they see.

`settings.py` is the one list of controls. A page has a `Session`, a session has one worker process per agent, and a worker
has a `World` (the environment, its appearance changed live) and a `Mind` (the policy). Only `server.py` needs Starlette.
"""
