"""`python -m jobwatchdog.cli`."""

from jobwatchdog.cli import main

main()
