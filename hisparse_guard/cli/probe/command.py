"""``hisparse-guard probe``: its options. argparse, since a probe starts every few seconds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from hisparse_guard.cli.exit_codes import Exit


def command() -> None:
    """Ask a server for a few real tokens within a deadline."""
    # Only for the overview of commands: `main` runs before typer is imported.
    main(["--help"])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (try: {self.prog} --help)", file=sys.stderr)
        raise SystemExit(Exit.USAGE)


def main(arguments: Sequence[str]) -> int:
    """Asks once and prints one line.

    Returns:
        0 the server gave tokens, 1 it did not. Wrong usage exits with 2.
    """
    parser = _Parser(
        prog="hisparse-guard probe",
        description="Ask a server for a few real tokens within a deadline. A server that stands"
        " still keeps /health at 200, and fails here. Exit: 0 answered, 1 not.",
        epilog="The API key is taken from --api-key-file, OPENAI_API_KEY or VLLM_API_KEY.",
        allow_abbrev=False,
    )
    parser.add_argument("--base-url", required=True, help="e.g. http://127.0.0.1:8000")
    parser.add_argument("--model", help="the model's name [the first that the server lists]")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds in all [10]")
    parser.add_argument("--tokens", type=int, default=4, help="tokens to ask for [4]")
    parser.add_argument("--ca-file", help="certificates (PEM) that sign the server's")
    parser.add_argument("--api-key-file", help="a file that holds the API key")
    options = parser.parse_args(arguments)
    if not 0 < options.timeout <= 3600 or not 0 < options.tokens <= 1024:
        parser.error("--timeout must be in 0-3600 seconds and --tokens in 1-1024")

    from hisparse_guard.cli.probe.ask import UsageError, probe

    try:
        return probe(
            options.base_url,
            model=options.model,
            timeout_s=options.timeout,
            tokens=options.tokens,
            ca_file=options.ca_file,
            key_file=options.api_key_file,
        )
    except UsageError as error:
        parser.error(str(error))
