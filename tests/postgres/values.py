"""Values of every type family, as literals. The database itself says how they print."""

from __future__ import annotations

SETUP = """
CREATE EXTENSION hstore; CREATE EXTENSION citext;
CREATE TYPE mood AS ENUM ('sad', 'it''s "ok"', 'happy');
CREATE TYPE pair AS (x int, y text);
CREATE DOMAIN amount AS numeric(10,2) CHECK (VALUE > -1000000);
CREATE DOMAIN little_amount AS amount;
CREATE DOMAIN word AS text
"""

TYPED: dict[str, list[str]] = {
    "boolean": ["true", "false"],
    "smallint": ["-32768", "32767", "0"],
    "integer": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["0", "4294967295"],
    "real": ["NaN", "Infinity", "-Infinity", "0.1", "3.4028235e38", "-0", "1e-45"],
    "double precision": ["NaN", "Infinity", "-Infinity", "0.1", "1.7976931348623157e308", "-0", "5e-324"],
    "numeric(12,2)": ["0.01", "-9999999999.99", "12.3"],
    "numeric(38,10)": ["9999999999999999999999999999.0123456789", "-0.0000000001"],
    "numeric(38,0)": ["99999999999999999999999999999999999999", "-1"],
    "numeric(3,-2)": ["99900", "-100", "0"],
    "numeric(2,4)": ["0.0099", "-0.0001"],
    "amount": ["1.10", "-3"],
    "little_amount": ["7.77"],
    "bytea": ["", "\\x00ff", "\\x5c78", "\\xdeadbeef00"],
    "date": ["0001-01-01", "9999-12-31", "1969-12-31", "2024-02-29"],
    "timestamp": [
        "0001-01-01 00:00:00",
        "9999-12-31 23:59:59.999999",
        "1969-12-31 23:59:59.000001",
        "2024-02-29 12:00",
    ],
    "timestamptz": ["0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00", "2024-02-29 12:00+05:30"],
    "timestamp(3)": ["2024-02-29 12:00:00.123"],
}
"""Columns that get an Arrow type of their own."""

PRINTED: dict[str, list[str]] = {
    "numeric": ["NaN", "Infinity", "-Infinity", "1e-1000", "0.10", "123456789012345678901234567890123456789012345.6"],
    "numeric(50,3)": ["12345678901234567890123456789012345678901234567.890", "NaN"],
    "text": ["", "plain", "a,b\"c'd\\e", "line\nbreak\r\n\ttab", "ünï ☃ 𝄞", "\\N", "\\.", " spaced ", "NULL", "nan"],
    "varchar(20)": ["x", "twenty characters :-)"[:20]],
    "char(6)": ["ab", "abcdef", ""],
    '"char"': ["a", ""],
    "name": ["some_name"],
    "citext": ["MiXed"],
    "word": ["dom"],
    "json": ['{"a": 1.00000000000000000000000001, "a":2}', "null", "[1 ,2]"],
    "jsonb": ['{"b": 1.00000000000000000000000001, "a": 1e400}', '"x"'],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "time": ["24:00:00", "00:00:00", "12:34:56.000001"],
    "timetz": ["12:34:56+05:30", "24:00:00-12"],
    "interval": ["1 year 2 mons -3 days 04:05:06.789", "-1 day", "0", "178000000 years"],
    "money": ["12.34", "-92233720368547758.08"],
    "bit(5)": ["10101"],
    "varbit": ["", "101"],
    "inet": ["192.168.0.1", "192.168.0.1/24", "::1"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "point": ["(1.5,-2)"],
    "box": ["(1,1),(0,0)"],
    "polygon": ["((0,0),(1,1),(2,0))"],
    "circle": ["<(0,0),1>"],
    "line": ["{1,2,3}"],
    "tsvector": ["'a':1A 'fat':2B,4C"],
    "tsquery": ["'fat' & ( 'rat' | 'cat' )"],
    "int4range": ["[1,5)", "empty", "(,)"],
    "tstzrange": ["[2024-01-01 00:00+00,infinity)"],
    "int4multirange": ["{[1,3),[5,7)}", "{}"],
    "hstore": ['"a"=>"1", "b"=>NULL'],
    "mood": ["sad", 'it\'s "ok"', "happy"],
    "pair": ['(1,"a ""b""")', "(,)"],
    "int[]": ["{1,NULL,3}", "{}", "{{1,2},{3,4}}", "[0:1]={5,6}"],
    "text[]": ['{"a,b","c\\"d",NULL,"NULL",""}'],
    "bytea[]": ['{"\\\\x00ff"}'],
    "timestamptz[]": ["{2024-01-01 00:00:00+00,infinity,NULL}"],
    "mood[]": ["{sad,happy}"],
    "regclass": ["pg_class"],
    "pg_lsn": ["16/B374D848"],
    "txid_snapshot": ["10:20:10,14,15"],
    "jsonpath": ["$.a[*]"],
}
"""Columns that are kept as PostgreSQL prints them."""

UNFIT: dict[str, list[str]] = {
    "date": ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "5874897-12-31"],
    "timestamp": ["infinity", "-infinity", "0044-03-15 00:00:00 BC", "10000-01-01 00:00:00"],
    "timestamptz": ["infinity", "-infinity", "0044-03-15 00:00:00+00 BC", "10000-01-01 00:00:00+00"],
    "numeric(12,2)": ["NaN"],
}
"""Values that their column's Arrow type cannot hold: refused, or kept as printed if the column is named as text."""
