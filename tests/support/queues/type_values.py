"""Values of every type that a column can have, and settings that change how some of them print."""

# Texts that PostgreSQL reads as values of the type. The lake holds all of them.
VALUES: dict[str, tuple[str, ...]] = {
    "smallint": ("-32768", "7"),
    "integer": ("-2147483648", "7"),
    "bigint": ("-9223372036854775808", "9007199254740993"),
    "boolean": ("t", "f"),
    "numeric": ("12345678901234567890.1234567890", "1.50", "1e-30", "NaN"),
    "numeric(12,3)": ("-123456789.125", "1.500"),
    "real": ("0.1", "-0", "NaN", "Infinity"),
    "double precision": ("0.30000000000000004", "-0", "1e300", "-Infinity"),
    "money": ("1234.50", "-0.01"),
    "text": ("", "null", 'a "b" \\ \t\n ü', "t"),
    "varchar(9)": ("a ", ""),
    "char(4)": ("a", ""),
    "bpchar": ("a  ", "b"),
    "name": ("a b",),
    '"char"': ("x", "\\"),
    "bytea": ("\\x00ff", ""),
    "uuid": ("5e0b40d3-0000-4000-8000-00000000000f",),
    "date": ("2026-03-04", "0001-01-01"),
    "time": ("23:59:59.000001", "00:00"),
    "timetz": ("04:05:06.7+05:30",),
    "timestamp": ("2026-03-04 05:06:07.000008", "0001-01-01"),
    "timestamp(0)": ("2026-03-04 05:06:07",),
    "timestamptz": ("2026-03-04 05:06:07.000008+05:30", "1890-01-01 00:00:00+00"),
    "interval": ("1 mon -3 days +00:00:01.5", "-1 year", "30 days", "-00:00:00.000001"),
    "interval day to minute": ("3 days 04:05",),
    "json": ('{"b": 1.50, "a": null}',),
    "jsonb": ('{"b": 1.50, "a": null}', "null"),
    "jsonpath": ('$."a"[*] ? (@ > 1.5)',),
    "xml": ("<a>ü</a>", "text and <b/>"),
    "bit(3)": ("101",),
    "varbit": ("1", ""),
    "inet": ("10.0.0.1/8", "10.0.0.1", "::1"),
    "cidr": ("10.0.0.1/32", "10.0.0.0/8"),
    "macaddr": ("08:00:2b:01:02:03",),
    "macaddr8": ("08:00:2b:01:02:03:04:05",),
    "oid": ("4294967295",),
    "xid": ("4294967295",),
    "cid": ("4294967295",),
    "xid8": ("18446744073709551615",),
    "tid": ("(1,2)",),
    "pg_lsn": ("16/B374D848",),
    "pg_snapshot": ("10:20:10,14,15",),
    "txid_snapshot": ("10:20:10,14,15",),
    "oidvector": ("1 2",),
    "int2vector": ("1 2",),
    "point": ("(0.1,-0)",),
    "line": ("{1,-1,0.1}",),
    "lseg": ("[(0.1,0),(6,6)]",),
    "box": ("(0.3,0.1),(0,0)",),
    "path": ("((0.1,0),(1,1))", "[(0,0),(1,0.1)]"),
    "polygon": ("((0,0),(1,0.1),(1,0))",),
    "circle": ("<(0.1,0),5>",),
    "tsvector": ("'a':1A 'b c':2",),
    "tsquery": ("!( 'a' & 'b':*C )",),
    "refcursor": ("a cursor",),
    "regclass": ("public.named", "pg_class"),
    "regtype": ("public.mood", "date", "integer[]"),
    "regproc": ("public.shout", "pg_backend_pid"),
    "regprocedure": ("public.shout(integer)",),
    "regoper": ("pg_catalog.||/",),
    "regoperator": ("+(date,integer)",),
    "regconfig": ("english",),
    "regdictionary": ("simple",),
    "regrole": ('"Odd Role"',),
    "regnamespace": ("public",),
    "regcollation": ('"C"',),
    "aclitem": ('"Odd Role"=r/"Odd Role"',),
    "int4range": ("[1,5)", "empty"),
    "int8range": ("[1,)",),
    "numrange": ("[1.0,2.50)",),
    "daterange": ("[2026-01-02,2026-02-03)",),
    "tsrange": ('["2026-01-02 03:04:05.6",)',),
    "tstzrange": ('["2026-01-02 03:04:05.6+05:30","2026-01-03 00:00:00+00")',),
    "int4multirange": ("{[1,3),[5,7)}",),
    "int8multirange": ("{[1,3)}",),
    "nummultirange": ("{[1.0,2.50)}",),
    "datemultirange": ("{[2026-01-02,2026-02-03)}",),
    "tsmultirange": ('{["2026-01-02 03:04:05","2026-01-03 00:00:00")}',),
    "tstzmultirange": ('{["2026-01-02 03:04:05+05:30",)}',),
    "public.mood": ("fine", "so so"),
    "public.pair": ('(7,"2026-01-02 03:04:05+05:30",fine)',),
    "public.floats": ("[0.1,0.2]",),
}
# Of these no value can be written, or only the system writes them.
NOT_WRITTEN = {
    "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary", "gtsvector",
}  # fmt: skip
SETUP = """
create type public.mood as enum ('fine', 'so so');
create domain public.small as smallint not null check (value <> 99);
create type public.pair as (a public.small, at timestamptz, kind public.mood);
create type public.floats as range (subtype = float8);
create table public.named (id int);
create function public.shout(i int) returns int language sql as 'select i';
do $$ begin create role "Odd Role"; exception when duplicate_object then null; end $$;
"""
# Ways in which a session may be set: each setting that changes an output function, otherwise.
ODD = {
    "datestyle": "'German, DMY'",
    "intervalstyle": "'sql_standard'",
    "timezone": "'Asia/Kolkata'",
    "extra_float_digits": "-10",
    "bytea_output": "'escape'",
    "lc_monetary": "'C.UTF-8'",
    "quote_all_identifiers": "on",
    "search_path": "public, pg_temp",
    "xmlbinary": "'hex'",
    "xmloption": "'document'",
    "array_nulls": "off",
    "standard_conforming_strings": "off",
    "escape_string_warning": "off",
    "client_encoding": "'LATIN1'",
}
OTHER = {
    **ODD,
    "datestyle": "'SQL, MDY'",
    "intervalstyle": "'iso_8601'",
    "timezone": "'America/New_York'",
    "extra_float_digits": "-3",
    "quote_all_identifiers": "off",
    "search_path": "''",
}


def settings(values: dict[str, str]) -> str:
    """Statements that set a session so."""
    return ";".join(f"set {name} = {value}" for name, value in values.items())
