"""Environment tests see no data sets that the user has registered."""

import pytest


@pytest.fixture(autouse=True)
def empty_home(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTAUG_HOME", str(tmp_path))
