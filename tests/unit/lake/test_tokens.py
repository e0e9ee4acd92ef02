"""Bearer tokens: the file that holds them, and which requests they allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from icestream import errors, limits
from icestream.catalog.tokens import Tokens, read_tokens
from tests.support.secret_files import secret_file

TOKEN = "0123456789abcdef"


def test_without_tokens_every_request_is_allowed() -> None:
    assert read_tokens(None).allows(None)
    assert Tokens().allows("Bearer anything")


def test_a_file_has_one_token_in_each_line(tmp_path: Path) -> None:
    path = secret_file(tmp_path / "tokens", f"# of the pipeline\n{TOKEN}\n\n  another-token-of-all  \n")
    tokens = read_tokens(path)
    assert tokens.allows(f"Bearer {TOKEN}")
    assert tokens.allows("bearer another-token-of-all")
    for header in (
        None,
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        "Bearer # of the pipeline",
    ):
        assert not tokens.allows(header), header


@pytest.mark.parametrize(
    "text", ["", "# none\n", "short\n", f"{TOKEN} {TOKEN}\n", "schlüssel-mit-umlaut\n", f"{TOKEN}\n" * 101]
)
def test_an_unusable_token_file_is_reported_without_its_tokens(tmp_path: Path, text: str) -> None:
    path = secret_file(tmp_path / "tokens", text)
    with pytest.raises(errors.ConfigurationError, match=r"lake\.token_file") as raised:
        read_tokens(path)
    assert TOKEN not in str(raised.value)
    assert limits.CATALOG_TOKENS_MAX == 100


def test_a_missing_token_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigurationError, match="No such file"):
        read_tokens(tmp_path / "none")


def test_a_token_file_that_other_accounts_can_read_is_refused(tmp_path: Path) -> None:
    path = secret_file(tmp_path / "tokens", TOKEN)
    path.chmod(0o644)
    with pytest.raises(errors.ConfigurationError, match=r"can be read by other accounts \(mode 0644\)"):
        read_tokens(path)
