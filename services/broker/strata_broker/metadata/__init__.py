"""The metadata as this broker sees it: topics, consumer groups, places, quotas."""
