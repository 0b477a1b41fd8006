"""Access control: every RPC of every face is checked here."""
