"""Hides secrets in what is shown or stored: passwords in URLs and in the messages that repeat them."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, quote_plus, unquote, unquote_plus

if TYPE_CHECKING:
    from sqlalchemy import URL

# In place of a secret.
HIDDEN = "***"
_PASSWORD_NAME = re.compile(r"passw(or)?d|passphrase|pwd|secret|credential|(?<![a-z])pass(?![a-z])")
# At the end of a part of a name, but for tokens of texts, and for keys of attention and of rows.
_KEY_NAME = re.compile(
    r"((?<!(bos|eos|pad|unk|sep|cls)_)(?<!(mask|stop)_)(?<!(start|image|audio|video)_)token"
    r"|(?<![a-z])(?<!(sort|text|mask)_)(?<!(query|label|image|group)_)(access|api|auth|private)?key"
    r"|(?<![a-z])(sig|signature|auth|authorization))"
    r"(?=_?\d*(?![\w-]))"
)
_LEAST_LETTERS = 4


def is_secret_name(name: str) -> bool:
    """Return whether the value of an argument, or of a key in the query of a URL, is secret by its name.

    >>> [is_secret_name(each) for each in ("hub_token", "dbPassword", "apikey", "PASSWD", "max_new_tokens", "sslkey")]
    [True, True, True, True, False, False]
    """
    words = _words(name)
    return (_PASSWORD_NAME.search(words) or _KEY_NAME.search(words)) is not None


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def hidden(name: str, value: object) -> object:
    """Return an argument's value without its secrets: the whole of it by its name, else parts of URLs and of mappings.

    A number is no token and no key, but may be a password.

    >>> hidden("optim_args", {"api_key": "x", "seed": 3, "at": ["s3://user:word@host"]})
    {'api_key': '***', 'seed': 3, 'at': ['s3://user:***@host']}
    """
    if value is not None and is_secret_name(name):
        is_secret = not isinstance(value, (int, float)) or _PASSWORD_NAME.search(_words(name)) is not None
        return HIDDEN if is_secret else value
    if isinstance(value, Mapping):
        return {key: hidden(str(key), each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [hidden("", each) for each in value]
    return redacted_url(value) if isinstance(value, str) and _secrets_in(value) else value


def holds_hidden(value: object) -> bool:
    """Return whether a part of a value was hidden, so that the value cannot be used."""
    if isinstance(value, Mapping):
        return any(map(holds_hidden, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(holds_hidden, value))
    return isinstance(value, str) and HIDDEN in value


def holds_secret(name: str, value: object) -> bool:
    """Return whether an argument holds a secret: by its name, in a URL, or in a part of a mapping or list.

    A number is no token and no key, but may be a password.

    >>> holds_secret("storage", "postgresql://user:word@host/name"), holds_secret("seed", 3)
    (True, False)
    """
    return holds_hidden(hidden(name, value))


def redacted_url(url: str) -> str:
    """Return a URL with its password, and what is secret in its query, hidden; without secrets, as it is.

    Of a text that cannot be read as a URL, only what comes before the first colon is shown. The user of an HTTP URL may
    be a token, and is hidden too.

    >>> redacted_url("postgresql://user:pass/word@host/name?sslmode=require&PWD=word")
    'postgresql://user:***@host/name?sslmode=require&PWD=***'
    """
    parsed = _parsed(url)
    if parsed is None:
        return f"{url.partition(':')[0]}:{HIDDEN}" if ":" in url else url
    shown, (scheme, _, rest) = url, url.partition("://")
    if parsed.username is not None and _is_http(scheme):
        shown = f"{scheme}://{HIDDEN}@{rest.rpartition('@')[2]}"
    elif parsed.password is not None:
        shown = f"{scheme}://{rest.partition(':')[0]}:{HIDDEN}@{rest.rpartition('@')[2]}"
    head, mark, query = re.fullmatch(r"([^?#]*)([?#]?)(.*)", shown, re.DOTALL).groups()  # type: ignore[union-attr]
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
    """Return whether the password of a URL has an '@' that is not quoted: a part of it would be taken for the host."""
    parsed = _parsed(url)
    return parsed is not None and parsed.password is not None and "@" in url.partition("@")[2].partition("?")[0]


def _parsed(url: str) -> URL | None:
    import sqlalchemy  # takes a third of a second, and few commands have a URL to hide

    try:
        return sqlalchemy.make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        return None


def _is_http(scheme: str) -> bool:
    return scheme.lower().endswith(("http", "https"))


def _redacted_pair(pair: str) -> str:
    """Hide the value of a key and a value; the fragment of a URL, after a '#', may hold such pairs too."""
    key, equals, value = pair.partition("=")
    if equals and value and is_secret_name(unquote_plus(key)):
        return f"{key}={HIDDEN}"
    before, mark, fragment = pair.partition("#")
    return f"{before}{mark}{_redacted_pair(fragment)}" if mark else pair


def _secrets_in(url: str) -> list[str]:
    """Return the secrets of a URL as they may be written, longest first."""
    scheme, is_url, rest = url.partition("://")
    if not is_url:
        return []
    parsed = _parsed(url)
    found: set[str] = set()
    if parsed is None or parsed.password is not None:
        password = rest.rpartition("@")[0].partition(":")[2]
        found |= {password, *re.split(r"[@:/?#]", password)} if parsed is None else {password}
    if _is_http(scheme):
        found.add((rest.rpartition("@")[0] if parsed is None else parsed.username or "").partition(":")[0])
    for mark in re.finditer(r"[?#]", rest):
        found |= {value for key, value in parse_qsl(rest[mark.end() :]) if is_secret_name(key)}
    readable = {unquote(each) for each in found} | {unquote_plus(each) for each in found}
    written = {quoted(each, safe="") for each in readable for quoted in (quote, quote_plus)}
    secrets = {each for each in found | readable | written if each and HIDDEN not in unquote(each)}
    return sorted(secrets, key=len, reverse=True)
