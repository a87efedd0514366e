"""Tests of the lab see no data sets that the user has registered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTAUG_HOME", str(tmp_path_factory.mktemp("home")))
        yield
