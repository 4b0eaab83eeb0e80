-- Role and database of a herd's applications; run by psql on each server that is new, harmless on
-- others. The password comes in the environment: a command line could be read by anybody.

\getenv password PGHERD_APP_PASSWORD

SELECT format('CREATE ROLE app LOGIN PASSWORD %L', :'password')
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'app') \gexec

SELECT 'CREATE DATABASE app OWNER app'
 WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'app') \gexec
