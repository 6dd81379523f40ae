-- Returns the version of the pgque.sql that was installed last.
forward pgque.version() returns text immutable
as '@VERSION@';
