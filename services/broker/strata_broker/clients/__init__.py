"""Who is connected, what they are told, where they are sent."""
