"""How commands end: exit codes, and an error whose message is all that the user needs."""

from __future__ import annotations

EXIT_BAD_RESULT = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


class CommandError(Exception):
    """Ends a command with a message instead of a traceback; plugins may raise it too."""

    def __init__(self, message: str, exit_code: int = EXIT_BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code
