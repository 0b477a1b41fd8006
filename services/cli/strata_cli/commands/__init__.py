"""The `strata` command's commands, one file a subject."""
