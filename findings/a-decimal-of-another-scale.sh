#!/usr/bin/env bash
# Apache Avro for Python writes the decimal 1.5 as 0.15, and 100 as 1.00.
#
# Guess: a decimal whose scale is below that of its schema is the same number with more zeros: 1.5 is 1.50, as fastavro writes it.
#   A number with more digits than the precision is an error.
# Versions: avro 1.12.2 (Apache's library for Python), fastavro 1.13.1, Python 3.11. The schema is bytes or fixed, precision 6, scale 2.
# Behaviour: avro writes the digits of the number without those zeros, and its reader takes the last two of them for the fraction.
#   There is no error and no warning, with schemaless data (as in a topic) and in a file. Only a scale above that of the
#   schema is an error. A number with more digits than the precision is written whole, and its reader rounds it.
# Output seen (2026-12-01):
#   bytes: 1.50 -> 1.50; 1.5 -> 0.15; 100 -> 1.00; 1.505 -> AvroOutOfScaleException; 12345678.90 -> 1.23457E+7
#   fixed: 1.50 -> 1.50; 1.5 -> 0.15; 100 -> 1.00; 1.505 -> AvroOutOfScaleException; 12345678.90 -> 1.23457E+7
#   in a file: 1.5 -> 0.15
#   fastavro: 1.50 -> 1.50; 1.5 -> 1.50; 100 -> 100.00; 1.505 -> ValueError; 12345678.90 -> ValueError
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check avro==1.12.2 fastavro==1.13.1 || exit 2
said=$("$work/venv/bin/python" -W ignore - <<'PY'
import io
import json
from decimal import Decimal

import avro.schema
import fastavro
from avro.datafile import DataFileReader, DataFileWriter
from avro.io import BinaryDecoder, BinaryEncoder, DatumReader, DatumWriter

LOGICAL = {"logicalType": "decimal", "precision": 6, "scale": 2}
SCHEMAS = {"bytes": {"type": "bytes", **LOGICAL}, "fixed": {"type": "fixed", "name": "F", "size": 8, **LOGICAL}}


def by_avro(schema, number):
    parsed, stream = avro.schema.parse(json.dumps(schema)), io.BytesIO()
    DatumWriter(parsed).write(number, BinaryEncoder(stream))
    stream.seek(0)
    return DatumReader(parsed).read(BinaryDecoder(stream))


def by_fastavro(schema, number):
    parsed, stream = fastavro.parse_schema(schema), io.BytesIO()
    fastavro.schemaless_writer(stream, parsed, number)
    stream.seek(0)
    return fastavro.schemaless_reader(stream, parsed)


def in_a_file(schema, number):
    stream = io.BytesIO()
    writer = DataFileWriter(stream, DatumWriter(), avro.schema.parse(json.dumps(schema)))
    writer.append(number)
    writer.flush()
    stream.seek(0)
    return next(iter(DataFileReader(stream, DatumReader())))


def show(name, write, schema, numbers):
    found = []
    for number in numbers:
        try:
            found.append(f"{number} -> {write(schema, Decimal(number))}")
        except Exception as error:
            found.append(f"{number} -> {type(error).__name__}")
    print(f"{name}: {'; '.join(found)}")


NUMBERS = ["1.50", "1.5", "100", "1.505", "12345678.90"]
for name, schema in SCHEMAS.items():
    show(name, by_avro, schema, NUMBERS)
show("in a file", in_a_file, SCHEMAS["bytes"], ["1.5"])
show("fastavro", by_fastavro, SCHEMAS["bytes"], NUMBERS)
PY
)
echo "$said"
[ "$said" = "bytes: 1.50 -> 1.50; 1.5 -> 0.15; 100 -> 1.00; 1.505 -> AvroOutOfScaleException; 12345678.90 -> 1.23457E+7
fixed: 1.50 -> 1.50; 1.5 -> 0.15; 100 -> 1.00; 1.505 -> AvroOutOfScaleException; 12345678.90 -> 1.23457E+7
in a file: 1.5 -> 0.15
fastavro: 1.50 -> 1.50; 1.5 -> 1.50; 100 -> 100.00; 1.505 -> ValueError; 12345678.90 -> ValueError" ] || { echo "the behaviour has changed"; exit 1; }
