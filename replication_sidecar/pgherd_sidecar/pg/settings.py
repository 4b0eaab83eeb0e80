"""Every setting that a session may change, and what is done about it.

A member stores what others have computed, and computes a little by itself: the text forms of
values, what indexes hold, what a command makes. So a setting of a session must either not reach
any of that, or be the same wherever it is computed.

- ``HARMLESS``: it reaches nothing that is stored. Each belongs to the reason why.
- ``SETTINGS``: it does, and each says what is done.
- ``FIXED``: the values with which each of our own sessions begins (``trusted``).

A setting that is in neither list fails a test of the running server, until somebody has decided.
``docs/settings.md`` is written from this module: ``python -m pgherd_sidecar.pg.settings_page``.
Keeps nothing.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that could make members differ.

    Attributes:
        name: as ``pg_settings`` spells it.
        reaches: what it could change.
        fixed: the value under which our own sessions read and write; None: any.
        carried: it travels with each command, which is executed under it.
        also: what else is done about it.
        since: the first version of PostgreSQL that has it in each of its releases.
    """

    name: str
    reaches: str
    fixed: str | None = None
    carried: bool = False
    also: str = ""
    since: int = 15


SETTINGS: Final = (
    Setting(
        "DateStyle",
        "text forms of dates; how text is read as a date",
        fixed="ISO, YMD",
        carried=True,
        also="rows are captured under it",
    ),
    Setting(
        "IntervalStyle",
        "text forms of intervals",
        fixed="postgres",
        carried=True,
        also="rows are captured under it",
    ),
    Setting(
        "TimeZone",
        "text forms of timestamps; dates computed of them",
        fixed="UTC",
        carried=True,
        also="rows are captured under it",
    ),
    Setting(
        "allow_system_table_mods",
        "what a superuser may do to catalogs",
        also="his promise to do the same everywhere",
    ),
    Setting(
        "array_nulls",
        "how NULL in the text of an array is read",
        fixed="on",
        carried=True,
        also="rows are captured under it",
    ),
    Setting(
        "backtrace_functions",
        "at the value `pgherd`, by which replication knows its own commands, whether commands are"
        " captured; for superusers",
        also="his promise to do the same everywhere; lasting ones show in `capture_off`",
    ),
    Setting(
        "backslash_quote",
        "which literals are accepted",
        fixed="safe_encoding",
        carried=True,
    ),
    Setting(
        "bytea_output",
        "text form of bytea",
        fixed="hex",
        carried=True,
        also="rows are captured under it",
    ),
    Setting(
        "check_function_bodies",
        "which functions are accepted",
        also="the origin judges; the others execute with `off`",
    ),
    Setting(
        "client_encoding",
        "how a client's bytes are read",
        fixed="UTF8",
        also="the server converts before anything is captured",
    ),
    Setting(
        "composite_type_mismatch",
        "whether a composite value is read whose type has changed since; for superusers, in the"
        " releases from November 2026 on",
        also="his promise to do the same everywhere",
    ),
    Setting(
        "createrole_self_grant",
        "memberships that CREATE ROLE makes for who is no superuser",
        also="the memberships that it made travel, see [DDL](ddl.md#roles)",
        since=16,
    ),
    Setting(
        "default_table_access_method",
        "how tables are stored",
        fixed="heap",
        carried=True,
    ),
    Setting(
        "default_tablespace",
        "where tables and indexes are stored",
        fixed="",
        also="a command that puts something elsewhere is refused",
    ),
    Setting(
        "default_text_search_config",
        "the words of a text",
        fixed="pg_catalog.simple",
        carried=True,
    ),
    Setting(
        "default_toast_compression",
        "what fits into an index",
        fixed="pglz",
        carried=True,
        also="a row that is too large for an index is applied with both methods, see below",
    ),
    Setting(
        "default_transaction_isolation",
        "whether a transaction can be certified",
        fixed="read committed",
        also="writes at SERIALIZABLE are refused",
    ),
    Setting(
        "default_transaction_read_only",
        "whether a transaction can commit what it wrote",
        fixed="off",
        also="a writing transaction that becomes read-only is refused",
    ),
    Setting(
        "escape_string_warning",
        "warnings about backslashes, which could hide a notice",
        fixed="on",
    ),
    Setting(
        "event_triggers",
        "whether commands are captured; for superusers",
        also="his promise to do the same everywhere; lasting ones show in `capture_off`",
        since=17,
    ),
    Setting(
        "exit_on_error",
        "what a client hears: an interruption of COMMIT would read as an abort",
        fixed="off",
        also="switched off within COMMIT",
    ),
    Setting(
        "extra_float_digits",
        "text forms of floats",
        fixed="1",
        carried=True,
        also="rows are captured under it",
    ),
    Setting(
        "gin_fuzzy_search_limit",
        "which rows a GIN index finds",
        fixed="0",
        also="materialized views are not filled under it: refused",
    ),
    Setting(
        "icu_validation_level",
        "which collations are accepted",
        also="the origin judges; the others execute with `disabled`",
        since=16,
    ),
    Setting(
        "ignore_checksum_failure",
        "reads of damaged pages; for superusers",
        also="his promise to repair that member",
    ),
    Setting(
        "lc_monetary",
        "text form of money",
        fixed="C",
        carried=True,
        also="rows are captured under it",
    ),
    Setting("lc_numeric", "to_char() of numbers", fixed="C", carried=True),
    Setting("lc_time", "to_char() of dates", fixed="C", carried=True),
    Setting(
        "lc_messages",
        "the language of the call stack; for superusers",
        also="the stack is read under `C`",
    ),
    Setting(
        "local_preload_libraries",
        "whether a session can begin",
        fixed="",
    ),
    Setting(
        "lock_timeout",
        "whether a wait in COMMIT ends early",
        fixed="0",
        also="an interruption after the verdict is trapped",
    ),
    Setting(
        "max_stack_depth",
        "which statements fit; for superusers",
        also="the others execute a command with more of it where the kernel allows",
    ),
    Setting(
        "plpgsql.check_asserts",
        "whether ASSERT is executed, in functions of users",
        also="these run at the origin only",
    ),
    Setting(
        "plpgsql.extra_errors",
        "which functions PL/pgSQL accepts, and which INTO",
        also="ours pass all of its checks",
    ),
    Setting(
        "plpgsql.variable_conflict",
        "what a name means in PL/pgSQL; for superusers",
        also="where a user's names could meet ours, our functions say it themselves",
    ),
    Setting(
        "quote_all_identifiers",
        "names as PostgreSQL writes them, and so certification keys",
        fixed="off",
        carried=True,
        also="every function that runs with our rights",
    ),
    Setting(
        "restrict_nonsystem_relation_kind",
        "whether views may be read",
        fixed="",
        also="the views that COMMIT reads fail before the verdict",
        since=17,
    ),
    Setting(
        "row_security",
        "which rows are seen, and whether a query fails",
        fixed="on",
        carried=True,
        also="rows are written by roles that policies don't concern",
    ),
    Setting(
        "search_path",
        "what a name means",
        fixed="pg_catalog",
        carried=True,
        also="our functions set it, or qualify every name",
    ),
    Setting(
        "session_replication_role",
        "whether anything is captured; for superusers",
        also="his promise to do the same everywhere; lasting ones show in `capture_off`",
    ),
    Setting(
        "standard_conforming_strings",
        "what a backslash in a literal means",
        fixed="on",
        also="commands under `off` are refused, and literals that may have been read under it",
    ),
    Setting(
        "statement_timeout",
        "whether a wait in COMMIT ends early",
        fixed="0",
        also="an interruption after the verdict is trapped",
    ),
    Setting(
        "synchronous_commit",
        "whether a commit survives a crash of its server",
        fixed="on",
        also="within COMMIT replication decides",
    ),
    Setting(
        "timezone_abbreviations",
        "what EST means",
        fixed="Default",
        carried=True,
    ),
    Setting(
        "transaction_deferrable",
        "nothing, but the wait of one that is SERIALIZABLE and READ ONLY",
        also="`default_transaction_deferrable` is fixed in our sessions",
    ),
    Setting(
        "transaction_isolation",
        "whether a transaction can be certified",
        also="writes at SERIALIZABLE are refused",
    ),
    Setting(
        "transaction_read_only",
        "whether a transaction can commit what it wrote",
        also="a writing transaction that becomes read-only is refused",
    ),
    Setting(
        "transaction_timeout",
        "whether COMMIT ends the session after the verdict",
        fixed="0",
        also="switched off within COMMIT",
        since=17,
    ),
    Setting(
        "transform_null_equals",
        "what `= NULL` means",
        fixed="off",
        carried=True,
    ),
    Setting("xmlbinary", "text form of bytea in XML", fixed="base64", carried=True),
    Setting(
        "xmloption",
        "which XML is read",
        fixed="content",
        carried=True,
        also="rows are captured under it",
    ),
    Setting(
        "zero_damaged_pages",
        "reads of damaged pages; for superusers",
        also="his promise to repair that member",
    ),
)

