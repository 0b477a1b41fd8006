"""The metadata as this broker sees them: topics, consumer groups, places, quotas."""
