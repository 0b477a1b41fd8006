"""Connected clients: their sessions, their settings, their routes."""
