"""``python -m spark_group_source``: commands for users of the installed package.

The explanation of an error code is its section in ``messages.md``, which is ``docs/messages.md`` inside the package.
The exit codes are below.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from importlib import resources
from pathlib import Path

from spark_group_source import __version__
from spark_group_source.errors import GroupSourceError, OptionError

SUCCESS = 0
UNAVAILABLE = 1
"""The exit code if the brokers or the group are not available."""

INVALID_ARGUMENTS = 2
"""The exit code for invalid arguments, which argparse also uses."""

SIMILAR = 0.4
"""The least similarity of an unknown error code with the code that the command suggests."""

_TOPIC_OPTIONS = {"subscribe", "subscribepattern", "assign"}
_SECTION = re.compile(r"^### ([A-Z_]+)\n\n(.*?)\s*(?=^##)", re.M | re.S)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def sections() -> dict[str, str]:
    """Error code -> its section without links, in the order of the page."""
    page = resources.files("spark_group_source").joinpath("messages.md").read_text(encoding="utf-8")
    return {code: _LINK.sub(r"\1", section) for code, section in _SECTION.findall(page)}


def explain(args: argparse.Namespace) -> str:
    """The section of an error code, whose case and brackets do not matter. Without a code, one line for each code."""
    found = sections()
    if not args.code:
        return "\n".join(f"{code:23} {section.splitlines()[0]}" for code, section in found.items())
    code = args.code.strip("[] .").upper()
    if code not in found:
        nearest = difflib.get_close_matches(code, found, n=1, cutoff=SIMILAR)
        advice = f"The nearest code is {nearest[0]}." if nearest else "Without a code, the command lists all codes."
        raise OptionError(f"No error has the code '{args.code}'.", advice)
    return f"{code}\n\n{found[code]}"


def look_up(args: argparse.Namespace) -> str:
    """Runs the commands ``lag`` and ``report``, and returns the text to print.

    For ``lag``, the text is a table of the group's partitions. ``report`` samples the group for ``--seconds`` and
    writes an HTML page; the text is the path of the page and the number of samples.
    """
    from spark_group_source.lag import group_report  # loads kafka-python, which ``explain`` does not need
    from spark_group_source.lag.client import GroupLagClient

    with closing(GroupLagClient(_look_up_options(args))) as client:
        if args.command == "lag":
            return group_report.text(group_report.snapshot(client).partitions(client.group))
        _check_writable(args.output)
        snapshots = group_report.watch(client, args.seconds, args.interval, _say)
        page = group_report.page(client.group, snapshots)
    try:
        args.output.write_text(page, encoding="utf-8")
    except OSError as error:
        reason = error.strerror
        if reason is None:
            reason = str(error)
        raise _not_writable(args.output, reason) from None
    return f"{args.output}: {len(snapshots)} sample(s)"


def _check_writable(page: Path) -> None:
    """Rejects a page that cannot be written, before the samples of a minute are taken in vain."""
    directory = page.parent
    if not directory.is_dir():
        raise _not_writable(page, f"there is no directory '{directory}'")
    if page.is_dir():
        raise _not_writable(page, "it is a directory")
    written = directory
    if page.exists():
        written = page
    if not os.access(written, os.W_OK):
        raise _not_writable(page, "no permission")


def _not_writable(page: Path, reason: str) -> OptionError:
    return OptionError(f"The page '{page}' cannot be written: {reason}.", "Give another file with --output.")


def _look_up_options(args: argparse.Namespace) -> dict[str, str]:
    """The options of a command. The command line takes precedence over the file of ``--command-config``."""
    from spark_group_source.options.properties import read_options

    options: dict[str, str] = {}
    if args.command_config is not None:
        options = read_options(args.command_config)
    if _names_topics(dict(args.option)):
        _remove_topics(options)
    if args.bootstrap_servers is not None:
        options["kafka.bootstrap.servers"] = args.bootstrap_servers
    if args.group is not None:
        options["kafka.group.id"] = args.group
    options.update(args.option)
    _check_given(options, "kafka.bootstrap.servers", "--bootstrap-servers")
    _check_given(options, "kafka.group.id", "--group")
    if not _names_topics(options):
        options["subscribePattern"] = ".*"
    return options


def _names_topics(names: Iterable[str]) -> bool:
    return not _TOPIC_OPTIONS.isdisjoint(name.lower() for name in names)


def _remove_topics(options: dict[str, str]) -> None:
    for name in list(options):
        if name.lower() in _TOPIC_OPTIONS:
            del options[name]


def _check_given(options: Iterable[str], name: str, argument: str) -> None:
    if name not in {each.lower() for each in options}:
        raise OptionError(
            f"Neither {argument} nor --command-config names '{name}'.",
            f"Give {argument}, or a properties file with the line {name.removeprefix('kafka.')}=...",
        )


def _say(text: object) -> None:
    print(text, file=sys.stderr, flush=True)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("NAME=VALUE is needed, with an equals sign")  # the value may be a secret
    return name, value


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds greater than 0")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m spark_group_source", description="Kafka consumer groups for PySpark.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    command = commands.add_parser("explain", help="print the meaning of an error code and what to do")
    command.add_argument("code", nargs="?", metavar="CODE", help="for example DATA_LOSS; without it: all codes")
    command.set_defaults(run=explain)
    for name, does in (("lag", "print the lag and owner of each partition"), ("report", "watch a group, write a page")):
        command = commands.add_parser(name, help=does, description=f"{does}; the group does not change")
        command.add_argument("--bootstrap-servers", metavar="HOST:PORT,...")
        command.add_argument("--group")
        command.add_argument("--command-config", type=Path, metavar="FILE",
                             help="properties file with options, as Kafka's tools have it: for secrets")  # fmt: skip
        command.add_argument("--option", type=_option, action="append", default=[], metavar="NAME=VALUE",
                             help="an option of the source; it takes precedence over the file")  # fmt: skip
        command.set_defaults(run=look_up)
    add = command.add_argument
    add("--output", type=Path, default=Path("group_report.html"), help="HTML file to write (default: %(default)s)")
    add("--seconds", type=_positive, default=60.0, help="how long to watch (default: %(default)s)")
    add("--interval", type=_positive, default=1.0, help="seconds between two samples (default: %(default)s)")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    args = _parser().parse_args(arguments)
    try:
        print(args.run(args), flush=True)
    except GroupSourceError as error:
        _say(error)
        if isinstance(error, OptionError):
            return INVALID_ARGUMENTS
        return UNAVAILABLE
    except BrokenPipeError:  # a program such as head has closed the pipe; Python flushes again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return SUCCESS


if __name__ == "__main__":
    sys.exit(main())
