"""Tests of the backends; the contract asserts like a test module."""

import pytest

pytest.register_assert_rewrite("tests.backends.contract")
