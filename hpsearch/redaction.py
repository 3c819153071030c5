"""Hides secrets in what is shown or stored: passwords in URLs and in the messages that repeat them."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, unquote_plus

# In place of a secret.
HIDDEN = "***"
_PASSWORD_NAME = re.compile(r"passw(or)?d|passphrase|pwd|secret|credential|(?<![a-z])pass(?![a-z])")
# At the end of a part of a name, but for tokens of texts, and for keys of attention and of rows.
_KEY_NAME = re.compile(
    r"((?<!(bos|eos|pad|unk|sep|cls)_)(?<!(mask|stop)_)(?<!(start|image|audio|video)_)token"
    r"|(?<![a-z])(?<!(sort|text|mask)_)(?<!(query|label|image|group)_)(access|api|auth|private)?key)"
    r"(?=_?\d*(?![\w-]))"
)
_LEAST_LETTERS = 4


def is_secret_name(name: str) -> bool:
    """Tell whether the value of an argument, or of a key in the query of a URL, is secret by its name.

    >>> [is_secret_name(each) for each in ("hub_token", "dbPassword", "apikey", "PASSWD", "max_new_tokens", "sslkey")]
    [True, True, True, True, False, False]
    """
    words = _words(name)
    return (_PASSWORD_NAME.search(words) or _KEY_NAME.search(words)) is not None


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def holds_secret(name: str, value: Any) -> bool:
    """Tell whether an argument holds a secret: by its name, in a URL, or in a part of a mapping or list.

    A number is no token and no key, but may be a password.

    >>> holds_secret("storage", "postgresql://user:word@host/name"), holds_secret("seed", 3)
    (True, False)
    """
    if value is not None and is_secret_name(name):
        return not isinstance(value, (int, float)) or _PASSWORD_NAME.search(_words(name)) is not None
    if isinstance(value, Mapping):
        return any(holds_secret(str(key), each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return any(holds_secret("", each) for each in value)
    return isinstance(value, str) and bool(_secrets_in(value))


def redacted_url(url: str) -> str:
    """Return a URL with its password, and what is secret in its query, hidden; without secrets, as it is.

    Of a text that cannot be read as a URL, only what comes before the first colon is shown.

    >>> redacted_url("postgresql://user:pass/word@host/name?sslmode=require&PWD=word")
    'postgresql://user:***@host/name?sslmode=require&PWD=***'
    """
    parsed = _parsed(url)
    if parsed is None:
        return f"{url.partition(':')[0]}:{HIDDEN}" if ":" in url else url
    shown = url
    if parsed.password is not None:
        scheme, _, rest = url.partition("://")
        shown = f"{scheme}://{rest.partition(':')[0]}:{HIDDEN}@{rest.rpartition('@')[2]}"
    head, mark, query = shown.partition("?")
    return f"{head}{mark}{'&'.join(map(_redacted_pair, query.split('&')))}"


def redacted_text(text: str, url: str) -> str:
    """Return a text, such as the message of a driver, without the secrets of a URL.

    >>> redacted_text("no login with 'a b', nor a%20b", "postgresql://user:a%20b@host/name")
    "no login with '***', nor ***"
    """
    for secret in _secrets_in(url):
        pattern = re.escape(secret)
        text = re.sub(pattern if len(secret) >= _LEAST_LETTERS else rf"(?<!\w){pattern}(?!\w)", HIDDEN, text)
    return text


def safe_cause(error: BaseException, url: str) -> BaseException | None:
    """Return an error if it may be shown as a cause; None if its traceback would show a secret of the URL."""
    shown = "".join(traceback.format_exception(error))
    return error if redacted_text(shown, url) == shown else None


def has_unquoted_at(url: str) -> bool:
    """Tell whether the password of a URL has an '@' that is not quoted: a part of it would be taken for the host."""
    parsed = _parsed(url)
    return parsed is not None and parsed.password is not None and "@" in url.partition("@")[2].partition("?")[0]


def _parsed(url: str) -> Any:
    import sqlalchemy  # takes a third of a second, and few commands have a URL to hide

    try:
        return sqlalchemy.make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        return None


def _redacted_pair(pair: str) -> str:
    key, equals, value = pair.partition("=")
    return f"{key}={HIDDEN}" if equals and value and is_secret_name(unquote_plus(key)) else pair


def _secrets_in(url: str) -> list[str]:
    """Return the secrets of a URL as they may be written, longest first."""
    _, is_url, rest = url.partition("://")
    if not is_url:
        return []
    parsed = _parsed(url)
    found: set[str] = set()
    if parsed is None or parsed.password is not None:
        password = rest.rpartition("@")[0].partition(":")[2]
        found |= {password, *re.split(r"[@:/?#]", password)} if parsed is None else {password}
    found |= {value for key, value in parse_qsl(rest.partition("?")[2]) if is_secret_name(key)}
    readable = {unquote(each) for each in found} | {unquote_plus(each) for each in found}
    written = {quoted(each, safe="") for each in readable for quoted in (quote, quote_plus)}
    secrets = {each for each in found | readable | written if each and HIDDEN not in unquote(each)}
    return sorted(secrets, key=len, reverse=True)
