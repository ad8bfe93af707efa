"""Engines outside this thread: in a child process, on replicas of a cluster, behind other servers."""
