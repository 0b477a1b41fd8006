"""From SendMessage to an append batch; transactions and their checks."""
