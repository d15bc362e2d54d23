"""The two ways in which Headscope stops on purpose, each with a message for people and an exit code."""


class HeadscopeError(Exception):
    """Stops the command line with `exit_code` and its message, one or two lines, without a traceback."""

    exit_code = 1


class InputError(HeadscopeError):
    """What the user gave cannot be used: says what was expected, what was found and what to do."""

    exit_code = 2


class SetupError(HeadscopeError):
    """The surroundings failed (network, disk, a missing package), not the user's input."""

    exit_code = 1
