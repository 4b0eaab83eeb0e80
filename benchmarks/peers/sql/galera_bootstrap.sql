-- The database and the role of the workloads.
CREATE DATABASE sbtest;
CREATE USER sbtest@'127.0.0.1' IDENTIFIED BY '';
GRANT ALL ON sbtest.* TO sbtest@'127.0.0.1';
