"""Settings that every user may change, at values where something could go wrong.

``SESSION_SETTINGS`` are said by sessions of a case, on the plain server, too; ``DATABASE_SETTINGS``
are those of the database on each member, one after the other, which sidecars inherit. Sessions of a
case begin with ``USUAL`` all the same, or else they would not be comparable.
"""

SESSION_SETTINGS: dict[str, tuple[str, ...]] = {
    "DateStyle": ("SQL, DMY", "German", "Postgres, MDY", "ISO, YMD"),
    "IntervalStyle": ("sql_standard", "postgres_verbose", "iso_8601"),
    "TimeZone": ("Pacific/Kiritimati", "America/St_Johns", "UTC"),
    "extra_float_digits": ("-15", "0", "3"),
    "bytea_output": ("escape", "hex"),
    "xmloption": ("document", "content"),
    "default_toast_compression": ("lz4", "pglz"),
    "row_security": ("off", "on"),
    "standard_conforming_strings": ("off", "on"),
    "quote_all_identifiers": ("on", "off"),
    "check_function_bodies": ("off", "on"),
    "array_nulls": ("off", "on"),
    "transform_null_equals": ("on", "off"),
    "enable_seqscan": ("off", "on"),
    "enable_indexscan": ("off", "on"),
    "enable_partition_pruning": ("off", "on"),
    "constraint_exclusion": ("on", "off"),
    "force_parallel_mode": ("on", "off"),
    "jit_above_cost": ("0",),
    "plan_cache_mode": ("force_generic_plan", "force_custom_plan"),
    "client_encoding": ("LATIN1", "UTF8"),
    "lc_monetary": ("C",),
    "work_mem": ("64kB",),
    "cursor_tuple_fraction": ("0",),
    "gin_fuzzy_search_limit": ("1", "0"),
    "synchronous_commit": ("off", "local"),
    "commit_delay": ("0",),
    "default_transaction_deferrable": ("on", "off"),
    "plpgsql.variable_conflict": ("error", "use_column", "use_variable"),
    "plpgsql.extra_errors": ("all", "none"),
    "plpgsql.check_asserts": ("off", "on"),
    "backslash_quote": ("off", "on"),
    "default_table_access_method": ("heap",),
    "pgherd.base_1": ("9223372036854775807", "0", ""),
}

DATABASE_SETTINGS: dict[str, tuple[str, ...]] = {
    "DateStyle": ("ISO, MDY", "SQL, DMY", "German"),
    "IntervalStyle": ("postgres", "sql_standard", "iso_8601"),
    "TimeZone": ("UTC", "Pacific/Kiritimati", "America/St_Johns"),
    "extra_float_digits": ("1", "-15", "3"),
    "bytea_output": ("hex", "escape"),
    "default_toast_compression": ("pglz", "lz4"),
    "array_nulls": ("on", "off"),
    "transform_null_equals": ("off", "on"),
    "quote_all_identifiers": ("off", "on"),
    "constraint_exclusion": ("partition", "on", "off"),
    "plan_cache_mode": ("auto", "force_generic_plan"),
    "work_mem": ("4MB", "64kB"),
    "xmloption": ("content", "document"),
    "row_security": ("on", "off"),
    "plpgsql.variable_conflict": ("error", "use_column", "use_variable"),
}

USUAL = {name: values[0] for name, values in DATABASE_SETTINGS.items()}
"""Every member's database has another one, but the first one's has these."""
