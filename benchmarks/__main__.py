"""`python -m benchmarks NAME`: run one benchmark, or all of them."""

import sys
from collections.abc import Sequence

from rich.console import Console

from ppga import machine
from ppga.cli.output import unfailing_output
from ppga.errors import InputError, one_line

from benchmarks.commands import All, Benchmark, parse


def main(words: Sequence[str] | None = None) -> None:
    """Run the benchmark that the command line asks for.

    The exit code is 2 after wrong input, and 1 if a part of `all` failed.
    """
    with unfailing_output():
        try:
            succeeded = run(parse(sys.argv[1:] if words is None else words))
        except InputError as error:
            print(f"benchmarks: {one_line(str(error))}", file=sys.stderr)
            sys.exit(2)
        except KeyboardInterrupt:
            print("benchmarks: interrupted", file=sys.stderr)
            sys.exit(130)
    if not succeeded:
        sys.exit(1)


def run(benchmark: Benchmark) -> bool:
    """Measure, print a table for each task, and write the results; returns whether no part failed."""
    machine.prepare_jax()
    from ppga.tasks import TASKS, find

    from benchmarks.harness import Result, write_json
    from benchmarks.suite import run_all

    tasks = list(TASKS) if benchmark.task == "all" else [find(benchmark.task)]
    check_writable(benchmark)
    console = Console(markup=False, emoji=False)  # names of tasks may look like rich's markup
    results: list[Result] = []
    succeeded = True
    for number, task in enumerate(tasks, start=1):
        if isinstance(benchmark, All):
            new, complete = run_all(task, benchmark.preset, benchmark.minutes, console)
            succeeded = succeeded and complete
        else:
            message = f"measuring {task} ({number} of {len(tasks)})"
            with console.status(message) as status:
                show = status.update if console.is_terminal else console.print
                show(message)
                new = benchmark.measure(task, show)
            console.print(benchmark.table(new, task))
        results += new
    if benchmark.json is not None:
        write_json(results, benchmark.json)
    return succeeded


def check_writable(benchmark: Benchmark) -> None:
    """Raise an InputError if the results cannot be written."""
    if benchmark.json is None:
        return
    try:
        benchmark.json.open("a").close()
    except OSError as error:
        raise InputError(f"cannot write to {benchmark.json}: {error.strerror}.") from None


if __name__ == "__main__":
    main()
