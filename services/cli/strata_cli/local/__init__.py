"""A cluster of real processes on one machine: `strata local`.

    plan       the members of the cluster: names, roles, ports; a file that outlives every command
    processes  one operating system process: start, signal, state; never a process that is not ours
    cluster    the verbs: up, kill, stop, pause, resume, start, add, remove, down
    readiness  when a process serves, and what its log says when it does not

Only the processes themselves keep running: every command reads the plan and the process files,
does one thing and ends.
"""