HARMLESS: Final[dict[str, str]] = {
    "the planner: how rows are found, not which; the order of rows is nowhere kept": """
        constraint_exclusion cpu_index_tuple_cost cpu_operator_cost cpu_tuple_cost
        cursor_tuple_fraction debug_parallel_query default_statistics_target effective_cache_size
        enable_async_append enable_bitmapscan enable_distinct_reordering enable_gathermerge
        enable_group_by_reordering enable_hashagg enable_hashjoin enable_incremental_sort
        enable_indexonlyscan enable_indexscan enable_material enable_memoize enable_mergejoin
        enable_nestloop enable_parallel_append enable_parallel_hash enable_partition_pruning
        enable_partitionwise_aggregate enable_partitionwise_join enable_presorted_aggregate
        enable_self_join_elimination enable_seqscan enable_sort enable_tidscan force_parallel_mode
        from_collapse_limit geqo geqo_effort geqo_generations geqo_pool_size geqo_seed
        geqo_selection_bias geqo_threshold ignore_system_indexes jit jit_above_cost
        jit_debugging_support jit_dump_bitcode jit_expressions jit_inline_above_cost
        jit_optimize_above_cost jit_profiling_support jit_tuple_deforming join_collapse_limit
        max_parallel_maintenance_workers max_parallel_workers max_parallel_workers_per_gather
        min_parallel_index_scan_size min_parallel_table_scan_size optimize_bounded_sort
        parallel_leader_participation parallel_setup_cost parallel_tuple_cost plan_cache_mode
        random_page_cost recursive_worktable_factor seq_page_cost synchronize_seqscans""",
    "memory and reading: a statement may fail for want of them, where it runs first": """
        backend_flush_after effective_io_concurrency file_copy_method gin_pending_list_limit
        hash_mem_multiplier io_combine_limit logical_decoding_work_mem maintenance_io_concurrency
        maintenance_work_mem temp_buffers temp_file_limit temp_tablespaces
        vacuum_buffer_usage_limit work_mem""",
    "the write-ahead log of one server": """
        commit_delay commit_siblings output_plugin_libraries wal_compression
        wal_consistency_checking wal_debug
        wal_init_zero wal_recycle wal_sender_timeout wal_skip_threshold""",
    "VACUUM and ANALYZE, which are local": """
        track_cost_delay_timing vacuum_cost_delay vacuum_cost_limit vacuum_cost_page_dirty
        vacuum_cost_page_hit vacuum_cost_page_miss vacuum_failsafe_age vacuum_freeze_min_age
        vacuum_freeze_table_age vacuum_max_eager_freeze_failure_rate vacuum_multixact_failsafe_age
        vacuum_multixact_freeze_min_age vacuum_multixact_freeze_table_age vacuum_truncate""",
    "logging and statistics": """
        application_name client_min_messages compute_query_id
        debug_deadlocks debug_pretty_print debug_print_parse debug_print_plan debug_print_rewritten
        log_btree_build_stats log_connections log_disconnections log_duration log_error_verbosity
        log_executor_stats log_lock_failures log_lock_waits log_min_duration_sample
        log_min_duration_statement log_min_error_statement log_min_messages
        log_parameter_max_length log_parameter_max_length_on_error log_parser_stats
        log_planner_stats log_replication_commands log_statement log_statement_sample_rate
        log_statement_stats log_temp_files log_transaction_sample_rate md5_password_warnings
        plpgsql.extra_warnings plpgsql.print_strict_params stats_fetch_consistency
        trace_connection_negotiation trace_lock_oidmin trace_lock_table trace_locks trace_lwlocks
        trace_notify trace_sort trace_syncscan trace_userlocks track_activities track_counts
        track_functions track_io_timing track_wal_io_timing update_process_title""",
    "connections, and how long a session may last": """
        client_connection_check_interval deadlock_timeout idle_in_transaction_session_timeout
        idle_session_timeout post_auth_delay tcp_keepalives_count tcp_keepalives_idle
        tcp_keepalives_interval tcp_user_timeout""",
    "the beginning of transactions: those that decide are listed above": """
        default_transaction_deferrable""",
    "passwords, which travel as verifiers": "password_encryption scram_iterations",
    "what is local to each server: large objects, tablespaces, libraries, caches": """
        allow_in_place_tablespaces debug_discard_caches debug_logical_replication_streaming
        dynamic_library_path extension_control_path extension_destdir lo_compat_privileges
        logical_replication_mode session_preload_libraries""",
    "tests of PostgreSQL itself, which check and change nothing": """
        debug_copy_parse_plan_trees debug_raw_expression_coverage_test
        debug_write_read_parse_plan_trees""",
}

