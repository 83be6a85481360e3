#!/usr/bin/env bash
# Connect's JsonConverter reads the number 18446744073709551615 as -1.
#
# Guess: a number of a JSON value that does not fit its type is an error, which a connector's errors.tolerance handles, or a wider type.
#   So Jackson, which parses it, raises for a long that does not fit, and Connect has Decimal for larger numbers.
# Versions: connect-json, connect-api and connect-transforms 4.4.0, Java 17.
# Behaviour: without a schema (schemas.enable=false) each whole number becomes an INT64 by its lowest 64 bits. The largest number of 64
#   bits without a sign, as a hash or an id in other languages, is -1. With a schema, a number is cut to the bits of its type,
#   and a fraction is dropped: int32 reads 3000000000 as -1294967296, and 1.9 as 1. The transformation Cast does the same with a
#   number in a record. A sink writes such a value, and a source writes it back to Kafka, without an error.
# Output seen (2026-12-01):
#   {"id":18446744073709551615} -> {"id":-1}
#   {"id":9223372036854775808} -> {"id":-9223372036854775808}
#   {"id":100000000000000000000000} -> {"id":200376420520689664}
#   int32 3000000000 -> -1294967296
#   int8 300 -> 44
#   int64 1.9 -> 1
#   Cast of 3000000000 to int32: -1294967296
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be fetched.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cat > "$work/pom.xml" <<'XML'
<project><modelVersion>4.0.0</modelVersion><groupId>f</groupId><artifactId>f</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-json</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-transforms</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency></dependencies></project>
XML
mvn --batch-mode --quiet -f "$work/pom.xml" dependency:copy-dependencies -DoutputDirectory="$work/jars" || exit 2
cat > "$work/Numbers.java" <<'JAVA'
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;
import org.apache.kafka.connect.transforms.Cast;

class Numbers {
    static JsonConverter converter(String schemas) {
        JsonConverter converter = new JsonConverter();
        converter.configure(Map.of("schemas.enable", schemas), false);
        return converter;
    }

    public static void main(String[] arguments) {
        JsonConverter plain = converter("false"), typed = converter("true");
        for (String number : List.of("18446744073709551615", "9223372036854775808", "100000000000000000000000")) {
            String text = "{\"id\":" + number + "}";
            var data = plain.toConnectData("t", text.getBytes());
            System.out.println(text + " -> " + new String(plain.fromConnectData("t", data.schema(), data.value())));
        }
        for (String[] value : new String[][] {{"int32", "3000000000"}, {"int8", "300"}, {"int64", "1.9"}}) {
            String text = "{\"schema\":{\"type\":\"" + value[0] + "\"},\"payload\":" + value[1] + "}";
            System.out.println(value[0] + " " + value[1] + " -> " + typed.toConnectData("t", text.getBytes()).value());
        }
        Cast<SinkRecord> cast = new Cast.Value<>();
        cast.configure(Map.of("spec", "int32"));
        SinkRecord record = new SinkRecord("t", 0, null, null, Schema.INT64_SCHEMA, 3000000000L, 0);
        System.out.println("Cast of 3000000000 to int32: " + cast.apply(record).value());
    }
}
JAVA
said=$(java -cp "$work/jars/*" "$work/Numbers.java" 2> "$work/errors")
echo "$said"
[ "$said" = '{"id":18446744073709551615} -> {"id":-1}
{"id":9223372036854775808} -> {"id":-9223372036854775808}
{"id":100000000000000000000000} -> {"id":200376420520689664}
int32 3000000000 -> -1294967296
int8 300 -> 44
int64 1.9 -> 1
Cast of 3000000000 to int32: -1294967296' ] || { tail -n 5 "$work/errors" >&2; echo "the behaviour has changed"; exit 1; }
