"""Secrets in URLs, in messages that repeat them, and in arguments are hidden however they are written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url

from hpsearch.system.redaction import (
    HIDDEN,
    has_unquoted_at,
    hidden,
    holds_secret,
    is_secret_name,
    redacted_text,
    redacted_url,
)

WORD = "Geheimnis"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://u:{WORD}@host/name", "postgresql://u:***@host/name"),
        (f"postgresql://u:{WORD}/x@host/name", "postgresql://u:***@host/name"),
        (f"postgresql://u:{WORD}/x@host", "postgresql://u:***@host"),
        (f"postgresql://u:a/{WORD}@b@host/name", "postgresql://u:***@host/name"),
        (f"postgresql://u:a?{WORD}#b@host/name", "postgresql://u:***@host/name"),
        (f"postgresql://u:a%2F{WORD}@host/name", "postgresql://u:***@host/name"),
        (f"postgresql://host/name?passwd={WORD}&sslmode=require", "postgresql://host/name?passwd=***&sslmode=require"),
        (f"postgresql://host/name?PWD={WORD}&Pass={WORD}", "postgresql://host/name?PWD=***&Pass=***"),
        (f"mysql://host/name?token={WORD}&api_key={WORD}", "mysql://host/name?token=***&api_key=***"),
        (f"mysql://host/name?%70assword={WORD}&secret={WORD}", "mysql://host/name?%70assword=***&secret=***"),
        (f"postgresql://host/name?sslpassword={WORD}&key={WORD}", "postgresql://host/name?sslpassword=***&key=***"),
        (f"nonsense://u:{WORD}@host:port/name", "nonsense:***"),
        (f"postgresql:/u:{WORD}@host/name", "postgresql:***"),
        (f"s3://bucket/x?sig={WORD}&n=1", "s3://bucket/x?sig=***&n=1"),
        (f"https://host/x?X-Amz-Signature={WORD}&a=b", "https://host/x?X-Amz-Signature=***&a=b"),
        (f"redis://host?auth={WORD}", "redis://host?auth=***"),
        (f"https://host/x#token={WORD}", "https://host/x#token=***"),
        (f"https://host/x?a=b#token={WORD}", "https://host/x?a=b#token=***"),
        (f"https://ghp_{WORD}@host/x", "https://***@host/x"),
        (f"git+https://{WORD}:x-oauth-basic@host/x", "git+https://***@host/x"),
        (f"https://{WORD}@host:port/x", "https:***"),
        ("https://host/x?a=b#part", "https://host/x?a=b#part"),
        ("sqlite:////folder/a:b@c.db", "sqlite:////folder/a:b@c.db"),
        ("postgresql://user@host:5432/name?host=/var/run", "postgresql://user@host:5432/name?host=/var/run"),
        ("mine.log", "mine.log"),
    ],
)
def test_the_secrets_of_a_url_are_hidden_and_nothing_else(url: str, shown: str) -> None:
    assert redacted_url(url) == shown
    assert redacted_url(shown) == shown


@given(st.text(st.characters(codec="utf-8", exclude_characters="*"), min_size=1, max_size=12))
def test_no_password_is_shown_whatever_is_in_it(text: str) -> None:
    password = f"<{text}>"
    url = make_url("postgresql://host/name").set(username="u", password=password).render_as_string(hide_password=False)
    assert redacted_url(url) == "postgresql://u:***@host/name"
    assert password not in redacted_text(f"connection to '{url}' failed: {password!s} is wrong", url)


@pytest.mark.parametrize(
    ("url", "text", "shown"),
    [
        (f"postgresql://u:{WORD}@h/n", f'no user with "{WORD}" at u:{WORD}@h', 'no user with "***" at u:***@h'),
        ("postgresql://u:a%20b%2Fc@h/n", "dsn password=a b/c, a%20b%2Fc, a+b%2Fc", "dsn password=***, ***, ***"),
        (f"postgresql://h/n?pwd={WORD}", f"password={WORD} host=h", "password=*** host=h"),
        ("postgresql://u:on@h/n", "connection on h refused, u:on@h", "connection *** h refused, u:***@h"),
        (f"nonsense://u:a@{WORD}:x@h:port/n", f"no port in {WORD}:x", "no port in ***:***"),
        ("postgresql://h/n", "nothing to hide", "nothing to hide"),
    ],
)
def test_a_message_that_repeats_a_secret_hides_it_in_every_spelling(url: str, text: str, shown: str) -> None:
    assert redacted_text(text, url) == shown


@pytest.mark.parametrize(
    "name",
    [
        "hub_token",
        "token",
        "api_key",
        "apikey",
        "key",
        "wandb_api_key",
        "password",
        "dbPassword",
        "passwd",
        "pwd",
        "SECRET",
        "client_secret",
        "aws_secret_access_key",
        "credentials",
        "pass",
        "hubToken",
        "server.auth-token",
        "api_key_2",
    ],
)
def test_what_is_secret_by_its_name_is(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "include_num_input_tokens_seen",
        "max_new_tokens",
        "pad_token",
        "pad_token_id",
        "tokenizer",
        "keys_to_ignore",
        "learning_rate",
        "passes",
        "bypass",
        "monkey",
        "token_type_ids",
        "max_token_length",
        "token_dropout",
        "mask_token",
        "model.key_dim",
        "query_key",
    ],
)
def test_other_names_are_not(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("hub_token", "hf_x", True),
        ("hub_token", None, False),
        ("password", 12345, True),
        ("model.token", 64, False),
        ("key", True, False),
        ("api_key", ["x"], True),
        ("storage", f"postgresql://u:{WORD}/x@host/name", True),
        ("storage", f"postgresql://host/name?pwd={WORD}", True),
        ("storage", "postgresql://user@host/name", False),
        ("storage", "study.log", False),
        ("optim_args", {"server": {"auth_token": "x"}}, True),
        ("report_to", ["wandb", f"http://u:{WORD}@host"], True),
        ("run_name", f"https://{WORD}@host/name", True),
        ("run_name", f"https://{WORD}@host:port/name", True),
        ("server", {"signature": WORD}, True),
        ("learning_rate", 0.1, False),
    ],
)
def test_an_argument_holds_a_secret_by_its_name_or_in_its_value(name: str, value: Any, expected: bool) -> None:
    assert holds_secret(name, value) is expected


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        (
            "optim_args",
            {"api_key": WORD, "server": {"url": f"s3://u:{WORD}@h"}},
            {"api_key": "***", "server": {"url": "s3://u:***@h"}},
        ),
        ("report_to", ["wandb", f"https://h/x#token={WORD}"], ["wandb", "https://h/x#token=***"]),
        ("hub_token", [WORD], "***"),
        ("password", 123, "***"),
        ("key_dim", {"token": 64, "seed": None}, {"token": 64, "seed": None}),
    ],
)
def test_of_an_argument_only_what_is_secret_is_hidden(name: str, value: Any, shown: Any) -> None:
    assert hidden(name, value) == shown
    assert hidden(name, shown) == shown


def test_an_at_that_is_not_quoted_in_a_password_is_noticed() -> None:
    assert has_unquoted_at(f"postgresql://u:a/{WORD}@b@host/name")
    assert not has_unquoted_at(f"postgresql://u:a%40{WORD}@host/name")
    assert HIDDEN not in redacted_url("postgresql://host/name")
