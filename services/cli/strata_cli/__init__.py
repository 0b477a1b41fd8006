"""The `strata` command, and the standalone node as a composition of all services."""
