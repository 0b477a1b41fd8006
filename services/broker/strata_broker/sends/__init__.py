"""From SendMessage to an append batch; transactions, and who is asked about them."""
