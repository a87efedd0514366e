"""Environment tests see no data sets that the user has registered."""

import pytest

from softaug.envs import make_env


@pytest.fixture(autouse=True)
def empty_home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAUG_HOME", str(tmp_path))


@pytest.fixture
def make(request):
    """`make_env` with the test file's `SMALL` settings; closes what it made."""
    made = []

    def factory(*arguments, **options):
        made.append(make_env(*arguments, **{**request.module.SMALL, **options}))
        return made[-1]

    yield factory
    for environment in made:
        environment.close()
