import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.zip.CRC32;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;

/**
 * The records that Kafka reads in batches.
 *
 * <p>A line of stdin is a batch in base64. The answer is "ok" and for each record its offset, timestamp and the
 * CRC-32 of its value, or "error" and why.
 */
public class DecodeMany {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            StringBuilder answer = new StringBuilder("ok\t");
            try {
                for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(Base64.getDecoder().decode(line))).batches()) {
                    batch.ensureValid();
                    for (Record record : batch) {
                        answer.append(record.offset()).append(' ').append(record.timestamp()).append(' ');
                        CRC32 value = new CRC32();
                        if (record.hasValue()) value.update(record.value().duplicate());
                        answer.append(value.getValue()).append(',');
                    }
                }
            } catch (Throwable problem) {
                answer = new StringBuilder("error\t" + problem.toString().replaceAll("\\s+", " "));
            }
            System.out.println(answer);
            System.out.flush();
        }
    }
}
