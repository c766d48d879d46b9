"""`python -m jobwatchdog`."""

from jobwatchdog.cli import main

main()
