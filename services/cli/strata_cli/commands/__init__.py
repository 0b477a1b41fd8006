"""The commands of `strata`, one file per subject."""
