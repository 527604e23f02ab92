"""`python -m apportion.cli` is `apportion`."""

from apportion.cli import main

main()
