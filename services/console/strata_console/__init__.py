"""The web console: a JSON API and live streams over the cluster's services for operators."""
