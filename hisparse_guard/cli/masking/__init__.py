"""Secrets out of whatever is echoed or kept: text by what it looks like (`mask`), files by where
their values stand (`files`), and known secrets wherever they turn up (`Vault`)."""

from __future__ import annotations

from hisparse_guard.cli.masking.text import (
    MASK,
    is_secret_name,
    mask,
    mask_arguments,
    mask_environment,
)
from hisparse_guard.cli.masking.vault import Vault

__all__ = ["MASK", "Vault", "is_secret_name", "mask", "mask_arguments", "mask_environment"]
