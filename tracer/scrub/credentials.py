"""Patterns of credentials: those of detect-secrets, additional ones, and values whose names suggest a secret.

Only those plugins of detect-secrets that use patterns are used, not those that measure entropy: a mangled kernel name
is as random as a key. Its keyword detector expects lines of source code, where `secret::detail` is not a word by itself
and a value is quoted or extends to the end of the line; so its words are used with a grammar of our own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Final

Rule = tuple[str, re.Pattern[str]]
"""A label for the report and the pattern to remove. If the pattern has a group `value`, only the group is removed."""

LABEL: Final = r"\[[a-z]+ \d+\]"
"""The placeholder for removed text."""

_MAKERS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)  # the categories of Chrome JSON are read in lower case
    for pattern in (
        # RFC 7468, and PuTTY's own files; a truncated key extends to the end of the text.
        r"(?s)-{2,5} ?BEGIN [A-Z0-9 ]*PRIVATE KEY.*?(?:END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-*|\Z)",
        r"(?s)PuTTY-User-Key-File-\d.*",
        # docs.github.com, "GitHub's token formats"; docs.gitlab.com, "Token prefixes"; docs.slack.dev, "Tokens"
        r"(?<![A-Za-z0-9])(?:gh[a-z]_|github_pat_)[A-Za-z0-9_]{16,}",
        r"(?<![A-Za-z0-9])gl[a-z]{2,7}-[A-Za-z0-9_.-]{16,}",
        r"(?<![A-Za-z0-9])(?:xox[a-z]|xapp|xwfp)-[A-Za-z0-9-]{10,}",
        # docs.stripe.com, "API keys"
        r"(?<![A-Za-z0-9])(?:[prs]k_(?:live|test)|whsec)_[A-Za-z0-9]{10,}",
        # OpenAI, Anthropic and others with the same prefix; Groq, xAI, Perplexity, Replicate: gitleaks' rules
        r"(?<![A-Za-z0-9])[sp]k-[A-Za-z0-9_-]{16,}",
        r"(?<![A-Za-z0-9])(?:gsk_|xai-|pplx-|r8_)[A-Za-z0-9]{32,}",
        # huggingface.co/docs/hub/security-tokens, and their former organisation tokens
        r"(?<![A-Za-z0-9])(?:hf|api_org)_[A-Za-z0-9]{16,}",
        # docs.nvidia.com, "NGC user guide": keys of NVIDIA's API catalogue
        r"(?<![A-Za-z0-9])nvapi-[A-Za-z0-9_-]{16,}",
        # cloud.google.com: API keys, OAuth access tokens, client secrets; gitleaks and TruffleHog
        r"(?<![A-Za-z0-9])AIza[A-Za-z0-9_-]{30,}|(?<![A-Za-z0-9])(?:ya29\.|GOCSPX-)[A-Za-z0-9_-]{16,}",
        # docs.aws.amazon.com, "IAM identifiers"; a secret key is recognisable only by its length and name
        r"(?<![A-Za-z0-9])(?:A3T[A-Z0-9]|ABIA|ACCA|AKIA|ASIA)[A-Z0-9]{16}",
        # RFC 7519: the first part is an object in Base64
        r"(?<![\w-])eyJ[\w-]{8,}\.[\w=-]+(?:\.[\w=-]*){0,3}",
        # docs.wandb.ai, "API keys": 40 hexadecimal digits; since 2025 a prefix
        r"(?<![A-Za-z0-9])wandb_v\d_[A-Za-z0-9_]{16,}|(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])",
        # from gitleaks' rules: npm, PyPI, Docker, Databricks, DigitalOcean, Vault, Artifactory
        r"(?<![A-Za-z0-9])(?:npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{50,})",
        r"(?<![A-Za-z0-9])(?:dckr_[a-z]{3}_[A-Za-z0-9_-]{16,}|dapi[0-9a-f]{32}(?:-\d)?)",
        r"(?<![A-Za-z0-9])(?:do[opr]_v1_[0-9a-f]{32,}|hv[sb]\.[A-Za-z0-9_-]{20,}|AKC[A-Za-z0-9]{40,})",
        # RFC 3986, 3.2.1, without a scheme
        r"(?<![^\s\"'=(<])[\w.+-]+:(?![:/])[^\s:@\"']+@[\w.-]*\w",
    )
)
"""Patterns that detect-secrets lacks, or of which it matches only a part."""

_UNUSED: Final = {
    "ArtifactoryDetector",  # AP and nine letters: matches APBarrierWait
    "BasicAuthDetector",  # matches only a part of an address
    "IPPublicDetector",  # we remove private addresses, too
    "JwtTokenDetector", "NpmDetector", "OpenAIDetector",  # quadratic in a hostile text; our patterns find the same
    "PrivateKeyDetector",  # matches only the header of a key
    "TwilioKeyDetector",  # AC or SK and 32 letters or digits, also inside a mangled name
}  # fmt: skip

_WORDS: Final = (
    "passphrase", "credential", "access[_ -]?key", "encryption[_ -]?key", "license[_ -]?key", "master[_ -]?key",
    "session[_ -]?key", "signing[_ -]?key", "ssh[_ -]?key", "storage[_ -]?key", "access[_-]?token", "api[_-]?token",
    "auth[_-]?token", "refresh[_-]?token",
)  # fmt: skip
"""Words, in addition to those of detect-secrets, after which a value is a secret."""
_WEAK: Final = r"(?<![A-Za-z])(?:token|auth)"
_SIGN: Final = r"(?=(?P<sign>[\\\"'`\])]{0,3}\s*(?::=|=>|!?={1,3}|:(?!:))\s*@?))(?P=sign)"
"""An atomic group: a lookahead does not backtrack (Python has atomic groups since 3.11)."""
_OPTION: Final = r"(?<![\w-])--?(?:[\w-]*[_-])?"
_QUOTED: Final = r"(?P<quote>\\?[\"'`])(?s:(?!(?P=quote))(?:\\.|.))*(?:(?P=quote)(?:[^\s,;:)}\]]\S*)?|\Z)"
_REST: Final = rf"(?:{LABEL}|\S)"
_ONE_LABEL: Final = rf"(?!\\?[\"'`]?{LABEL}\\?[\"'`]?(?:[\s,;)}}\]]|\Z))"
_VALUE: Final = rf"{_ONE_LABEL}(?P<value>{_QUOTED}|{_REST}+)"
_NAMING: Final = rf"{_ONE_LABEL}(?P<value>{_QUOTED}|(?=\S*[A-Za-z])(?:{LABEL}|[^\s<(\[,;:]){_REST}{{5,}})"
"""A value after an ambiguous word: not `token=5`, `token: 5/128`, `token=<unk>`."""


@cache
def rules() -> tuple[Rule, ...]:
    """All patterns, in the order in which to apply them."""
    return tuple(("credential", pattern) for pattern in (*_assigned(), *_MAKERS, *_of_detect_secrets()))


def _assigned() -> Iterator[re.Pattern[str]]:
    """`password=...`, `"api_key": "..."`, `--token ...`, `Authorization: Bearer ...`."""
    from detect_secrets.plugins.keyword import DENYLIST

    words = [*(word.replace("_?", "[_ -]?") for word in DENYLIST), *_WORDS]
    begins = "".join(sorted({word[0] for word in words}))  # tested first: takes a third of the time
    strong = rf"(?=[{begins}])(?:{'|'.join(words)})[\w-]*"
    for pattern in (
        rf"(?:authorization|cookie){_SIGN}{_ONE_LABEL}(?P<value>[^\r\n]+)",
        r"(?<![A-Za-z])bearer\s+(?P<value>(?=\S*\d|\S{20})[\w.~+/=-]{8,})",
        rf"{strong}(?:{_SIGN}|[(\s]\s*(?=\\?[\"'`])){_VALUE}",
        rf"{_OPTION}{strong}\s+(?!-){_VALUE}",
        rf"{_WEAK}{_SIGN}{_NAMING}",
        rf"{_OPTION}(?:token|auth)\s+(?!-){_NAMING}",
        rf"(?<![\w-])(?:-u|--user)[ =]{_ONE_LABEL}(?P<value>[^\s:]+:(?!:)\S+)",
    ):
        yield re.compile(pattern, re.IGNORECASE)


def _of_detect_secrets() -> Iterator[re.Pattern[str]]:
    """Patterns of detect-secrets, each extended to the end of the word, so that no part of a longer token is left."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.plugins.base import RegexBasedDetector

    plugins: Iterable[Any] = get_mapping_from_secret_type_to_class().values()
    for plugin in plugins:
        if issubclass(plugin, RegexBasedDetector) and plugin.__name__ not in _UNUSED:
            for pattern in plugin.denylist:
                yield re.compile(rf"(?:{pattern.pattern})[\w-]*", pattern.flags)
