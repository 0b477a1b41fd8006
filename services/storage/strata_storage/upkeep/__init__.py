"""Work in the background: retention, checkpoints, rebuilds, repair, snapshots."""
