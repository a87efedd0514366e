"""What environments do not print."""

from __future__ import annotations

import logging

import pytest

from softaug.envs import make_env


def test_the_suites_own_deprecated_attributes_are_not_the_users_to_read(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, logger="absl"):
        make_env("cheetah_run").close()
        assert not caplog.records
        logging.getLogger("absl").warning("x is deprecated and will be removed")
    assert len(caplog.records) == 1  # only while a model of the suite is compiled
