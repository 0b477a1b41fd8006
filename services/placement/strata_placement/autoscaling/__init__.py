"""KEDA's external scaler: lag, rates and forecasts of a cluster as metrics to scale pods by.

    KEDA --GetMetrics--> servicer --> follower of the trigger --> reader of the cluster
                                          |
                                          +-- windows of rates --> forecast (strata_placement)

Each trigger of a ScaledObject has one follower, a task that reads the cluster at an interval and
keeps the last value for a while when the cluster cannot be read. Calls of KEDA never read the
cluster themselves, so their number does not matter to it. The reader is a port; the `strata`
command brings the one that asks a broker.
"""
