"""``hope-planner`` and ``python -m planner_api``: the command line, or one sentence where its extra is missing."""

import sys


def main() -> int:
    try:
        from planner_api.cli.commands import main as run
    except ModuleNotFoundError as error:
        print(
            f"hope-planner: {error}; the planner needs its extra: pip install 'hope-inference[planner]'",
            file=sys.stderr,
        )
        return 1
    return run()


if __name__ == "__main__":
    sys.exit(main())