#: Settings of extensions by the first word of their names, likewise.
HARMLESS_EXTENSIONS: Final[dict[str, str]] = {
    "auth_delay": "connections",
    "auto_explain": "logging",
    "basebackup_to_shell": "copies of one server",
    "basic_archive": "copies of one server",
    "isn": "marked numbers are accepted anyway; what reads text is no certain expression",
    "pg_prewarm": "memory",
    "pg_stat_statements": "statistics",
    "pg_trgm": "operators that are STABLE, which materialized views and indexes may not use",
    "pgcrypto": "a statement may fail, where it runs first",
    "plperl": "functions of users, which run at the origin only",
    "pltcl": "functions of users, which run at the origin only",
    "pltclu": "functions of users, which run at the origin only",
    "plpython": "functions of users, which run at the origin only",
    "postgres_fdw": "foreign servers, which are refused",
    "sepgsql": "a statement may fail, where it runs first",
}

CARRIED: Final = tuple(one.name for one in SETTINGS if one.carried)
"""Settings that travel with each command; ``sql/043_command_events.sql`` has the same list."""

FIXED: Final = {
    one.name: one.fixed for one in SETTINGS if one.fixed is not None and one.since == 15
}
"""How our own sessions begin."""

FIXED_WHERE_KNOWN: Final = {
    one.name: one.fixed for one in SETTINGS if one.fixed is not None and one.since > 15
}
"""Likewise, of settings that not every server knows, so that they can only be set later."""


def decided() -> dict[str, str]:
    """The settings that need nothing done, in small letters, each with the reason."""
    return {name.lower(): reason for reason, names in HARMLESS.items() for name in names.split()}


def is_decided(name: str) -> bool:
    """Has somebody decided what to do about this setting?"""
    known = decided().keys() | {one.name.lower() for one in SETTINGS}
    return name.lower() in known or name.partition(".")[0].lower() in HARMLESS_EXTENSIONS
