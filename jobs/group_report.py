"""Watches a consumer group and writes a page with its members, assignment, lag and rebalances.

    python jobs/group_report.py --bootstrap-servers broker:9092 --group orders-to-lake --seconds 60

The page is one HTML file without scripts or links. The report does not join or change the group. It works for groups
of both group protocols with any clients, and needs the extra "report" (matplotlib). Exit codes: 0 success; 1 the group
or the brokers are not available; 2 invalid arguments.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

from report.page import page
from report.watch import watch

from spark_group_source.errors import GroupSourceError, OptionError
from spark_group_source.lag.client import GroupLagClient


def main(arguments: list[str] | None = None) -> int:
    """Runs the job."""
    args = _parser().parse_args(arguments)
    try:
        with closing(GroupLagClient(source_options(args))) as client:
            say(f"watching group {args.group} for {args.seconds:.0f} s")
            history = watch(client, args.seconds, args.interval, say)
    except OptionError as error:
        say(str(error))
        return 2
    except GroupSourceError as error:
        say(str(error))
        return 1
    args.output.write_text(page(args.group, history), encoding="utf-8")
    last = history.snapshots[-1]
    lag = "unknown" if last.sample.unknown() else f"{last.lag():,}"
    say(f"{args.output}: {len(history.snapshots)} sample(s), lag {lag}")
    return 0


def source_options(args: argparse.Namespace) -> dict[str, str]:
    """The source options for the connection to the brokers; options of ``--option`` take precedence."""
    options = {"kafka.bootstrap.servers": args.bootstrap_servers, "kafka.group.id": args.group}
    return options | {"subscribePattern": ".*"} | dict(args.option)


def say(text: str) -> None:
    """Prints a line for the user."""
    print(f"group_report: {text}", file=sys.stderr, flush=True)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not greater than 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="group_report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--bootstrap-servers", required=True, metavar="HOST:PORT,...")
    add("--group", required=True, help="consumer group to watch")
    add("--output", type=Path, default=Path("group_report.html"), help="HTML file to write (default: %(default)s)")
    add("--seconds", type=_positive, default=60.0, help="how long to watch (default: %(default)s)")
    add("--interval", type=_positive, default=1.0, help="seconds between two samples (default: %(default)s)")
    add(
        "--option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any source option, for example of security",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
