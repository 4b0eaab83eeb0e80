"""The demo's mixed workload: its tables, its pgbench scripts, its checks and its progress line."""
