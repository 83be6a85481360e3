#!/usr/bin/env bash
# Connect reads the header 12:30:45 as the number 12, 007 as 7, and writes the bytes of a source connector as base64.
#
# Guess: a header that no one names passes a worker as it is, as a key and a value do with ByteArrayConverter. The default of
#   header.converter, SimpleHeaderConverter, makes text of bytes, and the same bytes of this text.
# Versions: connect-api 4.4.0, Java 17. By its class file MirrorMaker's connector 4.3.1 gives each header as bytes to the worker's converter,
#   which is this default in a Connect cluster; the dedicated MirrorMaker (connect-mirror-maker.sh) names ByteArrayConverter.
# Behaviour: text is parsed as a value of any type. Zeros in front are lost, a number with more digits than a float has
#   is rounded, and of a text that begins with a number and goes on with a colon or a comma only this number is left. What
#   a sink connector gets is that value; one that writes headers back to Kafka writes this text. Bytes that are no UTF-8 lose theirs,
#   and a source connector's bytes become base64. header.converter=org.apache.kafka.connect.converters.ByteArrayConverter keeps all.
# Output seen (2026-12-01):
#   007 -> 7
#   1.10 -> 1.1
#   12:30:45 -> 12
#   00:1A:2B:3C -> 0
#   1,2 -> 1
#   0.1234567890123 -> 0.12345679
#   2026-12-01T00:00:00.000Z -> 2026-12-01
#   00 01 ff -> 00 01 ef bf bd
#   bytes of a source, abc -> YWJj
#   ByteArrayConverter: 007 -> 007
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be fetched.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
cat > "$work/pom.xml" <<'XML'
<project><modelVersion>4.0.0</modelVersion><groupId>f</groupId><artifactId>f</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-runtime</artifactId><version>4.4.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency></dependencies></project>
XML
mvn --batch-mode --quiet -f "$work/pom.xml" dependency:copy-dependencies -DoutputDirectory="$work/jars" || exit 2
cat > "$work/Headers.java" <<'JAVA'
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.converters.ByteArrayConverter;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.storage.HeaderConverter;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;

class Headers {
    /** Return the bytes that a sink gets, and writes again. */
    static byte[] through(HeaderConverter converter, byte[] value) {
        var header = converter.toConnectHeader("t", "name", value);
        return converter.fromConnectHeader("t", "name", header.schema(), header.value());
    }

    public static void main(String[] arguments) {
        HeaderConverter simple = new SimpleHeaderConverter(), bytes = new ByteArrayConverter();
        simple.configure(Map.of());
        for (String text : List.of("007", "1.10", "12:30:45", "00:1A:2B:3C", "1,2", "0.1234567890123", "2026-12-01T00:00:00.000Z")) {
            System.out.println(text + " -> " + new String(through(simple, text.getBytes())));
        }
        HexFormat hex = HexFormat.ofDelimiter(" ");
        byte[] binary = {0, 1, (byte) 0xff};
        System.out.println(hex.formatHex(binary) + " -> " + hex.formatHex(through(simple, binary)));
        byte[] written = simple.fromConnectHeader("t", "name", Schema.BYTES_SCHEMA, "abc".getBytes());
        System.out.println("bytes of a source, abc -> " + new String(written));
        System.out.println("ByteArrayConverter: 007 -> " + new String(through(bytes, "007".getBytes())));
    }
}
JAVA
said=$(java -Duser.timezone=UTC -cp "$work/jars/*" "$work/Headers.java" 2> "$work/errors")
echo "$said"
[ "$said" = "007 -> 7
1.10 -> 1.1
12:30:45 -> 12
00:1A:2B:3C -> 0
1,2 -> 1
0.1234567890123 -> 0.12345679
2026-12-01T00:00:00.000Z -> 2026-12-01
00 01 ff -> 00 01 ef bf bd
bytes of a source, abc -> YWJj
ByteArrayConverter: 007 -> 007" ] || { tail -n 5 "$work/errors" >&2; echo "the behaviour has changed"; exit 1; }
